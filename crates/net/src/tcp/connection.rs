//! One connection.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    net::SocketAddr,
    task::{Context, Poll, Waker},
};

use bytes::{Buf, Bytes, BytesMut};

use super::stream::Stream;
use crate::stats::DriverStats;

/// The largest number of pieces that one system call writes. With a packet's worth each they are
/// 80 kB, and their list takes 1 kB of the stack.
const SLICES_MAX: usize = 64;

/// The number of bytes that one connection may write in a row, so that datagrams wait for some
/// 0.1 ms at most.
const WRITE_BYTES_MAX: usize = 512 * 1024;

/// The number of pieces for which an empty queue keeps its memory. An idle connection would
/// otherwise keep the memory of its longest queue.
const SPARE_PIECES_MAX: usize = 8;

pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) stage: ConnectionStage,
    /// The largest number of bytes that the node wants to read now.
    pub(super) read_max: Option<usize>,
    /// The user whose turns this one takes.
    pub(super) user: Option<u64>,
    /// Whether the peer's FIN was read.
    pub(super) is_at_end: bool,
    /// The bytes that were written and not reported to the node yet.
    pub(super) written: usize,
    /// Whether the driver's list of connections with something to write has this one.
    pub(super) is_unsent: bool,
    /// The error after which nothing can be written, while there are bytes that arrived before it.
    pub(super) broken: Option<io::ErrorKind>,
    queue: VecDeque<Bytes>,
    finish: Shutdown,
    waker: Waker,
}

/// The life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionStage {
    /// The node does not know yet that the connection is open.
    Opening {
        peer: SocketAddr,
    },
    Open,
    /// The node has closed the connection. The queue is written, and what arrives is dropped.
    Closing {
        /// Whether something was written since the last check.
        has_progress: bool,
    },
}

/// The progress of the sending direction's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    No,
    /// The FIN follows the queue.
    Wanted,
    Sent,
}

/// The result of an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    /// Everything, or the rest follows when the stream is writable.
    Enough,
    /// There is more to write, and other connections come first.
    More,
}

impl Connection {
    pub(super) fn new(stream: Stream, stage: ConnectionStage, waker: Waker) -> Self {
        Self {
            stream,
            stage,
            read_max: None,
            user: None,
            is_at_end: false,
            written: 0,
            is_unsent: false,
            broken: None,
            queue: VecDeque::new(),
            finish: Shutdown::No,
            waker,
        }
    }

    /// Returns whether an attempt to connect has ended. If not, the waker is told when it has.
    pub(super) fn poll_connected(&self) -> Poll<io::Result<()>> {
        self.stream.poll_connected(&mut Context::from_waker(&self.waker))
    }

    /// Returns whether reading could return something. If not, the waker is told when it can.
    pub(super) fn is_readable(&self) -> bool {
        self.stream.poll_read_ready(&mut Context::from_waker(&self.waker)).is_ready()
    }

    /// Reads at most as many bytes as the node wants into the buffer.
    pub(super) fn poll_read(
        &mut self,
        buffer: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        self.stream.poll_read(&mut Context::from_waker(&self.waker), buffer, max)
    }

    pub(super) fn push(&mut self, data: Bytes) {
        if self.finish == Shutdown::No && self.broken.is_none() && !data.is_empty() {
            self.queue.push_back(data);
        }
    }

    pub(super) fn finish(&mut self) {
        if self.finish == Shutdown::No {
            self.finish = Shutdown::Wanted;
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.stage, ConnectionStage::Closing { .. })
    }

    /// Returns whether there is something to write, or a FIN to send.
    pub(super) fn has_output(&self) -> bool {
        !self.queue.is_empty() || self.finish == Shutdown::Wanted
    }

    /// Notes that nothing can be written any more.
    pub(super) fn set_broken(&mut self, error: io::ErrorKind) {
        self.queue = VecDeque::new();
        self.finish = Shutdown::Sent;
        self.broken = Some(error);
    }

    /// Writes as much of the queue as the operating system takes, then the FIN if it is due.
    pub(super) fn write(&mut self, stats: &mut DriverStats) -> io::Result<Wrote> {
        let mut budget = WRITE_BYTES_MAX;
        while !self.queue.is_empty() {
            if budget == 0 {
                return Ok(Wrote::More);
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            for (slice, piece) in slices.iter_mut().zip(&self.queue) {
                *slice = IoSlice::new(piece);
            }
            let slices = slices.get(..self.queue.len()).unwrap_or(&slices);
            match self.stream.poll_write(&mut Context::from_waker(&self.waker), slices) {
                Poll::Pending => return Ok(Wrote::Enough),
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(result) => {
                    let count = result?;
                    self.note_written(count, stats);
                    budget = budget.saturating_sub(count);
                }
            }
        }
        if self.queue.capacity() > SPARE_PIECES_MAX {
            self.queue = VecDeque::new();
        }
        if self.finish == Shutdown::Wanted {
            self.finish = Shutdown::Sent;
            self.stream.finish();
        }
        Ok(Wrote::Enough)
    }

    /// Removes the bytes from the queue that the operating system took.
    fn note_written(&mut self, count: usize, stats: &mut DriverStats) {
        stats.tcp_write_calls += 1;
        stats.tcp_bytes_written += count as u64;
        self.written += count;
        if let ConnectionStage::Closing { has_progress } = &mut self.stage {
            *has_progress = true;
        }
        let mut left = count;
        while left > 0
            && let Some(piece) = self.queue.front_mut()
        {
            let part = left.min(piece.len());
            left -= part;
            piece.advance(part);
            if piece.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

//! A TCP connection at a node's edge, as the code that uses it sees it: what it was asked for, and what
//! it has not taken yet.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{TcpId, TcpOutput};
use crate::node::Output;

/// The most bytes of one read from a connection.
const READ_MAX: usize = 256 * 1024;

/// The bytes that one connection has been given and the operating system has not taken. At 1 Gbit/s
/// they are 2 ms.
const UNWRITTEN_MAX: usize = 256 * 1024;

/// A TCP connection at a node's edge.
#[derive(Debug)]
pub(crate) struct Socket {
    tcp: TcpId,
    /// Whether it was asked for bytes.
    is_reading: bool,
    has_read_fin: bool,
    unwritten: usize,
    sending: ToConnection,
}

/// The direction towards the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToConnection {
    Open,
    /// A FIN was written.
    Finished,
    /// The connection was closed or reset, or has failed.
    Ended,
}

impl Socket {
    pub(crate) const fn new(tcp: TcpId) -> Self {
        Self {
            tcp,
            is_reading: false,
            has_read_fin: false,
            unwritten: 0,
            sending: ToConnection::Open,
        }
    }

    pub(crate) const fn tcp(&self) -> TcpId {
        self.tcp
    }

    /// Whether the connection's FIN has arrived.
    pub(crate) const fn has_read_fin(&self) -> bool {
        self.has_read_fin
    }

    /// Bytes that the operating system has not taken.
    pub(crate) const fn unwritten(&self) -> usize {
        self.unwritten
    }

    /// Whether the connection has as many bytes as it may hold.
    pub(crate) const fn is_full(&self) -> bool {
        self.unwritten >= UNWRITTEN_MAX
    }

    /// Asks the connection for bytes, unless it was asked already or has no more.
    pub(crate) fn read(&mut self, outputs: &mut VecDeque<Output>) {
        if !self.has_read_fin && !std::mem::replace(&mut self.is_reading, true) {
            let read = TcpOutput::Read { tcp: self.tcp, max: READ_MAX };
            outputs.push_back(Output::Tcp(read));
        }
    }

    /// Notes that bytes have arrived. No bytes are the connection's FIN.
    pub(crate) const fn on_read(&mut self, data: &Bytes) {
        self.is_reading = false;
        self.has_read_fin |= data.is_empty();
    }

    /// Gives the connection bytes.
    pub(crate) fn write(&mut self, data: Bytes, outputs: &mut VecDeque<Output>) {
        if !data.is_empty() {
            self.unwritten += data.len();
            outputs.push_back(Output::Tcp(TcpOutput::Write { tcp: self.tcp, data }));
        }
    }

    /// Notes that the operating system took bytes. Returns whether the connection was full and takes
    /// more now.
    pub(crate) const fn on_written(&mut self, bytes: usize) -> bool {
        let was_full = self.is_full();
        self.unwritten = self.unwritten.saturating_sub(bytes);
        was_full && !self.is_full()
    }

    /// Ends the sending direction. A second call has no effect.
    pub(crate) fn finish(&mut self, outputs: &mut VecDeque<Output>) {
        if self.sending == ToConnection::Open {
            self.sending = ToConnection::Finished;
            outputs.push_back(Output::Tcp(TcpOutput::Finish(self.tcp)));
        }
    }

    /// Notes that the operating system has reported the end of the connection.
    pub(crate) const fn on_failed(&mut self) {
        self.sending = ToConnection::Ended;
    }

    /// Closes the connection after everything that was written, unless it has ended already.
    pub(crate) fn close(&mut self, outputs: &mut VecDeque<Output>) {
        if std::mem::replace(&mut self.sending, ToConnection::Ended) != ToConnection::Ended {
            outputs.push_back(Output::Tcp(TcpOutput::Close(self.tcp)));
        }
    }

    /// Resets the connection, unless it has ended already.
    pub(crate) fn reset(&mut self, outputs: &mut VecDeque<Output>) {
        if std::mem::replace(&mut self.sending, ToConnection::Ended) != ToConnection::Ended {
            outputs.push_back(Output::Tcp(TcpOutput::Reset(self.tcp)));
        }
    }
}

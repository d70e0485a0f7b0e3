//! The one standing queue of a tunnel, at its sender: HTTP Datagrams that wait for the tunnel's
//! QUIC connection to send them.
//!
//! The engine is given no more than one pacing burst at a time, so that the length here is the
//! tunnel's queue q(t). A full queue drops what comes.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::quic::{Connection, SendDatagram};

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// It waits.
    Queued,
    /// There is no room for it.
    Full,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct TunnelQueue {
    datagrams: VecDeque<Bytes>,
    bytes: usize,
    bytes_max: usize,
    /// Datagrams that the engine found too large since the last look.
    too_large: u64,
}

impl TunnelQueue {
    /// A queue of at most `bytes_max` bytes of HTTP Datagrams.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { datagrams: VecDeque::new(), bytes: 0, bytes_max, too_large: 0 }
    }

    /// Puts an encoded HTTP Datagram at the end.
    pub(crate) fn push(&mut self, datagram: Bytes) -> Push {
        if self.bytes + datagram.len() > self.bytes_max {
            return Push::Full;
        }
        self.bytes += datagram.len();
        self.datagrams.push_back(datagram);
        Push::Queued
    }

    /// Gives the engine as much as it takes for one burst.
    pub(crate) fn feed(&mut self, connection: &mut Connection) {
        while let Some(datagram) = self.datagrams.pop_front() {
            let len = datagram.len();
            match connection.send_datagram(datagram) {
                SendDatagram::Taken => {}
                SendDatagram::Blocked(datagram) => {
                    self.datagrams.push_front(datagram);
                    return;
                }
                // The path's MTU shrank while it waited.
                SendDatagram::TooLarge => self.too_large += 1,
            }
            self.bytes -= len;
        }
    }

    /// Datagrams that turned out too large since the last call.
    pub(crate) fn take_too_large(&mut self) -> u64 {
        std::mem::take(&mut self.too_large)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_what_comes() {
        let mut queue = TunnelQueue::new(100);
        let datagram = |len| Bytes::from(vec![0; len]);
        assert_eq!(queue.push(datagram(60)), Push::Queued);
        assert_eq!(queue.push(datagram(41)), Push::Full);
        assert_eq!(queue.push(datagram(40)), Push::Queued);
        assert_eq!(queue.push(datagram(1)), Push::Full);
        assert_eq!(queue.bytes, 100);
    }
}

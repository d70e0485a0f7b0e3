//! How a driver receives datagrams.

use std::mem;

use tandem_node::node::{Input, Node};

use super::{Application, Driver, RECEIVED_PER_ROUND, sockets::Lane};
use crate::{clock, listeners::Handed, ready::Readiness, socket::Drained};

impl<N: Node, A: Application<N>> Driver<'_, N, A> {
    /// Receives one batch from each readable socket and gives it to the node. Only one batch is
    /// received, so that no socket delays the others, and the node answers before it gets more. If the
    /// sockets together have too much, the last ones wait for the next round.
    pub(super) fn receive(&mut self) {
        if let Some((socket, desk)) = &self.shared {
            let now = clock::now();
            desk.take(*socket, |received| self.node.handle(now, Input::Datagram(received)));
        }
        let mut readable = mem::take(&mut self.readable);
        let most = self.stats.datagrams_received + RECEIVED_PER_ROUND;
        let mut sockets = readable.drain(..);
        while self.stats.datagrams_received < most
            && let Some(Lane { of: id, lane }) = sockets.next()
        {
            let Some((socket, signal)) = self.sockets.get_mut(&id).and_then(|slot| slot.lane(lane))
            else {
                continue;
            };
            let before = self.stats.datagrams_received;
            let mut now = None;
            let node = &mut self.node;
            let desk = self.shared.as_ref().filter(|(shared, _)| *shared == id);
            let (mut over, mut dropped) = (0, 0);
            let drained =
                socket.recv_batch(&mut self.receive_buffers, &mut self.stats, |received| {
                    let now = *now.get_or_insert_with(clock::now); // the time after the system call
                    let handed = match desk {
                        Some((_, desk)) => desk.hand(received),
                        None => Handed::Kept(received),
                    };
                    match handed {
                        Handed::Kept(received) => node.handle(now, Input::Datagram(received)),
                        Handed::Over => over += 1,
                        Handed::Dropped => dropped += 1,
                    }
                });
            self.pauses.on_received(id.0, self.stats.datagrams_received - before);
            self.stats.handed_over += over;
            self.stats.dropped_hand_over += dropped;
            if let Drained::Failed(error) = drained {
                self.stats.sockets_failed += 1;
                self.inputs.push(Input::SocketFailed { socket: id, error });
            }
            if drained != Drained::Empty || signal.arm() == Readiness::Now {
                self.readable.push(Lane { of: id, lane });
            }
        }
        self.readable.splice(..0, sockets);
        if self.readable.is_empty() {
            self.readable = readable; // this keeps its allocation
        }
    }
}

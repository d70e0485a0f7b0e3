//! Packets that the kernel gave to another thread than that of their connection.
//!
//! The kernel joins packets of one size that follow each other from one address (GRO), and gives them to the socket
//! that the filter chooses for the first one. A client with several connections at one port has connections in several
//! threads.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Context,
};

use futures_util::task::AtomicWaker;
use tandem_node::node::{Received, SocketId};

/// The most packets that wait for a thread. It gets them when it looks for packets of its own the next time, so that
/// more would be a flood.
const WAITING_MAX: usize = 256;

/// What waits for each thread of a process.
#[derive(Debug)]
pub(super) struct Exchange {
    boxes: Vec<Mailbox>,
    /// Which byte of a connection ID says the thread.
    thread_at: usize,
}

#[derive(Debug, Default)]
struct Mailbox {
    packets: Mutex<VecDeque<Received>>,
    /// Whether there are packets, so that a look costs nothing when there are none.
    has_any: AtomicBool,
    thread: AtomicWaker,
}

impl Exchange {
    pub(super) fn new(nodes: u8, thread_at: usize) -> Self {
        Self { boxes: (0..nodes).map(|_| Mailbox::default()).collect(), thread_at }
    }
}

/// What became of a packet.
#[derive(Debug)]
pub(crate) enum Handed {
    /// It is for the thread that received it.
    Kept(Received),
    /// It waits for another thread.
    Over,
    /// Too much waits for that thread.
    Dropped,
}

/// The part of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    exchange: Arc<Exchange>,
    index: usize,
}

impl Desk {
    pub(super) const fn new(exchange: Arc<Exchange>, index: usize) -> Self {
        Self { exchange, index }
    }

    /// Hands a packet to the thread of its connection.
    pub(crate) fn hand(&self, received: Received) -> Handed {
        let Exchange { boxes, thread_at } = &*self.exchange;
        let index = named_thread(&received.payload, *thread_at, boxes.len());
        let Some(mailbox) = index.filter(|it| *it != self.index).and_then(|it| boxes.get(it))
        else {
            return Handed::Kept(received);
        };
        let mut packets = mailbox.packets.lock().unwrap_or_else(PoisonError::into_inner);
        if packets.len() >= WAITING_MAX {
            return Handed::Dropped;
        }
        packets.push_back(received);
        drop(packets);
        mailbox.has_any.store(true, Ordering::Release);
        mailbox.thread.wake();
        Handed::Over
    }

    /// Whether packets wait for this thread. If none do, the task of the context is woken when some come.
    pub(crate) fn poll(&self, context: &Context<'_>) -> bool {
        let Some(mailbox) = self.mailbox() else { return false };
        mailbox.thread.register(context.waker());
        mailbox.has_any.load(Ordering::Acquire)
    }

    /// Takes the packets that wait for this thread, whose socket has this name.
    pub(crate) fn take(&self, socket: SocketId, mut each: impl FnMut(Received)) {
        let Some(mailbox) = self.mailbox() else { return };
        if !mailbox.has_any.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut packets = mailbox.packets.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::take(&mut *packets);
        drop(packets);
        for received in taken {
            each(Received { socket, ..received });
        }
    }

    fn mailbox(&self) -> Option<&Mailbox> {
        self.exchange.boxes.get(self.index)
    }
}

/// The thread that a packet's connection ID names, of this number of threads. `None`: it names none, because the client
/// has chosen it. The filter of the sockets computes the same, and the number of a process besides.
fn named_thread(payload: &[u8], thread_at: usize, threads: usize) -> Option<usize> {
    let &first = payload.first()?;
    let id_at = match first {
        0..0x80 => 1,
        // RFC 9000 §17.2.4: a Handshake packet, whose connection ID the server has chosen.
        _ if first & 0x30 == 0x20 => 6,
        _ => return None,
    };
    let &named = payload.get(id_at + thread_at)?;
    usize::from(named).checked_rem(threads)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    fn received(payload: &[u8]) -> Received {
        Received {
            socket: SocketId(7),
            remote: ([127, 0, 0, 1], 9).into(),
            local_ip: None,
            ecn: None,
            payload: BytesMut::from(payload),
        }
    }

    #[test]
    fn a_packet_comes_to_the_thread_that_its_id_names() {
        for thread_at in [0, 11] {
            let exchange = Arc::new(Exchange::new(3, thread_at));
            let desks = [0, 1, 2].map(|index| Desk::new(exchange.clone(), index));
            let front = |first: u8, before: usize, named: u8| {
                let mut packet = vec![first];
                packet.resize(1 + before + thread_at, 9);
                packet.push(named);
                packet
            };
            for (packet, expected) in [
                (front(0x40, 0, 4), Some(1)),
                (front(0x40, 0, 255), Some(0)),
                (front(0xe0, 5, 5), Some(2)),
                (front(0xc0, 5, 5), None),
                (front(0xf0, 5, 5), None),
                (vec![0x40], None),
                (Vec::new(), None),
            ] {
                assert_eq!(named_thread(&packet, thread_at, 3), expected, "{packet:?}");
                for (index, desk) in desks.iter().enumerate() {
                    let is_own = expected.is_none_or(|it| it == index);
                    match desk.hand(received(&packet)) {
                        Handed::Kept(kept) => assert!(is_own && kept.payload == packet),
                        Handed::Over => assert!(!is_own, "{packet:?}"),
                        Handed::Dropped => panic!("{packet:?}"),
                    }
                }
            }
            let taken = desks.each_ref().map(|desk| {
                let mut taken = 0;
                desk.take(SocketId(3), |it| {
                    assert_eq!(it.socket, SocketId(3));
                    taken += 1;
                });
                taken
            });
            assert_eq!(taken, [2, 2, 2]);
        }
    }

    #[test]
    fn a_flood_for_another_thread_is_dropped() {
        let exchange = Arc::new(Exchange::new(2, 0));
        let (from, to) = (Desk::new(exchange.clone(), 0), Desk::new(exchange, 1));
        let handed = |count: usize| {
            let over = |_: &usize| matches!(from.hand(received(&[0x40, 1, 2, 3])), Handed::Over);
            (0..count).filter(over).count()
        };
        assert_eq!(handed(2 * WAITING_MAX), WAITING_MAX);
        let mut taken = 0;
        to.take(SocketId(0), |_| taken += 1);
        assert_eq!((taken, handed(1)), (WAITING_MAX, 1));
    }
}

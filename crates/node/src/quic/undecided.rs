//! Packets of another machine's connections that came before it was known whether that machine is gone.
//!
//! It takes most of a second to find out ([`super::Neighbours`]). Meanwhile a client that hears nothing sends its
//! packets less and less often, so that the next one may come more than a second later. Hence the last packet of each
//! connection waits here, and is answered as soon as its machine is known to be gone.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_proto::FourTuple;
use tandem_wire::ConnectionId;

/// The most connections of other machines of which a packet waits. The clients of further ones are answered when they
/// next send something. One costs about 200 bytes.
const WAITING_MAX: usize = 4096;

/// The most bytes that are kept of a packet. A stateless reset is smaller than the packet that it answers, and 43 bytes
/// or more look like any packet (RFC 9000 §10.3).
const KEPT_LEN: usize = 64;

/// How long a packet waits: three times as long as it takes to find out that a machine is gone. If that is not known
/// then, the machine is there.
const PATIENCE: Duration = Duration::from_secs(3);

/// The time between two looks at what is known of the other machines.
const INTERVAL: Duration = Duration::from_millis(50);

/// The last packet of each connection that waits for an answer.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    packets: BTreeMap<ConnectionId, WaitingPacket>,
    /// When to look whether their machines are gone. `None` if no packet waits.
    next_look: Option<Instant>,
}

/// The beginning of a packet that waits.
#[derive(Debug, PartialEq)]
pub(super) struct WaitingPacket {
    came: Instant,
    pub(super) path: FourTuple,
    pub(super) payload: BytesMut,
}

impl WaitingPacket {
    /// The beginning of this packet.
    pub(super) fn new(now: Instant, path: FourTuple, payload: &[u8]) -> Self {
        let kept = payload.get(..KEPT_LEN).unwrap_or(payload);
        Self { came: now, path, payload: kept.into() }
    }
}

impl Undecided {
    /// Keeps a packet instead of the last one with its connection ID, if there is room.
    pub(super) fn insert(&mut self, id: ConnectionId, packet: WaitingPacket) {
        if self.packets.len() >= WAITING_MAX && !self.packets.contains_key(&id) {
            return;
        }
        self.next_look.get_or_insert(packet.came + INTERVAL);
        self.packets.insert(id, packet);
    }

    /// When [`Self::decide`] should be called.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.next_look
    }

    /// Takes the packets that have to be answered, because the machines that their connection IDs name are gone.
    /// Forgets those that have waited too long.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        is_gone: impl Fn(&ConnectionId) -> bool,
    ) -> Vec<(ConnectionId, WaitingPacket)> {
        if self.next_look.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.packets.retain(|_, packet| packet.came + PATIENCE > now);
        let gone: Vec<_> = self.packets.keys().filter(|id| is_gone(id)).copied().collect();
        let decided = gone.iter().filter_map(|id| self.packets.remove_entry(id)).collect();
        self.next_look = (!self.packets.is_empty()).then_some(now + INTERVAL);
        decided
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::test_start;

    fn id(number: usize) -> ConnectionId {
        ConnectionId::try_from(&number.to_be_bytes()[..]).unwrap()
    }

    fn packet(came: Instant, len: usize) -> WaitingPacket {
        let client = SocketAddr::from(([10, 0, 0, 1], 1000));
        WaitingPacket::new(came, FourTuple::new(client, None), &vec![0x40; len])
    }

    #[test]
    fn packets_wait_until_their_machine_is_gone_or_they_are_old() {
        let (mut undecided, now) = (Undecided::default(), test_start());
        assert_eq!(undecided.next_timeout(), None);
        undecided.insert(id(1), packet(now, 1300));
        undecided.insert(id(2), packet(now, 40));
        undecided.insert(id(2), packet(now + INTERVAL / 2, 50));
        assert_eq!(undecided.next_timeout(), Some(now + INTERVAL));
        assert_eq!(undecided.decide(now + INTERVAL / 2, |_| true), [], "it is too early to look");
        assert_eq!(undecided.decide(now + INTERVAL, |_| false), []);
        assert_eq!(undecided.next_timeout(), Some(now + 2 * INTERVAL));
        let decided = undecided.decide(now + 2 * INTERVAL, |it| *it == id(2));
        assert_eq!(decided, [(id(2), packet(now + INTERVAL / 2, 50))]);
        assert_eq!(undecided.decide(now + PATIENCE, |_| true), [], "the other one was too old");
        assert_eq!(undecided.next_timeout(), None);
    }

    #[test]
    fn what_waits_is_bounded() {
        let (mut undecided, now) = (Undecided::default(), test_start());
        for number in 0..WAITING_MAX + 10 {
            undecided.insert(id(number), packet(now, 1300));
        }
        let decided = undecided.decide(now + INTERVAL, |_| true);
        assert_eq!(decided.len(), WAITING_MAX);
        assert!(decided.iter().all(|(_, packet)| packet.payload.len() == KEPT_LEN));
    }
}

//! Connection IDs by which a receiver finds packets.

use std::collections::BTreeMap;

use tandem_wire::ConnectionId;

use crate::quic::Header;

/// A map from connection IDs to what they stand for, of which none is a prefix of another.
#[derive(Debug)]
pub(super) struct PrefixFreeMap<T>(BTreeMap<ConnectionId, T>);

impl<T> Default for PrefixFreeMap<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> PrefixFreeMap<T> {
    /// Adds an ID. `false`: it conflicts with another one, and is not added.
    pub(super) fn insert(&mut self, id: ConnectionId, value: T) -> bool {
        let before = self.0.range(..=id).next_back();
        let after = self.0.range(id..).next();
        let mut neighbours = before.into_iter().chain(after);
        if neighbours.any(|(other, _)| other.conflicts_with(&id)) {
            return false;
        }
        self.0.insert(id, value);
        true
    }

    pub(super) fn remove(&mut self, id: &ConnectionId) -> Option<T> {
        self.0.remove(id)
    }

    /// The ID of a packet with a short header. Such a header does not say how long the ID is.
    pub(super) fn find(&self, packet: &[u8]) -> Option<(ConnectionId, &T)> {
        let Some(Header::Short { rest }) = Header::read(packet) else { return None }; // it has a long one
        let longest = rest.get(..ConnectionId::LEN_MAX).unwrap_or(rest);
        let longest = ConnectionId::try_from(longest).ok()?;
        // No ID is a prefix of another, so that the last one that is not above the bytes is the only
        // one that can be at their front.
        let (id, value) = self.0.range(..=longest).next_back()?;
        rest.starts_with(id).then_some((*id, value))
    }

    /// Whether a packet with a short header begins as packets with one of the IDs do, for this number of bytes.
    pub(super) fn has_one_like(&self, packet: &[u8], len: usize) -> bool {
        if self.0.is_empty() {
            return false; // as at most proxies, for each packet
        }
        let Some(Header::Short { rest }) = Header::read(packet) else { return false }; // it has a long one
        let Some(Ok(front)) = rest.get(..len).map(ConnectionId::try_from) else { return false }; // too short
        self.0.range(front..).next().is_some_and(|(id, _)| id.starts_with(&front))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(bytes: &[u8]) -> ConnectionId {
        ConnectionId::try_from(bytes).unwrap()
    }

    #[test]
    fn an_id_that_is_a_prefix_of_another_is_not_added() {
        let mut ids = PrefixFreeMap::default();
        assert!(ids.insert(id(&[1, 2, 3]), 1));
        for conflict in [&[1, 2, 3][..], &[1, 2], &[1, 2, 3, 4], &[]] {
            assert!(!ids.insert(id(conflict), 2), "{conflict:?}");
        }
        assert!(ids.insert(id(&[1, 2, 4]), 3) && ids.insert(id(&[1, 1]), 4));
        assert_eq!(ids.remove(&id(&[1, 2, 3])), Some(1));
        assert!(ids.insert(id(&[1, 2, 3, 0]), 5));
    }

    #[test]
    fn only_short_headers_have_such_ids() {
        let mut ids = PrefixFreeMap::default();
        assert!(ids.insert(id(&[9; 8]), ()));
        assert!(ids.find(&[0x40, 9, 9, 9, 9, 9, 9, 9, 9]).is_some());
        assert!(ids.find(&[0xc0, 9, 9, 9, 9, 9, 9, 9, 9]).is_none());
        assert!(ids.find(&[0x40, 9, 9, 9, 9, 9, 9, 9]).is_none(), "a part of the ID");
        assert!(ids.find(&[]).is_none());
    }

    #[test]
    fn an_id_is_known_by_its_first_bytes() {
        let mut ids = PrefixFreeMap::default();
        assert!(ids.insert(id(&[1, 2, 3, 4, 9]), ()) && ids.insert(id(&[5, 6]), ()));
        for (packet, expected) in [
            (&[0x40, 1, 2, 3, 4, 9][..], true),
            (&[0x40, 1, 2, 3, 4, 8], true),
            (&[0x40, 1, 2, 3, 4, 10], true),
            (&[0x40, 1, 2, 3, 4], true),
            (&[0x40, 1, 2, 3, 5, 9], false),
            (&[0x40, 1, 2, 3], false),
            (&[0x40, 5, 6, 0, 0], false),
            (&[0xc0, 1, 2, 3, 4, 9], false),
        ] {
            assert_eq!(ids.has_one_like(packet, 4), expected, "{packet:?}");
        }
    }

    proptest! {
        #[test]
        fn a_packet_is_found_by_the_id_at_its_front(
            added in proptest::collection::vec(proptest::collection::vec(0_u8..3, 0..5), 0..12),
            packet in proptest::collection::vec(0_u8..3, 0..8),
        ) {
            let mut ids = PrefixFreeMap::default();
            let added: Vec<_> = added.iter().filter(|it| ids.insert(id(it), it.len())).collect();
            let expected = added.iter().find(|it| packet.get(1..).is_some_and(|rest| rest.starts_with(it)));
            let found = ids.find(&packet).map(|(found, &len)| (found.to_vec(), len));
            prop_assert_eq!(found, expected.map(|it| ((*it).clone(), it.len())));
        }
    }
}

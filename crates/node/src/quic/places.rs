//! The places of a server's connections. A stranger cannot take them all.
//!
//! A connection is *proven* once its peer has made a request that the server permits. Until then it
//! is *unproven*. Connections are counted by the prefix of their peer's address, because one
//! machine may have every address of its prefix: /24 for IPv4, and /56 for IPv6, which is what an
//! access network usually delegates to one site (RFC 6177 §2).
//!
//! If a new connection needs a place, the first rule that applies decides:
//!
//! 1. The prefix has used up its share of unproven connections: the oldest of them makes room.
//! 2. There is room: it gets a place.
//! 3. There is no room: the oldest unproven connection of the prefix that has most of them makes
//!    room.
//! 4. No connection is unproven, but one prefix has more than its share of all connections, and
//!    the prefix of the new one has less: the newest connection of the first makes room.
//! 5. Otherwise the new connection is refused.
//!
//! The oldest unproven connection had the most time for a request. A connection that floods of
//! others displace lived for the time in which as many arrived as the share has places, which is
//! longer than the round trips that an honest client needs for its first request.

#[cfg(any(test, fuzzing))]
pub(super) mod model;

use std::collections::{BTreeMap, BTreeSet};

use super::ConnectionId;
use crate::prefix::Prefix;

/// A prefix with more unproven connections than this has a crowd of strangers. Honest clients of one prefix, which each
/// need a round trip for their first request, are as many only if some hundred come in a second.
const CROWD: usize = 16;

/// The connections of one prefix. IDs ascend with the age.
#[derive(Debug, Default)]
struct Holders {
    proven: BTreeSet<ConnectionId>,
    unproven: BTreeSet<ConnectionId>,
}

impl Holders {
    fn total(&self) -> usize {
        self.proven.len() + self.unproven.len()
    }

    fn newest(&self) -> Option<ConnectionId> {
        self.proven.last().max(self.unproven.last()).copied()
    }
}

/// What a new connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// There is a place.
    Free,
    /// There is one once this connection has been closed.
    Instead(ConnectionId),
    /// There is none.
    None,
}

/// The connections of a server by the prefixes of their peers.
#[derive(Debug)]
pub(super) struct Places {
    by_prefix: BTreeMap<Prefix, Holders>,
    /// The prefixes by the number of their unproven connections, and by the number of all.
    by_unproven: BTreeSet<(usize, Prefix)>,
    by_total: BTreeSet<(usize, Prefix)>,
    /// The share of one prefix.
    share: usize,
}

impl Places {
    pub(super) fn new(share: usize) -> Self {
        Self {
            by_prefix: BTreeMap::new(),
            by_unproven: BTreeSet::new(),
            by_total: BTreeSet::new(),
            share,
        }
    }

    /// The place for a new connection. `has_room`: the server has fewer connections than it may
    /// have.
    pub(super) fn find(&self, prefix: Prefix, has_room: bool) -> Place {
        let own = self.by_prefix.get(&prefix);
        let unproven = own.map(|holders| &holders.unproven);
        let used_up = unproven.filter(|unproven| unproven.len() >= self.share);
        if let Some(&oldest) = used_up.and_then(BTreeSet::first) {
            return Place::Instead(oldest);
        }
        if has_room {
            return Place::Free;
        }
        if let Some(oldest) = self.oldest_unproven() {
            return Place::Instead(oldest);
        }
        let Some(&(most, largest)) = self.by_total.last() else { return Place::None };
        let newest = self.by_prefix.get(&largest).and_then(Holders::newest);
        match newest {
            Some(newest) if most > self.share && own.map_or(0, Holders::total) < self.share => {
                Place::Instead(newest)
            }
            _ => Place::None,
        }
    }

    /// The oldest unproven connection of the prefix that has most of them.
    pub(super) fn oldest_unproven(&self) -> Option<ConnectionId> {
        let (_, prefix) = self.by_unproven.last()?;
        self.by_prefix.get(prefix)?.unproven.first().copied()
    }

    /// As [`Self::oldest_unproven`], if that prefix has more unproven connections than some clients who have just come.
    pub(super) fn oldest_of_a_crowd(&self) -> Option<ConnectionId> {
        let (number, _) = self.by_unproven.last()?;
        (*number > CROWD).then(|| self.oldest_unproven()).flatten()
    }

    /// Notes a new connection, which is unproven.
    pub(super) fn insert(&mut self, prefix: Prefix, id: ConnectionId) {
        self.change(prefix, |holders| {
            holders.unproven.insert(id);
        });
    }

    /// Notes that the peer of a connection has made a request that is permitted.
    pub(super) fn prove(&mut self, prefix: Prefix, id: ConnectionId) {
        self.change(prefix, |holders| {
            if holders.unproven.remove(&id) {
                holders.proven.insert(id);
            }
        });
    }

    /// Forgets a connection.
    pub(super) fn remove(&mut self, prefix: Prefix, id: ConnectionId) {
        self.change(prefix, |holders| {
            holders.unproven.remove(&id);
            holders.proven.remove(&id);
        });
    }

    fn change(&mut self, prefix: Prefix, change: impl FnOnce(&mut Holders)) {
        let holders = self.by_prefix.entry(prefix).or_default();
        self.by_unproven.remove(&(holders.unproven.len(), prefix));
        self.by_total.remove(&(holders.total(), prefix));
        change(holders);
        if holders.total() == 0 {
            self.by_prefix.remove(&prefix);
            return;
        }
        self.by_total.insert((holders.total(), prefix));
        if !holders.unproven.is_empty() {
            self.by_unproven.insert((holders.unproven.len(), prefix));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn connections_from_many_prefixes_follow_the_rules(
            input in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            model::run(&input);
        }
    }

    /// The prefix of an address.
    fn of(address: &str) -> Prefix {
        Prefix::of_network(address.parse().unwrap())
    }

    /// Places with a share of 3, and connections that are added in this order. A `!` marks proven
    /// ones.
    fn places(connections: &[&str]) -> Places {
        let mut places = Places::new(3);
        for (id, connection) in (0..).zip(connections) {
            let prefix = of(connection.trim_end_matches('!'));
            places.insert(prefix, ConnectionId(id));
            if connection.ends_with('!') {
                places.prove(prefix, ConnectionId(id));
            }
        }
        places
    }

    #[test]
    fn the_first_rule_that_applies_decides() {
        use Place::{Free, Instead};
        let (a, b) = ("10.0.0.1", "10.0.1.1");
        for (what, connections, prefix, has_room, expected) in [
            ("nobody", &[][..], a, true, Free),
            ("below the share", &[a, a], a, true, Free),
            ("the share is used up", &[b, a, a, a], a, true, Instead(ConnectionId(1))),
            ("another prefix has used its share up", &[a, a, a], b, true, Free),
            ("proven connections have no share to use up", &["10.0.0.1!"; 5], a, true, Free),
            ("full: most unproven", &[b, a, a, b, a], b, false, Instead(ConnectionId(1))),
            (
                "full, and the share is used up",
                &[a, a, a, b, b, b],
                a,
                false,
                Instead(ConnectionId(0)),
            ),
            (
                "full: one unproven",
                &["10.0.0.1!", b, "10.0.0.1!"],
                a,
                false,
                Instead(ConnectionId(1)),
            ),
            ("full: all proven, own prefix", &["10.0.0.1!"; 4], a, false, Place::None),
            (
                "full: all proven, other prefix",
                &["10.0.0.1!"; 4],
                b,
                false,
                Instead(ConnectionId(3)),
            ),
            ("full: all proven, none above the share", &["10.0.0.1!"; 3], b, false, Place::None),
            ("no room for anybody", &[], a, false, Place::None),
        ] {
            assert_eq!(places(connections).find(of(prefix), has_room), expected, "{what}");
        }
    }

    #[test]
    fn what_has_gone_leaves_nothing_behind() {
        let connections = ["10.0.0.1", "10.0.0.2!", "10.0.1.1!", "2001:db8::1"];
        let mut places = places(&connections);
        for (id, connection) in (0..).zip(connections) {
            places.remove(of(connection.trim_end_matches('!')), ConnectionId(id));
            places.prove(of(connection.trim_end_matches('!')), ConnectionId(id));
        }
        assert!(places.by_prefix.is_empty(), "{places:?}");
        assert!(places.by_unproven.is_empty() && places.by_total.is_empty(), "{places:?}");
    }
}

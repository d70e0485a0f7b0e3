//! The order in which connections get their turns: each user in turn, and of each user one connection after the other.

use std::collections::{BTreeMap, VecDeque};

/// Whose turn a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party<T> {
    /// Its own.
    Alone(T),
    /// That of a user with this number, who may have other connections.
    User(u64),
}

/// The most users whose empty queues are kept, besides those who wait, so that a turn needs no allocation.
const KEPT_MAX: usize = 64;

/// Connections that may have something to do, in the order of their turns.
#[derive(Debug)]
pub struct Rounds<T> {
    order: VecDeque<Party<T>>,
    /// The connections of each user.
    waiting: BTreeMap<u64, VecDeque<T>>,
}

impl<T> Default for Rounds<T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: BTreeMap::new() }
    }
}

impl<T: Copy + Eq> Rounds<T> {
    /// Whether no connection waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Adds a connection at the end of its party's turns.
    pub fn push_back(&mut self, party: Party<T>, id: T) {
        let Party::User(user) = party else { return self.order.push_back(party) };
        let most = KEPT_MAX + 2 * self.order.len();
        if self.waiting.len() >= most && !self.waiting.contains_key(&user) {
            self.waiting.retain(|_, waiting| !waiting.is_empty());
        }
        let waiting = self.waiting.entry(user).or_default();
        if waiting.is_empty() {
            self.order.push_back(party);
        }
        waiting.push_back(id);
    }

    /// The connection whose turn it is.
    pub(crate) fn front(&self) -> Option<T> {
        match *self.order.front()? {
            Party::Alone(id) => Some(id),
            Party::User(user) => self.waiting.get(&user)?.front().copied(),
        }
    }

    /// Ends the turn of the front connection, which stays in the round.
    pub(crate) fn rotate(&mut self) {
        if let Some((party, id)) = self.take_front() {
            self.push_back(party, id);
        }
    }

    /// Removes the front connection.
    pub fn pop_front(&mut self) -> Option<T> {
        self.take_front().map(|(_, id)| id)
    }

    /// Removes the front connection. It was the turn of its party, whose other connections wait for the next.
    fn take_front(&mut self) -> Option<(Party<T>, T)> {
        let party = self.order.pop_front()?;
        let user = match party {
            Party::Alone(id) => return Some((party, id)),
            Party::User(user) => user,
        };
        let waiting = self.waiting.get_mut(&user)?;
        let id = waiting.pop_front()?;
        if !waiting.is_empty() {
            self.order.push_back(party);
        }
        Some((party, id))
    }

    /// Moves a connection to another party, if it is in the round.
    pub(crate) fn change(&mut self, id: T, (old, new): (Party<T>, Party<T>)) {
        let is_empty = match old {
            Party::Alone(_) => true,
            Party::User(user) => {
                let Some(waiting) = self.waiting.get_mut(&user) else { return }; // none of the user waits
                let before = waiting.len();
                waiting.retain(|other| *other != id);
                if waiting.len() == before {
                    return;
                }
                waiting.is_empty()
            }
        };
        let before = self.order.len();
        if is_empty {
            self.order.retain(|party| *party != old);
        }
        if old != Party::Alone(id) || self.order.len() < before {
            self.push_back(new, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::ConnectionId;

    /// The order of turns of connections with these parties, each of which has two packets to send.
    fn turns(parties: &[Party<ConnectionId>]) -> Vec<u64> {
        let mut rounds = Rounds::default();
        for (id, &party) in (0..).zip(parties) {
            rounds.push_back(party, ConnectionId(id));
        }
        let mut sent = vec![0; parties.len()];
        let mut turns = Vec::new();
        while let Some(id) = rounds.front() {
            let count = &mut sent[usize::try_from(id.0).unwrap()];
            if *count == 2 {
                assert_eq!(rounds.pop_front(), Some(id));
            } else {
                *count += 1;
                turns.push(id.0);
                rounds.rotate();
            }
        }
        assert!(
            rounds.order.is_empty() && rounds.waiting.values().all(VecDeque::is_empty),
            "{rounds:?}"
        );
        turns
    }

    #[test]
    fn users_take_turns_however_many_connections_they_have() {
        let alone = |id| Party::Alone(ConnectionId(id));
        assert_eq!(turns(&[alone(0), alone(1), alone(2)]), [0, 1, 2, 0, 1, 2]);
        let greedy = Party::User(7);
        let turns = turns(&[greedy, greedy, greedy, alone(3), Party::User(8)]);
        assert_eq!(turns, [0, 3, 4, 1, 3, 4, 2, 0, 1, 2]);
    }

    #[test]
    fn a_connection_changes_its_party_once_its_user_is_known() {
        let (mut rounds, id) = (Rounds::default(), ConnectionId(1));
        let parties = (Party::Alone(id), Party::User(7));
        rounds.change(id, parties);
        assert_eq!(rounds.front(), None, "it was not in the round");
        rounds.push_back(parties.0, id);
        rounds.change(id, parties);
        rounds.change(id, (parties.1, parties.1));
        assert_eq!(rounds.pop_front(), Some(id));
        assert!(
            rounds.order.is_empty() && rounds.waiting.values().all(VecDeque::is_empty),
            "{rounds:?}"
        );
    }

    #[test]
    fn users_who_are_gone_are_forgotten() {
        let mut rounds = Rounds::default();
        for user in 0..10_000 {
            rounds.push_back(Party::User(user), ConnectionId(user));
            assert_eq!(rounds.pop_front(), Some(ConnectionId(user)));
        }
        assert!(rounds.waiting.len() <= KEPT_MAX, "{}", rounds.waiting.len());
    }
}

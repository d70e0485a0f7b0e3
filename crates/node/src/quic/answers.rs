//! The answers of an endpoint itself: Version Negotiation, Retry, stateless resets, refusals.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use tandem_wire::ConnectionId;

use super::budget::{Budget, BudgetPart};
use crate::{limits::Limits, node::Transmit, prefix::Prefix};

/// The most answers that wait to be sent. A driver hands over 128 packets and what came together with the last one of
/// them before it sends. More are dropped, which costs the peers that provoke them nothing.
const WAITING_MAX: usize = 256;

/// The time between two answers to packets with one connection ID. One stateless reset ends a connection, and up to a
/// window of its packets may come when it has ended already. The engine has the same time for all packets together.
const INTERVAL: Duration = Duration::from_millis(20);

/// The most connection IDs of which it is known that they were answered of late: a few more than the budget permits.
const RECENT_MAX: usize = 8192;

/// Answers that wait to be sent.
#[derive(Debug)]
pub(super) struct Answers {
    waiting: VecDeque<(Transmit, Vec<u8>)>,
    budget: Budget,
    too_many: u64,
    /// The connection IDs that were answered of late, and the same in the order of time.
    recent: BTreeSet<ConnectionId>,
    by_time: VecDeque<(Instant, ConnectionId)>,
}

impl Answers {
    pub(super) const fn new(limits: &Limits) -> Self {
        let budget = Budget::new(limits.answers);
        Self {
            waiting: VecDeque::new(),
            budget,
            too_many: 0,
            recent: BTreeSet::new(),
            by_time: VecDeque::new(),
        }
    }

    /// Whether a packet with this connection ID was answered lately. Then no process has the connection, and its next
    /// packets get no answer.
    pub(super) fn has_answered(&mut self, now: Instant, id: Option<ConnectionId>) -> bool {
        let Some(id) = id.filter(|_| !self.recent.is_empty()) else { return false };
        self.forget_old(now);
        let is_recent = self.recent.contains(&id);
        self.too_many += u64::from(is_recent);
        is_recent
    }

    /// Adds the answer to a packet of no connection, if the prefix of its sender has not had too many of them. `id` is
    /// that of a packet with a short header, and was not answered of late.
    pub(super) fn push_to_stranger(
        &mut self,
        now: Instant,
        id: Option<ConnectionId>,
        (transmit, bytes): (Transmit, Vec<u8>),
    ) {
        let prefix = Prefix::of_network(transmit.destination.ip());
        if self.budget.spend(now, prefix, BudgetPart::All).is_err() {
            self.too_many += 1;
            return;
        }
        if let Some(id) = id {
            self.recent.insert(id);
            self.by_time.push_back((now, id));
        }
        self.push(transmit, bytes);
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.by_time.front()
            && (at + INTERVAL <= now || self.by_time.len() >= RECENT_MAX)
        {
            self.by_time.pop_front();
            self.recent.remove(&id);
        }
    }

    pub(super) fn push(&mut self, transmit: Transmit, bytes: Vec<u8>) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back((transmit, bytes));
        } else {
            self.too_many += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<(Transmit, Vec<u8>)> {
        self.waiting.pop_front()
    }

    /// How many answers were not given.
    pub(super) const fn too_many(&self) -> u64 {
        self.too_many
    }
}

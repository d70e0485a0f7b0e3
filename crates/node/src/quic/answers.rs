//! The answers of an endpoint itself: Version Negotiation, Retry, stateless resets, refusals.

use std::{collections::VecDeque, time::Instant};

use super::budget::{Budget, Part};
use crate::{limits::Limits, node::Transmit, prefix::Prefix};

/// The most answers that wait to be sent. A driver hands over 128 packets and what came together with the last one of
/// them before it sends. More are dropped, which costs the peers that provoke them nothing.
const WAITING_MAX: usize = 256;

/// Answers that wait to be sent.
#[derive(Debug)]
pub(super) struct Answers {
    waiting: VecDeque<(Transmit, Vec<u8>)>,
    budget: Budget,
    too_many: u64,
}

impl Answers {
    pub(super) const fn new(limits: &Limits) -> Self {
        let budget = Budget::new(limits.answers);
        Self { waiting: VecDeque::new(), budget, too_many: 0 }
    }

    /// Adds the answer to a packet of no connection, if the prefix of its sender has not had too many of them.
    pub(super) fn push_to_stranger(&mut self, now: Instant, transmit: Transmit, bytes: Vec<u8>) {
        let prefix = Prefix::of_network(transmit.destination.ip());
        match self.budget.spend(now, prefix, Part::All) {
            Ok(()) => self.push(transmit, bytes),
            Err(_) => self.too_many += 1,
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

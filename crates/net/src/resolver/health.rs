//! Which name servers have answered of late, so that a dead one does not delay every question.

use std::time::Duration;

use tokio::time::Instant;

/// For how long a server that was silent is asked after the others.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) struct Health {
    /// Until when each server counts as silent.
    silent_until: Vec<Option<Instant>>,
    /// The server with which the next question begins, if they take turns.
    turn: usize,
}

impl Health {
    pub(super) fn new(servers: usize) -> Self {
        Self { silent_until: vec![None; servers], turn: 0 }
    }

    /// The servers in the order in which a question asks them.
    pub(super) fn order(&mut self, rotate: bool) -> Vec<usize> {
        let now = Instant::now();
        let mut order: Vec<usize> = (0..self.silent_until.len()).collect();
        if rotate && !order.is_empty() {
            self.turn = (self.turn + 1) % order.len();
            order.rotate_left(self.turn);
        }
        let is_silent = |server: &usize| {
            self.silent_until.get(*server).copied().flatten().is_some_and(|until| now < until)
        };
        order.sort_by_key(is_silent); // this sort is stable
        order
    }

    pub(super) fn on_silent(&mut self, server: usize) {
        if let Some(until) = self.silent_until.get_mut(server) {
            *until = Some(Instant::now() + SILENCE);
        }
    }

    pub(super) fn on_answer(&mut self, server: usize) {
        if let Some(until) = self.silent_until.get_mut(server) {
            *until = None;
        }
    }
}

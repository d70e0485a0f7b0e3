//! Whose datagrams come from a port of this host: which ports belong to the user of each program.
//!
//! The driver is asked for all ports of a user at once, and never for two users at the same time. A stranger that
//! sends from thousands of ports therefore causes one question after the other, and no more. The ports of the program
//! are in each answer, whatever else was sent meanwhile.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    time::Instant,
};

use crate::{limits::Limits, node::Received, tcp::TcpId};

/// What is known of the programs on loopback.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by_tcp: BTreeMap<TcpId, KnownProgram>,
    /// The connections of which the driver will be asked, each of them once.
    waiting: VecDeque<TcpId>,
    /// The connection of which the driver was asked.
    asked: Option<TcpId>,
    /// The number of all datagrams that are held.
    held: usize,
}

/// What is known of one program.
#[derive(Debug, Default)]
struct KnownProgram {
    /// The ports of its user in ascending order, and when they were known.
    ports: Option<(Box<[u16]>, Instant)>,
    /// Datagrams that wait for an answer.
    held: VecDeque<Received>,
    /// The number of the first of them that came before the question. The answer to it decides about them.
    held_before: usize,
    /// Whether the connection is in `waiting`.
    is_waiting: bool,
}

impl KnownProgram {
    fn has(&self, port: u16) -> bool {
        self.ports.as_ref().is_some_and(|(ports, _)| ports.binary_search(&port).is_ok())
    }
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatagramVerdict {
    /// It comes from the user of the program.
    Serve,
    /// It has to wait for an answer of the driver.
    Ask,
}

impl Owners {
    /// Says whether a datagram from this port is one of the program.
    pub(super) fn verdict(
        &mut self,
        tcp: TcpId,
        port: u16,
        now: Instant,
        limits: &Limits,
    ) -> DatagramVerdict {
        let known = self.by_tcp.entry(tcp).or_default();
        let age = known.ports.as_ref().map(|(_, at)| now.saturating_duration_since(*at));
        let is_young = |part| age.is_some_and(|age| age < limits.owners_known / part);
        let is_known = known.has(port) && is_young(1);
        let verdict = if is_known { DatagramVerdict::Serve } else { DatagramVerdict::Ask };
        if (verdict == DatagramVerdict::Ask || !is_young(2)) && !known.is_waiting {
            known.is_waiting = true;
            self.waiting.push_back(tcp);
        }
        verdict
    }

    /// Keeps a datagram until the driver has answered. `false`: too many are kept already.
    pub(super) fn hold(&mut self, tcp: TcpId, received: Received, limits: &Limits) -> bool {
        let has_room = self.held < limits.unowned_datagrams;
        if has_room && let Some(known) = self.by_tcp.get_mut(&tcp) {
            known.held.push_back(received);
            self.held += 1;
        }
        has_room
    }

    /// The program of which the driver is asked now. `None`: there is none, or a question is open.
    pub(super) fn next_question(&mut self) -> Option<TcpId> {
        if self.asked.is_some() {
            return None;
        }
        let tcp = self.waiting.pop_front()?;
        let known = self.by_tcp.get_mut(&tcp)?;
        known.is_waiting = false;
        known.held_before = known.held.len();
        self.asked = Some(tcp);
        Some(tcp)
    }

    /// Handles the answer. Returns the datagrams that it decides about, and whether each is the program's.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        tcp: TcpId,
        result: Result<Box<[u16]>, io::ErrorKind>,
    ) -> Vec<(Received, bool)> {
        if self.asked == Some(tcp) {
            self.asked = None;
        }
        let Some(known) = self.by_tcp.get_mut(&tcp) else { return Vec::new() }; // the program has gone
        known.ports = result.ok().map(|ports| (ports, now));
        let mut decided = Vec::new();
        for (index, received) in std::mem::take(&mut known.held).into_iter().enumerate() {
            let is_served = known.has(received.remote.port());
            if is_served || index < known.held_before {
                decided.push((received, is_served));
            } else {
                // The port may have been opened after the driver had looked.
                known.held.push_back(received);
            }
        }
        self.held -= decided.len();
        if known.held.is_empty() {
            // What has come since the question was decided too.
            known.is_waiting = false;
            self.waiting.retain(|waiting| *waiting != tcp);
        } else if !known.is_waiting {
            known.is_waiting = true;
            self.waiting.push_back(tcp);
        }
        decided
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_tcp.is_empty() && self.waiting.is_empty() && self.asked.is_none() && self.held == 0
    }

    /// Forgets a program that has gone.
    pub(super) fn forget(&mut self, tcp: TcpId) {
        if let Some(known) = self.by_tcp.remove(&tcp) {
            self.held -= known.held.len();
            self.waiting.retain(|waiting| *waiting != tcp);
        }
    }
}

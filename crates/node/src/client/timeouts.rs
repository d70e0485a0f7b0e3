//! The timers of a client.

use std::time::Instant;

use super::{Client, Work};
use crate::{error::ClientError, quic};

impl Client {
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for index in 0..self.chain.len() {
            let Some(peer) = self.chain.peer(index) else { continue };
            peer.handle_timeout(now);
            if peer.deadline.is_some_and(|deadline| deadline <= now) {
                peer.deadline = None;
                let (peer, timeout) = (peer.settings.authority.clone(), self.limits.setup_timeout);
                self.on_peer_failed(now, index, ClientError::NoAnswer { peer, timeout });
            }
        }
        for hop in &mut self.chain.hops {
            hop.handle_timeout(now);
        }
        self.check_suspicion(now);
        self.handle_race_timeout(now);
        let limits = self.limits.clone();
        if let Some((forward, hop)) = self.forward() {
            forward.close_idle(now, hop, &limits);
            forward.own.handle_timeout(now, hop);
        }
        if let Some((fetch, origin)) = self.fetch() {
            fetch.handle_timeout(now, origin);
        }
        self.end_silent_programs(now);
        self.recover(now);
    }

    pub(super) fn next_timeout(&mut self) -> Option<Instant> {
        let work = match &self.work {
            Work::Forward(forward) => forward.next_timeout(),
            Work::Fetch(fetch) => fetch.next_timeout(),
        };
        [
            self.next_race_timeout(),
            self.recovery.next_timeout(),
            self.tcp.next_timeout(),
            self.chain.next_timeout(),
        ]
        .into_iter()
        .fold(work, quic::earliest)
    }
}

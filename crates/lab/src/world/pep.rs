//! PEPs on the paths of a world: the state machine of `tandem pep`, between two paths.

use std::time::Instant;

use tandem_pep::{Config, Notice, Observed, Pep, Stats};
use tandem_wire::{Ends, Slice};

use super::{World, run::Occurrence};
use crate::{
    PathId,
    network::{Content, Datagram},
};

/// A PEP of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PepNumber(usize);

/// Where a PEP is.
#[derive(Clone, Copy, Debug)]
pub struct PepPlace {
    /// It sees the UDP packets that enter this path from another one: the access link.
    pub before: PathId,
    /// Its PEP-ACKs enter this path, which ends at the server.
    pub back: PathId,
}

pub(super) struct PepBox {
    pep: Pep,
    place: PepPlace,
    scheduled: Option<Instant>,
    is_running: bool,
}

impl World {
    /// Adds a PEP.
    pub fn add_pep(&mut self, config: Config, place: PepPlace) -> PepNumber {
        let pep = Pep::new(config, self.now);
        self.peps.push(PepBox { pep, place, scheduled: None, is_running: true });
        PepNumber(self.peps.len() - 1)
    }

    /// Ends a PEP. Packets go on without it.
    pub fn end_pep(&mut self, number: PepNumber) {
        self.pep_mut(number).is_running = false;
    }

    /// What a PEP has counted.
    pub fn pep_stats(&self, PepNumber(number): PepNumber) -> Stats {
        self.peps.get(number).map(|at| *at.pep.stats()).unwrap_or_default()
    }

    fn pep_mut(&mut self, PepNumber(number): PepNumber) -> &mut PepBox {
        self.peps.get_mut(number).expect("a PEP is never removed")
    }

    /// A packet has entered a path from another one.
    pub(super) fn show_to_peps(&mut self, path: PathId, packet: &Datagram) {
        let now = self.now;
        let Content::Udp { payload, .. } = &packet.content else { return };
        let Some(slice) = Slice::of(payload) else { return };
        let ends = Ends { client: packet.destination, server: packet.source };
        for number in 0..self.peps.len() {
            let at = self.pep_mut(PepNumber(number));
            if at.is_running && at.place.before == path {
                at.pep.observe(now, Observed::Quic { ends, slice });
                self.check_pep(PepNumber(number));
            }
        }
    }

    /// Sends what a PEP has to send.
    pub(super) fn check_pep(&mut self, number: PepNumber) {
        let now = self.now;
        let at = self.pep_mut(number);
        at.scheduled.take_if(|scheduled| *scheduled <= now);
        let back = at.place.back;
        while let Some(notice) = self.pep_mut(number).pep.poll(now) {
            let Notice::Udp { ends: Ends { client, server }, payload } = notice else { continue };
            let Some(client_host) = self.network.owner(client.ip()) else { continue };
            let content = Content::Udp { ecn: None, payload: payload.into() };
            if let Some(packet) = self.network.packet(client_host, client, server, content) {
                self.network.enter(now, back, packet);
                self.schedule_path(back);
            }
        }
        let at = self.pep_mut(number);
        let Some(next) = at.pep.next_timeout().filter(|_| at.is_running) else { return };
        let next = next.max(now);
        if at.scheduled.is_none_or(|scheduled| next < scheduled) {
            at.scheduled = Some(next);
            self.agenda.push(next, Occurrence::Pep(number));
        }
    }
}

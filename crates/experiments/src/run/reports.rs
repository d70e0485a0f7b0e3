//! Reports on a tunnel that a client passes on to local programs.

use tandem_lab::{Handle, World};
use tandem_node::{Client, Event, Input};

use super::topology::Topology;

/// Passes on proxies' reports to the local programs of their flows, as a program that embeds a
/// client does.
#[derive(Debug)]
pub(super) struct ReportRelay {
    /// The client; `None` if there are no reports.
    forwarder: Option<Handle<Client>>,
    /// Number of events of the client that have been processed.
    seen: usize,
}

impl ReportRelay {
    pub(super) const fn of(forwarder: Option<Handle<Client>>) -> Self {
        Self { forwarder, seen: 0 }
    }

    /// Whether there may be reports to pass on.
    pub(super) fn have_news(&self, world: &World) -> bool {
        self.forwarder.is_some_and(|forwarder| world.events(forwarder).len() > self.seen)
    }

    /// Passes each report on to the program of its flow.
    pub(super) fn pass(&mut self, topology: &mut Topology<'_>) {
        let Some(forwarder) = self.forwarder else { return };
        let events = topology.world.events(forwarder);
        let reports = events.iter().skip(self.seen).filter_map(|(_, event)| match event {
            Event::TunnelInfo { local, info } => Some((local.ip(), *info)),
            _ => None,
        });
        let reports: Vec<_> = reports.collect();
        self.seen = events.len();
        for (ip, info) in reports {
            if let Some(program) = topology.programs.get(&ip) {
                topology.world.input(*program, Input::TunnelInfo(info));
            }
        }
    }
}

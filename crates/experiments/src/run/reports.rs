//! What a client that carries the packets of local programs is told of its tunnel, and tells them.

use tandem_lab::{Handle, World};
use tandem_node::{Client, Event, Input};

use super::topology::Topology;

/// Passes on what proxies tell of the flows of local programs, as a program that embeds a client does.
#[derive(Debug)]
pub(super) struct Reports {
    /// The client; `None` if no reports come.
    forwarder: Option<Handle<Client>>,
    /// Events of the client that have been looked at.
    seen: usize,
}

impl Reports {
    pub(super) const fn of(forwarder: Option<Handle<Client>>) -> Self {
        Self { forwarder, seen: 0 }
    }

    /// Whether there may be something to pass on.
    pub(super) fn have_news(&self, world: &World) -> bool {
        self.forwarder.is_some_and(|forwarder| world.events(forwarder).len() > self.seen)
    }

    /// Passes everything on, each to the program whose flow it tells of.
    pub(super) fn pass(&mut self, topology: &mut Topology<'_>) {
        let Some(forwarder) = self.forwarder else { return };
        let events = topology.world.events(forwarder);
        let told = events.iter().skip(self.seen).filter_map(|(_, event)| match event {
            Event::TunnelInfo { local, info } => Some((local.ip(), *info)),
            _ => None,
        });
        let told: Vec<_> = told.collect();
        self.seen = events.len();
        for (ip, info) in told {
            if let Some(program) = topology.programs.get(&ip) {
                topology.world.input(*program, Input::TunnelInfo(info));
            }
        }
    }
}

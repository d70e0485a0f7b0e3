//! The hosts and links that are observed during a run.

use tandem_lab::{Handle, PathId, World};
use tandem_node::{Client, ConnectionStats, Origin, Proxy, Stats};

/// The hosts and links that are observed during a run.
#[derive(Clone, Copy)]
pub(super) struct WatchedHosts {
    /// The first origin.
    pub(super) origin: Handle<Origin>,
    /// The proxy next to the clients, if there is a tunnel.
    pub(super) proxy: Option<Handle<Proxy>>,
    /// The first client.
    pub(super) client: Option<Handle<Client>>,
    /// The access link towards the clients.
    pub(super) downlink: PathId,
    /// The access link from the clients.
    pub(super) uplink: PathId,
    /// Whether the first client sends the body to the origin.
    pub(super) is_upload: bool,
}

/// The connections of the host that sends the body.
#[derive(Clone, Copy, Default)]
pub(super) struct Senders {
    pub(super) end_to_end: Option<ConnectionStats>,
    /// The connection at the tunnel's end that sends the body over the access link.
    pub(super) tunnel: Option<ConnectionStats>,
}

impl WatchedHosts {
    /// The access link in the direction of the body.
    pub(super) const fn bottleneck(self) -> PathId {
        if self.is_upload { self.uplink } else { self.downlink }
    }

    /// The connections of the host that sends the body.
    pub(super) fn senders(self, world: &mut World) -> Senders {
        if !self.is_upload {
            let end_to_end = world.inspect(self.origin).connections().next();
            let tunnel = self.proxy.and_then(|proxy| world.inspect(proxy).connections().next());
            return Senders { end_to_end, tunnel };
        }
        let Some(client) = self.client else { return Senders::default() };
        let client = world.inspect(client);
        let tunnel = self.proxy.and_then(|_| client.connections().next());
        Senders { end_to_end: client.connections().last(), tunnel }
    }

    /// The counters of the tunnel's ingress for the body. They are zero without a tunnel.
    pub(super) fn entrance(self, world: &mut World) -> Stats {
        let Some(proxy) = self.proxy else { return Stats::default() };
        if !self.is_upload {
            return world.inspect(proxy).stats();
        }
        let tunnel = self.senders(world).tunnel.unwrap_or_default();
        let client = self.client.map(|client| world.inspect(client).stats());
        Stats {
            sent_packets: tunnel.sent_packets,
            lost_packets: tunnel.lost_packets,
            ..client.unwrap_or_default()
        }
    }

    /// The counters of the tunnel's egress for the body.
    pub(super) fn exit(self, world: &mut World) -> Stats {
        let exit = match (self.is_upload, self.proxy) {
            (true, Some(proxy)) => Some(world.inspect(proxy).stats()),
            (true, None) => None,
            (false, _) => self.client.map(|client| world.inspect(client).stats()),
        };
        exit.unwrap_or_default()
    }
}

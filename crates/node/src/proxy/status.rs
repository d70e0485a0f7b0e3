//! What an operator sees of a proxy.

use tandem_units::ByteCount;

use super::{Proxy, request::Asks};
use crate::{
    quic::ConnectionId,
    status::{Status, TunnelStatus},
};

impl Proxy {
    /// The state of the proxy, with this number of its busiest connections.
    pub fn status(&mut self, busiest: usize) -> Status {
        let own = self.own_stats();
        let mut status = self.server.status(own, busiest);
        status.queued = self.tunnel_queue();
        for connection in &mut status.busiest {
            connection.tunnel = self.tunnel_status(ConnectionId(connection.connection));
        }
        status
    }

    fn tunnel_status(&self, id: ConnectionId) -> Option<TunnelStatus> {
        let peer = self.peers.get(id)?;
        let flows = peer.flows.values();
        let tcp_flows = flows.filter(|flow| matches!(flow.asks, Asks::Tcp(_))).count();
        Some(TunnelStatus {
            user: peer.standing.user.as_ref().map(ToString::to_string),
            client: self.log_clients.then_some(peer.standing.client),
            udp_flows: peer.flows.len() - tcp_flows,
            tcp_flows,
            queued: ByteCount::from(peer.tunnel.queued()),
        })
    }
}

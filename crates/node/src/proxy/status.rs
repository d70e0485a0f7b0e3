//! What the program that runs a proxy does with it, and what an operator sees of it.

use std::time::Instant;

use tandem_units::ByteCount;

use super::Proxy;
use crate::{
    BusyNodes, Serves,
    quic::{ConnectionId, ServerTls},
    status::{Status, TunnelStatus},
};

impl Serves for Proxy {
    fn set_tls(&mut self, tls: &ServerTls) {
        self.server.set_tls(tls);
    }

    fn hand_over(&mut self, now: Instant, busy: BusyNodes) {
        self.server.hand_over(now, busy);
    }

    fn take_back(&mut self) {
        self.server.take_back();
    }

    fn status(&mut self, busiest: usize) -> Status {
        let own = self.own_stats();
        let mut status = self.server.status(own, busiest);
        status.queued = self.tunnel_queue();
        for connection in &mut status.busiest {
            connection.tunnel = self.tunnel_status(ConnectionId(connection.connection));
        }
        status
    }
}

impl Proxy {
    fn tunnel_status(&self, id: ConnectionId) -> Option<TunnelStatus> {
        let peer = self.peers.get(id)?;
        let tcp_flows = peer.flows.values().filter(|flow| flow.service.carries_bytes()).count();
        Some(TunnelStatus {
            user: peer.standing.user.as_ref().map(ToString::to_string),
            client: self.log_clients.then_some(peer.standing.client),
            udp_flows: peer.flows.len() - tcp_flows,
            tcp_flows,
            queued: ByteCount::from(peer.tunnel.queued()),
        })
    }
}

//! What an operator sees of a server while it runs.

use std::{cmp::Reverse, mem, net::SocketAddr, time::Duration};

use tandem_units::ByteCount;

use crate::{
    quic::ConnectionId,
    stats::{ConnectionStats, Stats},
};

/// The state of a server at one time. Of many connections only the busiest ones are listed, so that its
/// size has a bound.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The counters of the node.
    pub stats: Stats,
    /// Whether the server accepts connections. It does not while it drains, or when memory is short.
    pub takes_connections: bool,
    /// The bytes of encoded payloads that wait in the tunnels' queues.
    pub queued: ByteCount,
    /// The smoothed RTT of each open connection.
    pub rtts: Vec<Duration>,
    /// The connections that carried most since the last look, the busiest first.
    pub busiest: Vec<ConnectionStatus>,
}

/// One open connection.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// The number of the connection in the log.
    pub connection: u64,
    /// Its counters.
    pub stats: ConnectionStats,
    /// The bytes sent to the client since the last look.
    pub to_client_bytes: u64,
    /// The bytes received from the client since the last look.
    pub from_client_bytes: u64,
    /// The tunnel on it. Of proxies.
    pub tunnel: Option<TunnelStatus>,
}

/// One tunnel of a proxy.
#[derive(Clone, Debug)]
pub struct TunnelStatus {
    /// Who sent the last permitted request, as in the log.
    pub user: Option<String>,
    /// The client's address, if logs may show it.
    pub client: Option<SocketAddr>,
    /// The UDP flows that are open or being opened.
    pub udp_flows: usize,
    /// The TCP connections that are open or being opened.
    pub tcp_flows: usize,
    /// The bytes of encoded payloads that wait.
    pub queued: ByteCount,
}

/// The few counters of a connection that are looked at for all connections in a row, so that the look stays
/// cheap. Bytes are those of UDP payloads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance {
    pub(crate) smoothed_rtt: Duration,
    pub(crate) sent_packets: u64,
    pub(crate) lost_packets: u64,
    pub(crate) to_peer_bytes: u64,
    pub(crate) from_peer_bytes: u64,
}

/// Finds the connections that carried most since the last look.
#[derive(Debug, Default)]
pub(crate) struct Busiest {
    /// What each connection had carried at the last look, in the order of connections.
    before: Vec<Carried>,
}

/// The bytes that a connection has carried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    pub(crate) id: ConnectionId,
    pub(crate) to_client: u64,
    pub(crate) from_client: u64,
}

impl Busiest {
    /// What the busiest of all connections have carried since the last look. `now` is in the order of
    /// connections.
    pub(crate) fn of(&mut self, now: Vec<Carried>, number: usize) -> Vec<Carried> {
        let mut before = mem::take(&mut self.before).into_iter().peekable();
        let since = now.iter().map(|it| {
            while before.next_if(|old| old.id < it.id).is_some() {}
            let old = before.next_if(|old| old.id == it.id);
            let (to_client, from_client) = old.map_or((0, 0), |it| (it.to_client, it.from_client));
            Carried {
                id: it.id,
                to_client: it.to_client.saturating_sub(to_client),
                from_client: it.from_client.saturating_sub(from_client),
            }
        });
        let mut since: Vec<_> = since.collect();
        self.before = now;
        let order = |it: &Carried| Reverse(it.to_client.saturating_add(it.from_client));
        if number < since.len() {
            since.select_nth_unstable_by_key(number, order);
            since.truncate(number);
        }
        since.sort_by_key(|it| (order(it), it.id));
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(all: &[(u64, u64)]) -> Vec<Carried> {
        let one = |&(id, to_client)| Carried {
            id: ConnectionId(id),
            to_client,
            from_client: 2 * to_client,
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn the_busiest_connections_are_those_of_this_interval() {
        let mut busiest = Busiest::default();
        let of = |busiest: &mut Busiest, all: &[(u64, u64)]| {
            let found = busiest.of(carried(all), 2);
            assert!(found.iter().all(|it| it.from_client == 2 * it.to_client));
            found.iter().map(|it| (it.id.0, it.to_client)).collect::<Vec<_>>()
        };
        assert_eq!(of(&mut busiest, &[(1, 10), (2, 50), (5, 20)]), [(2, 50), (5, 20)]);
        // Connection 2 carries nothing more, 5 has ended, and 7 is new.
        assert_eq!(of(&mut busiest, &[(1, 11), (2, 50), (7, 9)]), [(7, 9), (1, 1)]);
        assert_eq!(of(&mut busiest, &[(7, 9)]), [(7, 0)]);
        assert_eq!(of(&mut busiest, &[]), []);
    }
}

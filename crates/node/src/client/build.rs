//! What a client consists of before it starts.

use std::collections::VecDeque;

use rand::RngCore;

use super::{
    Client, ClientConfig, ClientPhase, FetchConfig, HopConfig, Task, TunnelMode, Work,
    chain::{Chain, Hop, Peer, PeerSettings},
    first::First,
    migration::Migration,
    programs::Programs,
    recovery::Recovery,
    transfer::{Fetch, Relay},
};
use crate::{
    limits::Limits,
    node::SocketId,
    quic::{
        AckPolicy, ClientTls, ConfigError, DatagramTransport, Layer, Ledger, LossDetection,
        Transport, rng,
    },
    stats::Stats,
};

/// What stands for the socket of the connection to the first peer, while there is none.
const NO_SOCKET: SocketId = SocketId(u64::MAX);

/// A client that has not been polled.
pub(super) fn client(config: ClientConfig) -> Result<Client, ConfigError> {
    let ClientConfig { hops: hop_configs, task, limits, seed } = config;
    if hop_configs.is_empty() && matches!(task, Task::Forward(_)) {
        return Err(ConfigError::Settings("forwarding needs at least one proxy"));
    }
    let count = hop_configs.len();
    // Only a client that opens the end-to-end connection itself sees what its packets contain.
    let ledger = matches!(task, Task::Fetch(_)).then(Ledger::default);
    let common = SharedConfig {
        // The connection inside a hop keeps the size with which it began, so that only the hop that
        // carries the packets of local programs gains from larger packets.
        may_grow: count == 1 && matches!(task, Task::Forward(_)),
        is_chain: count > 1,
        ledger: ledger.as_ref(),
        seed,
        limits: &limits,
    };
    let mut hops = common.hops(hop_configs)?;
    let (work, origin) = match task {
        Task::Forward(listeners) => {
            for hop in &mut hops {
                hop.tunnel.report_to_nobody();
            }
            (Work::Programs(Box::new(Programs::new(listeners, &limits))), None)
        }
        Task::Fetch(fetch) => {
            let (fetch, origin) = common.transfer(*fetch, &mut hops)?;
            (Work::Transfer(Box::new(fetch)), Some(origin))
        }
    };
    Ok(Client {
        chain: Chain::new(chain_id(seed), hops, origin, NO_SOCKET, ledger),
        first: First::default(),
        work,
        recovery: Recovery::new(seed),
        life: ClientPhase::New,
        lost: VecDeque::new(),
        requires_mode: false,
        outputs: VecDeque::new(),
        migration: Migration::default(),
        next_socket: 0,
        limits,
        stats: Stats::default(),
    })
}

/// What the connections of a client have in common.
struct SharedConfig<'a> {
    /// Whether the packets of the only hop may become larger.
    may_grow: bool,
    /// Whether there are several hops.
    is_chain: bool,
    ledger: Option<&'a Ledger>,
    seed: Option<u64>,
    limits: &'a Limits,
}

impl SharedConfig<'_> {
    /// The seed of a connection.
    fn seed(&self, index: usize) -> Option<u64> {
        self.seed.map(|seed| seed.wrapping_add(1000 * index as u64))
    }

    /// The hops, of which none is connected yet.
    fn hops(&self, configs: Vec<HopConfig>) -> Result<Vec<Hop>, ConfigError> {
        let count = configs.len();
        let mut hops = Vec::with_capacity(count);
        let mut is_repaired = false;
        let is_sealed = configs.iter().all(|it| matches!(it.mode, TunnelMode::Uack { .. }));
        for (index, config) in configs.into_iter().enumerate() {
            let Transport { mtu, acks, .. } = config.transport;
            let mtu = if self.may_grow { mtu } else { mtu.for_chain(count, is_sealed) };
            let acks = acks.or(self.is_chain.then_some(AckPolicy::TUNNEL));
            let mut transport = Transport { mtu, acks, ..config.transport };
            if is_repaired {
                // The repairs of the tunnel around this one arrive late.
                transport.loss_detection = LossDetection::BehindRepair;
            }
            is_repaired |= matches!(
                config.mode,
                TunnelMode::Rmdt(_) | TunnelMode::Tecc(_) | TunnelMode::Auto { .. }
            );
            let config = HopConfig { transport, ..config };
            let layer = self.ledger.map(|ledger| ledger.layer(index == 0, false));
            let mut hop = hop(config, self.seed(index), layer, self.limits)?;
            if index == 0 {
                hop.beside.set_nearest();
            }
            hops.push(hop);
        }
        Ok(hops)
    }

    /// A transfer through these hops, and its connection to the origin.
    fn transfer(
        &self,
        mut fetch: FetchConfig,
        hops: &mut [Hop],
    ) -> Result<(Fetch, Peer), ConfigError> {
        // With delayed acknowledgements, fewer reports reach an origin after a tunnel has broken.
        let is_reported = hops.iter().any(|hop| hop.tunnel.wants_reports());
        let usual_acks = (self.is_chain && !is_reported).then_some(AckPolicy::END_TO_END);
        let authority = authority(&fetch.host, fetch.port);
        let relays = (is_reported || fetch.relays_feedback) && fetch.upload.is_none();
        let window = fetch.transport.receive_window;
        let settings = PeerSettings {
            host: fetch.host.clone(),
            port: fetch.port,
            authority: authority.clone(),
            tls: tls_to_origin(&fetch, relays)?,
            ech: fetch.ech.clone(),
            transport: Transport {
                receive_window: window.or(Some(Transport::WINDOW_OF_FAST_READERS)),
                acks: fetch.transport.acks.or(usual_acks),
                loss_detection: fetch.transport.loss_detection.of_client(is_reported),
                datagrams: DatagramTransport::Quic,
                ..fetch.transport.clone().of_client()
            },
            seed: self.seed(hops.len()),
            layer: self.ledger.map(|ledger| ledger.layer(hops.is_empty(), true)),
            traces_requests: false,
        };
        fetch.streams = fetch.streams.max(1);
        if fetch.upload.is_some() {
            fetch.streams = 1;
            let last = hops.iter().rposition(|hop| hop.tunnel.wants_reports());
            for (index, hop) in hops.iter_mut().enumerate() {
                hop.tunnel.report_inside(Some(index) == last);
            }
        }
        let is_discreet = !fetch.relays_feedback && hops.iter().any(|hop| hop.tunnel.is_auto());
        let relay = relays.then(|| Relay::new(is_discreet));
        let fetch = Fetch::new(authority, fetch, self.limits.body_credit, relay);
        Ok((fetch, Peer::new(settings, self.limits)))
    }
}

/// The cryptographic settings for the origin, which also say whether this client relays reports.
fn tls_to_origin(fetch: &FetchConfig, relays: bool) -> Result<ClientTls, ConfigError> {
    let tls = fetch.tls.clone();
    if relays { ClientTls::announcing_reports(tls) } else { ClientTls::new(tls) }
}

/// A random number for the qlogs of all connections.
fn chain_id(seed: Option<u64>) -> u64 {
    /// Lets the choice differ from those of connections with the same seed.
    const PART: u64 = 1 << 62;
    rng(seed.map(|seed| seed.wrapping_add(PART))).next_u64()
}

/// A hop that is not connected yet.
fn hop(
    config: HopConfig,
    seed: Option<u64>,
    layer: Option<Layer>,
    limits: &Limits,
) -> Result<Hop, ConfigError> {
    let HopConfig { template, others, tls, ech, transport, token, concealed, mode } = config;
    let keep_alive = Some(limits.tunnel_idle / 3);
    let settings = PeerSettings {
        host: template.host().to_owned(),
        port: template.port(),
        authority: template.authority().to_owned(),
        tls: ClientTls::new(tls)?,
        ech,
        transport: Transport { keep_alive, ..transport.of_client() },
        seed,
        layer,
        traces_requests: false,
    };
    Ok(Hop::new(Peer::new(settings, limits), template, others, (token, concealed), mode, limits))
}

/// Host and port in the form of `:authority`, without the default port.
fn authority(host: &str, port: u16) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    if port == 443 { host } else { format!("{host}:{port}") }
}

//! What the embedding program sees of a client while it runs.

use std::time::{Duration, Instant};

use tandem_units::ByteCount;

use super::{
    Client, Work,
    chain::{Hop, Peer},
};
use crate::{
    mode::Agreement,
    stats::{ConnectionStats, Stats},
};

/// The state of a client at one time. Of many flows only those are listed through which something passed last, so that
/// its size has a bound.
#[derive(Clone, Debug, Default)]
pub struct ClientStatus {
    /// The counters of the client, as [`Client::stats`] has them.
    pub stats: Stats,
    /// The hops, the nearest proxy first.
    pub hops: Vec<HopStatus>,
    /// The end-to-end connection of a transfer.
    pub end_to_end: Option<EndToEndStatus>,
    /// The flows of programs, the one through which something passed last first.
    pub flows: Vec<FlowStatus>,
    /// How many flows there are, listed or not.
    pub flows_open: usize,
}

/// The connection to a proxy, and the tunnel on it.
#[derive(Clone, Debug)]
pub struct HopStatus {
    /// The authority of the proxy that is in use.
    pub authority: String,
    /// Whether the tunnel through this hop is established.
    pub is_up: bool,
    /// The time that the handshake of the connection took. `None`: it is not complete.
    pub handshake: Option<Duration>,
    /// What was agreed on with the proxy. `None` if it has granted no flow of UDP payloads yet.
    pub agreement: Option<Agreement>,
    /// The connection as it is now. Its counters begin at zero when the connection is opened again.
    pub connection: ConnectionStats,
    /// The bytes of UDP payloads that were sent on the connection and received on it, without what travels beside it.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
    /// What this end of the tunnel has counted since the client's start, of which only the counters of tunnels are
    /// used: what it dropped and repaired, what it got out of order, and what travelled beside the connection.
    pub tunnel: Stats,
    /// The bytes of encoded payloads that wait for the proxy.
    pub queued: ByteCount,
}

/// The end-to-end connection of a transfer.
#[derive(Clone, Debug)]
pub struct EndToEndStatus {
    /// The time that the handshake took. `None`: it is not complete.
    pub handshake: Option<Duration>,
    /// The connection as it is now.
    pub connection: ConnectionStats,
}

/// A flow of a local program, or of the embedding program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStatus {
    /// What the flow is for.
    pub kind: FlowKind,
    /// Host and port of its target.
    pub target: String,
    /// How far it has come.
    pub phase: FlowPhase,
    /// Bytes of payload from the program. For TCP, those that were read from it.
    pub to_target_bytes: u64,
    /// Bytes of payload for the program.
    pub to_client_bytes: u64,
    /// When the program asked for it, or when its first payload passed. `None`: nothing has passed.
    pub began: Option<Instant>,
    /// When something passed last.
    pub last: Option<Instant>,
}

/// What a flow is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// A program that sends to a UDP listener.
    Udp,
    /// UDP packets of a program that asked for them with SOCKS5.
    SocksUdp,
    /// A TCP connection of a program.
    Tcp,
    /// A flow of the embedding program.
    Embedded,
}

impl FlowKind {
    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::SocksUdp => "socks-udp",
            Self::Tcp => "tcp",
            Self::Embedded => "embedded",
        }
    }
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPhase {
    /// It waits until the tunnel is up, or until the proxy takes one more request.
    Waiting,
    /// The proxy was asked for it.
    Asked,
    /// The proxy has granted it.
    Open,
    /// The proxy has ended it because it was idle. The next payload asks for it again.
    Idle,
    /// Its program has closed it, and the last payloads leave.
    Closing,
}

impl FlowPhase {
    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Asked => "asked",
            Self::Open => "open",
            Self::Idle => "idle",
            Self::Closing => "closing",
        }
    }
}

impl Client {
    /// The state of the client, with at most this number of flows.
    pub fn status(&mut self, flows_max: usize) -> ClientStatus {
        let stats = self.stats();
        let (flows, flows_open) = match &self.work {
            Work::Programs(programs) => programs.status(flows_max),
            Work::Transfer(_) => (Vec::new(), 0),
        };
        let hops = self.chain.hops.iter_mut().map(Hop::status).collect();
        let end_to_end = self.chain.origin.as_mut().map(|origin| EndToEndStatus {
            handshake: origin.handshake(),
            connection: origin.stats(),
        });
        ClientStatus { stats, hops, end_to_end, flows, flows_open }
    }

    /// Emits no more of a body from now on, or does again. The peer stops when its credit of flow control is used. A
    /// connection that is held for long needs [`Self::ping`] from time to time, since it ends after 30 s of silence.
    pub fn hold_body(&mut self, is_held: bool) {
        if let Work::Transfer(fetch) = &mut self.work {
            fetch.hold(is_held);
        }
    }

    /// Asks the peers of all connections for an acknowledgement, so that the RTTs are fresh although this client may
    /// have nothing to send.
    pub fn ping(&mut self) {
        for mut carrier in self.chain.peers().filter_map(Peer::carrier) {
            carrier.quic().ping();
        }
    }
}

impl Hop {
    fn status(&mut self) -> HopStatus {
        let (sent_bytes, received_bytes) = self.peer.payload_bytes();
        let mut tunnel = Stats::default();
        self.add_to(&mut tunnel);
        HopStatus {
            authority: self.peer.settings.authority.clone(),
            is_up: self.is_up,
            handshake: self.peer.handshake(),
            agreement: self.tunnel.agreement(),
            connection: self.peer.stats(),
            sent_bytes,
            received_bytes,
            tunnel,
            queued: ByteCount::from(self.tunnel.queued()),
        }
    }
}

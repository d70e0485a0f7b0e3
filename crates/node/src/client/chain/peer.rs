//! One QUIC connection with HTTP/3 to a proxy or to the origin.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use tandem_units::ByteCount;
use tandem_wire::{Code, StrangerText};

use tracing::debug;

use crate::{
    carrier::Carrier,
    error::ClientError,
    h3::{self, Session, Side},
    limits::Limits,
    node::{Ecn, Transmit},
    quic::{self, Closed, Connection, ConnectionId, Endpoint, Place},
    service::HostPort,
    stats::ConnectionStats,
    tls::EchTls,
};

/// The address that the engine gets for a peer inside a tunnel, where addresses have no meaning. It
/// is in the discard prefix (RFC 6666), so that a packet that left by mistake would be dropped.
pub(in crate::client) const INSIDE_TUNNEL: SocketAddr =
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1)), 443);

/// The settings that are needed to open a connection.
#[derive(Clone)]
pub(in crate::client) struct PeerSettings {
    pub(in crate::client) host: String,
    pub(in crate::client) port: u16,
    pub(in crate::client) authority: String,
    pub(in crate::client) tls: quic::ClientTls,
    /// Makes the same for a server that takes an Encrypted `ClientHello`.
    pub(in crate::client) ech: Option<EchTls>,
    pub(in crate::client) transport: quic::Transport,
    pub(in crate::client) seed: Option<u64>,
    /// The place of the connection in a chain whose bytes are accounted for.
    pub(in crate::client) layer: Option<quic::Layer>,
    /// Whether requests have identifiers.
    pub(in crate::client) traces_requests: bool,
}

impl PeerSettings {
    pub(in crate::client) fn place(&self) -> HostPort {
        HostPort { host: self.host.clone(), port: self.port }
    }

    /// Encrypts the `ClientHello` with one of these configurations of the server (`ECHConfigList`), if one can be used.
    pub(in crate::client) fn encrypt_hello(&mut self, configs: &[u8]) {
        let Some(ech) = &self.ech else { return }; // it is not wanted
        let tls = ech.for_server(configs).map_err(|error| error.to_string());
        match tls.and_then(|tls| self.tls.with(tls).map_err(|error| error.to_string())) {
            Ok(tls) => self.tls = tls,
            Err(error) => {
                let error = StrangerText::from(error);
                debug!(authority = self.authority, %error, "the server's ECH is not used");
            }
        }
    }
}

/// One QUIC connection with HTTP/3.
pub(in crate::client) struct Peer {
    pub(in crate::client) settings: PeerSettings,
    endpoint: Option<(Endpoint, ConnectionId)>,
    pub(in crate::client) session: Session,
    started: Option<Instant>,
    connected: Option<Instant>,
    /// When to give up, while the connection is being set up.
    pub(in crate::client) deadline: Option<Instant>,
    /// Whether nothing can arrive, so that silence is no failure.
    is_paused: bool,
    /// The silence after which a tunnel counts as lost.
    idle: Duration,
    /// The error by which the operating system says that no process listens at the peer's address.
    /// The client believes it at this time, unless a packet arrives before.
    suspicion: Option<(Instant, io::ErrorKind)>,
}

impl Peer {
    pub(in crate::client) fn new(settings: PeerSettings, limits: &Limits) -> Self {
        let mut peer = Self {
            settings,
            endpoint: None,
            session: Session::new(Side::Client, limits),
            started: None,
            connected: None,
            deadline: None,
            is_paused: false,
            idle: limits.connection_idle.min(limits.tunnel_idle),
            suspicion: None,
        };
        if peer.settings.traces_requests {
            peer.trace_requests();
        }
        peer
    }

    /// Gives each request an identifier.
    pub(in crate::client) fn trace_requests(&mut self) {
        /// Lets the choices differ from those of connections with the same seed.
        const PART: u64 = 1 << 61;
        let PeerSettings { seed, authority, traces_requests, .. } = &mut self.settings;
        *traces_requests = true;
        let random = quic::rng(seed.map(|seed| seed.wrapping_add(PART)));
        self.session.trace_requests(authority.clone(), random);
    }

    /// A connection to the same peer that is not open. Its random choices differ from those of
    /// earlier ones.
    pub(in crate::client) fn renewed(&self, generation: u64, limits: &Limits) -> Self {
        let mut settings = self.settings.clone();
        settings.seed = settings.seed.map(|seed| seed.wrapping_add(generation << 32));
        Self::new(settings, limits)
    }

    /// Opens the connection.
    pub(in crate::client) fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        place: Place,
        limits: &Limits,
    ) -> Result<(), ClientError> {
        let PeerSettings { host, tls, transport, seed, layer, .. } = &self.settings;
        let mut endpoint = Endpoint::client(tls, transport, limits, *seed);
        if let Some(layer) = layer {
            endpoint.set_layer(layer.clone());
        }
        endpoint.set_place(place);
        let id = endpoint
            .connect(now, remote, host)
            .map_err(|reason| ClientError::Tls { peer: self.settings.authority.clone(), reason })?;
        self.endpoint = Some((endpoint, id));
        self.started = Some(now);
        self.deadline = Some(now + limits.setup_timeout);
        Ok(())
    }

    /// When the connection was opened.
    pub(in crate::client) fn started(&self) -> Option<Instant> {
        self.started
    }

    /// The duration of the handshake, once it is complete.
    pub(in crate::client) fn handshake(&self) -> Option<Duration> {
        Some(self.connected? - self.started?)
    }

    /// Whether the handshake is complete.
    pub(in crate::client) fn is_connected(&self) -> bool {
        self.connected.is_some()
    }

    /// Whether the engine has the connection, which may be closed.
    pub(in crate::client) fn has_connection(&mut self) -> bool {
        self.endpoint.as_mut().is_some_and(|(endpoint, id)| endpoint.peek(*id).is_some())
    }

    /// The connection, which gets a turn to send. `None`: it is not open.
    pub(in crate::client) fn carrier(&mut self) -> Option<Carrier<'_>> {
        let (endpoint, id) = self.endpoint.as_mut()?;
        Some(Carrier::new(&mut self.session, endpoint.connection(*id)?))
    }

    /// Gives the connection a turn to send.
    pub(in crate::client) fn wake(&mut self) {
        if let Some((endpoint, id)) = &mut self.endpoint {
            endpoint.touch(*id);
        }
    }

    /// Counters and estimates. All are zero before the connection is opened.
    pub(in crate::client) fn stats(&mut self) -> ConnectionStats {
        let connection = self.endpoint.as_mut().and_then(|(endpoint, id)| endpoint.peek(*id));
        connection.map(Connection::stats).unwrap_or_default()
    }

    /// The bytes of UDP payloads that were sent on the connection, and received on it.
    pub(in crate::client) fn payload_bytes(&mut self) -> (u64, u64) {
        let connection = self.endpoint.as_mut().and_then(|(endpoint, id)| endpoint.peek(*id));
        let glance = connection.map(Connection::glance);
        glance.map_or((0, 0), |glance| (glance.to_peer_bytes, glance.from_peer_bytes))
    }

    /// The bytes of IPv4 packets that the connection alone took so far, in both directions.
    pub(in crate::client) fn wire_bytes(&mut self) -> ByteCount {
        let connection = self.endpoint.as_mut().and_then(|(endpoint, id)| endpoint.peek(*id));
        connection.map(Connection::wire_bytes).unwrap_or_default()
    }

    /// Handles an ICMP error, by which the operating system says that no process listens at the
    /// peer's address. The error may be forged or temporary. A packet that arrives on the
    /// connection within a while disproves it.
    pub(in crate::client) fn suspect(&mut self, now: Instant, kind: io::ErrorKind) {
        /// Time for some round trips and probe timeouts.
        const WAIT: Duration = Duration::from_secs(2);
        let wait = if self.is_connected() { WAIT } else { Duration::ZERO };
        self.suspicion.get_or_insert((now + wait, kind));
    }

    /// Takes the error of the operating system, if no packet has disproved it in time.
    pub(in crate::client) fn confirmed_suspicion(&mut self, now: Instant) -> Option<io::ErrorKind> {
        let (_, kind) = self.suspicion.take_if(|(until, _)| *until <= now)?;
        Some(kind)
    }

    /// Handles a packet of the peer. The engine is not told at which local address it has arrived: packets leave
    /// through a connected socket, whose address the kernel has chosen. The former socket of a client that has moved
    /// still receives, but its address must not become the source of packets.
    pub(in crate::client) fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        ecn: Option<Ecn>,
        payload: BytesMut,
    ) {
        self.suspicion = None;
        if let Some((endpoint, _)) = &mut self.endpoint {
            endpoint.handle_datagram(now, (from, None), ecn, payload);
        }
    }

    /// When the peer has been silent for so long that a tunnel to it counts as lost.
    pub(in crate::client) fn silent_at(&mut self) -> Option<Instant> {
        let (endpoint, id) = self.endpoint.as_mut().filter(|_| !self.is_paused)?;
        let awaits = endpoint.peek(*id)?.awaits_since()?;
        self.connected.map(|_| awaits + self.idle)
    }

    /// Whether the peer has owed an acknowledgement for this time.
    pub(in crate::client) fn has_been_silent(&mut self, now: Instant, time: Duration) -> bool {
        let Some((endpoint, id)) = &mut self.endpoint else { return false };
        let awaits = endpoint.peek(*id).and_then(|connection| connection.awaits_since());
        awaits.is_some_and(|since| since + time <= now)
    }

    /// Sends a packet that the peer has to acknowledge.
    pub(in crate::client) fn ping(&mut self) {
        if let Some(mut carrier) = self.carrier() {
            carrier.quic().ping();
        }
    }

    /// Whether the peer has just become too silent.
    pub(in crate::client) fn falls_silent(&mut self, now: Instant) -> bool {
        let is_silent = self.silent_at().is_some_and(|at| at <= now);
        self.is_paused |= is_silent;
        is_silent
    }

    /// Stops to count the silence of the peer as a failure.
    pub(in crate::client) fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Whether nothing can arrive, because the host has no way to the first peer.
    pub(in crate::client) const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Lets a connection send at once that could not send for a while, or whose packets take another path. The first
    /// of a chain `is_outermost`: the others do not see the path.
    pub(in crate::client) fn resume(&mut self, now: Instant, is_outermost: bool) {
        (self.suspicion, self.is_paused) = (None, false);
        if let Some(mut carrier) = self.carrier() {
            carrier.quic().forget_silence();
            if is_outermost {
                carrier.quic().change_path(now);
            } else {
                carrier.quic().ping();
            }
        }
    }

    pub(in crate::client) fn handle_timeout(&mut self, now: Instant) {
        if let Some((endpoint, _)) = &mut self.endpoint {
            endpoint.handle_timeout(now);
        }
    }

    pub(in crate::client) fn next_timeout(&self) -> Option<Instant> {
        let quic = self.endpoint.as_ref().and_then(|(endpoint, _)| endpoint.next_timeout());
        let own = quic::earliest(self.deadline, self.suspicion.map(|(until, _)| until));
        quic::earliest(quic, own)
    }

    /// The next event of QUIC, after the HTTP/3 session has handled it.
    pub(in crate::client) fn poll_event(
        &mut self,
        now: Instant,
    ) -> Option<Result<quic::Event, h3::ConnectionError>> {
        let (endpoint, id) = self.endpoint.as_mut()?;
        let (_, event) = endpoint.poll_event()?;
        if matches!(event, quic::Event::Connected) {
            self.connected = Some(now);
        }
        let connection = endpoint.connection(*id)?;
        Some(self.session.on_quic_event(connection, &event).map(|()| event))
    }

    /// The next packets to send, at the end of `buf`.
    pub(in crate::client) fn poll_transmit(
        &mut self,
        now: Instant,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let (endpoint, _) = self.endpoint.as_mut()?;
        if let Some(transmit) = endpoint.poll_answer(buf) {
            return Some(transmit);
        }
        while let Some(id) = endpoint.next_ready() {
            if let Some(transmit) = endpoint.poll_transmit(now, id, buf) {
                return Some(transmit);
            }
        }
        None
    }

    pub(in crate::client) fn close(&mut self, now: Instant, code: Code, reason: &str) {
        self.deadline = None;
        if let Some(mut carrier) = self.carrier()
            && carrier.is_open()
        {
            carrier.quic().close(now, code, reason);
        }
    }

    /// The client's error for the end of this connection.
    pub(in crate::client) fn lost(&self, reason: &Closed, limits: &Limits) -> ClientError {
        let peer = self.settings.authority.clone();
        match reason {
            Closed::TimedOut if !self.is_connected() => {
                ClientError::NoAnswer { peer, timeout: limits.connection_idle }
            }
            Closed::Tls(reason) => ClientError::Tls { peer, reason: reason.clone() },
            Closed::EchRejected(_) => {
                let reason = StrangerText::new("the server rejects the Encrypted ClientHello");
                ClientError::Tls { peer, reason }
            }
            other => ClientError::ConnectionLost { peer, reason: other.to_string().into() },
        }
    }
}

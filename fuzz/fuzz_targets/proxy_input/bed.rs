//! The environment of the proxy: a client, an operating system that follows the rules of sockets,
//! and the time.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::OnceLock,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use noq_proto::{ClientConfig, crypto::rustls::QuicClientConfig};
use tandem_lab::TestCertificate;
use tandem_node::{
    Event, Input, Node, Output, Proxy, ProxyConfig, Stats,
    limits::Limits,
    node::{QueryId, Received, SocketId, SocketKind, Transmit},
    proxy::{Access, TargetPolicy},
    quic::{Mtu, Transport},
};

use crate::client::{Client, Permits};

/// The largest number of successive outputs of the proxy.
const OUTPUTS_MAX: u32 = 10_000;

/// The largest number of successive deadlines that are not in the future.
const STALLS_MAX: u32 = 1000;

/// A time after which the proxy must have forgotten a client. It is longer than the idle timeout,
/// the engine's closing period, the idle time of a flow and the longest wait for a name server.
const ALL_GONE: Duration = Duration::from_secs(400);

/// The proxy's own socket.
const LISTEN: SocketId = SocketId(0);

/// The state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socket {
    /// The proxy has requested the socket and has no answer yet.
    Asked,
    Open,
    /// The socket could not be opened.
    Failed,
    Closed,
}

pub(crate) struct Bed {
    proxy: Proxy,
    pub(crate) client: Client,
    pub(crate) now: Instant,
    deadline: Option<Instant>,
    sockets: BTreeMap<SocketId, (Socket, SocketKind)>,
    queries: VecDeque<QueryId>,
    stats: Stats,
    /// The fates of the client's next packets.
    pub(crate) fates: VecDeque<Fate>,
    has_ended: bool,
}

/// The fate of a packet on the path to the proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Lost,
    Twice,
    /// The byte at this position is combined with this value (XOR).
    Changed(u16, u8),
}

/// The address of the client.
pub(crate) fn client_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 50_000))
}

fn server_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 2], 443))
}

fn certificate() -> &'static TestCertificate {
    static CERTIFICATE: OnceLock<TestCertificate> = OnceLock::new();
    CERTIFICATE.get_or_init(|| TestCertificate::new(["proxy.test"]))
}

fn proxy() -> Proxy {
    static TLS: OnceLock<rustls::ServerConfig> = OnceLock::new();
    // The limits are small, so that the fuzzer reaches them.
    let limits = Limits {
        connections: 3,
        request_streams: 8,
        field_section: 1000,
        early_datagrams_per_flow: 2,
        early_datagrams_per_connection: 4,
        tunnel_queue: 5000,
        capsule: 4000,
        ..Limits::default()
    };
    let config = ProxyConfig {
        transport: Transport { mtu: Mtu::TUNNEL, ..Transport::default() },
        access: Access::Anyone,
        policy: TargetPolicy::allowing(vec!["10.0.0.0/8".parse().expect("a prefix")]),
        limits,
        seed: Some(1),
        ..ProxyConfig::new(server_address(), TLS.get_or_init(|| certificate().server()).clone())
    };
    Proxy::new(config).expect("the settings are sound")
}

fn client_config() -> ClientConfig {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let mut tls = certificate().client();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let tls = QuicClientConfig::try_from(tls).expect("the suites are there");
        ClientConfig::new(std::sync::Arc::new(tls))
    });
    config.clone()
}

#[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

impl Bed {
    /// Creates a proxy that listens, and a client whose handshake is complete.
    pub(crate) fn new(permits: Permits) -> Self {
        let now = start();
        let client = Client::connect(now, client_config(), server_address(), permits);
        let mut bed = Self {
            proxy: proxy(),
            client,
            now,
            deadline: None,
            sockets: BTreeMap::new(),
            queries: VecDeque::new(),
            stats: Stats::default(),
            fates: VecDeque::new(),
            has_ended: false,
        };
        bed.drain();
        assert!(bed.answer_socket(0, Ok(())), "the proxy asks for its socket first");
        bed.exchange();
        assert!(bed.client.is_connected && !bed.client.is_closed, "the handshake is complete");
        bed
    }

    /// Asks the proxy to end, unless it has ended already.
    pub(crate) fn shut_down(&mut self) {
        if !self.has_ended {
            self.feed(Input::Shutdown);
        }
    }

    fn feed(&mut self, input: Input) {
        self.proxy.handle(self.now, input);
    }

    pub(crate) fn from_other_host(&mut self, host: u8, payload: &[u8]) {
        self.to_proxy(SocketAddr::from(([198, 51, 100, host], 1)), BytesMut::from(payload));
    }

    fn to_proxy(&mut self, remote: SocketAddr, payload: BytesMut) {
        let local_ip = Some(server_address().ip());
        let received = Received { socket: LISTEN, remote, local_ip, ecn: None, payload };
        self.feed(Input::Datagram(received));
    }

    /// Returns one of the sockets in this state. The index wraps around. The listening socket is
    /// chosen only if there is no other one.
    fn nth_socket(&self, index: u8, state: Socket) -> Option<(SocketId, SocketKind)> {
        let mut sockets: Vec<_> =
            self.sockets.iter().filter(|(_, (other, _))| *other == state).collect();
        if sockets.len() > 1 {
            sockets.retain(|(id, _)| **id != LISTEN);
        }
        let index = usize::from(index).checked_rem(sockets.len())?;
        sockets.get(index).map(|(id, (_, kind))| (**id, *kind))
    }

    /// Answers one of the open requests for a socket. Returns false if there is none.
    pub(crate) fn answer_socket(&mut self, index: u8, how: Result<(), std::io::ErrorKind>) -> bool {
        let Some((socket, _)) = self.nth_socket(index, Socket::Asked) else { return false };
        let state = if how.is_ok() { Socket::Open } else { Socket::Failed };
        self.set_state(socket, state);
        let result = how.map(|()| server_address());
        self.feed(Input::SocketOpened { socket, result });
        true
    }

    pub(crate) fn answer_query(
        &mut self,
        index: u8,
        result: Result<Vec<IpAddr>, tandem_node::node::ResolveError>,
    ) {
        let Some(index) = usize::from(index).checked_rem(self.queries.len()) else { return };
        if let Some(query) = self.queries.remove(index) {
            self.feed(Input::Resolved { query, result });
        }
    }

    /// Delivers a payload of a target.
    pub(crate) fn from_target(&mut self, index: u8, payload: BytesMut) {
        let Some((socket, kind)) = self.nth_socket(index, Socket::Open) else { return };
        let SocketKind::Connected(remote) = kind else { return };
        let received = Received { socket, remote, local_ip: None, ecn: None, payload };
        self.feed(Input::Datagram(received));
    }

    /// Delivers an ICMP error for a socket.
    pub(crate) fn fail_socket(&mut self, index: u8) {
        let Some((socket, kind)) = self.nth_socket(index, Socket::Open) else { return };
        if matches!(kind, SocketKind::Connected(_)) {
            self.feed(Input::SocketFailed { socket, error: std::io::ErrorKind::ConnectionRefused });
        }
    }

    fn set_state(&mut self, socket: SocketId, state: Socket) {
        if let Some((old, _)) = self.sockets.get_mut(&socket) {
            *old = state;
        }
    }

    /// Exchanges packets until both client and proxy are idle at the present time.
    pub(crate) fn exchange(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            self.drain();
            let Some(packet) = self.client.poll(self.now) else { return };
            self.send(packet);
        }
        panic!("client and proxy never become idle");
    }

    /// Sends all packets that the client can send, before the proxy is polled.
    pub(crate) fn send_all(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            let Some(packet) = self.client.poll(self.now) else { return };
            self.send(packet);
        }
        panic!("the client never becomes idle");
    }

    fn send(&mut self, mut packet: BytesMut) {
        match self.fates.pop_front() {
            Some(Fate::Lost) => return,
            Some(Fate::Twice) => self.to_proxy(client_address(), packet.clone()),
            Some(Fate::Changed(at, by)) => {
                let at = usize::from(at) % packet.len();
                packet[at] ^= by;
            }
            None => {}
        }
        self.to_proxy(client_address(), packet);
    }

    fn drain(&mut self) {
        let mut buf = Vec::new();
        for _ in 0..OUTPUTS_MAX {
            buf.clear();
            match self.proxy.poll(self.now, &mut buf) {
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    return self.check_stats();
                }
                Output::Transmit { socket, transmit } => self.transmit(socket, transmit, &buf),
                Output::OpenSocket { socket, kind } => {
                    let old = self.sockets.insert(socket, (Socket::Asked, kind));
                    assert_eq!(old, None, "{socket:?} is opened twice");
                }
                Output::CloseSocket(socket) => {
                    let old = self.sockets.get(&socket).map(|(state, _)| *state);
                    assert!(
                        matches!(old, Some(Socket::Asked | Socket::Open | Socket::Failed)),
                        "{socket:?} is closed, but it is {old:?}"
                    );
                    self.set_state(socket, Socket::Closed);
                }
                Output::Resolve { query, host } => {
                    assert!(host.parse::<IpAddr>().is_err(), "{host} needs no resolver");
                    self.queries.push_back(query);
                }
                Output::Event(Event::Closed(result)) => {
                    assert!(!self.has_ended, "the proxy ends twice");
                    assert_eq!(result, Ok(()));
                    self.has_ended = true;
                }
                Output::Event(_) => {}
                output => panic!("a proxy must not emit {output:?}"),
            }
        }
        panic!("the proxy emitted {OUTPUTS_MAX} successive outputs");
    }

    fn transmit(&mut self, socket: SocketId, transmit: Transmit, buf: &[u8]) {
        let (state, kind) = self.sockets.get(&socket).copied().expect("it was asked for");
        assert_eq!(state, Socket::Open, "{socket:?} is used");
        assert_eq!(transmit.size, buf.len());
        assert_ne!(transmit.segment_size, Some(0));
        match kind {
            SocketKind::Connected(peer) => assert_eq!(transmit.destination, peer),
            _ if transmit.destination == client_address() => {
                for packet in buf.chunks(transmit.segment_size.unwrap_or(buf.len())) {
                    self.client.handle(self.now, server_address(), BytesMut::from(packet));
                }
            }
            _ => {} // another host gets the packet
        }
    }

    fn check_stats(&mut self) {
        let now = self.proxy.stats();
        let old = std::mem::replace(&mut self.stats, now);
        for (old, now) in counters(&old).into_iter().zip(counters(&now)) {
            assert!(old <= now, "a counter went from {old} to {now}");
        }
        assert!(now.flows_open <= self.sockets.len() as u64);
    }

    /// Advances the time from timer to timer.
    pub(crate) fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        let mut stalls = 0;
        loop {
            self.exchange();
            let due = self.deadline.into_iter().chain(self.client.next_timeout()).min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            if due > self.now {
                self.now = due;
                stalls = 0;
            } else {
                stalls += 1;
                assert!(stalls < STALLS_MAX, "a deadline is always in the past");
                self.now += Duration::from_micros(1);
            }
            if self.deadline.is_some_and(|deadline| deadline <= self.now) {
                self.feed(Input::Timeout);
            }
            self.client.handle_timeout(self.now);
        }
        self.now = self.now.max(end);
    }

    /// Ends the connection, and checks that the proxy has released all its resources.
    pub(crate) fn end(mut self) {
        self.fates.clear();
        self.client.close(self.now);
        self.wait(ALL_GONE);
        for (id, (state, _)) in &self.sockets {
            assert!(*id == LISTEN || *state == Socket::Closed, "{id:?} is {state:?} at the end");
        }
        let stats = self.proxy.stats();
        assert_eq!((stats.flows_open, stats.connections_open), (0, 0));
    }
}

/// Returns the counters that never decrease.
fn counters(stats: &Stats) -> [u64; 12] {
    [
        stats.connections,
        stats.connections_broken,
        stats.requests,
        stats.requests_refused,
        stats.flows,
        stats.to_target_datagrams,
        stats.to_target_bytes,
        stats.to_client_datagrams,
        stats.to_client_bytes,
        stats.dropped.total(),
        stats.sent_packets,
        stats.lost_packets,
    ]
}

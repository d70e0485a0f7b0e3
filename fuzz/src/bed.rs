//! The environment of a server, which is a proxy or an origin: its clients, an operating system that follows
//! the rules of sockets and files, and the time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hasher},
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::OnceLock,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tandem_lab::TestCertificate;
use tandem_node::{
    Event, Input, Node, Origin, OriginConfig, Output, Proxy, ProxyConfig, Stats,
    limits::Limits,
    node::{
        FileError, FileId, FileMeta, Progress, QueryId, Received, ResolveError, SocketId,
        SocketKind, Transmit,
    },
    proxy::{Access, TargetPolicy},
    quic::{Mtu, Transport},
    tcp::{TcpId, TcpInput, TcpOutput},
};

/// The start of a payload that a target must get at most once.
const ONCE: &[u8] = b"only once";

/// The bounds of the proxy. They are small, so that the fuzzer reaches them.
const CONNECTIONS: usize = 4;
const REQUEST_STREAMS: u32 = 8;
const QUERIES: usize = 6;

/// The longest upload in bytes.
const UPLOAD: u64 = 100_000;

/// The largest number of successive outputs of a node.
pub(crate) const OUTPUTS_MAX: u32 = 10_000;

/// The largest number of successive deadlines that are not in the future.
pub(crate) const STALLS_MAX: u32 = 1000;

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

/// A client of the proxy.
pub trait Client {
    /// Its address.
    fn address(&self) -> SocketAddr;
    /// Receives a packet of the proxy.
    fn handle(&mut self, now: Instant, from: SocketAddr, packet: BytesMut);
    /// Returns the next packet, or `None` if the client waits.
    fn poll(&mut self, now: Instant) -> Option<BytesMut>;
    /// Closes the connection.
    fn close(&mut self, now: Instant);
    /// Returns the time of the next timeout.
    fn next_timeout(&mut self) -> Option<Instant>;
    /// Handles the timeout if it is due.
    fn handle_timeout(&mut self, now: Instant);
}

/// A server.
pub trait Server: Node {
    /// Its counters.
    fn stats(&mut self) -> Stats;
}

impl Server for Proxy {
    fn stats(&mut self) -> Stats {
        Self::stats(self)
    }
}

impl Server for Origin {
    fn stats(&mut self) -> Stats {
        Self::stats(self)
    }
}

/// A file that a server has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    /// It is being opened.
    Asked,
    /// It is open and has this length.
    Open(u64),
    /// The server waits for a part of it.
    Reading(u64),
    /// It could not be opened.
    Failed,
}

/// A server and all that surrounds it.
pub struct Bed<C, S = Proxy> {
    proxy: S,
    /// The clients of the server.
    pub clients: Vec<C>,
    /// The present time.
    pub now: Instant,
    deadline: Option<Instant>,
    sockets: BTreeMap<SocketId, (Socket, SocketKind)>,
    queries: VecDeque<QueryId>,
    files: BTreeMap<FileId, File>,
    /// The bytes of a file that wait to be given to the server: from this position so many.
    reads: VecDeque<(FileId, u64, usize)>,
    stats: Stats,
    /// The fates of the next packets to the proxy.
    pub fates: VecDeque<Fate>,
    /// The payloads that a target got and must not get again.
    released: BTreeSet<(SocketId, Vec<u8>)>,
    /// The TCP connections that are open.
    tcp: BTreeSet<TcpId>,
    /// Those that have said their word.
    greeted: BTreeSet<TcpId>,
    has_ended: bool,
}

/// The fate of a packet on the path to the proxy.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It gets lost.
    Lost,
    /// It arrives twice.
    Twice,
    /// The byte at this position is combined with this value (XOR).
    Changed(u16, u8),
}

/// The address of the proxy.
pub fn server_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 2], 443))
}

/// The certificate of the proxy.
pub fn certificate() -> &'static TestCertificate {
    static CERTIFICATE: OnceLock<TestCertificate> = OnceLock::new();
    CERTIFICATE.get_or_init(|| TestCertificate::new(["proxy.test"]))
}

/// The settings of an origin that takes uploads.
pub fn origin_config() -> OriginConfig {
    OriginConfig {
        takes_uploads: true,
        limits: Limits { upload: UPLOAD, read_ahead: 4000, ..proxy_config().limits },
        seed: Some(1),
        ..OriginConfig::new(server_address(), certificate().server())
    }
}

/// The settings of the proxy.
pub fn proxy_config() -> ProxyConfig {
    static TLS: OnceLock<rustls::ServerConfig> = OnceLock::new();
    let limits = Limits {
        connections: CONNECTIONS,
        request_streams: REQUEST_STREAMS,
        queries: QUERIES,
        field_section: 1000,
        early_datagrams_per_flow: 2,
        early_datagrams_per_connection: 4,
        tunnel_queue: 5000,
        capsule: 4000,
        ..Limits::default()
    };
    ProxyConfig {
        transport: Transport { mtu: Mtu::TUNNEL, ..Transport::default() },
        access: Access::Anyone,
        policy: TargetPolicy::allowing(vec!["10.0.0.0/8".parse().expect("a prefix")]),
        limits,
        seed: Some(1),
        ..ProxyConfig::new(server_address(), TLS.get_or_init(|| certificate().server()).clone())
    }
}

#[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
pub(crate) fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

impl<C: Client, S: Server> Bed<C, S> {
    /// Lets a server listen.
    pub fn new(proxy: S) -> Self {
        let mut bed = Self {
            proxy,
            clients: Vec::new(),
            now: start(),
            deadline: None,
            sockets: BTreeMap::new(),
            queries: VecDeque::new(),
            files: BTreeMap::new(),
            reads: VecDeque::new(),
            stats: Stats::default(),
            fates: VecDeque::new(),
            released: BTreeSet::new(),
            tcp: BTreeSet::new(),
            greeted: BTreeSet::new(),
            has_ended: false,
        };
        bed.drain();
        assert!(bed.answer_socket(0, Ok(())), "the proxy asks for its socket first");
        bed
    }

    /// Asks the proxy to end, unless it has ended already.
    pub fn shut_down(&mut self) {
        if !self.has_ended {
            self.feed(Input::Shutdown);
        }
    }

    fn feed(&mut self, input: Input) {
        self.proxy.handle(self.now, input);
    }

    /// Delivers a packet of a host that is no client.
    pub fn from_other_host(&mut self, host: u8, payload: &[u8]) {
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
    pub fn answer_socket(&mut self, index: u8, how: Result<(), std::io::ErrorKind>) -> bool {
        let Some((socket, _)) = self.nth_socket(index, Socket::Asked) else { return false };
        let state = if how.is_ok() { Socket::Open } else { Socket::Failed };
        self.set_state(socket, state);
        let result = how.map(|()| server_address()).map_err(Into::into);
        self.feed(Input::SocketOpened { socket, result });
        true
    }

    pub fn answer_query(
        &mut self,
        index: u8,
        (result, progress): (Result<Vec<IpAddr>, ResolveError>, Progress),
    ) {
        let Some(index) = usize::from(index).checked_rem(self.queries.len()) else { return };
        if let Some(query) = self.queries.remove(index) {
            if progress == Progress::Partial {
                self.queries.push_back(query);
            }
            self.feed(Input::Resolved { query, result, progress });
        }
    }

    /// Delivers a payload of a target.
    pub fn from_target(&mut self, index: u8, payload: BytesMut) {
        let Some((socket, kind)) = self.nth_socket(index, Socket::Open) else { return };
        let SocketKind::Connected(remote) = kind else { return };
        let received = Received { socket, remote, local_ip: None, ecn: None, payload };
        self.feed(Input::Datagram(received));
    }

    /// Delivers an ICMP error for a socket.
    pub fn fail_socket(&mut self, index: u8) {
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

    /// Exchanges packets until the clients and the proxy are idle at the present time.
    pub fn exchange(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            self.drain();
            if !self.send_each() {
                return;
            }
        }
        panic!("clients and proxy never become idle");
    }

    /// Sends all packets that the clients can send, before the proxy is polled.
    pub fn send_all(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            if !self.send_each() {
                return;
            }
        }
        panic!("the clients never become idle");
    }

    /// Sends a packet of each client that has one. Returns false if none has.
    fn send_each(&mut self) -> bool {
        let mut is_busy = false;
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            let address = client.address();
            if let Some(packet) = client.poll(self.now) {
                self.send(address, packet);
                is_busy = true;
            }
        }
        is_busy
    }

    fn send(&mut self, from: SocketAddr, mut packet: BytesMut) {
        match self.fates.pop_front() {
            Some(Fate::Lost) => return,
            Some(Fate::Twice) => self.to_proxy(from, packet.clone()),
            Some(Fate::Changed(at, by)) => {
                let at = usize::from(at) % packet.len();
                packet[at] ^= by;
            }
            None => {}
        }
        self.to_proxy(from, packet);
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
                    assert!(host.parse::<Ipv6Addr>().is_err(), "{host} needs no resolver");
                    self.queries.push_back(query);
                }
                Output::Event(Event::Closed(result)) => {
                    assert!(!self.has_ended, "the proxy ends twice");
                    assert_eq!(result, Ok(()));
                    self.has_ended = true;
                }
                Output::Event(_) => {}
                Output::PacketTooBig { socket, peer, len, fits, .. } => {
                    let kind = self.sockets.get(&socket).map(|(_, kind)| *kind);
                    assert_eq!(kind, Some(SocketKind::Connected(peer)), "only targets are told");
                    assert!(fits < len, "{len} bytes fit {fits}");
                }
                Output::Tcp(output) => self.tcp(output),
                output => self.file(output),
            }
        }
        panic!("the proxy emitted {OUTPUTS_MAX} successive outputs");
    }

    /// An operating system with a folder of files.
    fn file(&mut self, output: Output) {
        match output {
            Output::OpenFile { file, path } => {
                for segment in &path {
                    let is_plain = !segment.contains(['/', '\\', '\0']);
                    assert!(is_plain && !["", ".", ".."].contains(&&**segment), "{path:?}");
                }
                let old = self.files.insert(file, File::Asked);
                assert_eq!(old, None, "{file:?} is opened twice");
            }
            Output::ReadFile { file, offset, len } => {
                let Some(File::Open(file_len)) = self.files.get(&file).copied() else {
                    panic!("{file:?} is {:?}", self.files.get(&file));
                };
                let end = offset.checked_add(len as u64).expect("a file has an end");
                assert!(len > 0 && end <= file_len, "{len} bytes at {offset} of {file_len}");
                self.files.insert(file, File::Reading(file_len));
                self.reads.push_back((file, offset, len));
            }
            Output::CloseFile(file) => {
                let old = self.files.remove(&file);
                assert!(matches!(old, Some(File::Open(_) | File::Reading(_))), "it is {old:?}");
            }
            output => panic!("a server must not emit {output:?}"),
        }
    }

    /// Answers the oldest request for a file.
    pub fn open_file(&mut self, result: Result<u64, FileError>) {
        let asked = self.files.iter().find(|(_, state)| **state == File::Asked);
        let Some((&file, _)) = asked else { return };
        self.files.insert(file, result.map_or(File::Failed, File::Open));
        let result = result.map(|len| FileMeta { len, modified: None });
        self.feed(Input::FileOpened { file, result });
    }

    /// Answers the oldest request for a part of a file. `missing`: so many bytes of it are not there, because
    /// somebody has truncated the file.
    pub fn read_file(&mut self, missing: usize) {
        let Some((file, _, len)) = self.reads.pop_front() else { return };
        let state = self.files.get_mut(&file);
        if let Some(File::Reading(file_len)) = state.as_deref() {
            let file_len = *file_len;
            self.files.insert(file, File::Open(file_len));
        }
        let result = Ok(Bytes::from(vec![0; len.saturating_sub(missing)]));
        self.feed(Input::FileChunk { file, result });
    }

    /// A target with an even port takes connections, says one word, and takes everything. Others
    /// refuse.
    fn tcp(&mut self, output: TcpOutput) {
        let input = match output {
            TcpOutput::Connect { tcp, peer, .. } => {
                assert!(self.tcp.insert(tcp), "{tcp:?} is opened twice");
                let result = if peer.port().is_multiple_of(2) {
                    Ok(peer.into())
                } else {
                    Err(io::ErrorKind::ConnectionRefused.into())
                };
                if result.is_err() {
                    self.tcp.remove(&tcp);
                }
                TcpInput::Opened { tcp, result }
            }
            TcpOutput::Read { tcp, max } => {
                assert!(self.tcp.contains(&tcp) && max > 0, "{tcp:?} is open");
                if !self.greeted.insert(tcp) {
                    return;
                }
                TcpInput::Read { tcp, data: Bytes::from_static(b"hello") }
            }
            TcpOutput::Write { tcp, data } => {
                assert!(self.tcp.contains(&tcp) && !data.is_empty(), "{tcp:?} is open");
                TcpInput::Written { tcp, bytes: data.len() }
            }
            TcpOutput::Finish(tcp) => {
                return assert!(self.tcp.contains(&tcp), "{tcp:?} is open");
            }
            TcpOutput::Close(tcp) | TcpOutput::Reset(tcp) => {
                return assert!(self.tcp.remove(&tcp), "{tcp:?} is ended once");
            }
            output => panic!("a proxy must not emit {output:?}"),
        };
        self.proxy.handle(self.now, Input::Tcp(input));
    }

    fn transmit(&mut self, socket: SocketId, transmit: Transmit, buf: &[u8]) {
        let (state, kind) = self.sockets.get(&socket).copied().expect("it was asked for");
        assert_eq!(state, Socket::Open, "{socket:?} is used");
        assert_eq!(transmit.size, buf.len());
        assert_ne!(transmit.segment_size, Some(0));
        match kind {
            SocketKind::Connected(peer) => {
                assert_eq!(transmit.destination, peer);
                for payload in buf.chunks(transmit.segment_size.unwrap_or(buf.len()).max(1)) {
                    let is_first =
                        !is_once(payload) || self.released.insert((socket, payload.to_vec()));
                    assert!(is_first, "{socket:?} gets {payload:?} twice");
                }
            }
            // If it is no client, another host gets the packet.
            _ => {
                let to = transmit.destination;
                let Some(client) = self.clients.iter_mut().find(|client| client.address() == to)
                else {
                    return;
                };
                for packet in buf.chunks(transmit.segment_size.unwrap_or(buf.len())) {
                    client.handle(self.now, server_address(), BytesMut::from(packet));
                }
            }
        }
    }

    fn check_stats(&mut self) {
        let now = self.proxy.stats();
        let old = std::mem::replace(&mut self.stats, now);
        for (old, now) in counters(&old).into_iter().zip(counters(&now)) {
            assert!(old <= now, "a counter went from {old} to {now}");
        }
        let in_use = |(state, _): &&(Socket, SocketKind)| *state != Socket::Closed;
        let sockets = self.sockets.values().filter(in_use).count();
        assert!(now.connections_open <= CONNECTIONS as u64, "{} connections", now.connections_open);
        assert!(now.flows_open < sockets.max(1) as u64, "each flow has a socket");
        let most = 1 + CONNECTIONS * REQUEST_STREAMS as usize;
        assert!(sockets <= most, "{sockets} sockets are open");
        assert!(self.queries.len() <= QUERIES, "{} queries are open", self.queries.len());
    }

    /// Advances the time from timer to timer.
    pub fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        let mut stalls = 0;
        loop {
            self.exchange();
            let timeouts = self.clients.iter_mut().filter_map(Client::next_timeout);
            let due = self.deadline.into_iter().chain(timeouts).min();
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
            for client in &mut self.clients {
                client.handle_timeout(self.now);
            }
        }
        self.now = self.now.max(end);
    }

    /// Ends the connections, and checks that the proxy has released all its resources.
    pub fn end(mut self) {
        self.fates.clear();
        for client in &mut self.clients {
            client.close(self.now);
        }
        self.wait(ALL_GONE);
        // What is opened too late is closed at once.
        while self.files.values().any(|state| *state == File::Asked) {
            self.open_file(Ok(1));
        }
        self.exchange();
        for (id, (state, _)) in &self.sockets {
            assert!(*id == LISTEN || *state == Socket::Closed, "{id:?} is {state:?} at the end");
        }
        let stats = self.proxy.stats();
        assert_eq!((stats.flows_open, stats.connections_open), (0, 0));
        let open = self.files.values().find(|state| **state != File::Failed);
        assert_eq!(open, None, "a file is open at the end");
        assert_eq!(self.deadline, None, "nothing is left to wait for");
    }
}

/// Builds a payload that a target must get at most once. A check sum follows the content, so that
/// the fuzzer does not find such payloads by itself.
pub fn once(content: &[u8]) -> Vec<u8> {
    let mut payload = [ONCE, content].concat();
    payload.extend(check_sum(&payload));
    payload
}

fn is_once(payload: &[u8]) -> bool {
    payload.starts_with(ONCE)
        && payload.split_last_chunk().is_some_and(|(content, sum)| check_sum(content) == *sum)
}

fn check_sum(content: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    hasher.finish().to_be_bytes()
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

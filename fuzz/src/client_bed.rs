//! The environment of a client: servers that may be malicious, local programs, an operating system that
//! follows the rules of sockets, and the time.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    io::ErrorKind,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tandem_node::{
    Client, Event, Input, Node, Output,
    client::FlowId,
    limits::Limits,
    node::{
        Progress, QueryId, Received, ResolveError, ServiceEndpoint, SocketId, SocketKind, Transmit,
    },
    tcp::{ListenerId, TcpId, TcpInput, TcpOutput},
};
use tandem_wire::HttpDatagram;

use crate::{
    bed::{OUTPUTS_MAX, STALLS_MAX, server_address, start},
    input,
    raw_server::{RawServer, ids_of_initial},
};

/// The most connections that servers accept in one run.
const SERVERS_MAX: usize = 24;

/// The most chains of tunnels and connections inside: two proxies and an origin.
const DEPTH_MAX: usize = 3;

/// A time after which a client that was told to end must have ended.
const ALL_GONE: Duration = Duration::from_secs(400);

/// The length of the tunnel's queue. It is small, so that the fuzzer reaches it.
const TUNNEL_QUEUE: usize = 20_000;

/// The most local peers of a client.
const LOCAL_FLOWS: usize = 4;

/// The bounds of the client.
pub fn limits() -> Limits {
    Limits {
        local_flows: LOCAL_FLOWS,
        tunnel_queue: TUNNEL_QUEUE,
        short_tunnel_queue: TUNNEL_QUEUE,
        field_section: 1000,
        capsule: 4000,
        body_credit: 4000,
        ..Limits::default()
    }
}

/// How packets reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From a socket of the client to this address.
    Socket(SocketId, SocketAddr),
    /// Through a flow of another server's connection, which this quarter stream ID names.
    Tunnel(usize, u64),
}

/// What servers do by themselves, so that the input need not say it.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// The answer to each request for a flow. `None`: there is none.
    pub grant: Option<&'static [(&'static str, &'static str)]>,
    /// The answer to each request for a file, and its body. `None`: there is none.
    pub file: Option<(u16, &'static [(&'static str, &'static str)], &'static [u8])>,
    /// The bound of the client's data on each stream.
    pub window: u32,
    /// The number of addresses of each name.
    pub addresses: u8,
}

/// A server and what has been done for it.
struct Place {
    server: RawServer,
    way: Way,
    client: Bytes,
    answered: u64,
}

/// A TCP connection of a local program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// The client waits for it.
    Awaited,
    /// It is open, and the client may read so many bytes of it.
    Open(usize),
}

/// A client and all that surrounds it.
pub struct ClientBed {
    client: Client,
    /// The present time.
    pub now: Instant,
    manners: Manners,
    /// The number of tunnels. Servers that are reached through so many are origins.
    hops: usize,
    deadline: Option<Instant>,
    sockets: BTreeMap<SocketId, (bool, SocketKind)>,
    places: Vec<Place>,
    queries: VecDeque<(QueryId, Option<u16>)>,
    listeners: BTreeMap<ListenerId, Option<TcpId>>,
    programs: BTreeMap<TcpId, Program>,
    /// The pieces of the body, by offset.
    body: BTreeMap<u64, u64>,
    /// Whether the next socket that the client asks for cannot be opened.
    pub fails_socket: bool,
    /// The last byte of the address from which this host reaches servers. `None`: it has no network.
    host: Option<u8>,
    /// Whether the client wants to know when that changes.
    watches_network: bool,
    has_ended: bool,
    digest: DefaultHasher,
}

impl ClientBed {
    /// Starts a client.
    pub fn new(client: Client, hops: usize, manners: Manners) -> Self {
        Self {
            client,
            now: start(),
            manners,
            hops,
            deadline: None,
            sockets: BTreeMap::new(),
            places: Vec::new(),
            queries: VecDeque::new(),
            listeners: BTreeMap::new(),
            programs: BTreeMap::new(),
            body: BTreeMap::new(),
            fails_socket: false,
            host: Some(1),
            watches_network: false,
            has_ended: false,
            digest: DefaultHasher::new(),
        }
    }

    /// The client, for what the embedding program does.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// One of the servers. The index wraps around; newer ones come first.
    pub fn server(&mut self, index: u8) -> Option<&mut RawServer> {
        let index = usize::from(index).checked_rem(self.places.len())?;
        self.places.iter_mut().nth_back(index).map(|place| &mut place.server)
    }

    /// One of the origins.
    pub fn origin(&mut self, index: u8) -> Option<&mut RawServer> {
        let hops = self.hops;
        let is_origin: Vec<_> =
            (0..self.places.len()).filter(|at| self.depth(self.places[*at].way) == hops).collect();
        let at = usize::from(index).checked_rem(is_origin.len())?;
        Some(&mut self.places[is_origin[is_origin.len() - 1 - at]].server)
    }

    fn depth(&self, way: Way) -> usize {
        match way {
            Way::Socket(..) => 0,
            Way::Tunnel(outer, _) => 1 + self.depth(self.places[outer].way),
        }
    }

    fn feed(&mut self, input: Input) {
        self.client.handle(self.now, input);
    }

    /// Tells the client to end.
    pub fn shut_down(&mut self) {
        self.feed(Input::Shutdown);
    }

    /// Delivers a packet of a local program.
    pub fn from_program(&mut self, port: u8, payload: &[u8]) {
        let listens = |(_, (is_open, kind)): &(_, &(bool, SocketKind))| {
            *is_open && matches!(kind, SocketKind::Listen(_))
        };
        let Some((&socket, _)) = self.sockets.iter().find(listens) else { return };
        let remote = SocketAddr::from(([127, 0, 0, 1], 40_000 + u16::from(port % 8)));
        let payload = BytesMut::from(payload);
        self.feed(Input::Datagram(Received { socket, remote, local_ip: None, ecn: None, payload }));
    }

    /// Lets a local program connect.
    pub fn connect_program(&mut self, index: u8) {
        let awaited: Vec<_> =
            self.listeners.iter().filter_map(|(id, tcp)| Some((*id, (*tcp)?))).collect();
        let Some(at) = usize::from(index).checked_rem(awaited.len()) else { return };
        let (listener, tcp) = awaited[at];
        self.listeners.insert(listener, None);
        self.programs.insert(tcp, Program::Open(0));
        let result = Ok(SocketAddr::from(([127, 0, 0, 1], 41_000)).into());
        self.feed(Input::Tcp(TcpInput::Opened { tcp, result }));
    }

    /// Lets a local program send bytes on its TCP connection, or FIN if there are none.
    pub fn program_says(&mut self, index: u8, data: &[u8]) {
        let Some(tcp) = self.program(index, |max| max > 0) else { return };
        let Some(Program::Open(max)) = self.programs.insert(tcp, Program::Open(0)) else { return };
        let data = Bytes::copy_from_slice(&data[..data.len().min(max)]);
        self.feed(Input::Tcp(TcpInput::Read { tcp, data }));
    }

    /// Resets the TCP connection of a local program.
    pub fn program_fails(&mut self, index: u8) {
        let Some(tcp) = self.program(index, |_| true) else { return };
        self.programs.remove(&tcp);
        self.feed(Input::Tcp(TcpInput::Failed { tcp, error: ErrorKind::ConnectionReset }));
    }

    fn program(&self, index: u8, filter: impl Fn(usize) -> bool) -> Option<TcpId> {
        let is_chosen = |program: &Program| matches!(program, Program::Open(max) if filter(*max));
        let open = self.programs.iter().filter(|(_, program)| is_chosen(program));
        let open: Vec<_> = open.map(|(tcp, _)| *tcp).collect();
        open.get(usize::from(index).checked_rem(open.len())?).copied()
    }

    /// Lets one of the client's connected sockets fail.
    pub fn fail_socket(&mut self, index: u8) {
        let open = self.sockets.iter().filter(|(_, (is_open, _))| *is_open);
        let open: Vec<_> = open.map(|(socket, _)| *socket).collect();
        let Some(at) = usize::from(index).checked_rem(open.len()) else { return };
        let (socket, error) = (open[at], ErrorKind::ConnectionRefused);
        self.feed(Input::SocketFailed { socket, error });
    }

    /// Moves the host to another network, or to none. The client hears of it if it watches for that.
    pub fn change_network(&mut self, host: Option<u8>) {
        self.host = host;
        if self.watches_network {
            self.feed(Input::NetworkChanged);
        }
    }

    /// Answers one of the queries for names.
    pub fn answer_query(&mut self, addresses: u8) {
        let Some((query, port)) = self.queries.pop_front() else { return };
        let known = [server_address(), SocketAddr::from(([192, 0, 2, 3], 443))];
        let known = known.into_iter().chain(["[2001:db8::2]:443".parse().expect("an address")]);
        let addresses: Vec<_> = known.take(addresses.into()).collect();
        let error = ResolveError::NotFound;
        let result = if addresses.is_empty() { Err(error) } else { Ok(addresses) };
        self.feed(match port {
            None => Input::Resolved {
                query,
                result: result.map(|all| all.iter().map(SocketAddr::ip).collect()),
                progress: Progress::Complete,
            },
            Some(_) => Input::ServiceResolved {
                query,
                result: result
                    .map(|addresses| vec![ServiceEndpoint { priority: 1, addresses, ech: None }]),
                progress: Progress::Complete,
            },
        });
    }

    /// Exchanges packets until the client and the servers are idle at the present time.
    pub fn exchange(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            self.drain();
            while self.manners.addresses > 0 && !self.queries.is_empty() {
                self.answer_query(self.manners.addresses);
            }
            self.be_polite();
            if !self.send_each() {
                return;
            }
        }
        panic!("client and servers never become idle");
    }

    /// Answers what servers answer by themselves.
    fn be_polite(&mut self) {
        let Self { manners, hops, .. } = *self;
        for index in 0..self.places.len() {
            let is_proxy = self.depth(self.places[index].way) < hops;
            let Place { server, answered, .. } = &mut self.places[index];
            while *answered < server.requests {
                let stream = u8::try_from(*answered).unwrap_or(u8::MAX);
                *answered += 1;
                if is_proxy && let Some(fields) = manners.grant {
                    server.write(stream, &input::response(200, fields), 0);
                } else if !is_proxy && let Some((status, fields, body)) = manners.file {
                    server.write(stream, &input::response(status, fields), 0);
                    server.write(stream, &input::data_frame(body), 0);
                    server.end(stream, 0x0f, 0);
                }
            }
        }
    }

    /// Delivers a packet of each server that has one. Returns false if none has.
    fn send_each(&mut self) -> bool {
        let mut is_busy = false;
        for index in 0..self.places.len() {
            let Place { server, way, .. } = &mut self.places[index];
            let way = *way;
            let Some(payload) = server.poll() else { continue };
            is_busy = true;
            match way {
                Way::Socket(socket, remote) => {
                    if !self.sockets.get(&socket).is_some_and(|(is_open, _)| *is_open) {
                        continue;
                    }
                    let (local_ip, ecn) = (None, None);
                    let received = Received { socket, remote, local_ip, ecn, payload };
                    self.feed(Input::Datagram(received));
                }
                Way::Tunnel(outer, id) => {
                    self.places[outer].server.datagram(&input::datagram(id, 0, &payload));
                }
            }
        }
        is_busy
    }

    /// Gives a packet of the client to the servers at the end of this way.
    fn receive(&mut self, way: Way, packet: &[u8]) {
        if let Some(ids) = ids_of_initial(packet) {
            let is_known =
                self.places.iter().any(|place| place.way == way && place.client == ids.0);
            if !is_known && self.places.len() < SERVERS_MAX && self.depth(way) < DEPTH_MAX {
                let number = u8::try_from(self.places.len() + 1).expect("they are few");
                let client = ids.0.clone();
                let mut server = RawServer::accept(ids, number, self.manners.window);
                server.open(&input::server_control_stream());
                self.places.push(Place { server, way, client, answered: 0 });
            }
        }
        for index in 0..self.places.len() {
            if self.places[index].way == way {
                self.places[index].server.handle(packet);
                self.relay(index);
            }
        }
    }

    /// Passes on the payloads that have come to a proxy.
    fn relay(&mut self, index: usize) {
        while let Some(datagram) = self.places[index].server.datagrams.pop_front() {
            let Ok(HttpDatagram { quarter_stream_id, context_id, payload }) =
                HttpDatagram::decode(datagram)
            else {
                continue;
            };
            if context_id.get() == 0 {
                self.receive(Way::Tunnel(index, quarter_stream_id.stream_id() / 4), &payload);
            }
        }
    }

    fn drain(&mut self) {
        let mut buf = Vec::new();
        for _ in 0..OUTPUTS_MAX {
            buf.clear();
            let output = self.client.poll(self.now, &mut buf);
            if let Output::Wait(deadline) = output {
                self.deadline = deadline;
                return self.take_flow_events();
            }
            // The engine draws some bytes of the handshake that no seed decides, but not how many.
            format!("{output:?}").hash(&mut self.digest);
            buf.len().hash(&mut self.digest);
            self.perform(output, &buf);
        }
        panic!("the client emitted {OUTPUTS_MAX} successive outputs");
    }

    fn perform(&mut self, output: Output, buf: &[u8]) {
        match output {
            Output::Transmit { socket, transmit } => self.transmit(socket, transmit, buf),
            Output::OpenSocket { socket, kind } => {
                let result = match (std::mem::take(&mut self.fails_socket), kind, self.host) {
                    (true, ..) => Err(ErrorKind::AddrInUse.into()),
                    (false, SocketKind::Listen(local), _) => Ok(local),
                    (false, _, Some(host)) => Ok(SocketAddr::from(([127, 0, 0, host], 50_000))),
                    (false, _, None) => Err(ErrorKind::NetworkUnreachable.into()),
                };
                let old = self.sockets.insert(socket, (result.is_ok(), kind));
                assert_eq!(old, None, "{socket:?} is opened twice");
                self.feed(Input::SocketOpened { socket, result });
            }
            Output::CloseSocket(socket) => {
                let old = self.sockets.remove(&socket);
                assert!(old.is_some(), "{socket:?} is closed, but it is not there");
            }
            Output::Resolve { query, .. } => self.queries.push_back((query, None)),
            Output::ResolveService { query, port, .. } => {
                self.queries.push_back((query, Some(port)));
            }
            Output::BodyChunk { offset, data } => {
                let end = offset.checked_add(data.len() as u64).expect("a file has an end");
                let before = self.body.range(..end).next_back();
                assert!(before.is_none_or(|(_, end)| *end <= offset), "a byte comes twice");
                assert!(!data.is_empty(), "a part of the body has bytes");
                self.body.insert(offset, end);
                self.feed(Input::BodyCredit { bytes: data.len() as u64 });
            }
            Output::Event(event) => self.event(&event),
            Output::PacketTooBig { len, fits, .. } => assert!(fits < len, "{len} bytes fit {fits}"),
            Output::Tcp(output) => self.tcp(output),
            Output::WatchNetwork => self.watches_network = true,
            output => panic!("a client must not emit {output:?}"),
        }
    }

    fn event(&mut self, event: &Event) {
        assert!(!self.has_ended, "{event:?} comes after the end");
        match event {
            Event::Fetched(report) => {
                let mut pieces = self.body.iter();
                if let Some((_, &first)) = pieces.next() {
                    let end = pieces.fold(first, |end, (&offset, &next)| {
                        assert_eq!(offset, end, "bytes are missing");
                        next
                    });
                    assert!(end >= report.bytes, "{} bytes end at {end}", report.bytes);
                }
            }
            Event::HopLost { error, .. } | Event::FlowFailed { error, .. } => say(error),
            Event::Closed(result) => {
                self.has_ended = true;
                if let Err(error) = result {
                    say(error);
                }
            }
            _ => {}
        }
    }

    fn take_flow_events(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            let Some((FlowId(id), event)) = self.client.poll_flow_event() else {
                let queued = self.client.tunnel_queue().get();
                return assert!(queued <= TUNNEL_QUEUE as u64, "{queued} bytes wait");
            };
            (id, format!("{event:?}")).hash(&mut self.digest);
        }
        panic!("the events of flows never end");
    }

    /// A local program, and the operating system, take everything that the client writes.
    fn tcp(&mut self, output: TcpOutput) {
        let input = match output {
            TcpOutput::Listen { listener, address } => {
                self.listeners.insert(listener, None);
                TcpInput::Listening { listener, result: Ok(address) }
            }
            TcpOutput::Accept { listener, tcp } => {
                let old = self.listeners.insert(listener, Some(tcp));
                assert_eq!(old, Some(None), "{listener:?} waits for one program at a time");
                let old = self.programs.insert(tcp, Program::Awaited);
                return assert_eq!(old, None, "{tcp:?} is named twice");
            }
            TcpOutput::Read { tcp, max } => {
                let old = self.programs.insert(tcp, Program::Open(max));
                return assert!(old == Some(Program::Open(0)) && max > 0, "{tcp:?} is {old:?}");
            }
            TcpOutput::Write { tcp, data } => {
                self.assert_open(tcp);
                assert!(!data.is_empty());
                TcpInput::Written { tcp, bytes: data.len() }
            }
            TcpOutput::Finish(tcp) => return self.assert_open(tcp),
            TcpOutput::Close(tcp) | TcpOutput::Reset(tcp) => {
                self.listeners
                    .values_mut()
                    .filter(|it| **it == Some(tcp))
                    .for_each(|it| *it = None);
                return assert!(self.programs.remove(&tcp).is_some(), "{tcp:?} is not there");
            }
            output => panic!("this client must not emit {output:?}"),
        };
        self.feed(Input::Tcp(input));
    }

    fn assert_open(&self, tcp: TcpId) {
        let program = self.programs.get(&tcp);
        assert!(matches!(program, Some(Program::Open(_))), "{tcp:?} is {program:?}");
    }

    fn transmit(&mut self, socket: SocketId, transmit: Transmit, buf: &[u8]) {
        let (is_open, kind) = self.sockets.get(&socket).copied().expect("it was asked for");
        assert!(is_open, "{socket:?} is used");
        assert_eq!(transmit.size, buf.len());
        assert_ne!(transmit.segment_size, Some(0));
        // What goes to a local program ends there.
        if matches!(kind, SocketKind::Listen(_)) {
            return assert!(transmit.destination.ip().is_loopback(), "only programs are told");
        }
        if self.host.is_none() {
            return; // the packets are lost
        }
        let way = Way::Socket(socket, transmit.destination);
        for packet in buf.chunks(transmit.segment_size.unwrap_or(buf.len()).max(1)) {
            self.follow(way, packet);
            self.receive(way, packet);
        }
    }

    /// Lets the newest server at an address answer on another way, if a packet of an open connection comes on it.
    fn follow(&mut self, way: Way, packet: &[u8]) {
        let is_short = packet.first().is_some_and(|first| first & 0x80 == 0);
        let Way::Socket(_, remote) = way else { return }; // a tunnel has no other way
        if !is_short || self.places.iter().any(|place| place.way == way) {
            return;
        }
        let is_there = |place: &&mut Place| matches!(place.way, Way::Socket(_, at) if at == remote);
        if let Some(place) = self.places.iter_mut().rev().find(is_there) {
            place.way = way;
        }
    }

    /// Advances the time from timer to timer.
    pub fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        let mut stalls = 0;
        loop {
            self.exchange();
            let Some(due) = self.deadline.filter(|due| *due <= end) else { break };
            if due > self.now {
                (self.now, stalls) = (due, 0);
            } else {
                stalls += 1;
                assert!(stalls < STALLS_MAX, "a deadline is always in the past");
                self.now += Duration::from_micros(1);
            }
            self.feed(Input::Timeout);
            if self.has_ended {
                break;
            }
        }
        self.now = self.now.max(end);
    }

    /// Tells the client to end, and checks that it does. Returns a digest of all that it did.
    pub fn end(mut self) -> u64 {
        self.exchange();
        self.shut_down();
        self.wait(ALL_GONE);
        assert!(self.has_ended, "the client does not end");
        self.digest.finish()
    }
}

/// An error ends in words.
fn say(error: &impl std::fmt::Display) {
    let text = error.to_string();
    assert!(!text.trim().is_empty() && text.len() < 20_000, "{text:?}");
}

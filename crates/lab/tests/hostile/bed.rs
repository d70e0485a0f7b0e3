//! A node under test, a raw peer that attacks it, and the hosts around them.

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use std::time::Duration;

use bytes::Bytes;
use noq_proto::Dir;
use tandem_congestion::ControllerName;
use tandem_lab::{Contents, FileSet, Handle, LinkConfig, NameAnswer, Seed, TestCertificate, World};
use tandem_node::{
    Client, ClientConfig, Event, Node, Origin, OriginConfig, Proxy, ProxyConfig, Stats,
    client::{FetchConfig, HopConfig, Task, TunnelMode},
    error::ClientError,
    limits::Limits,
    node::ResolveError,
    proxy::{Access, TargetPolicy, Users},
    quic::{DatagramTransport, Mtu, Transport},
};
use tandem_wire::{Code, Template};

use crate::{
    h3_bytes::{Answer, connect_udp, control_stream, get, headers, udp_datagram},
    raw_peer::{Came, Permits, RawPeer},
    target::Target,
};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// A time that is long enough for a few round trips and for delayed acknowledgements.
const SETTLE: Duration = Duration::from_millis(200);

/// Another address of the attacker.
pub(crate) const ELSEWHERE: &str = "10.0.0.11";

/// A node under test and the peer that attacks it.
pub(crate) struct Bed<N> {
    pub(crate) world: World,
    pub(crate) node: Handle<N>,
    pub(crate) peer: Handle<RawPeer>,
    /// The target, which sends back the payloads that come to port 7 of `10.0.0.3`.
    pub(crate) target: Handle<Target>,
}

/// The file that the origin has.
pub(crate) const FILE: &[u8] = b"hello, this is a file\n";

/// The settings of a server.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) limits: Limits,
    pub(crate) access: Access,
    /// The users of a proxy.
    pub(crate) users: Users,
    pub(crate) permits: Permits,
    /// The controller of an origin.
    pub(crate) controller: ControllerName,
    pub(crate) takes_uploads: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            access: Access::Anyone,
            users: Users::default(),
            permits: Permits::default(),
            controller: ControllerName::default(),
            takes_uploads: false,
        }
    }
}

impl Setup {
    /// A proxy, connected to its attacker, which has sent no data yet.
    pub(crate) fn proxy(&self) -> Bed<Proxy> {
        let config = ProxyConfig {
            transport: Transport {
                mtu: Mtu::TUNNEL,
                datagrams: DatagramTransport::Sealed,
                ..Transport::default()
            },
            access: self.access.clone(),
            users: self.users.clone(),
            policy: TargetPolicy::allowing(vec!["10.0.0.0/8".parse().unwrap()]),
            limits: self.limits.clone(),
            seed: Some(1),
            ..ProxyConfig::new("0.0.0.0:443".parse().unwrap(), certificate().server())
        };
        self.server(Proxy::new(config).unwrap())
    }

    /// An origin, connected to its attacker, which has sent no data yet.
    pub(crate) fn origin(&self) -> Bed<Origin> {
        let config = OriginConfig {
            transport: Transport { controller: self.controller.into(), ..Transport::default() },
            takes_uploads: self.takes_uploads,
            limits: self.limits.clone(),
            seed: Some(1),
            ..OriginConfig::new("0.0.0.0:443".parse().unwrap(), certificate().server())
        };
        self.server(Origin::new(config).unwrap())
    }

    fn server<N: Node + 'static>(&self, node: N) -> Bed<N> {
        let server = "10.0.0.2:443".parse().unwrap();
        let mut bed = Bed::new(node, RawPeer::client(0, &certificate(), server, self.permits));
        bed.connect();
        bed
    }
}

/// A proxy with an attacker that has opened a valid control stream.
pub(crate) fn proxy() -> Bed<Proxy> {
    Setup::default().proxy().with_control_stream()
}

/// An origin with an attacker that has opened a valid control stream.
pub(crate) fn origin() -> Bed<Origin> {
    Setup::default().origin().with_control_stream()
}

/// A client that fetches `/file` from its attacker over this number of streams.
pub(crate) fn fetching(streams: usize) -> Bed<Client> {
    client(Vec::new(), fetch("peer.test", streams))
}

/// A client with its attacker as the proxy.
pub(crate) fn tunnelling(task: Task) -> Bed<Client> {
    tunnelling_in(TunnelMode::Mdt, task)
}

/// A client in another mode with its attacker as the proxy.
pub(crate) fn tunnelling_in(mode: TunnelMode, task: Task) -> Bed<Client> {
    let hop = HopConfig {
        transport: Transport {
            mtu: Mtu::TUNNEL,
            datagrams: DatagramTransport::Sealed,
            ..Transport::default()
        },
        mode,
        ..HopConfig::new(Template::default_for("peer.test").unwrap(), certificate().client())
    };
    client(vec![hop], task)
}

/// A client whose attacker has granted a flow with these fields.
pub(crate) fn granted(mode: TunnelMode, grant: &[(&str, &str)]) -> Bed<Client> {
    let mut bed = tunnelling_in(mode, fetch("origin.test", 1)).with_control_stream();
    let mut lines = vec![(":status", "200"), ("capsule-protocol", "?1")];
    lines.extend(grant);
    bed.peer().send(0, headers(&lines));
    bed.run();
    bed
}

pub(crate) fn fetch(host: &str, streams: usize) -> Task {
    Task::Fetch(Box::new(FetchConfig {
        streams,
        ..FetchConfig::new(host.to_owned(), 443, "/file".to_owned(), certificate().client())
    }))
}

pub(crate) fn client_node(hops: Vec<HopConfig>, task: Task) -> Client {
    Client::new(ClientConfig { hops, task, limits: Limits::default(), seed: Some(1) }).unwrap()
}

fn client(hops: Vec<HopConfig>, task: Task) -> Bed<Client> {
    let peer = RawPeer::server(&certificate(), 443, Permits::default());
    let mut bed = Bed::new(client_node(hops, task), peer);
    bed.connect();
    bed
}

pub(crate) fn certificate() -> TestCertificate {
    TestCertificate::new(["peer.test"])
}

impl<N: Node + 'static> Bed<N> {
    fn new(node: N, peer: RawPeer) -> Self {
        let mut world = World::new(Seed(1));
        let peer = world.add_host("peer", ["10.0.0.1", ELSEWHERE], peer);
        let node = world.add_host("node", ["10.0.0.2"], node);
        let target = world.add_host("target", ["10.0.0.3"], Target::default());
        let near = LinkConfig { delay: MS, ..LinkConfig::default() };
        world.connect(peer, node, near.clone());
        world.connect(node, target, near);
        let file = Contents::Literal(Bytes::from_static(FILE));
        world.set_files(node, FileSet::new().with("file", file));
        let found = |ip: &str| NameAnswer::After(20 * MS, Ok(vec![ip.parse().unwrap()]));
        world.set_name("peer.test", found("10.0.0.1"));
        world.set_name("echo.test", found("10.0.0.3"));
        world.set_name("inside.test", found("127.0.0.1"));
        world.set_name("mute.test", NameAnswer::Never);
        let unreachable = NameAnswer::After(MS, Err(ResolveError::Unreachable));
        world.set_name("failing.test", unreachable);
        Self { world, node, peer, target }
    }

    fn connect(&mut self) {
        let peer = self.peer;
        let is_connected = |world: &World| world.node(peer).is_connected();
        assert!(self.world.run_until(Duration::from_secs(1), is_connected), "no handshake");
    }

    /// Opens a valid control stream.
    pub(crate) fn with_control_stream(mut self) -> Self {
        self.open_with(Dir::Uni, control_stream(&[]));
        self.run();
        self
    }

    /// Lets the world run until sent data has arrived and has been answered.
    pub(crate) fn run(&mut self) {
        self.world.run_for(SETTLE);
    }

    /// The attacker, for reading.
    pub(crate) fn seen(&self) -> &RawPeer {
        self.world.node(self.peer)
    }

    /// The attacker, for actions.
    pub(crate) fn peer(&mut self) -> &mut RawPeer {
        self.world.node_mut(self.peer)
    }

    /// Opens a stream and sends its first bytes.
    pub(crate) fn open_with(&mut self, dir: Dir, data: impl Into<Bytes>) -> u64 {
        let peer = self.peer();
        let stream = peer.open(dir);
        peer.send(stream, data);
        stream
    }

    /// Sends pieces of bytes, each in packets of its own.
    pub(crate) fn send_pieces<'a>(
        &mut self,
        stream: u64,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) {
        for piece in pieces {
            self.peer().send(stream, piece.to_vec());
            self.world.run_for(3 * MS);
        }
    }

    pub(crate) fn came(&self, stream: u64) -> &Came {
        self.seen().streams.get(&stream).expect("the stream was opened")
    }

    /// The answer on a request stream.
    pub(crate) fn answer(&self, stream: u64) -> Answer {
        Answer::read(self.came(stream)).expect("an answer came")
    }

    /// Adds another client of a server.
    pub(crate) fn add_peer(&mut self, number: u8) -> Handle<RawPeer> {
        let server = "10.0.0.2:443".parse().unwrap();
        let peer = RawPeer::client(number, &certificate(), server, Permits::default());
        let ip = format!("10.0.1.{number}");
        let peer = self.world.add_host(&ip, [&*ip], peer);
        self.world.connect(peer, self.node, LinkConfig { delay: MS, ..LinkConfig::default() });
        peer
    }

    /// The code that the connection was closed with, if it was.
    pub(crate) fn closed_with(&self) -> Option<Code> {
        self.seen().closed_with()
    }

    /// Sends one request and waits for its answer.
    pub(crate) fn ask(&mut self, request: Vec<u8>) -> Answer {
        let stream = self.open_with(Dir::Bi, request);
        self.run();
        self.answer(stream)
    }
}

/// A server under test.
pub(crate) trait Serving {
    fn stats(&mut self) -> Stats;

    /// Makes a valid request, which must succeed, to show that earlier errors had no further
    /// effect.
    fn assert_serves(&mut self, after: &str);
}

impl Serving for Bed<Proxy> {
    fn stats(&mut self) -> Stats {
        self.world.node_mut(self.node).stats()
    }

    fn assert_serves(&mut self, after: &str) {
        assert_eq!(self.seen().closed, None, "after {after}");
        let stream = self.open_flow();
        assert_eq!(self.echo(stream, b"still there?"), vec![&b"still there?"[..]], "after {after}");
        self.peer().finish(stream);
        self.run();
    }
}

impl Serving for Bed<Origin> {
    fn stats(&mut self) -> Stats {
        self.world.node_mut(self.node).stats()
    }

    fn assert_serves(&mut self, after: &str) {
        assert_eq!(self.seen().closed, None, "after {after}");
        let answer = self.ask(get("/file"));
        assert_eq!((answer.status(), &*answer.body), (200, FILE), "after {after}");
    }
}

impl Bed<Proxy> {
    /// Opens a flow to the target.
    pub(crate) fn open_flow(&mut self) -> u64 {
        let stream = self.open_with(Dir::Bi, connect_udp("10.0.0.3", "7"));
        self.run();
        assert_eq!(self.answer(stream).status(), 200);
        stream
    }

    /// Sends a payload to the target, and returns the payloads that come back through the flow.
    pub(crate) fn echo(&mut self, stream: u64, payload: &[u8]) -> Vec<Vec<u8>> {
        self.peer().datagrams.clear();
        self.peer().datagram(udp_datagram(stream, payload));
        self.run();
        self.echoed(stream)
    }

    /// The payloads that came through a flow.
    pub(crate) fn echoed(&self, stream: u64) -> Vec<Vec<u8>> {
        let prefix = udp_datagram(stream, b"");
        let datagrams = self.seen().datagrams.iter();
        datagrams.filter_map(|data| data.strip_prefix(&*prefix)).map(<[u8]>::to_vec).collect()
    }

    /// The payloads that came to the target.
    pub(crate) fn at_target(&self) -> &[Bytes] {
        &self.world.node(self.target).came
    }
}

impl Bed<Client> {
    /// The result of the client, if it has ended.
    pub(crate) fn ended(&self) -> Option<Result<(), ClientError>> {
        self.world.events(self.node).iter().find_map(|(_, event)| match event {
            Event::Closed(result) => Some(result.clone()),
            _ => None,
        })
    }

    pub(crate) fn stats(&mut self) -> Stats {
        self.world.node_mut(self.node).stats()
    }
}

//! The hosts of a run and the links between them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tandem_congestion::{ControllerConfig, ControllerName};
use tandem_lab::{
    Contents, FileSet, Handle, HostId, NameAnswer, PathId, PepNumber, TestCertificate, World,
    endpoints::{
        Behaviour, Pace, PacedReceiver, PacedSender, SinkHost, TcpProgram, TcpServer, TcpTask,
    },
};
use tandem_netem::{Capacity, DurationHistogram, LinkConfig, LinkStats, Seed, UDP_IP_OVERHEAD};
use tandem_node::{
    Client, ClientConfig, Event, Origin, OriginConfig, Proxy, ProxyConfig,
    client::{
        FetchConfig, FlowConfig, ForwardConfig, HopConfig, Repair, Task, TcpService, Template,
        TunnelMode,
    },
    limits::Limits,
    proxy::{Access, TargetPolicy},
    quic::{AckPolicy, LossDetection, Mtu, Transport},
    tls::KeyExchange,
};
use tandem_units::{ByteCount, Rate};

use super::{
    Parameters, RunError, TraceStore, Workload, links, others, pep, watched::WatchedHosts,
};

/// The port of the origins and the proxies.
pub(super) const PORT: u16 = 443;

/// The port at which a client listens for local programs that download.
const LOCAL_PORT: u16 = 4433;

/// The port at which it listens for local programs that receive datagrams.
const LOCAL_DATAGRAMS: u16 = 4434;

/// The port for datagrams that are only counted (RFC 863).
const DISCARD: u16 = 9;

/// The port at which it listens for local programs with TCP connections.
const LOCAL_TCP: u16 = 4435;

/// A host beside the origin that sends bytes over TCP connections, and its port.
const TCP_TARGET: (&str, u16) = ("10.0.2.253", 19);

/// A host beside the origin that sends datagrams.
const SENDER_IP: &str = "10.0.2.254";

/// The address of the first client.
const FIRST_CLIENT: &str = "10.1.0.1";

/// The destination of other traffic.
const CROSS_SINK_IP: &str = "10.0.4.2";

/// The least initial window of a tuned origin in packets, and the least percentage of the known
/// bandwidth at which it probes for more. A tunnel has the same.
const TUNED: (u32, u32) = (32, 200);

/// The least overhead of a hop's packets in bytes, rounded up.
const HOP_OVERHEAD: u16 = 45;

/// A part of a run for which a seed is derived. The numbers must not change, because a seed must
/// keep its meaning.
#[derive(Clone, Copy)]
pub(super) enum SeededPart {
    Network = 0,
    DownlinkTrace = 2,
    UplinkTrace = 3,
    Contents = 4,
    Requests = 5,
    Wakes = 6,
    Proxy = 1000,
    Client = 2000,
    Origin = 3000,
    Others = 4000,
}

/// A host to which clients send their packets: the first proxy, or an origin without a tunnel.
pub(super) struct FirstPeer {
    host: HostId,
    /// The paths from it to the access link, and back. There are none if it is next to the access
    /// link.
    pub(super) to_access: Vec<PathId>,
    from_access: Vec<PathId>,
}

/// A sender and a receiver of UDP payloads at a constant rate.
pub(super) struct Datagrams {
    pub(super) receiver: Handle<PacedReceiver>,
}

/// The hosts of a run and the links between them.
pub(super) struct Topology<'a> {
    pub(super) world: World,
    pub(super) watched: WatchedHosts,
    /// The capacity of the access link in the direction of the body.
    pub(super) capacity: Capacity,
    /// The proxies in the order of the chain.
    pub(super) proxies: Vec<Handle<Proxy>>,
    pub(super) origins: Vec<Handle<Origin>>,
    pub(super) peers: Vec<FirstPeer>,
    /// A host at the end of the access link, which no flow uses.
    pub(super) everybody: Handle<SinkHost>,
    pub(super) certificate: TestCertificate,
    pub(super) run: &'a Parameters,
    files: FileSet,
    clients: u32,
    /// Local programs by their addresses.
    pub(super) programs: BTreeMap<IpAddr, Handle<Client>>,
    /// The PEP, while it runs.
    pub(super) pep: Option<PepNumber>,
}

impl<'a> Topology<'a> {
    pub(super) fn new(run: &'a Parameters, traces: &TraceStore) -> Result<Self, RunError> {
        let mut names: Vec<_> = (1..=run.proxies).map(proxy_name).collect();
        names.extend((1..=run.origins).map(origin_name));
        names.push(PROGRAM.to_owned());
        names.extend(run.others.iter().flat_map(|_| (1..=run.others_count).map(others::name)));
        let key_exchange =
            if run.post_quantum { KeyExchange::Hybrid } else { KeyExchange::Classical };
        let certificate =
            TestCertificate::new(names.iter().map(String::as_str)).with_key_exchange(key_exchange);
        let mut world = World::new(Seed(run.seed).derive(SeededPart::Network as u64));
        world.verify_links();
        if let Some(granularity) = run.timer_granularity {
            world.set_timer_granularity(granularity.0);
        }
        if !run.late_wakes.0.is_zero() {
            world.wake_late(run.late_wakes.0, Seed(run.seed).derive(SeededPart::Wakes as u64));
        }
        let origins = add_origins(&mut world, run, &certificate);
        let proxies = add_proxies(&mut world, run, &certificate);
        for (first, second) in proxies.iter().zip(proxies.iter().skip(1)) {
            world.connect(*first, *second, links::delay(run.hop_rtt.0 / 2));
        }
        // No flow uses this host. It makes the paths before the clients that share them.
        let everybody = world.add_host("clients", ["10.0.3.1"], SinkHost::new(DISCARD));
        let (down, up) = (links::downlink(run, traces)?, links::uplink(run, traces)?);
        let is_upload = is_upload(run);
        let capacity = if is_upload { &up.capacity } else { &down.capacity }.clone();
        let origin = *origins.first().expect("there is an origin");
        let edge = proxies.first().map_or(origin.id(), |proxy| proxy.id());
        let downlink = world.route(edge, everybody, vec![down]);
        let uplink = world.route(everybody, edge, vec![up]);
        let mut peers = Vec::new();
        for (number, origin) in (1..).zip(&origins) {
            let far = links::to_origin(run, number);
            if let Some(last) = proxies.last() {
                world.connect(*last, *origin, far);
                continue;
            }
            let to_access = vec![world.route(*origin, everybody, vec![far.clone()])];
            let from_access = vec![world.route(everybody, *origin, vec![far])];
            peers.push(FirstPeer { host: origin.id(), to_access, from_access });
        }
        if let Some(proxy) = proxies.first() {
            let (to_access, from_access) = (Vec::new(), Vec::new());
            peers.push(FirstPeer { host: proxy.id(), to_access, from_access });
        }
        let proxy = proxies.first().copied();
        let mut topology = Self {
            world,
            watched: WatchedHosts { origin, proxy, client: None, downlink, uplink, is_upload },
            capacity,
            proxies,
            origins,
            peers,
            everybody,
            certificate,
            run,
            files: FileSet::new(),
            clients: 0,
            programs: BTreeMap::new(),
            pep: None,
        };
        topology.add_pep(&links::to_origin(run, 1));
        Ok(topology)
    }

    /// Adds a client that downloads or uploads this number of bytes, from now on.
    pub(super) fn add_download(&mut self, size: ByteCount) -> Handle<Client> {
        let path = self.add_file(size);
        let (number, ip) = self.next_client();
        let origin = u64::from(number) % self.run.origins + 1;
        let task = self.fetch(&origin_name(origin), PORT, path, Mtu::default());
        let client = self.client(number, task);
        let handle = self.world.add_host(&format!("client {number}"), [&*ip], client);
        self.attach(number, handle);
        if !self.run.mode.has_tunnel() {
            for origin in &self.origins {
                self.world.measure_delay(*origin, handle);
            }
        }
        handle
    }

    /// Adds a client that carries the packets of local programs, from now on. Without a tunnel it
    /// adds none.
    pub(super) fn add_forwarder(&mut self) -> Option<Handle<Client>> {
        if !self.run.mode.has_tunnel() {
            return None;
        }
        let (number, ip) = self.next_client();
        let at: IpAddr = ip.parse().expect("an address");
        let task = Task::Forward(vec![
            ForwardConfig::new(SocketAddr::new(at, LOCAL_PORT), origin_name(1), PORT),
            ForwardConfig::new(SocketAddr::new(at, LOCAL_DATAGRAMS), SENDER_IP.to_owned(), DISCARD),
        ]);
        let mut client = self.client(number, task);
        if let Workload::Tcp(_) = self.run.workload {
            let (host, port) = TCP_TARGET;
            client.add_tcp_service(TcpService::Forward {
                listen: SocketAddr::new(at, LOCAL_TCP),
                target: FlowConfig::new(host, port),
            });
        }
        let handle = self.world.add_host(&format!("client {number}"), [&*ip], client);
        self.attach(number, handle);
        set_name(&mut self.world, PROGRAM, &ip);
        Some(handle)
    }

    /// Adds a local program that downloads this number of bytes through a client, from now on.
    /// Without a tunnel it works as [`Self::add_download`].
    pub(super) fn add_program(
        &mut self,
        forwarder: Option<Handle<Client>>,
        size: ByteCount,
    ) -> Handle<Client> {
        let Some(forwarder) = forwarder else { return self.add_download(size) };
        let path = self.add_file(size);
        let (number, ip) = self.next_client();
        let hops = u16::try_from(self.run.proxies).unwrap_or(u16::MAX);
        let start = tunnel_mtu(self.run).start;
        let inside = start.saturating_sub(HOP_OVERHEAD.saturating_mul(hops)).max(1200);
        let task = self.fetch(PROGRAM, LOCAL_PORT, path, Mtu::inside_tunnel(inside));
        let config = ClientConfig {
            hops: Vec::new(),
            task,
            limits: Limits::default(),
            seed: Some(self.seed(SeededPart::Client, number)),
        };
        let client = Client::new(config).expect("the certificate serves QUIC");
        let handle = self.world.add_host(&format!("program {number}"), [&*ip], client);
        self.programs.insert(ip.parse().expect("an address"), handle);
        self.world.connect(handle, forwarder, LinkConfig::default());
        self.world.measure_delay(self.watched.origin, handle);
        handle
    }

    /// Adds a host beside the origin that sends at a constant rate to a local program of a client.
    /// The program requests the datagrams now.
    pub(super) fn add_datagrams(
        &mut self,
        forwarder: Option<Handle<Client>>,
        pace: Pace,
    ) -> Datagrams {
        let sender = PacedSender::on_request(DISCARD, pace);
        let sender = self.world.add_host("sender", [SENDER_IP], sender);
        if let Some(last) = self.proxies.last() {
            self.world.connect(*last, sender, links::to_origin(self.run, 1));
        }
        let (number, ip) = self.next_client();
        let target = match forwarder {
            Some(_) => format!("{FIRST_CLIENT}:{LOCAL_DATAGRAMS}"),
            None => format!("{SENDER_IP}:{DISCARD}"),
        };
        let target = target.parse().expect("an address and a port");
        let receiver = PacedReceiver::asking(target);
        let receiver = self.world.add_host(&format!("program {number}"), [&*ip], receiver);
        if let Some(forwarder) = forwarder {
            self.world.connect(receiver, forwarder, LinkConfig::default());
        } else if let Some(origin) = self.peers.first() {
            let (down, up) = self.through(origin);
            self.world.route_over(sender, receiver, &down);
            self.world.route_over(receiver, sender, &up);
        }
        self.world.measure_delay(sender, receiver);
        Datagrams { receiver }
    }

    /// Adds a host beside the origin that sends this number of bytes over a TCP connection, and a
    /// local program of a client that connects to it now.
    pub(super) fn add_tcp(&mut self, size: ByteCount) -> Handle<TcpProgram> {
        let (target_ip, port) = TCP_TARGET;
        let target = TcpServer::new(port, Behaviour::Source(size.get()));
        let target = self.world.add_host("target", [target_ip], target);
        if let Some(last) = self.proxies.last() {
            self.world.connect(*last, target, links::to_origin(self.run, 1));
        }
        let (number, ip) = self.next_client();
        let client = format!("{FIRST_CLIENT}:{LOCAL_TCP}").parse().expect("an address and a port");
        let program = TcpProgram::new(vec![TcpTask::new(client, 0)]);
        self.world.add_host(&format!("program {number}"), [&*ip], program)
    }

    /// Adds other traffic over the link towards the clients, at a constant rate.
    pub(super) fn add_cross_traffic(&mut self, rate: Rate, duration: Duration) {
        const PAYLOAD: usize = 1200;
        let interval = rate.time_to_send(ByteCount::from(PAYLOAD) + UDP_IP_OVERHEAD);
        let pace = Pace { interval, duration, payload_len: PAYLOAD };
        let target = format!("{CROSS_SINK_IP}:{DISCARD}").parse().expect("an address and a port");
        let sender = self.world.add_host("others", ["10.0.4.1"], PacedSender::new(target, pace));
        let sink = PacedReceiver::listening(DISCARD);
        let sink = self.world.add_host("others' sink", [CROSS_SINK_IP], sink);
        self.world.route_over(sender, sink, &[self.watched.downlink]);
    }

    /// Whether the whole tunnel of a client is up.
    pub(super) fn is_up(&self, client: Handle<Client>) -> bool {
        let is_up = |(_, event): &&(Duration, Event)| matches!(event, Event::HopUp { .. });
        self.world.events(client).iter().filter(is_up).count() >= self.proxies.len()
    }

    pub(super) fn seed(&self, part: SeededPart, number: u32) -> u64 {
        Seed(self.run.seed).derive(part as u64 + u64::from(number)).0
    }

    /// Puts a client behind the access link.
    fn attach(&mut self, number: u32, client: Handle<Client>) {
        let leg = links::leg(self.run, number).map(|leg| {
            let down = self.world.route(self.everybody, client, vec![leg.clone()]);
            (down, self.world.route(client, self.everybody, vec![leg]))
        });
        for peer in &self.peers {
            let (mut down, mut up) = self.through(peer);
            if let Some((to_client, from_client)) = leg {
                down.push(to_client);
                up.insert(0, from_client);
            }
            self.world.route_over(peer.host, client, &down);
            self.world.route_over(client, peer.host, &up);
        }
        self.watched.client.get_or_insert(client);
    }

    /// The routes from a peer over the access link, and back.
    pub(super) fn through(&self, peer: &FirstPeer) -> (Vec<PathId>, Vec<PathId>) {
        let down = peer.to_access.iter().copied().chain([self.watched.downlink]);
        let up = [self.watched.uplink].into_iter().chain(peer.from_access.iter().copied());
        (down.collect(), up.collect())
    }

    fn next_client(&mut self) -> (u32, String) {
        let number = self.clients;
        self.clients += 1;
        (number, format!("10.1.{}.{}", number / 250, number % 250 + 1))
    }

    fn add_file(&mut self, size: ByteCount) -> String {
        let name = format!("{}-bytes", size.get());
        let seed = Seed(self.seed(SeededPart::Contents, 0));
        let files = std::mem::take(&mut self.files);
        self.files = files.with(&name, Contents::Generated { len: size, seed });
        for origin in &self.origins {
            self.world.set_files(*origin, self.files.clone());
        }
        format!("/{name}")
    }

    fn fetch(&self, host: &str, port: u16, path: String, mtu: Mtu) -> Task {
        let transport = Transport { mtu, receive_window: self.run.window, ..transport(self.run) };
        let upload = is_upload(self.run).then_some(self.run.size);
        Task::Fetch(Box::new(FetchConfig {
            streams: usize::try_from(self.run.streams).unwrap_or(usize::MAX),
            upload,
            transport,
            relays_feedback: self.run.mode.has_feedback(),
            ..FetchConfig::new(host.to_owned(), port, path, self.certificate.client())
        }))
    }

    fn client(&self, number: u32, task: Task) -> Client {
        let hop = |hop| HopConfig {
            transport: Transport { mtu: tunnel_mtu(self.run), ..tunnel_transport(self.run) },
            mode: tunnel_mode(self.run, hop),
            ..HopConfig::new(
                Template::default_for(&proxy_name(hop)).expect("a host name"),
                self.certificate.client(),
            )
        };
        let count = if self.run.mode.has_tunnel() { self.run.proxies } else { 0 };
        let hops = (1..=count).map(hop).collect();
        let seed = Some(self.seed(SeededPart::Client, number));
        // A run ends with a client's last byte. The bytes that it counts include the end of a tunnel,
        // so that the tunnel must end in the same moment.
        let limits = Limits { last_words: Duration::ZERO, ..Limits::default() };
        let config = ClientConfig { hops, task, limits, seed };
        Client::new(config).expect("the certificate serves QUIC")
    }
}

/// The counters of the access link towards the clients, and from them.
pub(super) fn access_stats(
    world: &World,
    downlink: PathId,
    uplink: PathId,
) -> (LinkStats, LinkStats) {
    let only = |path| world.path_stats(path).first().copied().unwrap_or_default();
    (only(downlink), only(uplink))
}

/// The times of packets in the queue and in transmission of the access link, in the same order.
pub(super) fn access_sojourns(
    world: &World,
    downlink: PathId,
    uplink: PathId,
) -> (Option<&DurationHistogram>, Option<&DurationHistogram>) {
    (world.sojourns(downlink, 0), world.sojourns(uplink, 0))
}

/// The origin's name for local programs. It resolves to the client's address.
const PROGRAM: &str = "local.test";

fn proxy_name(number: u64) -> String {
    format!("proxy{number}.test")
}

fn origin_name(number: u64) -> String {
    format!("origin{number}.test")
}

fn add_origins(
    world: &mut World,
    run: &Parameters,
    certificate: &TestCertificate,
) -> Vec<Handle<Origin>> {
    let mut add = |number: u64| {
        let ip = format!("10.0.2.{number}");
        set_name(world, &origin_name(number), &ip);
        world.add_host(&format!("origin {number}"), [&*ip], origin(run, number, certificate))
    };
    (1..=run.origins).map(&mut add).collect()
}

fn add_proxies(
    world: &mut World,
    run: &Parameters,
    certificate: &TestCertificate,
) -> Vec<Handle<Proxy>> {
    let mut add = |number: u64| {
        let ip = format!("10.0.1.{number}");
        set_name(world, &proxy_name(number), &ip);
        world.add_host(&format!("proxy {number}"), [&*ip], proxy(run, number, certificate))
    };
    let count = if run.mode.has_tunnel() { run.proxies } else { 0 };
    (1..=count).map(&mut add).collect()
}

pub(super) fn set_name(world: &mut World, name: &str, ip: &str) {
    let ip: IpAddr = ip.parse().expect("an address");
    world.set_name(name, NameAnswer::After(Duration::ZERO, Ok(vec![ip])));
}

fn is_upload(run: &Parameters) -> bool {
    run.workload == Workload::Upload
}

/// The mode of the tunnel to a proxy. The first proxy has the number 1.
fn tunnel_mode(run: &Parameters, proxy: u64) -> TunnelMode {
    let mode = if proxy == 1 { run.mode } else { run.beyond.unwrap_or(run.mode) };
    let order = run.resequence.unwrap_or(mode.usual_order());
    let repair = Repair { order, ..Repair::default() };
    mode.tunnel(repair, run.group_streams).unwrap_or_default()
}

/// The transport settings of end-to-end connections.
fn transport(run: &Parameters) -> Transport {
    let mut controller = ControllerConfig {
        initial_window_packets: to_u32(run.initial_window),
        seed: run.seed,
        ..origin_controller(run).into()
    };
    if let Some(text) = &run.tecc {
        controller.tecc = controller.tecc.with(text).expect("checked before");
    }
    if run.mode.has_tuned_origin() {
        let (window, gain) = TUNED;
        controller.initial_window_packets = controller.initial_window_packets.max(window);
        controller.bbr_up_gain_percent = controller.bbr_up_gain_percent.max(gain);
    }
    // An origin that takes reports is the product's: it does not know beforehand which connections have a tunnel.
    let loss_detection = if run.mode.has_patient_origin() && !run.mode.has_feedback() {
        LossDetection::BehindRepair
    } else {
        LossDetection::of_origin(controller.name)
    };
    Transport {
        controller,
        loss_detection,
        acks: AckPolicy::END_TO_END.chosen(run.e2e_ack_delay, run.e2e_ack_threshold.map(to_u32)),
        ..Transport::default()
    }
}

fn origin_controller(run: &Parameters) -> ControllerName {
    run.mode.origin_controller().unwrap_or(run.origin_controller)
}

fn tunnel_transport(run: &Parameters) -> Transport {
    let mut controller = ControllerConfig { seed: run.seed, ..run.tunnel_controller.into() };
    if let Some(window) = run.tunnel_initial_window {
        controller.initial_window_packets = to_u32(window);
    } else if run.tunnel_controller != ControllerName::Bbr1Tunnel {
        controller.initial_window_packets = to_u32(run.initial_window);
    }
    if let Some(percent) = run.tunnel_up_gain_percent {
        controller.bbr_up_gain_percent = to_u32(percent);
    }
    Transport {
        controller,
        mtu: Mtu::TUNNEL,
        datagrams: run.tunnel_datagrams,
        acks: AckPolicy::TUNNEL.chosen(run.ack_delay, run.ack_threshold.map(to_u32)),
        ..Transport::default()
    }
}

/// The sizes of a client's first tunnel, which the proxies keep to. The figures are about the sizes that
/// the connection inside a tunnel relies on.
fn tunnel_mtu(run: &Parameters) -> Mtu {
    Mtu::TUNNEL.for_chain(usize::try_from(run.proxies).unwrap_or(usize::MAX), false)
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn origin(run: &Parameters, number: u64, certificate: &TestCertificate) -> Origin {
    let receive_window = run.window.filter(|_| is_upload(run));
    let config = OriginConfig {
        transport: Transport { receive_window, peps: pep::heard(run), ..transport(run) },
        takes_uploads: is_upload(run),
        seed: Some(Seed(run.seed).derive(SeededPart::Origin as u64 + number).0),
        ..OriginConfig::new(([0, 0, 0, 0], PORT).into(), certificate.server())
    };
    Origin::new(config).expect("the certificate serves QUIC")
}

fn proxy(run: &Parameters, number: u64, certificate: &TestCertificate) -> Proxy {
    let config = ProxyConfig {
        transport: tunnel_transport(run),
        access: Access::Anyone,
        policy: TargetPolicy::allowing(vec!["10.0.0.0/8".parse().expect("a prefix")]),
        feedback_interval: run.feedback_interval.map(|interval| interval.0),
        pep: pep::of_proxy(run, number),
        seed: Some(Seed(run.seed).derive(SeededPart::Proxy as u64 + number).0),
        ..ProxyConfig::new(([0, 0, 0, 0], PORT).into(), certificate.server())
    };
    Proxy::new(config).expect("the certificate serves QUIC")
}

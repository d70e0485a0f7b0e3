//! One tunnel that carries UDP payloads of one size in one direction, and the cost of a payload at
//! each node. `tests/copies` counts allocations with it, `tests/instructions` instructions, and
//! `examples/packet_cost` measures time.
//!
//! ```text
//! program --- client --- 5 ms --- proxy 1 --- 5 ms --- proxy 2 --- 5 ms --- target
//! ```

use std::{
    net::SocketAddr,
    ops::{AddAssign, Sub},
    time::{Duration, Instant},
};

use tandem_lab::{
    Handle, LinkConfig, NameAnswer, Seed, TestCertificate, World,
    endpoints::{Pace, PacedReceiver, PacedSender},
};
use tandem_node::{
    Client, ClientConfig, Event, Input, Node, Output, Proxy, ProxyConfig,
    client::{ForwardConfig, HopConfig, Repair, Task, Template, TunnelMode},
    limits::Limits,
    proxy::{Access, TargetPolicy},
    quic::{DatagramTransport, Mtu, Transport},
};

/// One-way delay of each link.
const DELAY: Duration = Duration::from_millis(5);

/// Time from one payload to the next. With 1200 bytes the rate is 48 Mbit/s.
const INTERVAL: Duration = Duration::from_micros(200);

/// The address at which the client listens for the program.
const LISTEN: &str = "10.0.0.1:5000";

/// The address and port of the target.
const TARGET: (&str, u16) = ("10.0.0.8", 7);

/// A case: one direction of one tunnel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// The name in the output.
    pub(crate) name: &'static str,
    /// The mode of all hops.
    pub(crate) mode: TunnelMode,
    /// What carries the datagrams of all hops.
    pub(crate) datagrams: DatagramTransport,
    /// Number of proxies.
    pub(crate) proxies: usize,
    /// Whether the program sends to the target, instead of the target to the program.
    pub(crate) is_upward: bool,
}

impl Case {
    /// All cases.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let (mdt, mst) = (TunnelMode::Mdt, TunnelMode::Mst);
        let [rmdt, tecc] = [TunnelMode::Rmdt, TunnelMode::Tecc].map(|mode| mode(Repair::default()));
        let (quic, sealed) = (DatagramTransport::Quic, DatagramTransport::Sealed);
        let tunnels = [
            ("mdt", mdt, quic, 1),
            ("mdt sealed", mdt, sealed, 1),
            ("mst", mst, quic, 1),
            ("rmdt", rmdt, quic, 1),
            ("rmdt sealed", rmdt, sealed, 1),
            ("tecc", tecc, quic, 1),
            ("tecc sealed", tecc, sealed, 1),
            ("mdt, two hops", mdt, quic, 2),
            ("mdt sealed, two hops", mdt, sealed, 2),
        ];
        tunnels.into_iter().flat_map(|(name, mode, datagrams, proxies)| {
            [true, false].map(|is_upward| Self { name, mode, datagrams, proxies, is_upward })
        })
    }

    /// The direction, in a word.
    pub(crate) const fn direction(&self) -> &'static str {
        if self.is_upward { "up" } else { "down" }
    }
}

/// The cost of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Calls of the allocator.
    pub(crate) allocations: u64,
    /// Bytes that were requested from the allocator, or copied into buffers that are used again.
    pub(crate) bytes: u64,
    /// Time in nanoseconds.
    pub(crate) nanos: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.allocations += other.allocations;
        self.bytes += other.bytes;
        self.nanos += other.nanos;
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            bytes: self.bytes - before.bytes,
            nanos: self.nanos - before.nanos,
        }
    }
}

/// Calls a function and returns its cost.
pub(crate) type Meter = fn(&mut dyn FnMut()) -> Cost;

/// A node whose calls are measured.
pub(crate) struct Metered<N> {
    node: N,
    meter: Meter,
    cost: Cost,
}

impl<N: Node> Node for Metered<N> {
    fn handle(&mut self, now: Instant, input: Input) {
        let mut input = Some(input);
        self.cost += (self.meter)(&mut || {
            if let Some(input) = input.take() {
                self.node.handle(now, input);
            }
        });
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        let mut output = Output::Wait(None);
        self.cost += (self.meter)(&mut || output = self.node.poll(now, buf));
        output
    }
}

/// A tunnel that carries payloads.
pub(crate) struct Bed {
    world: World,
    client: Handle<Metered<Client>>,
    proxies: Vec<Handle<Metered<Proxy>>>,
    receiver: Handle<PacedReceiver>,
}

impl Bed {
    /// Builds the tunnel and starts the payloads. The meters are those of the client and of the proxies.
    pub(crate) fn new(case: &Case, payload_len: usize, meters: [Meter; 2]) -> Self {
        let [meter, of_proxies] = meters;
        let metered = |node| Metered { node, meter, cost: Cost::default() };
        let tls = TestCertificate::new(["proxy1.test", "proxy2.test"]);
        let mut world = World::new(Seed(1));
        let client = metered(client(case, &tls));
        let client = world.add_host("client", ["10.0.0.1"], client);
        let metered = |node| Metered { node, meter: of_proxies, cost: Cost::default() };
        let link = LinkConfig { delay: DELAY, ..LinkConfig::default() };
        let mut proxies = Vec::new();
        for number in 1..=case.proxies {
            let (name, ip) = (format!("proxy{number}"), format!("10.0.0.{}", number + 1));
            let handle = world.add_host(&name, [&*ip], metered(proxy(case, number, &tls)));
            let address = ip.parse().expect("an address");
            let answer = NameAnswer::After(Duration::ZERO, Ok(vec![address]));
            world.set_name(&format!("{name}.test"), answer);
            match proxies.last() {
                Some(&previous) => world.connect(previous, handle, link.clone()),
                None => world.connect(client, handle, link.clone()),
            }
            proxies.push(handle);
        }
        let last = *proxies.last().expect("a tunnel has a proxy");
        let pace = Pace { interval: INTERVAL, duration: Duration::from_secs(3600), payload_len };
        let listen: SocketAddr = LISTEN.parse().expect("an address");
        let is_up = move |world: &World| {
            world.events(client).iter().any(|(_, event)| matches!(event, Event::HopUp { .. }))
        };
        let receiver = if case.is_upward {
            let target = PacedReceiver::listening(TARGET.1);
            let target = world.add_host("target", [TARGET.0], target);
            world.connect(last, target, link);
            assert!(world.run_until(Duration::from_secs(1), is_up), "no listener");
            world.add_host("program", ["10.0.0.7"], PacedSender::new(listen, pace));
            target
        } else {
            let target = PacedSender::on_request(TARGET.1, pace);
            let target = world.add_host("target", [TARGET.0], target);
            world.connect(last, target, link);
            assert!(world.run_until(Duration::from_secs(1), is_up), "no listener");
            world.add_host("program", ["10.0.0.7"], PacedReceiver::asking(listen))
        };
        Self { world, client, proxies, receiver }
    }

    /// Runs until this number of further payloads have arrived, and returns the cost of each node:
    /// the client first, then the proxies in the order of the chain.
    pub(crate) fn carry(&mut self, payloads: u64) -> Vec<Cost> {
        let (receiver, before) = (self.receiver, self.costs());
        let until = self.world.node(receiver).packets() + payloads;
        let limit = Duration::from_secs(60) + INTERVAL * 2 * u32::try_from(payloads).unwrap_or(0);
        let have_come = |world: &World| world.node(receiver).packets() >= until;
        assert!(self.world.run_until(limit, have_come), "the payloads do not arrive");
        self.costs().into_iter().zip(before).map(|(now, before)| now - before).collect()
    }

    fn costs(&mut self) -> Vec<Cost> {
        let mut costs = vec![self.world.inspect(self.client).cost];
        costs.extend(self.proxies.iter().map(|proxy| self.world.inspect(*proxy).cost));
        costs
    }
}

fn transport(case: &Case) -> Transport {
    Transport { mtu: Mtu::TUNNEL, datagrams: case.datagrams, ..Transport::default() }
}

fn client(case: &Case, tls: &TestCertificate) -> Client {
    let hop = |number| HopConfig {
        transport: transport(case),
        mode: case.mode,
        ..HopConfig::new(
            Template::default_for(&format!("proxy{number}.test")).expect("an authority"),
            tls.client(),
        )
    };
    let forward =
        ForwardConfig::new(LISTEN.parse().expect("an address"), TARGET.0.to_owned(), TARGET.1);
    let hops = (1..=case.proxies).map(hop).collect();
    let task = Task::Forward(vec![forward]);
    let config = ClientConfig { hops, task, limits: Limits::default(), seed: Some(1) };
    Client::new(config).expect("the settings are those of a client")
}

fn proxy(case: &Case, number: usize, tls: &TestCertificate) -> Proxy {
    let listen = "0.0.0.0:443".parse().expect("an address");
    let config = ProxyConfig {
        transport: transport(case),
        access: Access::Anyone,
        policy: TargetPolicy::allowing(vec!["10.0.0.0/8".parse().expect("a prefix")]),
        seed: Some(200 + number as u64),
        ..ProxyConfig::new(listen, tls.server())
    };
    Proxy::new(config).expect("the settings are those of a proxy")
}

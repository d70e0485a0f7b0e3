//! Flows that share one access link. Each has an origin of its own, and a proxy of its own if it
//! uses a tunnel.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

use std::time::Duration;

use tandem_congestion::{ControllerConfig, ControllerName};
use tandem_lab::{
    Contents, FileSet, Handle, LinkConfig, LossModel, NameAnswer, PathId, Seed, TestCertificate,
    World,
};
use tandem_node::{
    Client, ClientConfig, Origin, OriginConfig, Proxy, ProxyConfig,
    client::{FetchConfig, HopConfig, Task},
    limits::Limits,
    proxy::{Access, TargetPolicy},
    quic::{DatagramTransport, Mtu, Transport},
};
use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::Template;

/// An endless download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// A download through a tunnel whose proxy has this controller, from an origin with `bbr1` that
    /// is 100 ms behind the proxy.
    Tunnel(ControllerName),
    /// A download from an origin with this controller at the place of the proxies.
    Direct(ControllerName),
}

/// The flows, the link that they share, and the times of the measurement.
///
/// ```text
/// client 1 ---+                 +--- proxy 1 --- 100 ms --- origin 1
/// client 2 ---+--- 40 ms -------+--- origin 2
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Contest {
    pub(crate) flows: Vec<Flow>,
    pub(crate) rate: Rate,
    /// The delay of the link in each direction.
    pub(crate) delay: Duration,
    pub(crate) queue: ByteCount,
    pub(crate) loss: Ratio,
    /// The time from the start of one flow to the start of the next.
    pub(crate) interval: Duration,
    /// The settling time after the start of the last flow.
    pub(crate) settle: Duration,
    /// The length of the measurement.
    pub(crate) measure: Duration,
    /// What carries the datagrams of the tunnels.
    pub(crate) datagrams: DatagramTransport,
    pub(crate) seed: u64,
}

/// The results of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shares {
    /// Goodput of each flow in Mbit/s of body.
    pub(crate) goodput_mbps: Vec<f64>,
    /// Share of the link's packets that its queue dropped.
    pub(crate) dropped: f64,
    /// Mean time in the queue and in transmission.
    pub(crate) sojourn: Duration,
}

impl Contest {
    /// A link of 20 Mbit/s without random loss, whose queue holds twice the bandwidth-delay product
    /// of 140 ms.
    pub(crate) fn new(flows: impl Into<Vec<Flow>>, seed: u64) -> Self {
        Self {
            flows: flows.into(),
            rate: Rate::from_mbps(20),
            delay: Duration::from_millis(20),
            queue: ByteCount::new(300_000),
            loss: Ratio::ZERO,
            interval: Duration::from_secs(2),
            settle: Duration::from_secs(10),
            measure: Duration::from_secs(30),
            datagrams: DatagramTransport::Quic,
            seed,
        }
    }

    /// Starts the flows one after the other, and measures.
    pub(crate) fn run(&self) -> Shares {
        let mut bed = Bed::new(self);
        let mut clients = Vec::new();
        for (number, flow) in (1..).zip(&self.flows) {
            clients.push(bed.begin(number, *flow));
            bed.world.run_for(self.interval);
        }
        bed.world.run_for(self.settle);
        let before = bed.counts(&clients);
        bed.world.run_for(self.measure);
        let after = bed.counts(&clients);
        let goodput = |(before, after): (&u64, &u64)| {
            #[expect(clippy::cast_precision_loss, reason = "exact below 2^50 bytes")]
            let bits = ((after - before) * 8) as f64;
            bits / self.measure.as_secs_f64() / 1e6
        };
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 packets")]
        let dropped =
            (after.dropped - before.dropped) as f64 / (after.entered - before.entered) as f64;
        let packets = u32::try_from(after.entered - before.entered).unwrap();
        Shares {
            goodput_mbps: before.bodies.iter().zip(&after.bodies).map(goodput).collect(),
            dropped,
            sojourn: after.sojourn.saturating_sub(before.sojourn) / packets.max(1),
        }
    }

    fn access(&self) -> LinkConfig {
        LinkConfig {
            capacity: self.rate.into(),
            delay: self.delay,
            loss: LossModel::Bernoulli(self.loss),
            queue: tandem_lab::QueueConfig::DropTail(tandem_lab::QueueLimit::bytes(self.queue)),
            ..LinkConfig::default()
        }
    }
}

impl Shares {
    /// Jain's index (Jain, Chiu, Hawe 1984): 1 if all goodputs are equal, and 1/n if one flow has
    /// everything.
    pub(crate) fn jain(&self) -> f64 {
        let sum: f64 = self.goodput_mbps.iter().sum();
        let squares: f64 = self.goodput_mbps.iter().map(|goodput| goodput * goodput).sum();
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let count = self.goodput_mbps.len() as f64;
        sum * sum / (count * squares)
    }

    /// The share of this flow in all bytes that arrived.
    pub(crate) fn share(&self, flow: usize) -> f64 {
        self.goodput_mbps[flow] / self.goodput_mbps.iter().sum::<f64>()
    }
}

struct Counts {
    bodies: Vec<u64>,
    entered: u64,
    dropped: u64,
    sojourn: Duration,
}

struct Bed {
    world: World,
    certificate: TestCertificate,
    access: LinkConfig,
    /// The paths towards the clients and from them, once there is a client.
    paths: Option<(PathId, PathId)>,
    datagrams: DatagramTransport,
    seed: u64,
}

impl Bed {
    fn new(contest: &Contest) -> Self {
        let names =
            (1..=contest.flows.len()).flat_map(|number| [proxy_name(number), origin_name(number)]);
        let names: Vec<_> = names.collect();
        Self {
            world: World::new(Seed(contest.seed)),
            certificate: TestCertificate::new(names.iter().map(String::as_str)),
            access: contest.access(),
            paths: None,
            datagrams: contest.datagrams,
            seed: contest.seed,
        }
    }

    fn begin(&mut self, number: usize, flow: Flow) -> Handle<Client> {
        let origin_controller = match flow {
            Flow::Tunnel(_) => ControllerName::Bbr1,
            Flow::Direct(name) => name,
        };
        let origin_ip = format!("10.0.2.{number}");
        let origin = self.origin(number, origin_controller);
        let origin = self.world.add_host(&origin_name(number), [&*origin_ip], origin);
        let contents = Contents::Generated { len: ByteCount::new(100_000_000_000), seed: Seed(1) };
        self.world.set_files(origin, FileSet::new().with("file", contents));
        self.set_name(&origin_name(number), &origin_ip);
        let mut edge = origin.id();
        if let Flow::Tunnel(name) = flow {
            let ip = format!("10.0.1.{number}");
            let proxy = self.proxy(number, name);
            let proxy = self.world.add_host(&proxy_name(number), [&*ip], proxy);
            self.set_name(&proxy_name(number), &ip);
            let far = LinkConfig { delay: Duration::from_millis(50), ..LinkConfig::default() };
            self.world.connect(proxy, origin, far);
            edge = proxy.id();
        }
        let client = self.client(number, flow);
        let ip = format!("10.1.0.{number}");
        let client = self.world.add_host(&format!("client {number}"), [&*ip], client);
        if let Some((to_client, from_client)) = self.paths {
            self.world.route_over(edge, client, &[to_client]);
            self.world.route_over(client, edge, &[from_client]);
        } else {
            let to_client = self.world.route(edge, client, vec![self.access.clone()]);
            let from_client = self.world.route(client, edge, vec![self.access.clone()]);
            self.paths = Some((to_client, from_client));
        }
        client
    }

    fn counts(&self, clients: &[Handle<Client>]) -> Counts {
        let (to_client, _) = self.paths.unwrap();
        let link = *self.world.path_stats(to_client).last().unwrap();
        Counts {
            bodies: clients.iter().map(|client| self.world.body(*client).bytes()).collect(),
            entered: link.entered.packets,
            dropped: link.dropped_queue.packets,
            sojourn: link.sojourn_sum,
        }
    }

    fn set_name(&mut self, name: &str, ip: &str) {
        let answer = Ok(vec![ip.parse().unwrap()]);
        self.world.set_name(name, NameAnswer::After(Duration::ZERO, answer));
    }

    fn transport(&self, number: usize, name: ControllerName) -> Transport {
        let seed = self.seed * 100 + number as u64;
        let controller = ControllerConfig { seed, ..name.into() };
        Transport { controller, datagrams: self.datagrams, ..Transport::default() }
    }

    fn origin(&self, number: usize, name: ControllerName) -> Origin {
        let config = OriginConfig {
            transport: self.transport(number, name),
            seed: Some(self.seed * 1000 + number as u64),
            ..OriginConfig::new("0.0.0.0:443".parse().unwrap(), self.certificate.server())
        };
        Origin::new(config).unwrap()
    }

    fn proxy(&self, number: usize, name: ControllerName) -> Proxy {
        let config = ProxyConfig {
            transport: Transport { mtu: Mtu::TUNNEL, ..self.transport(number + 10, name) },
            access: Access::Anyone,
            policy: TargetPolicy::allowing(vec!["10.0.0.0/8".parse().unwrap()]),
            seed: Some(self.seed * 1000 + 100 + number as u64),
            ..ProxyConfig::new("0.0.0.0:443".parse().unwrap(), self.certificate.server())
        };
        Proxy::new(config).unwrap()
    }

    fn client(&self, number: usize, flow: Flow) -> Client {
        let hop = |name| HopConfig {
            transport: Transport { mtu: Mtu::TUNNEL, ..self.transport(number + 20, name) },
            ..HopConfig::new(
                Template::default_for(&proxy_name(number)).unwrap(),
                self.certificate.client(),
            )
        };
        let hops = match flow {
            Flow::Tunnel(name) => vec![hop(name)],
            Flow::Direct(_) => Vec::new(),
        };
        let task = Task::Fetch(Box::new(FetchConfig::new(
            origin_name(number),
            443,
            "/file".to_owned(),
            self.certificate.client(),
        )));
        let seed = Some(self.seed * 1000 + 200 + number as u64);
        Client::new(ClientConfig { hops, task, limits: Limits::default(), seed }).unwrap()
    }
}

fn proxy_name(number: usize) -> String {
    format!("proxy{number}.test")
}

fn origin_name(number: usize) -> String {
    format!("origin{number}.test")
}

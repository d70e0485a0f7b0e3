//! The scenario that the tests share: hosts, the links between them, and a download.

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use std::{fmt::Debug, thread, time::Duration};

use tandem_congestion::ControllerName;
use tandem_lab::{
    Contents, FileSet, Handle, LinkConfig, NameAnswer, Seed, TestCertificate, TraceDigest, World,
};
use tandem_netem::ideal_completion;
use tandem_node::{
    Client, ClientConfig, Event, Origin, OriginConfig, Proxy, ProxyConfig,
    client::{FetchConfig, ForwardConfig, HopConfig, Oversize, Task, TunnelMode},
    error::ClientError,
    limits::Limits,
    node::FetchReport,
    proxy::{AbTest, Access, TargetPolicy},
    quic::{DatagramTransport, LossDetection, Mtu, ResetSecret, Transport},
    tls::KeyExchange,
};
use tandem_units::{ByteCount, Rate};
use tandem_wire::Template;

/// A client at home, a distant origin, and any number of proxies between them.
///
/// ```text
/// client --- access link --- proxy 1 --- 10 ms --- proxy 2 --- 50 ms --- origin
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: PrintedSeed,
    /// Number of proxies. With 0 there is no tunnel.
    pub(crate) proxies: usize,
    pub(crate) file: ByteCount,
    /// The access link, in each direction.
    pub(crate) access: LinkConfig,
    pub(crate) timer_granularity: Option<Duration>,
    pub(crate) limits: Limits,
    /// The reset secret of the proxies, which they use after a restart.
    pub(crate) reset_secret: Option<ResetSecret>,
    pub(crate) mode: TunnelMode,
    /// What the proxies do with packets that fit no datagram.
    pub(crate) oversize: Oversize,
    /// The controller of the tunnels, at both ends.
    pub(crate) controller: ControllerName,
    /// The controller of the end-to-end connection, at the sending end.
    pub(crate) origin_controller: ControllerName,
    /// The origin's thresholds of loss detection, if not those that suit its controller.
    pub(crate) origin_detection: Option<LossDetection>,
    /// Whether the client uploads as many bytes as the file has, instead of fetching the file.
    pub(crate) uploads: bool,
    pub(crate) takes_uploads: bool,
    pub(crate) key_exchange: KeyExchange,
    /// What carries datagrams, by the settings of the client and of the proxies.
    pub(crate) datagrams: [DatagramTransport; 2],
    /// What the proxies try on their users.
    pub(crate) ab_test: Option<AbTest>,
}

/// A seed that a failing test prints, with the command that repeats it.
#[derive(Clone, Debug)]
pub(crate) struct PrintedSeed(pub(crate) u64);

impl Drop for PrintedSeed {
    fn drop(&mut self) {
        if thread::panicking() {
            let binary = env!("CARGO_CRATE_NAME");
            let test = thread::current().name().unwrap_or_default().to_owned();
            eprintln!(
                "seed {}; again: cargo test -p tandem-lab --test {binary} -- --exact {test}",
                self.0
            );
        }
    }
}

/// The hosts of a scenario.
pub(crate) struct Testbed {
    pub(crate) world: World,
    pub(crate) client: Handle<Client>,
    pub(crate) proxies: Vec<Handle<Proxy>>,
    pub(crate) origin: Handle<Origin>,
    contents: Contents,
    uploads: bool,
}

/// The result of a download.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) result: Result<FetchReport, ClientError>,
    pub(crate) digest: TraceDigest,
    /// The errors that broke the tunnel.
    pub(crate) lost: Vec<ClientError>,
}

/// The rate of the access link.
pub(crate) const RATE: Rate = Rate::from_mbps(10);

/// One-way delay between the last proxy and the origin. With the access link the RTT is 140 ms.
const FAR: Duration = Duration::from_millis(50);

/// The address of the client for programs on its own host. It is not in the family of the network.
pub(crate) const LOOPBACK: &str = "fd00::1";

/// One-way delay between two proxies.
const NEAR: Duration = Duration::from_millis(10);

impl Scenario {
    /// A 10 Mbit/s access link with an RTT of 40 ms, and a file of 2 MB.
    pub(crate) fn new(seed: u64, proxies: usize) -> Self {
        let access = LinkConfig {
            capacity: RATE.into(),
            delay: Duration::from_millis(20),
            ..LinkConfig::default()
        };
        let file = ByteCount::new(2_000_000);
        Self {
            seed: PrintedSeed(seed),
            proxies,
            file,
            access,
            timer_granularity: None,
            limits: Limits::default(),
            reset_secret: None,
            mode: TunnelMode::Mdt,
            oversize: Oversize::default(),
            controller: ControllerName::default(),
            origin_controller: ControllerName::default(),
            origin_detection: None,
            uploads: false,
            takes_uploads: false,
            key_exchange: KeyExchange::Classical,
            datagrams: [DatagramTransport::default(); 2],
            ab_test: None,
        }
    }

    fn certificate(&self) -> TestCertificate {
        certificate().with_key_exchange(self.key_exchange)
    }

    /// Downloads the file twice, and checks that both runs are the same.
    ///
    /// # Panics
    /// It panics if the runs differ, or if the received bytes are not those of the file.
    pub(crate) fn download(&self) -> Outcome {
        self.run(Testbed::finish)
    }

    /// Performs an action twice, each time in a new world, and checks that both results are the
    /// same.
    pub(crate) fn run<T: Debug + PartialEq>(&self, act: impl Fn(&mut Testbed) -> T) -> T {
        let run = || act(&mut self.testbed());
        let outcome = run();
        assert_eq!(outcome, run(), "the same seed gave another run");
        outcome
    }

    pub(crate) fn testbed(&self) -> Testbed {
        let tls = self.certificate();
        let mut world = World::new(Seed(self.seed.0));
        if let Some(granularity) = self.timer_granularity {
            world.set_timer_granularity(granularity);
        }
        let node = self.client(self.task());
        let client = world.add_host("client", ["10.0.0.1", LOOPBACK], node);
        let origin = world.add_host("origin", ["10.0.0.9"], self.origin(&tls));
        let mut proxies = Vec::new();
        for number in 1..=self.proxies {
            let (name, ip) = (format!("proxy{number}"), format!("10.0.0.{}", number + 1));
            proxies.push(world.add_host(&name, [&*ip], self.proxy(&tls, number)));
            let answer = NameAnswer::After(Duration::ZERO, Ok(vec![ip.parse().unwrap()]));
            world.set_name(&format!("{name}.test"), answer);
        }
        let answer = Ok(vec!["10.0.0.9".parse().unwrap()]);
        world.set_name("origin.test", NameAnswer::After(Duration::ZERO, answer));

        let link = |delay| LinkConfig { delay, ..LinkConfig::default() };
        world.route(client, origin, vec![self.access.clone(), link(FAR)]);
        world.route(origin, client, vec![link(FAR), self.access.clone()]);
        for (proxy, number) in proxies.iter().zip(0..) {
            let near = link(NEAR * number);
            world.route(client, *proxy, vec![self.access.clone(), near.clone()]);
            world.route(*proxy, client, vec![near, self.access.clone()]);
            world.connect(*proxy, origin, link(FAR));
        }
        for (first, second) in proxies.iter().zip(proxies.iter().skip(1)) {
            world.connect(*first, *second, link(NEAR));
        }
        let contents = Contents::Generated { len: self.file, seed: Seed(self.seed.0) };
        world.set_files(origin, FileSet::new().with("file", contents.clone()));
        Testbed { world, client, proxies, origin, contents, uploads: self.uploads }
    }

    pub(crate) fn client(&self, task: Task) -> Client {
        let tls = self.certificate();
        let hop = |number: usize| HopConfig {
            transport: self.tunnel_transport(),
            mode: self.mode,
            ..HopConfig::new(
                Template::default_for(&format!("proxy{number}.test")).unwrap(),
                tls.client(),
            )
        };
        let hops = (1..=self.proxies).map(hop).collect();
        let limits = self.limits.clone();
        let config = ClientConfig { hops, task, limits, seed: Some(self.seed.0) };
        Client::new(config).unwrap()
    }

    pub(crate) fn fetch() -> Task {
        Task::Fetch(Box::new(FetchConfig::new(
            "origin.test".to_owned(),
            443,
            "/file".to_owned(),
            certificate().client(),
        )))
    }

    fn task(&self) -> Task {
        let mut task = Self::fetch();
        if let Task::Fetch(fetch) = &mut task {
            fetch.tls = self.certificate().client();
            if self.uploads {
                fetch.upload = Some(self.file);
                fetch.transport = self.sender();
            }
        }
        task
    }

    fn sender(&self) -> Transport {
        Transport {
            controller: self.origin_controller.into(),
            loss_detection: self
                .origin_detection
                .unwrap_or(LossDetection::of_origin(self.origin_controller)),
            ..Transport::default()
        }
    }

    pub(crate) fn origin(&self, tls: &TestCertificate) -> Origin {
        let config = OriginConfig {
            transport: self.sender(),
            takes_uploads: self.takes_uploads,
            seed: Some(self.seed.0 + 100),
            ..OriginConfig::new("0.0.0.0:443".parse().unwrap(), tls.server())
        };
        Origin::new(config).unwrap()
    }

    pub(crate) fn proxy(&self, tls: &TestCertificate, number: usize) -> Proxy {
        let reset_secret = self.reset_secret.clone();
        self.proxy_with(tls, number, Transport { reset_secret, ..Transport::default() })
    }

    /// A proxy that is one of several: `own` says which one.
    pub(crate) fn proxy_with(&self, tls: &TestCertificate, number: usize, own: Transport) -> Proxy {
        let Transport { controller, mtu, .. } = self.tunnel_transport();
        let config = ProxyConfig {
            transport: Transport { controller, mtu, datagrams: self.datagrams[1], ..own },
            access: Access::Anyone,
            policy: TargetPolicy::allowing(
                ["10.0.0.0/8", "2001:db8::/32"].map(|prefix| prefix.parse().unwrap()).into(),
            ),
            limits: self.limits.clone(),
            oversize: self.oversize,
            ab_test: self.ab_test,
            seed: Some(self.seed.0 + 200 + number as u64),
            ..ProxyConfig::new("0.0.0.0:443".parse().unwrap(), tls.server())
        };
        Proxy::new(config).unwrap()
    }

    fn tunnel_transport(&self) -> Transport {
        let controller = self.controller.into();
        let [datagrams, _] = self.datagrams;
        Transport { controller, mtu: Mtu::TUNNEL, datagrams, ..Transport::default() }
    }

    /// The ideal time: two RTTs and the time at the bottleneck.
    pub(crate) fn ideal(&self) -> Duration {
        let near = self.proxies.saturating_sub(1).try_into().map_or(NEAR, |hops| NEAR * hops);
        let rtt = (self.access.delay + near + FAR) * 2;
        ideal_completion(self.file, RATE, rtt, self.access.loss.mean())
    }
}

/// The certificate of all servers.
pub(crate) fn certificate() -> TestCertificate {
    TestCertificate::new([
        "proxy1.test",
        "proxy2.test",
        "proxy3.test",
        "proxy4.test",
        "origin.test",
    ])
}

impl Testbed {
    /// Makes the client carry the packets of local programs, and runs until it listens for all of
    /// them and its tunnel is up.
    pub(crate) fn forward(&mut self, scenario: &Scenario, listeners: Vec<ForwardConfig>) {
        let (client, expected) = (self.client, (listeners.len(), self.proxies.len()));
        self.world.replace(client, scenario.client(Task::Forward(listeners)));
        let is_up = |world: &World| {
            let count = |is: fn(&Event) -> bool| {
                world.events(client).iter().filter(|(_, event)| is(event)).count()
            };
            let listening = count(|event| matches!(event, Event::Listening(_)));
            (listening, count(|event| matches!(event, Event::HopUp { .. }))) == expected
        };
        assert!(self.world.run_until(Duration::from_secs(5), is_up));
    }

    /// Runs until the client has ended, and checks what it fetched.
    pub(crate) fn finish(&mut self) -> Outcome {
        let Self { world, client, origin, contents, .. } = self;
        let client = *client;
        let ended = |world: &World| matches!(world.events(client), [.., (_, Event::Closed(_))]);
        assert!(world.run_until(Duration::from_secs(120), ended), "still running: {world:?}");
        let mut fetched = None;
        let mut closed = None;
        let mut lost = Vec::new();
        for (_, event) in world.events(client) {
            match event {
                Event::Fetched(report) => fetched = Some(report.clone()),
                Event::Closed(result) => closed = Some(result.clone()),
                Event::HopLost { error, .. } => lost.push(error.clone()),
                Event::Listening(_)
                | Event::HopUp { .. }
                | Event::FlowFailed { .. }
                | Event::ModeChanged { .. }
                | Event::Chosen { .. }
                | Event::TunnelInfo { .. }
                | Event::TooLarge { .. }
                | Event::ResponseStarted { .. } => {}
            }
        }
        let result = closed.unwrap().map(|()| fetched.expect("a download ends with a report"));
        if result.is_ok() && self.uploads {
            assert_eq!(world.node(*origin).uploaded().get(), contents.len());
        } else if result.is_ok() {
            assert_eq!(world.body(client).bytes(), contents.len());
            assert_eq!(world.body(client).sha256(), contents.sha256());
        }
        Outcome { result, digest: world.trace().digest(), lost }
    }

    /// Runs until this number of bytes of the file have arrived.
    pub(crate) fn run_until_fetched(&mut self, bytes: ByteCount) {
        let client = self.client;
        let came = |world: &World| world.body(client).bytes() >= bytes.get();
        assert!(self.world.run_until(Duration::from_secs(120), came), "the download stalls");
    }
}

impl Outcome {
    pub(crate) fn report(&self) -> &FetchReport {
        self.result.as_ref().expect("the download succeeded")
    }

    pub(crate) fn error(&self) -> &ClientError {
        self.result.as_ref().expect_err("the download failed")
    }
}

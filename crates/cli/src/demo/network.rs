//! The hosts and links of the demo, each on a thread of its own, and between them real sockets.
//!
//! ```text
//! mft      client ---- bad link, long link ---- origin
//! others   client ---- bad link ---- proxy ---- long link ---- origin
//! ```
//!
//! Mode MFT has no tunnel: packets are only forwarded.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use ipnet::{IpNet, Ipv4Net};
use tandem_emulate::{Links, RelayError, UdpRelay};
use tandem_net::{
    Application, DriverOptions, DriverStats, Files, clock, driver, site::SiteContent,
};
use tandem_node::{
    Client, ClientConfig, Origin, OriginConfig, Proxy, ProxyConfig,
    client::{FetchConfig, HopConfig, Task},
    limits::Limits,
    node::{Event, Node},
    proxy::{Access, TargetPolicy},
    quic::{LossDetection, Mtu, Transport},
};
use tandem_server::{
    files::FileError,
    pause::PauseSetting,
    process::{self, Signals, SystemError},
    tls::{DevelopmentIdentity, server_config},
};
use tandem_wire::Template;
use tokio::sync::oneshot;

use super::{
    Demo,
    file::{self, DemoFile},
    gauges::{Gauges, PERIOD, ProgressSink},
    journey::Journey,
    result::OriginPackets,
};
use crate::{
    download::{Download, Wanted},
    error::{CliError, ConfigError, NoResult},
    fetch::fetch,
    outcome::Outcome,
    patience::Patience,
    progress::Progress,
    tls::trusting_ca,
};

/// Any free port of loopback.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A running network for one download.
pub(super) struct DemoNetwork {
    journey: Journey,
    transport: Transport,
    /// Both servers' certificate and CA.
    identity: DevelopmentIdentity,
    /// The origin's address for the client or the proxy: that of the link.
    origin_address: SocketAddr,
    /// The proxy's address for the client: that of the link.
    proxy_address: Option<SocketAddr>,
    origin: ServerThread<Origin>,
    proxy: Option<ServerThread<Proxy>>,
    links: Vec<LinkThread>,
}

impl DemoNetwork {
    /// Starts all hosts and links except the client. The hosts write the gauges from now on.
    pub(super) fn start(
        journey: Journey,
        demo: &Demo,
        file: &DemoFile,
        gauges: &Arc<Gauges>,
    ) -> Result<Self, CliError> {
        let identity = DevelopmentIdentity::new(&[]).expect("loopback's names are names");
        let transport = Transport { controller: demo.controller.into(), ..Transport::default() };
        let of_origin = demo.origin_controller(journey);
        let of_origin = Transport {
            controller: of_origin.into(),
            loss_detection: LossDetection::of_origin(of_origin),
            ..Transport::default()
        };
        let origin = start_origin(&identity, &of_origin, file, gauges)?;
        let (client_link, origin_link) = (demo.client_link(), demo.origin_link());
        Ok(if journey.mode.has_tunnel() {
            let long = LinkThread::start(origin.address, Links::symmetric(&[origin_link]), demo)?;
            let proxy = start_proxy(&identity, &transport, gauges)?;
            let bad = LinkThread::start(proxy.address, Links::symmetric(&[client_link]), demo)?;
            Self {
                journey,
                transport,
                identity,
                origin_address: long.address,
                proxy_address: Some(bad.address),
                origin,
                proxy: Some(proxy),
                links: vec![bad, long],
            }
        } else {
            let links = Links::symmetric(&[client_link, origin_link]);
            let link = LinkThread::start(origin.address, links, demo)?;
            Self {
                journey,
                transport,
                identity,
                origin_address: link.address,
                proxy_address: None,
                origin,
                proxy: None,
                links: vec![link],
            }
        })
    }

    /// Downloads the file and checks that it is the one that was sent.
    pub(super) async fn download(
        &self,
        file: &DemoFile,
        sink: &ProgressSink<'_>,
        signals: &mut Signals,
    ) -> Result<Outcome, CliError> {
        let config = self.client_config()?;
        let hops = config.hops.len();
        let client = Client::new(config).map_err(ConfigError::from)?;
        let mut download = Download::to(&file.destination(), Wanted::default())?;
        sink.say("connecting".to_owned());
        let mut patience = Patience::endless(clock::now());
        let report = Box::pin(fetch(
            client,
            &mut download,
            sink,
            (&mut patience, signals),
            PauseSetting::default(),
        ))
        .await?;
        let sha256 = download.finish()?.ok_or(NoResult { role: "client" })?;
        file.check(&sha256)?;
        let url = format!("https://{}/{}", self.origin_address, file::NAME);
        Ok(Outcome::new(url, self.journey.mode, hops, &report, sha256))
    }

    /// Stops everything and returns the origin's counters.
    pub(super) fn stop(self) -> Result<OriginPackets, CliError> {
        if let Some(proxy) = self.proxy {
            proxy.stop()?;
        }
        let stats = self.origin.stop()?.stats();
        for link in self.links {
            link.stop()?;
        }
        Ok(OriginPackets { sent: stats.sent_packets, lost: stats.lost_packets })
    }

    fn client_config(&self) -> Result<ClientConfig, ConfigError> {
        let tls = || trusting_ca(self.identity.ca.clone());
        let hop = |address: SocketAddr| {
            let template = Template::default_for(&address.to_string())
                .expect("a socket address is an authority");
            Ok::<_, ConfigError>(HopConfig {
                transport: Transport { mtu: Mtu::TUNNEL, ..self.transport.clone() },
                mode: self.journey.tunnel().unwrap_or_default(),
                ..HopConfig::new(template, tls()?)
            })
        };
        let fetch = FetchConfig {
            transport: self.transport.clone(),
            ..FetchConfig::new(
                self.origin_address.ip().to_string(),
                self.origin_address.port(),
                format!("/{}", file::NAME),
                tls()?,
            )
        };
        Ok(ClientConfig {
            hops: self.proxy_address.into_iter().map(hop).collect::<Result<_, _>>()?,
            task: Task::Fetch(Box::new(fetch)),
            limits: Limits::default(),
            seed: None,
        })
    }
}

fn start_origin(
    identity: &DevelopmentIdentity,
    transport: &Transport,
    file: &DemoFile,
    gauges: &Arc<Gauges>,
) -> Result<ServerThread<Origin>, CliError> {
    let config = OriginConfig {
        transport: transport.clone(),
        ..OriginConfig::new(
            ANY_PORT,
            server_config(vec![identity.certificate.clone()], identity.key.clone_key(), None)?,
        )
    };
    let node = Origin::new(config).map_err(ConfigError::from)?;
    let root = file.root();
    let files = Files::below(root)
        .map_err(|error| FileError::Unreadable { file: root.to_owned(), error })?;
    let options =
        DriverOptions { site: Some(SiteContent::Folder(files)), ..DriverOptions::default() };
    let gauges = gauges.clone();
    ServerThread::start("origin", node, options, move |origin| gauges.of_origin(origin))
}

fn start_proxy(
    identity: &DevelopmentIdentity,
    transport: &Transport,
    gauges: &Arc<Gauges>,
) -> Result<ServerThread<Proxy>, CliError> {
    let loopback = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
    let config = ProxyConfig {
        transport: Transport { mtu: Mtu::TUNNEL, ..transport.clone() },
        access: Access::Anyone, // on loopback
        policy: TargetPolicy::allowing(vec![IpNet::V4(loopback)]),
        template: ProxyConfig::default_template(),
        ..ProxyConfig::new(
            ANY_PORT,
            server_config(vec![identity.certificate.clone()], identity.key.clone_key(), None)?,
        )
    };
    let mut node = Proxy::new(config).map_err(ConfigError::from)?;
    gauges.of_proxy(&mut node); // from now on the gauges show that there is a proxy
    let gauges = gauges.clone();
    ServerThread::start("proxy", node, DriverOptions::default(), move |proxy| {
        gauges.of_proxy(proxy);
    })
}

/// A server on a thread of its own.
struct ServerThread<N> {
    role: &'static str,
    address: SocketAddr,
    shutdown: oneshot::Sender<()>,
    thread: JoinHandle<Result<N, CliError>>,
}

impl<N: Node + Send + 'static> ServerThread<N> {
    /// Starts a server and returns when it listens. `report` is called with the node periodically.
    fn start(
        role: &'static str,
        node: N,
        options: DriverOptions,
        report: impl FnMut(&mut N) + Send + 'static,
    ) -> Result<Self, CliError> {
        let options = DriverOptions { tick: Some(PERIOD), ..options };
        let (ready, listening) = mpsc::channel();
        let (shutdown, stop) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(role.to_owned())
            .spawn(move || {
                let mut app = ServerReport { ready, report };
                let stop = async {
                    // A dropped sender also ends the host.
                    if stop.await.is_err() {}
                };
                let running = driver::run(node, &mut app, options, stop);
                Ok(process::after_grace(process::runtime()?.block_on(running))?.node)
            })
            .map_err(SystemError::thread)?;
        let address = listening.recv().map_err(|_| NoResult { role })?;
        Ok(Self { role, address, shutdown, thread })
    }

    /// Stops the host and returns its node.
    fn stop(self) -> Result<N, CliError> {
        let _is_running = self.shutdown.send(()).is_ok();
        self.thread.join().map_err(|_| NoResult { role: self.role })?
    }
}

/// Reports once the address on which a server listens, and then its state at every tick.
struct ServerReport<F> {
    ready: mpsc::Sender<SocketAddr>,
    report: F,
}

impl<N, F: FnMut(&mut N)> Application<N> for ServerReport<F> {
    fn event(&mut self, event: Event) {
        if let Event::Listening(address) = event {
            let _is_awaited = self.ready.send(address).is_ok();
        }
    }

    fn tick(&mut self, _now: Instant, node: &mut N, _driver: &DriverStats) {
        (self.report)(node);
    }
}

/// An emulated link on a thread of its own.
struct LinkThread {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), RelayError>>,
}

impl LinkThread {
    fn start(to: SocketAddr, links: Links, demo: &Demo) -> Result<Self, CliError> {
        let mut relay = UdpRelay::bind(ANY_PORT, to, links, demo.seed())?;
        let address = relay.local_addr();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name("link".to_owned())
            .spawn({
                let stop = stop.clone();
                move || relay.run(&stop).map(drop)
            })
            .map_err(SystemError::thread)?;
        Ok(Self { address, stop, thread })
    }

    fn stop(self) -> Result<(), CliError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| NoResult { role: "link" })??;
        Ok(())
    }
}

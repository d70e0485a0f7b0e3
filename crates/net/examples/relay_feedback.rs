//! A program that opens a tunnel of its own, is told of it, and tells the origin itself.
//!
//! The tunnel is a [`Client`] that forwards ([`Task::Forward`]) in mode tecc: for each report of the
//! proxy it gives an [`Event::TunnelInfo`]. The program's own connection runs through it. Here that is a
//! second `Client`, which is given the reports as [`Input::TunnelInfo`]; a program with a QUIC of its own
//! encodes them with [`TunnelInfo::encode`] and sends them as its origin wants them. The proxy and an
//! origin that follows reports are here too, so that everything happens on loopback:
//!
//! ```text
//! $ cargo run -p tandem-net --example relay_feedback
//! 20 MB came; the proxy told 71 times, 68 reports were passed on, the origin followed 68
//! ```

use std::{
    cell::Cell,
    error::Error,
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tandem_congestion::ControllerName;
use tandem_net::{Application, DriverOptions, DriverStats, Files, driver};
use tandem_node::{
    Client, ClientConfig, Event, Input, Node, Origin, OriginConfig, Proxy, ProxyConfig,
    client::{
        FetchConfig, ForwardConfig, HopConfig, Order, Repair, Task, Template, TunnelInfo,
        TunnelMode, Urgency,
    },
    limits::Limits,
    proxy::{Access, TargetPolicy},
    quic::{LossDetection, Mtu, Transport},
};
use tokio::sync::{Notify, oneshot};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Length of the file.
const LEN: usize = 20_000_000;

/// How often the program looks for news of its tunnel.
const LOOK: Duration = Duration::from_millis(5);

/// What happened to the reports.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) bytes: u64,
    /// Events of the tunnel.
    pub(crate) told: u64,
    /// Reports that went to the origin.
    pub(crate) passed_on: u64,
    /// Reports that the origin followed.
    pub(crate) followed: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Counts { bytes, told, passed_on, followed } = run()?;
    let megabytes = bytes / 1_000_000;
    println!(
        "{megabytes} MB came; the proxy told {told} times, {passed_on} reports were passed on, the \
         origin followed {followed}"
    );
    Ok(())
}

/// Downloads a file through a tunnel, and tells the origin of the tunnel meanwhile.
pub(crate) fn run() -> Result<Counts, Box<dyn Error>> {
    let identity = Identity::new()?;
    let folder = tempfile::tempdir()?;
    std::fs::File::create(folder.path().join("file"))?.write_all(&vec![7; LEN])?;
    let files = Some(Files::below(folder.path())?);
    let origin = Server::start(identity.origin()?, DriverOptions { files, ..<_>::default() })?;
    let proxy = Server::start(identity.proxy()?, DriverOptions::default())?;

    let told = Rc::new(Told::default());
    let tunnel = Client::new(identity.tunnel(proxy.address, origin.address)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let downloaded: Result<_, Box<dyn Error>> = runtime.block_on(async {
        let mut app = Tunnel(told.clone());
        let over = Notify::new();
        let tunnel = driver::run(tunnel, &mut app, DriverOptions::default(), over.notified());
        let download = async {
            let through = told.listening.notified();
            through.await;
            let config = identity.download(told.address.get());
            let node = config.and_then(|config| Ok(Client::new(config)?));
            let mut app = Download { told: told.clone(), bytes: 0 };
            let options = DriverOptions { tick: Some(LOOK), ..DriverOptions::default() };
            let finished = match node {
                Ok(node) => driver::run(node, &mut app, options, std::future::pending()).await,
                Err(error) => return Err(error),
            };
            over.notify_one();
            let mut node = finished.node;
            Ok((app.bytes, node.stats().feedback.sent))
        };
        tokio::join!(tunnel, download).1
    });
    let (bytes, passed_on) = downloaded?;
    proxy.stop()?;
    let followed = origin.stop()?.stats().feedback.used;
    Ok(Counts { bytes, told: told.count.get(), passed_on, followed })
}

/// What the tunnel told.
#[derive(Default)]
struct Told {
    listening: Notify,
    /// Where the tunnel begins.
    address: Cell<Option<SocketAddr>>,
    /// The newest report, until it is passed on.
    news: Cell<Option<TunnelInfo>>,
    count: Cell<u64>,
}

/// The program's view of its tunnel.
struct Tunnel(Rc<Told>);

impl Application<Client> for Tunnel {
    fn event(&mut self, event: Event) {
        match event {
            Event::Listening(address) => {
                self.0.address.set(Some(address));
                self.0.listening.notify_one();
            }
            // `local` is whose packets it is about; here there is one program.
            Event::TunnelInfo { local: _, info } => {
                self.0.news.set(Some(info));
                self.0.count.set(self.0.count.get() + 1);
            }
            Event::Closed(Err(error)) => {
                eprintln!("the tunnel broke: {error}");
                self.0.listening.notify_one();
            }
            _ => {}
        }
    }
}

/// The program's download.
struct Download {
    told: Rc<Told>,
    bytes: u64,
}

impl Application<Client> for Download {
    fn event(&mut self, event: Event) {
        if let Event::Closed(Err(error)) = event {
            eprintln!("the download failed: {error}");
        }
    }

    fn body(&mut self, _offset: u64, data: Bytes) -> std::io::Result<()> {
        self.bytes += data.len() as u64;
        Ok(())
    }

    /// Passes the newest report on.
    fn tick(&mut self, now: Instant, node: &mut Client, _driver: &DriverStats) {
        if let Some(info) = self.told.news.take() {
            node.handle(now, Input::TunnelInfo(info));
        }
    }
}

/// The certificate of both servers, which the program trusts.
struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Identity {
    fn new() -> Result<Self, Box<dyn Error>> {
        let pair = rcgen::KeyPair::generate()?;
        let params = rcgen::CertificateParams::new([ANY_PORT.ip().to_string()])?;
        let certificate = params.self_signed(&pair)?.der().clone();
        Ok(Self { certificate, key: PrivatePkcs8KeyDer::from(pair.serialize_der()) })
    }

    fn server_tls(&self) -> Result<rustls::ServerConfig, rustls::Error> {
        let key = PrivateKeyDer::from(self.key.clone_key());
        rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
    }

    fn client_tls(&self) -> Result<rustls::ClientConfig, rustls::Error> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        Ok(config.with_no_client_auth())
    }

    /// An origin that follows reports.
    fn origin(&self) -> Result<Origin, Box<dyn Error>> {
        let controller = ControllerName::Tecc.into();
        let loss_detection = LossDetection::BehindRepair;
        Ok(Origin::new(OriginConfig {
            transport: Transport { controller, loss_detection, ..Transport::default() },
            ..OriginConfig::new(ANY_PORT, self.server_tls()?)
        })?)
    }

    fn proxy(&self) -> Result<Proxy, Box<dyn Error>> {
        Ok(Proxy::new(ProxyConfig {
            transport: tunnel_transport(),
            access: Access::Anyone, // on loopback
            policy: TargetPolicy::allowing(vec!["127.0.0.0/8".parse()?]),
            ..ProxyConfig::new(ANY_PORT, self.server_tls()?)
        })?)
    }

    /// The tunnel: what comes to its local port goes to the origin.
    fn tunnel(
        &self,
        proxy: SocketAddr,
        origin: SocketAddr,
    ) -> Result<ClientConfig, Box<dyn Error>> {
        let hop = HopConfig {
            template: Template::default_for(&proxy.to_string())?,
            tls: self.client_tls()?,
            transport: tunnel_transport(),
            token: None,
            mode: TunnelMode::Tecc(Repair { order: Order::Window, ..Repair::default() }),
        };
        let forward = ForwardConfig {
            listen: ANY_PORT,
            target_host: origin.ip().to_string(),
            target_port: origin.port(),
            urgency: Urgency::default(),
            weight: 1,
        };
        let task = Task::Forward(vec![forward]);
        Ok(ClientConfig { hops: vec![hop], task, limits: Limits::default(), seed: None })
    }

    /// The download through it, whose origin is told of the tunnel.
    fn download(&self, tunnel: Option<SocketAddr>) -> Result<ClientConfig, Box<dyn Error>> {
        let tunnel = tunnel.ok_or("there is no tunnel")?;
        let task = Task::Fetch(Box::new(FetchConfig {
            transport: Transport { mtu: Mtu::inside_tunnel(1200), ..Transport::default() },
            relays_feedback: true,
            ..FetchConfig::new(
                tunnel.ip().to_string(),
                tunnel.port(),
                "/file".to_owned(),
                self.client_tls()?,
            )
        }));
        Ok(ClientConfig { hops: Vec::new(), task, limits: Limits::default(), seed: None })
    }
}

fn tunnel_transport() -> Transport {
    let controller = ControllerName::Bbr1Tunnel.into();
    Transport { controller, mtu: Mtu::TUNNEL, ..Transport::default() }
}

/// A server on a thread of its own.
struct Server<N> {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<std::io::Result<N>>,
}

impl<N: Node + Send + 'static> Server<N> {
    /// Returns when it listens.
    fn start(node: N, options: DriverOptions) -> Result<Self, Box<dyn Error>> {
        let (ready, listening) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let stopped = async { stopped.await.unwrap_or_default() };
            let mut app = Ready(ready);
            Ok(runtime.block_on(driver::run(node, &mut app, options, stopped)).node)
        });
        Ok(Self { address: listening.recv()?, stop, thread })
    }

    /// The server as it was at its end.
    fn stop(self) -> Result<N, Box<dyn Error>> {
        self.stop.send(()).map_err(|()| "it has ended by itself")?;
        Ok(self.thread.join().map_err(|_| "it panicked")??)
    }
}

/// Tells where a server listens.
struct Ready(mpsc::Sender<SocketAddr>);

impl<N> Application<N> for Ready {
    fn event(&mut self, event: Event) {
        if let Event::Listening(address) = event {
            self.0.send(address).unwrap_or_default();
        }
    }
}

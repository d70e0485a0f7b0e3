//! A program that opens its own tunnel, receives the reports of the proxy, and forwards them to the
//! origin.
//!
//! The tunnel is a [`Client`] with [`Task::Forward`] in mode `tecc`: it emits an
//! [`Event::TunnelInfo`] for each report of the proxy. The program's own connection runs through
//! this tunnel. Here that connection is a second `Client`, which takes the reports as
//! [`Input::TunnelInfo`]. A program with another QUIC implementation encodes them with
//! [`TunnelInfo::encode`] and sends them in its origin's format. The proxy and the origin, which
//! follows reports, are in this program too, so that all packets use loopback:
//!
//! ```text
//! $ cargo run -p tandem-net --example relay_feedback
//! 20 MB received; the proxy sent 71 reports, 68 of them were forwarded, and the origin followed 68
//! ```

#[path = "server/mod.rs"]
mod server;

use std::{
    cell::Cell,
    error::Error,
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    version::TLS13,
};
use tandem_congestion::ControllerName;
use tandem_net::{Application, DriverOptions, DriverStats, Files, driver, site::SiteContent};
use tandem_node::{
    Client, ClientConfig, Event, Input, Node, Origin, OriginConfig, Proxy, ProxyConfig,
    client::{
        FetchConfig, ForwardConfig, HopConfig, Order, Repair, Task, Template, TunnelInfo,
        TunnelMode,
    },
    limits::Limits,
    proxy::{Access, TargetPolicy},
    quic::{LossDetection, Mtu, Transport},
    tls::{KeyExchange, provider},
};
use tokio::sync::Notify;

use self::server::Server;

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The length of the file in bytes.
const LEN: usize = 20_000_000;

/// The interval at which the program looks for new reports.
const LOOK: Duration = Duration::from_millis(5);

/// The number of reports at each step.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) bytes: u64,
    /// Reports that the tunnel received from the proxy.
    pub(crate) received: u64,
    /// Reports that the download sent to the origin.
    pub(crate) forwarded: u64,
    /// Reports that the origin followed.
    pub(crate) followed: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Counts { bytes, received, forwarded, followed } = run()?;
    let megabytes = bytes / 1_000_000;
    println!(
        "{megabytes} MB received; the proxy sent {received} reports, {forwarded} of them were \
         forwarded, and the origin followed {followed}"
    );
    Ok(())
}

/// Downloads a file through a tunnel, and forwards the proxy's reports to the origin in the
/// meantime.
pub(crate) fn run() -> Result<Counts, Box<dyn Error>> {
    let identity = Identity::new()?;
    let folder = tempfile::tempdir()?;
    std::fs::File::create(folder.path().join("file"))?.write_all(&vec![7; LEN])?;
    let site = Some(SiteContent::Folder(Files::below(folder.path())?));
    let origin = Server::start(identity.origin()?, DriverOptions { site, ..<_>::default() })?;
    let proxy = Server::start(identity.proxy()?, DriverOptions::default())?;

    let state = Rc::new(TunnelState::default());
    let tunnel = Client::new(identity.tunnel(proxy.address, origin.address)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let downloaded: Result<_, Box<dyn Error>> = runtime.block_on(async {
        let mut app = Tunnel(state.clone());
        let over = Notify::new();
        let tunnel = driver::run(tunnel, &mut app, DriverOptions::default(), over.notified());
        let download = async {
            state.listening.notified().await;
            let config = identity.download(state.address.get());
            let node = config.and_then(|config| Ok(Client::new(config)?));
            let mut app = Download { state: state.clone(), bytes: 0 };
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
    let (bytes, forwarded) = downloaded?;
    proxy.stop()?;
    let followed = origin.stop()?.stats().feedback.followed;
    Ok(Counts { bytes, received: state.received.get(), forwarded, followed })
}

/// The state of the tunnel that the two parts of the program share.
#[derive(Default)]
struct TunnelState {
    listening: Notify,
    /// The local address at which the tunnel takes packets.
    address: Cell<Option<SocketAddr>>,
    /// The newest report, until it is forwarded.
    newest: Cell<Option<TunnelInfo>>,
    /// The number of reports.
    received: Cell<u64>,
}

/// The application of the tunnel's client.
struct Tunnel(Rc<TunnelState>);

impl Application<Client> for Tunnel {
    fn event(&mut self, event: Event) {
        match event {
            Event::Listening(address) => {
                self.0.address.set(Some(address));
                self.0.listening.notify_one();
            }
            // `local` is the address of the program to which the report belongs. Here there is only
            // one.
            Event::TunnelInfo { local: _, info } => {
                self.0.newest.set(Some(info));
                self.0.received.set(self.0.received.get() + 1);
            }
            Event::Closed(Err(error)) => {
                eprintln!("the tunnel broke: {error}");
                self.0.listening.notify_one();
            }
            _ => {}
        }
    }
}

/// The application of the download's client.
struct Download {
    state: Rc<TunnelState>,
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

    /// Forwards the newest report.
    fn tick(&mut self, now: Instant, node: &mut Client, _driver: &DriverStats) {
        if let Some(info) = self.state.newest.take() {
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
        rustls::ServerConfig::builder_with_provider(provider(KeyExchange::Hybrid))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
    }

    fn client_tls(&self) -> Result<rustls::ClientConfig, rustls::Error> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        let config = rustls::ClientConfig::builder_with_provider(provider(KeyExchange::Hybrid))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots);
        Ok(config.with_no_client_auth())
    }

    /// Creates an origin that follows reports.
    fn origin(&self) -> Result<Origin, Box<dyn Error>> {
        let controller = ControllerName::Tecc.into();
        let loss_detection = LossDetection::AsClientsSay;
        Ok(Origin::new(OriginConfig {
            transport: Transport { controller, loss_detection, ..Transport::default() },
            ..OriginConfig::new(ANY_PORT, self.server_tls()?)
        })?)
    }

    fn proxy(&self) -> Result<Proxy, Box<dyn Error>> {
        Ok(Proxy::new(ProxyConfig {
            transport: Transport::tunnel(),
            access: Access::Anyone, // it listens on loopback only
            policy: TargetPolicy::allowing(vec!["127.0.0.0/8".parse()?]),
            ..ProxyConfig::new(ANY_PORT, self.server_tls()?)
        })?)
    }

    /// Configures the tunnel, which forwards the packets that arrive at its local port to the
    /// origin.
    fn tunnel(
        &self,
        proxy: SocketAddr,
        origin: SocketAddr,
    ) -> Result<ClientConfig, Box<dyn Error>> {
        let template = Template::default_for(&proxy.to_string())?;
        let mode = TunnelMode::Tecc(Repair { order: Order::Window, ..Repair::default() });
        let hop = HopConfig { mode, ..HopConfig::new(template, self.client_tls()?) };
        let forward = ForwardConfig::new(ANY_PORT, origin.ip().to_string(), origin.port());
        let task = Task::Forward(vec![forward]);
        Ok(ClientConfig { hops: vec![hop], task, limits: Limits::default(), seed: None })
    }

    /// Configures the download through the tunnel, which sends reports to its origin.
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

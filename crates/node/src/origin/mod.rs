//! The origin, an HTTP/3 server. It answers GET and HEAD for the files below a folder, and can
//! accept PUT without storing the uploads.

pub mod answer;
mod feedback;
mod path;
mod relayed;
mod site;
mod speedtest;
mod upload;

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use tandem_units::ByteCount;

pub use self::site::Content;
pub(crate) use self::site::{Edge, Extras, Site};
use crate::{
    Serves, h3,
    hand_over::BusyNodes,
    impossible,
    limits::Limits,
    node::{Event, Input, Node, Output, Received, SocketId, SocketKind},
    path_report::PathReport,
    quic::{ConfigError, ConnectionId, DatagramTransport, ServerTls, Transport},
    server::{self, Server},
    stats::{ConnectionStats, Stats},
    status::Status,
};

/// The configuration of an origin.
#[derive(Clone)]
pub struct OriginConfig {
    /// The local address at which the origin listens; port 0 lets the operating system choose.
    pub listen: SocketAddr,
    /// The TLS configuration with the certificate. The node sets ALPN.
    pub tls: rustls::ServerConfig,
    /// The settings of the QUIC connections to clients.
    pub transport: Transport,
    /// Where the site comes from.
    pub content: Content,
    /// Whether uploads (PUT) are read, counted and discarded, which serves measurements, or
    /// refused. Uploads are never stored.
    pub takes_uploads: bool,
    /// Whether clients may measure their rate: with uploads, as with `takes_uploads`, and with a body of
    /// [`Limits::upload`] zeros at [`OriginConfig::SPEEDTEST`].
    pub serves_speedtests: bool,
    /// The bounds of the node.
    pub limits: Limits,
    /// A seed makes every random choice repeatable. It is only for tests, because connection IDs
    /// become predictable.
    pub seed: Option<u64>,
}

impl OriginConfig {
    /// The path of the body with which clients measure their rate.
    pub const SPEEDTEST: &str = speedtest::PATH;

    /// Creates the configuration of an origin with default settings, which refuses uploads.
    pub fn new(listen: SocketAddr, tls: rustls::ServerConfig) -> Self {
        Self {
            listen,
            tls,
            transport: Transport::default(),
            content: Content::default(),
            takes_uploads: false,
            serves_speedtests: false,
            limits: Limits::default(),
            seed: None,
        }
    }
}

/// The listening socket.
const LISTEN: SocketId = SocketId(0);

/// A web server.
pub struct Origin {
    server: Server,
    listen: SocketAddr,
    site: Site,
    outputs: VecDeque<Output>,
    stats: Stats,
}

impl Origin {
    /// Creates an origin. It requests its listening socket at the first poll.
    ///
    /// # Errors
    ///
    /// The configuration of TLS or QUIC is invalid.
    pub fn new(config: OriginConfig) -> Result<Self, ConfigError> {
        let tls = ServerTls::new(config.tls.clone())?;
        Ok(Self::with_tls(config, &tls))
    }

    /// The same with TLS settings that were prepared before, so that [`OriginConfig::tls`] is not used.
    pub fn with_tls(config: OriginConfig, tls: &ServerTls) -> Self {
        let extras = Extras {
            reports: config.transport.controller.name.takes_reports(),
            uploads: config.takes_uploads || config.serves_speedtests,
            speedtests: config.serves_speedtests,
        };
        // Uploads are read at once. Other bodies may wait, and a proxy with a site has the usual windows too.
        let window = extras.uploads.then_some(Transport::WINDOW_OF_FAST_READERS);
        let window = config.transport.receive_window.or(window);
        let datagrams = DatagramTransport::Quic;
        let transport = Transport { receive_window: window, datagrams, ..config.transport };
        let server = Server::new(tls, &transport, &config.limits, config.seed);
        let open = Output::OpenSocket { socket: LISTEN, kind: SocketKind::Listen(config.listen) };
        Self {
            server,
            listen: config.listen,
            site: Site::new(config.content, extras, &config.limits),
            outputs: VecDeque::from([open]),
            stats: Stats::default(),
        }
    }

    /// The site, and what it uses of this node.
    const fn site(&mut self, now: Instant) -> (&mut Site, Edge<'_>) {
        let Self { server, site, outputs, stats, .. } = self;
        (site, Edge { now, server, outputs, stats })
    }

    /// Returns the counters of the origin.
    pub fn stats(&mut self) -> Stats {
        self.stats.internal_errors += impossible::take();
        let mut stats = self.stats;
        self.server.add_to(&mut stats, |_, _| {});
        stats
    }

    /// Returns the number of bytes of uploads that were received.
    pub const fn uploaded(&self) -> ByteCount {
        ByteCount::new(self.stats.upload_bytes)
    }

    /// Returns the statistics of every open connection, the oldest first.
    pub fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        self.server.connections()
    }

    /// What PEPs have shown of the path of each open connection, and of those that have ended since the
    /// last call, of which the newest 1024 are remembered.
    pub fn take_path_reports(&mut self) -> Vec<PathReport> {
        self.server.take_path_reports()
    }

    fn on_event(&mut self, now: Instant, id: ConnectionId, event: server::Event) {
        let (site, mut cx) = self.site(now);
        match event {
            server::Event::Http(event) => {
                if matches!(event, h3::Event::Request(..)) {
                    cx.server.prove(id);
                }
                site.on_http(&mut cx, id, event);
            }
            server::Event::Lost => cx.server.forget(now, id),
            server::Event::Closed => site.on_closed(&mut cx, id),
            server::Event::Datagrams => {
                let mut dropped = 0;
                site.take_datagrams(&mut cx, id, |_, _| dropped += 1);
                self.stats.dropped.unknown_flow += dropped;
            }
            server::Event::Opened(_) | server::Event::Connected => {}
        }
    }
}

impl Serves for Origin {
    fn set_tls(&mut self, tls: &ServerTls) {
        self.server.set_tls(tls);
    }

    fn hand_over(&mut self, now: Instant, busy: BusyNodes) {
        self.server.hand_over(now, busy);
    }

    fn take_back(&mut self) {
        self.server.take_back();
    }

    fn status(&mut self, busiest: usize) -> Status {
        self.stats.internal_errors += impossible::take();
        self.server.status(self.stats, busiest)
    }
}

impl Node for Origin {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(Received { remote, local_ip, ecn, payload, .. }) => {
                self.server.handle_datagram(now, (remote, local_ip), ecn, payload);
            }
            Input::Timeout => self.server.handle_timeout(now),
            Input::MemoryInUse(bytes) => {
                let Self { server, site, .. } = self;
                server.set_memory_in_use(now, bytes, |id| site.memory_of(id));
            }
            Input::SocketOpened { result, .. } => {
                self.outputs.push_back(Output::Event(Event::listening(self.listen, result)));
            }
            Input::FileOpened { .. } | Input::FileChunk { .. } | Input::Upstream(_) => {
                let (site, mut cx) = self.site(now);
                site.handle(&mut cx, input);
            }
            Input::Shutdown => {
                self.server.drain(now);
            }
            Input::SocketFailed { .. }
            | Input::NetworkChanged
            | Input::PasswordChecked { .. }
            | Input::Resolved { .. }
            | Input::ServiceResolved { .. }
            | Input::BodyCredit { .. }
            | Input::TunnelInfo(_)
            | Input::Load(_)
            | Input::Tcp(_) => {}
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        buf.clear();
        let is_idle = self.site.is_idle();
        self.server.finish_drain(now, is_idle);
        while let Some((id, event)) = self.server.poll_event(now) {
            self.on_event(now, id, event);
        }
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if let Some(transmit) = self.server.poll_transmit(now, buf, |_, _| {}) {
            return Output::Transmit { socket: LISTEN, transmit };
        }
        if self.server.take_ended(now) {
            return Output::Event(Event::Closed(Ok(())));
        }
        Output::Wait(self.server.next_timeout())
    }
}

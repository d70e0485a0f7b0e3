//! The settings of a client.

use std::net::SocketAddr;

use http::HeaderValue;
use tandem_units::ByteCount;
use tandem_wire::{Template, Urgency};

use crate::{
    concealed::ConcealedKey,
    limits::Limits,
    mode::{Oversize, TunnelMode},
    quic::Transport,
    tls::EchTls,
    token::Token,
};

/// Settings of a client.
pub struct ClientConfig {
    /// The proxies, the nearest first. Without any there is no tunnel.
    pub hops: Vec<HopConfig>,
    /// The task of the client.
    pub task: Task,
    /// The bounds on what the client uses.
    pub limits: Limits,
    /// A seed that makes every random choice repeatable. It is only for tests, because connection
    /// IDs become predictable.
    pub seed: Option<u64>,
}

/// Settings of one hop.
#[derive(Clone)]
pub struct HopConfig {
    /// The proxy's URI template (RFC 9298 §2), which also names its host and port.
    pub template: Template,
    /// Other proxies that may take its place. The client uses the nearest one of the first hop, and of
    /// any other hop the first one that works. They get the same token.
    pub others: Vec<Template>,
    /// The certificates to trust. The node sets ALPN.
    pub tls: rustls::ClientConfig,
    /// The same for proxies of the first hop whose HTTPS records say that they take an Encrypted `ClientHello`. `None`:
    /// what those records say about it is ignored.
    pub ech: Option<EchTls>,
    /// The settings of QUIC towards this proxy. The MTU applies to the first hop only. Other hops
    /// use the size that fits.
    pub transport: Transport,
    /// The token that is sent to this proxy and to no other.
    pub token: Option<Token>,
    /// The key with which the client shows this proxy who it is (RFC 9729).
    pub concealed: Option<ConcealedKey>,
    /// How payloads travel through this hop.
    pub mode: TunnelMode,
}

impl HopConfig {
    /// A hop with the settings that are right for tunnels, without a token, in the default mode.
    pub fn new(template: Template, tls: rustls::ClientConfig) -> Self {
        Self {
            template,
            others: Vec::new(),
            tls,
            ech: None,
            transport: Transport::tunnel(),
            token: None,
            concealed: None,
            mode: TunnelMode::default(),
        }
    }
}

/// The task of a client.
pub enum Task {
    /// Download a file over HTTP/3, or upload one.
    Fetch(Box<FetchConfig>),
    /// Carry the packets of local programs, and the payloads of flows that the embedding program
    /// opens ([`Client::open_flow`](super::Client::open_flow)). This needs at least one hop, but no listener.
    Forward(Vec<ForwardConfig>),
}

/// Settings of a download, or of an upload.
#[derive(Clone)]
pub struct FetchConfig {
    /// The origin's host name or its address without brackets.
    pub host: String,
    /// The origin's port.
    pub port: u16,
    /// The path and query, which begin with a slash.
    pub path: String,
    /// The number of streams over which the file is divided, at least 1.
    pub streams: usize,
    /// The length of an upload. With it the client sends this many zeros (PUT) on one stream, and
    /// downloads nothing.
    pub upload: Option<ByteCount>,
    /// Whether the connection is given no more of an upload than it can send soon, which is two congestion windows, so
    /// that [`Client::uploaded`](super::Client::uploaded) follows closely what has arrived. Without it the connection
    /// takes many megabytes ahead.
    pub is_upload_measured: bool,
    /// An earlier download of the same file that this one continues.
    pub resume: Option<Resume>,
    /// The certificates to trust. The node sets ALPN.
    pub tls: rustls::ClientConfig,
    /// The same for an origin whose HTTPS records say that it takes an Encrypted `ClientHello`. These records are asked
    /// for if there are no hops. `None`: they are not.
    pub ech: Option<EchTls>,
    /// The settings of QUIC towards the origin. The MTU applies only without hops. Inside a tunnel
    /// the client uses the size that fits.
    pub transport: Transport,
    /// The type of representation that is asked for (`Accept`, RFC 9110 §12.5.1). `None`: any.
    pub accept: Option<HeaderValue>,
    /// Whether reports that arrive as [`Input::TunnelInfo`](crate::node::Input::TunnelInfo) go to the origin. They are
    /// reports on a tunnel on the path that is not this client's. Reports on the client's own tunnels go to the origin
    /// in any case.
    pub relays_feedback: bool,
}

impl FetchConfig {
    /// A download over one stream.
    pub fn new(host: String, port: u16, path: String, tls: rustls::ClientConfig) -> Self {
        Self {
            host,
            port,
            path,
            streams: 1,
            upload: None,
            is_upload_measured: false,
            resume: None,
            tls,
            ech: None,
            transport: Transport::default(),
            accept: None,
            relays_feedback: false,
        }
    }
}

/// An earlier download, of which a part is still there. If the origin still has the same file, the
/// client requests the rest of it; otherwise it requests the whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The number of bytes that are there, from the start of the file without a gap.
    pub offset: u64,
    /// The validator of the file, from [`Event::ResponseStarted`](crate::node::Event::ResponseStarted) of the earlier
    /// download.
    pub validator: HeaderValue,
}

/// Settings of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// The target: a host name, or an address without brackets.
    pub host: String,
    /// The target's port.
    pub port: u16,
    /// The urgency of the payloads. More urgent ones go first, in both directions of the tunnel.
    pub urgency: Urgency,
    /// The weight of the flow among flows of the same urgency, in both directions of the tunnel: 1
    /// to 64. It has less effect on capsules, because the engine holds two congestion windows of
    /// them, which flows share evenly.
    pub weight: u8,
    /// What becomes of payloads that fit no datagram of the tunnel. For a QUIC connection of the
    /// embedding program, [`Oversize::Drop`] is right, because QUIC finds out by probing what fits.
    pub oversize: Oversize,
}

impl FlowConfig {
    /// A flow with the default urgency and weight.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            urgency: Urgency::default(),
            weight: 1,
            oversize: Oversize::default(),
        }
    }
}

/// Settings of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardConfig {
    /// The address to which local programs send.
    pub listen: SocketAddr,
    /// The flow of each local program.
    pub flow: FlowConfig,
}

impl ForwardConfig {
    /// A listener whose flows have the default urgency and weight.
    pub fn new(listen: SocketAddr, target_host: impl Into<String>, target_port: u16) -> Self {
        Self { listen, flow: FlowConfig::new(target_host, target_port) }
    }
}

//! What can go wrong, by cause, and how each cause is told to the peer.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use http::StatusCode;

use crate::node::ResolveError;

/// Why a proxy refuses a CONNECT-UDP request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A request that is no extended CONNECT.
    #[error("this is a CONNECT-UDP proxy; it serves nothing else")]
    NotConnect,
    /// An extended CONNECT to another protocol.
    #[error("protocol {0:?} is not served here, only \"connect-udp\"")]
    Protocol(String),
    /// The path does not match the proxy's URI template.
    #[error("path does not match the template {template}")]
    PathMismatch {
        /// The template of this proxy.
        template: String,
    },
    /// The target in the path is malformed.
    #[error("malformed target: {0}")]
    MalformedTarget(String),
    /// No token, or one that is not known.
    #[error("a valid token is required")]
    Unauthorized,
    /// The name has no address.
    #[error("{host}: {error}")]
    Dns {
        /// The name.
        host: String,
        /// What the resolver said.
        error: ResolveError,
    },
    /// The resolver did not answer in time.
    #[error("no DNS answer for {host} within {timeout:?}")]
    DnsTimeout {
        /// The name.
        host: String,
        /// The limit.
        timeout: Duration,
    },
    /// As many names are looked up as the proxy allows at once.
    #[error("{0} names are being looked up already")]
    TooManyQueries(usize),
    /// The address may not be reached through this proxy.
    #[error("target {0} is not in an allowed prefix")]
    TargetProhibited(IpAddr),
    /// No socket could be opened.
    #[error("cannot open a socket to the target: {0}")]
    Socket(io::ErrorKind),
    /// There is no such flow to join: it was not granted, has another target, or is full.
    #[error("no flow of request stream {stream} to join")]
    Group {
        /// ID of the stream whose flow it is said to be.
        stream: u64,
    },
}

impl RequestError {
    /// Status code, and error type of the `Proxy-Status` field (RFC 9209 §2.3), if there is one.
    pub const fn response(&self) -> (StatusCode, Option<&'static str>) {
        match self {
            // RFC 9220 §3: a server that does not know the protocol SHOULD answer 501.
            Self::Protocol(_) => (StatusCode::NOT_IMPLEMENTED, None),
            Self::NotConnect | Self::PathMismatch { .. } => (StatusCode::NOT_FOUND, None),
            Self::MalformedTarget(_) | Self::Group { .. } => {
                (StatusCode::BAD_REQUEST, Some("http_request_error"))
            }
            Self::Unauthorized => (StatusCode::PROXY_AUTHENTICATION_REQUIRED, None),
            Self::Dns { .. } => (StatusCode::BAD_GATEWAY, Some("dns_error")),
            Self::DnsTimeout { .. } => (StatusCode::GATEWAY_TIMEOUT, Some("dns_timeout")),
            Self::TooManyQueries(_) => (StatusCode::SERVICE_UNAVAILABLE, None),
            Self::TargetProhibited(_) => (StatusCode::FORBIDDEN, Some("destination_ip_prohibited")),
            Self::Socket(_) => (StatusCode::BAD_GATEWAY, Some("destination_unavailable")),
        }
    }
}

/// What ends a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The name of a proxy or an origin has no address.
    #[error("cannot resolve {host}: {error}")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        error: ResolveError,
    },
    /// No socket could be opened.
    #[error("cannot open a UDP socket: {0}")]
    Socket(io::ErrorKind),
    /// No listening socket could be opened.
    #[error("cannot listen on {address}: {kind}")]
    Listen {
        /// Where to.
        address: SocketAddr,
        /// What the operating system said.
        kind: io::ErrorKind,
    },
    /// The operating system says that nobody listens at the peer's address.
    #[error("nobody listens at {peer}: {kind}")]
    Refusing {
        /// Authority of the proxy or the origin.
        peer: String,
        /// What the operating system said.
        kind: io::ErrorKind,
    },
    /// Nobody answered.
    #[error("{peer} does not answer within {timeout:?}")]
    NoAnswer {
        /// Authority of the proxy or the origin.
        peer: String,
        /// The limit.
        timeout: Duration,
    },
    /// The certificate was not accepted, by us or by the peer, or TLS failed otherwise.
    #[error("TLS with {peer} failed: {reason}")]
    Tls {
        /// Authority of the proxy or the origin.
        peer: String,
        /// What TLS said.
        reason: String,
    },
    /// The connection ended.
    #[error("the connection to {peer} ended: {reason}")]
    ConnectionLost {
        /// Authority of the proxy or the origin.
        peer: String,
        /// Why.
        reason: String,
    },
    /// The peer lacks something that we need.
    #[error("{peer} does not support {what}")]
    Unsupported {
        /// Authority of the proxy or the origin.
        peer: String,
        /// What is missing.
        what: &'static str,
    },
    /// The proxy refused the tunnel.
    #[error("{peer} refused a tunnel to {target}: status {status}{}", details(.proxy_status.as_deref()))]
    Refused {
        /// Authority of the proxy.
        peer: String,
        /// Host and port that were asked for.
        target: String,
        /// Status code.
        status: u16,
        /// The `Proxy-Status` field, if any.
        proxy_status: Option<String>,
    },
    /// The proxy closed the flow.
    #[error("{peer} closed the tunnel to {target}: {reason}")]
    FlowClosed {
        /// Authority of the proxy.
        peer: String,
        /// Host and port of the flow.
        target: String,
        /// Why.
        reason: String,
    },
    /// The origin answered with a status that is no success.
    #[error("{url}: status {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// Status code.
        status: u16,
    },
    /// The body ended early or changed while it was fetched.
    #[error("{url}: {reason}")]
    Body {
        /// What was asked for.
        url: String,
        /// What was wrong.
        reason: String,
    },
    /// The peer broke the protocol.
    #[error("{peer} broke the protocol: {reason}")]
    Protocol {
        /// Authority of the proxy or the origin.
        peer: String,
        /// What was wrong.
        reason: String,
    },
    /// The operator ended the node.
    #[error("interrupted")]
    Interrupted,
}

fn details(proxy_status: Option<&str>) -> String {
    proxy_status.map_or_else(String::new, |value| format!(" ({value})"))
}

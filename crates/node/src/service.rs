//! What a flow is for. A client requests a service, and a proxy grants it; what requests for each service look like is
//! known here, for both ends.

use std::fmt;

use http::Method;
use tandem_wire::{
    PROTOCOL_CONNECT_TCP, RequestHead, TargetError, Template, VarInt, uri_template::check_host,
};

use crate::tcp::Form;

/// What a flow is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// UDP payloads (RFC 9298).
    Udp,
    /// A TCP connection.
    Tcp(Form),
}

/// The host and the port of a target or a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    /// A name, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Service {
    /// All services.
    const ALL: [Self; 3] = [Self::Udp, Self::Tcp(Form::Capsules), Self::Tcp(Form::Classic)];

    /// The service that a CONNECT request with this value of `:protocol` is for.
    pub(crate) fn of(protocol: Option<&str>) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.protocol() == protocol)
    }

    /// The value of `:protocol` in requests. `None`: they have none.
    const fn protocol(self) -> Option<&'static str> {
        match self {
            Self::Udp => Some("connect-udp"),
            Self::Tcp(Form::Capsules) => Some(PROTOCOL_CONNECT_TCP),
            Self::Tcp(Form::Classic) => None,
        }
    }

    /// Whether request streams carry capsules (RFC 9297).
    pub(crate) fn has_capsules(self) -> bool {
        self != Self::Tcp(Form::Classic)
    }

    /// The types of the capsules that only this service can read. A tunnel passes their values on to it, and skips
    /// those that it does not know either.
    pub(crate) const fn capsules(self) -> &'static [VarInt] {
        match self {
            Self::Udp | Self::Tcp(_) => &[],
        }
    }

    /// Whether a request stream carries the bytes of one connection. Otherwise the flow carries payloads, which a
    /// tunnel may send in datagrams.
    pub(crate) const fn carries_bytes(self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Whether a request is for a resource of the proxy, which a URI template names. Clients then authenticate as for
    /// any other resource (RFC 9110 §11.6): with the field `Authorization`, and after the answer 401.
    pub(crate) const fn is_resource(self) -> bool {
        match self {
            Self::Udp | Self::Tcp(Form::Capsules) => true,
            Self::Tcp(Form::Classic) => false,
        }
    }

    /// The header fields of a request that have the client's token. Many proxies read only `Proxy-Authorization` where
    /// they carry UDP, as Tandem did until version 0.2.
    pub(crate) const fn token_fields(self) -> &'static [&'static str] {
        match self {
            Self::Udp => &["authorization", "proxy-authorization"],
            Self::Tcp(Form::Capsules) => &["authorization"],
            Self::Tcp(Form::Classic) => &["proxy-authorization"],
        }
    }

    /// Whether a request may be for this host and port.
    pub(crate) fn check_target(self, host: &str, port: u16) -> Result<(), TargetError> {
        match self {
            Self::Udp | Self::Tcp(_) => check_host(host)?,
        }
        if port == 0 { Err(TargetError::Port("0".into())) } else { Ok(()) }
    }

    /// A request to the proxy with this template, without header fields. `None`: the proxy can have no template of the
    /// service.
    pub(crate) fn request(self, proxy: &Template, host: &str, port: u16) -> Option<RequestHead> {
        let method = Method::CONNECT;
        let expanded = match self {
            Self::Udp => proxy.expand(host, port),
            Self::Tcp(Form::Capsules) => proxy.default_tcp_beside().ok()?.expand(host, port),
            // RFC 9114 §4.4: "The :scheme and :path pseudo-header fields are omitted. The :authority
            // pseudo-header field contains the host and port to connect to".
            Self::Tcp(Form::Classic) => {
                let authority = Some(authority_of(host, port));
                return Some(RequestHead { method, authority, ..RequestHead::default() });
            }
        };
        // RFC 9298 §3.4: ":method" SHALL be "CONNECT", ":protocol" "connect-udp", ":authority" that
        // of the UDP proxy, and ":path" and ":scheme" those of the expanded template.
        Some(RequestHead {
            method,
            scheme: Some(expanded.scheme),
            authority: Some(expanded.authority),
            path: Some(expanded.path),
            protocol: self.protocol().map(str::to_owned),
            ..RequestHead::default()
        })
    }
}

impl From<(String, u16)> for HostPort {
    fn from((host, port): (String, u16)) -> Self {
        Self { host, port }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Host and port of a target, as the authority of a CONNECT request has them.
pub(crate) fn authority_of(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

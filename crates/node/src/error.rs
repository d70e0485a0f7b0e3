//! The errors of nodes, by cause, and the status code with which a proxy reports each cause.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use http::StatusCode;
use tandem_wire::{StrangerText, TargetError};

use crate::{Cause, OsError, mode::Agreement, node::ResolveError, proxy::Refusal, reason::explain};

/// The reason why a proxy refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request is not a CONNECT request.
    #[error("this server is a proxy for UDP and TCP and accepts only CONNECT requests")]
    NotConnect,
    /// The request is an extended CONNECT request for another protocol.
    #[error("protocol {0:?} is not supported; allowed: \"connect-udp\", \"connect-tcp\"")]
    Protocol(StrangerText),
    /// The path does not match the proxy's URI template.
    #[error("the path does not match the template {template}")]
    PathMismatch {
        /// The template of this proxy.
        template: String,
    },
    /// The target in the path is malformed.
    #[error("malformed target: {0}")]
    MalformedTarget(StrangerText),
    /// The request has no token, or an unknown one.
    #[error("a valid token is required")]
    Unauthorized,
    /// The request has a token that is no longer valid, or not yet.
    #[error("the token has expired, or is not valid yet")]
    TokenExpired,
    /// Too many wrong tokens came from the client's address, so the proxy did not look at the token
    /// of this request.
    #[error("too many wrong tokens came from this address; try again in {} s", whole_seconds(*.0))]
    TooManyGuesses(Duration),
    /// The target's name has no address.
    #[error("{host}: {error}")]
    Dns {
        /// The name.
        host: StrangerText,
        /// The resolver's error.
        error: ResolveError,
    },
    /// The resolver did not answer in time.
    #[error("the resolver did not answer for {host} within {timeout:?}")]
    DnsTimeout {
        /// The name.
        host: StrangerText,
        /// The longest wait for an answer.
        timeout: Duration,
    },
    /// The proxy resolves as many names at present as its limit allows.
    #[error("{0} names are being resolved already")]
    TooManyQueries(usize),
    /// The proxy's policy does not allow the target's address.
    #[error("the target's address {0} is not in an allowed prefix")]
    TargetProhibited(IpAddr),
    /// The client's connection comes through too many flows of the same proxy
    /// ([`Limits::nested`](crate::limits::Limits::nested)).
    #[error("this connection comes through {nested} flows of the same proxy, which is a loop")]
    Loop {
        /// The number of flows.
        nested: u8,
    },
    /// The proxy opens no TCP connections to this port.
    #[error("this proxy opens no TCP connections to port {0}")]
    PortProhibited(u16),
    /// The user may not reach the target.
    #[error("user {user} may not reach {target} through this proxy")]
    UserTarget {
        /// The user's name.
        user: StrangerText,
        /// The host and port of the target.
        target: StrangerText,
    },
    /// The user may not reach the address of the target.
    #[error("user {user} may not reach the target's address {address} through this proxy")]
    UserAddress {
        /// The user's name.
        user: StrangerText,
        /// The address of the target.
        address: IpAddr,
    },
    /// The user has reached one of its limits.
    #[error("user {user} {}", refusal.of_limit(*.max))]
    UserLimit {
        /// The user's name.
        user: StrangerText,
        /// Which limit it is.
        refusal: Refusal,
        /// How much may be open.
        max: u32,
    },
    /// The proxy carries only one service ([`ProxyConfig::service`](crate::ProxyConfig::service)), and
    /// the request is for another target, or for UDP.
    #[error("this proxy carries TCP to one fixed service and to no other target")]
    OtherService,
    /// The target did not accept a TCP connection.
    #[error("{target} cannot be reached: {error}")]
    Unreachable {
        /// The host and port of the target.
        target: StrangerText,
        /// The error of the last attempt.
        error: OsError,
    },
    /// The connection has its share of the proxy's sockets towards targets
    /// ([`Limits::sockets`](crate::limits::Limits::sockets)).
    #[error(
        "this connection has {held} sockets to targets, which is its share of the {sockets} of the \
         proxy at present; it can open others after some of its flows have ended"
    )]
    TooManySockets {
        /// The number of sockets that the connection has.
        held: usize,
        /// The number of sockets that all connections may have together.
        sockets: usize,
    },
    /// The host of the proxy has no descriptor, memory or port for another socket.
    #[error("the proxy's host has no resources for another socket; try again later")]
    NoResources,
    /// The operating system could not open a socket.
    #[error("a socket to the target cannot be opened: {0}")]
    Socket(OsError),
    /// The request cannot join the flow of its group: the flow was not granted, has another target,
    /// or has all its streams.
    #[error("there is no flow of request stream {stream} to join")]
    Group {
        /// The ID of the request stream that the field `tandem-group` names.
        stream: u64,
    },
}

impl RequestError {
    /// Whether the request has shown no right to use the proxy.
    pub(crate) const fn is_of_stranger(&self) -> bool {
        matches!(self, Self::Unauthorized | Self::TokenExpired | Self::TooManyGuesses(_))
    }

    /// Returns the error for a socket that the operating system could not open.
    pub(crate) fn for_socket(error: OsError) -> Self {
        match error.kind {
            io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => Self::NoResources,
            _ => Self::Socket(error),
        }
    }

    /// Returns the reason in the words that the client gets. They do not have the addresses that the proxy's resolver
    /// knows for the name of a target, because these may be those of an inner network. The log has them.
    pub fn details(&self) -> String {
        match self {
            Self::TargetProhibited(_) => {
                "the target's address is not in an allowed prefix".to_owned()
            }
            Self::UserAddress { user, .. } => {
                format!("user {user} may not reach the target's address through this proxy")
            }
            Self::NotConnect
            | Self::Protocol(_)
            | Self::PathMismatch { .. }
            | Self::MalformedTarget(_)
            | Self::Unauthorized
            | Self::TokenExpired
            | Self::TooManyGuesses(_)
            | Self::Dns { .. }
            | Self::DnsTimeout { .. }
            | Self::TooManyQueries(_)
            | Self::PortProhibited(_)
            | Self::Loop { .. }
            | Self::UserTarget { .. }
            | Self::UserLimit { .. }
            | Self::OtherService
            | Self::Unreachable { .. }
            | Self::TooManySockets { .. }
            | Self::NoResources
            | Self::Socket(_)
            | Self::Group { .. } => self.to_string(),
        }
    }

    /// Returns the cause, if clients are told it besides the error type.
    pub(crate) const fn cause(&self) -> Option<Cause> {
        Some(match self {
            Self::TokenExpired => Cause::TokenExpired,
            Self::TooManyGuesses(_) => Cause::Guesses,
            Self::UserLimit { refusal: Refusal::Month, .. } => Cause::Month,
            Self::UserLimit { refusal: Refusal::Target, .. }
            | Self::UserTarget { .. }
            | Self::UserAddress { .. } => Cause::UserTarget,
            Self::UserLimit { .. } => Cause::UserLimit,
            Self::PortProhibited(_) => Cause::TargetPort,
            Self::OtherService => Cause::OneService,
            Self::NotConnect | Self::Protocol(_) | Self::PathMismatch { .. } => Cause::NotServed,
            Self::Unauthorized
            | Self::MalformedTarget(_)
            | Self::Dns { .. }
            | Self::DnsTimeout { .. }
            | Self::TooManyQueries(_)
            | Self::TargetProhibited(_)
            | Self::Loop { .. }
            | Self::Unreachable { .. }
            | Self::TooManySockets { .. }
            | Self::NoResources
            | Self::Socket(_)
            | Self::Group { .. } => return None,
        })
    }

    /// Returns the status code, and the error type of the `Proxy-Status` field (RFC 9209 §2.3) if
    /// the field has one for this cause.
    pub const fn response(&self) -> (StatusCode, Option<&'static str>) {
        match self {
            // RFC 9220 §3: a server that does not support the protocol SHOULD answer 501.
            Self::Protocol(_) => (StatusCode::NOT_IMPLEMENTED, None),
            Self::NotConnect | Self::PathMismatch { .. } => (StatusCode::NOT_FOUND, None),
            Self::MalformedTarget(_) | Self::Group { .. } => {
                (StatusCode::BAD_REQUEST, Some("http_request_error"))
            }
            Self::Unauthorized | Self::TokenExpired => {
                (StatusCode::PROXY_AUTHENTICATION_REQUIRED, None)
            }
            Self::TooManyGuesses(_) => (StatusCode::TOO_MANY_REQUESTS, None),
            Self::Dns { .. } => (StatusCode::BAD_GATEWAY, Some("dns_error")),
            Self::Loop { .. } => (StatusCode::BAD_GATEWAY, Some("proxy_loop_detected")),
            Self::DnsTimeout { .. } => (StatusCode::GATEWAY_TIMEOUT, Some("dns_timeout")),
            Self::TooManyQueries(_) => (StatusCode::SERVICE_UNAVAILABLE, None),
            Self::TooManySockets { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, Some("connection_limit_reached"))
            }
            Self::NoResources => (StatusCode::SERVICE_UNAVAILABLE, Some("proxy_internal_error")),
            // RFC 6585 §4: the user "has sent too many requests". It can do something about it.
            Self::UserLimit { refusal, .. } if refusal.may_pass_soon() => {
                (StatusCode::TOO_MANY_REQUESTS, Some("http_request_denied"))
            }
            Self::TargetProhibited(_) => (StatusCode::FORBIDDEN, Some("destination_ip_prohibited")),
            Self::PortProhibited(_)
            | Self::OtherService
            | Self::UserTarget { .. }
            | Self::UserAddress { .. }
            | Self::UserLimit { .. } => (StatusCode::FORBIDDEN, Some("http_request_denied")),
            Self::Unreachable { error: OsError { kind: io::ErrorKind::TimedOut, .. }, .. } => {
                (StatusCode::GATEWAY_TIMEOUT, Some("connection_timeout"))
            }
            Self::Socket(error) | Self::Unreachable { error, .. } => {
                (StatusCode::BAD_GATEWAY, Some(target_error(error.kind)))
            }
        }
    }
}

/// The error type of `Proxy-Status` (RFC 9209 §2.3) for a target that the operating system cannot
/// reach.
pub(crate) const fn target_error(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionRefused => "connection_refused",
        io::ErrorKind::TimedOut => "connection_timeout",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "destination_ip_unroutable"
        }
        _ => "destination_unavailable",
    }
}

/// Seconds in which a wait is over, as `Retry-After` has them (RFC 9110 §10.2.3).
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// The reason why a flow that the embedding program opens itself was not opened, or dropped a
/// payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The target is no host, or port 0.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The payload fits no datagram of the tunnel and may not go in a capsule.
    #[error("a payload of {len} bytes does not fit the tunnel, which carries up to {fits} bytes")]
    TooLarge {
        /// The length of the payload in bytes.
        len: usize,
        /// The largest length that the tunnel carries at present.
        fits: usize,
    },
    /// The tunnel's queue is full, or too many payloads wait for the grant of the flow.
    #[error("the payload was dropped, because too many payloads wait before it")]
    QueueFull,
    /// There is no such flow, or its name is in use, or the client is ending.
    #[error("the flow is not open")]
    NotOpen,
    /// The client has as many flows as it may have.
    #[error("the client has {most} flows already, which is its limit (Limits::local_flows)")]
    TooMany {
        /// The largest number of flows.
        most: usize,
    },
}

/// The reason why a client ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The name of a proxy or an origin has no address.
    #[error("cannot resolve {host}: {error}")]
    Resolve {
        /// The name.
        host: StrangerText,
        /// The resolver's error.
        error: ResolveError,
    },
    /// The operating system could not open a socket.
    #[error("cannot open a UDP socket: {0}")]
    Socket(OsError),
    /// The operating system could not open a listening socket.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The local address.
        address: SocketAddr,
        /// The error of the operating system.
        error: OsError,
    },
    /// The operating system could not open the standard input and output.
    #[error("cannot use the standard input and output: {0}")]
    Stdio(OsError),
    /// The operating system reports that no program listens at the peer's address.
    #[error("no program listens at {peer}: {kind}")]
    Refusing {
        /// The authority of the proxy or the origin.
        peer: String,
        /// The error of the operating system.
        kind: io::ErrorKind,
    },
    /// The peer did not answer in time.
    #[error("{peer} does not answer within {timeout:?}")]
    NoAnswer {
        /// The authority of the proxy or the origin.
        peer: String,
        /// The longest wait for an answer.
        timeout: Duration,
    },
    /// The proxy did not allow one more request stream in time (RFC 9000 §4.6), because too many are in use.
    #[error("{peer} allows no more flows at a time: all were in use for {timeout:?}")]
    NoStream {
        /// The authority of the proxy.
        peer: String,
        /// The longest wait for a stream.
        timeout: Duration,
    },
    /// The client or the peer did not accept a certificate, or TLS failed for another reason.
    #[error("TLS with {peer} failed: {reason}")]
    Tls {
        /// The authority of the proxy or the origin.
        peer: String,
        /// The error of TLS.
        reason: StrangerText,
    },
    /// The connection ended.
    #[error("the connection to {peer} ended: {reason}")]
    ConnectionLost {
        /// The authority of the proxy or the origin.
        peer: String,
        /// The reason in words.
        reason: StrangerText,
    },
    /// The peer lacks a feature that the client needs.
    #[error("{peer} does not support {what}")]
    Unsupported {
        /// The authority of the proxy or the origin.
        peer: String,
        /// The missing feature.
        what: &'static str,
    },
    /// The proxy granted another mode than the client asked for, and the client requires its mode.
    #[error("{peer} grants mode {agreement}")]
    LesserMode {
        /// The authority of the proxy.
        peer: String,
        /// What it granted.
        agreement: Agreement,
    },
    /// The proxy refused the tunnel.
    #[error("{peer} refused a tunnel to {target}: status {status}{}", details(.proxy_status.as_ref()))]
    Refused {
        /// The authority of the proxy.
        peer: String,
        /// The host and port of the target.
        target: StrangerText,
        /// The HTTP status code.
        status: u16,
        /// The `Proxy-Status` field, if any.
        proxy_status: Option<StrangerText>,
        /// The wait for which the proxy asks before the next request (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The proxy closed the flow.
    #[error("{peer} closed the tunnel to {target}: {reason}")]
    FlowClosed {
        /// The authority of the proxy.
        peer: String,
        /// The host and port of the target.
        target: StrangerText,
        /// The reason in words.
        reason: StrangerText,
        /// The cause, if the proxy has told it.
        cause: Option<Cause>,
    },
    /// A rule of this client refuses the target ([`Rules`](crate::client::rules::Rules)).
    #[error("a rule of this client refuses {target}")]
    Ruled {
        /// The host and port of the target.
        target: StrangerText,
    },
    /// A rule says that the target is reached without the tunnel, and that failed.
    #[error("a direct connection failed: {0}")]
    Direct(RequestError),
    /// The origin answered with a status code that is not a success.
    #[error("{url}: status {status}")]
    Status {
        /// The URL of the request.
        url: StrangerText,
        /// The HTTP status code.
        status: u16,
    },
    /// The origin answered that the file is at another URL.
    #[error("{url}: status {status} redirects to {location}")]
    Redirected {
        /// The URL of the request.
        url: StrangerText,
        /// The HTTP status code: 301, 302, 303, 307 or 308.
        status: u16,
        /// The reference to the other URL, which may be relative.
        location: StrangerText,
    },
    /// The body ended early, or changed while it was fetched.
    #[error("{url}: {reason}")]
    Body {
        /// The URL of the request.
        url: StrangerText,
        /// The reason in words.
        reason: StrangerText,
    },
    /// The peer violated the protocol.
    #[error("{peer} violated the protocol: {reason}")]
    Protocol {
        /// The authority of the proxy or the origin.
        peer: String,
        /// The reason in words.
        reason: StrangerText,
    },
    /// The operator ended the node.
    #[error("interrupted")]
    Interrupted,
}

impl ClientError {
    /// Returns whether the same attempt may succeed later without a change of settings. `has_worked` says whether it
    /// succeeded before, so that no mistake in the settings explains the failure.
    pub fn may_pass(&self, has_worked: bool) -> bool {
        match self {
            // A name that worked before has not been mistyped.
            Self::Resolve { error, .. } => has_worked || *error == ResolveError::Unreachable,
            Self::Refused { status: 502, proxy_status, .. } => {
                let is_dns = |status: &StrangerText| status.contains("dns_error");
                has_worked || !proxy_status.as_ref().is_some_and(is_dns)
            }
            Self::Refused { status, .. } => matches!(status, 429 | 500 | 503 | 504),
            // A system call that the kernel or a sandbox lacks stays missing.
            Self::Socket(error) => error.kind != io::ErrorKind::Unsupported,
            // The network may lead to another server for a while, such as the portal of a hotel.
            Self::Tls { .. } | Self::Unsupported { .. } | Self::Protocol { .. } => has_worked,
            Self::Refusing { .. }
            | Self::NoAnswer { .. }
            | Self::NoStream { .. }
            | Self::ConnectionLost { .. }
            | Self::FlowClosed { .. } => true,
            Self::Listen { .. }
            | Self::Stdio(_)
            | Self::LesserMode { .. }
            | Self::Ruled { .. }
            | Self::Direct(_)
            | Self::Status { .. }
            | Self::Redirected { .. }
            | Self::Body { .. }
            | Self::Interrupted => false,
        }
    }

    /// Returns why a proxy refused or closed a flow, if it is known.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Refused { status, proxy_status, .. } => {
                Cause::of_answer(*status, proxy_status.as_ref())
            }
            Self::FlowClosed { cause, .. } => *cause,
            _ => None,
        }
    }

    /// Returns the wait for which a proxy asks before the next request.
    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

fn details(proxy_status: Option<&StrangerText>) -> String {
    proxy_status.map_or_else(String::new, |value| format!(", {}", explain(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_without_resources_does_not_blame_the_target() {
        for (kind, status, error_type) in [
            (io::ErrorKind::QuotaExceeded, 503, "proxy_internal_error"),
            (io::ErrorKind::OutOfMemory, 503, "proxy_internal_error"),
            (io::ErrorKind::NetworkUnreachable, 502, "destination_ip_unroutable"),
            (io::ErrorKind::AddrNotAvailable, 502, "destination_unavailable"),
            (io::ErrorKind::PermissionDenied, 502, "destination_unavailable"),
        ] {
            let (given, given_type) = RequestError::for_socket(kind.into()).response();
            assert_eq!((given.as_u16(), given_type), (status, Some(error_type)), "{kind:?}");
        }
    }

    #[test]
    fn a_client_is_not_told_the_address_to_which_a_name_leads() {
        let (host, target) = (|| "intranet.example".into(), || "intranet.example:443".into());
        let (user, address) = (|| "alice".into(), "10.1.2.3".parse().expect("an address"));
        for error in [
            RequestError::NotConnect,
            RequestError::Protocol("websocket".into()),
            RequestError::MalformedTarget("a".into()),
            RequestError::Unauthorized,
            RequestError::TokenExpired,
            RequestError::Dns { host: host(), error: ResolveError::NotFound },
            RequestError::DnsTimeout { host: host(), timeout: Duration::from_secs(1) },
            RequestError::TargetProhibited(address),
            RequestError::PortProhibited(25),
            RequestError::UserTarget { user: user(), target: target() },
            RequestError::UserAddress { user: user(), address },
            RequestError::Unreachable {
                target: target(),
                error: io::ErrorKind::ConnectionRefused.into(),
            },
            RequestError::Socket(io::ErrorKind::NetworkUnreachable.into()),
        ] {
            let told = error.details();
            assert!(!told.contains("10.1.2.3"), "{told}");
            let log = error.to_string();
            let has_address = matches!(
                error,
                RequestError::TargetProhibited(_) | RequestError::UserAddress { .. }
            );
            assert_eq!(log.contains("10.1.2.3"), has_address, "{log}");
        }
    }

    #[test]
    fn only_failures_that_may_pass_are_repeated() {
        let peer = || "p.example".to_owned();
        let refused = |status, proxy_status: &str| ClientError::Refused {
            peer: peer(),
            target: "t.example:53".into(),
            status,
            proxy_status: Some(proxy_status.into()),
            retry_after: None,
        };
        let resolve = |error| ClientError::Resolve { host: peer().into(), error };
        let kind = io::ErrorKind::ConnectionRefused;
        for (error, at_start, later) in [
            (ClientError::Refusing { peer: peer(), kind }, true, true),
            (ClientError::NoAnswer { peer: peer(), timeout: Duration::from_secs(1) }, true, true),
            (ClientError::NoStream { peer: peer(), timeout: Duration::from_secs(1) }, true, true),
            (refused(503, ""), true, true),
            (refused(429, ""), true, true),
            (refused(504, "p; error=dns_timeout"), true, true),
            (refused(502, "p; error=dns_error"), false, true),
            (refused(407, ""), false, false),
            (refused(403, "p; error=destination_ip_prohibited"), false, false),
            (refused(404, ""), false, false),
            (resolve(ResolveError::Unreachable), true, true),
            (resolve(ResolveError::NotFound), false, true),
            (ClientError::Tls { peer: peer(), reason: "expired".into() }, false, true),
            (ClientError::Protocol { peer: peer(), reason: "no settings".into() }, false, true),
            (ClientError::Interrupted, false, false),
        ] {
            assert_eq!((error.may_pass(false), error.may_pass(true)), (at_start, later), "{error}");
        }
    }
}

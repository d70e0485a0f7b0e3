//! The services of a proxy: UDP payloads, and TCP connections. Each has a file of its own. What differs between them is
//! asked here, so that all else of a flow is the same for all.

mod others;
pub(super) mod tcp;
pub(super) mod udp;

use std::{net::SocketAddr, time::Instant};

use bytes::Bytes;
use tandem_wire::{
    PathMatcher, RequestHead, TargetError, Template, uri_template::parse_target_authority,
};

pub(super) use self::{others::Others, tcp::Tcp};
use super::{
    FlowId, Proxy, ProxyConfig,
    flow::{End, StreamFate},
    relay::Outlet,
    request::Permitted,
    site::SecretPath,
    targets::Targets,
    users::{Direction, EachWay},
};
pub(super) use crate::race::{Attempt, Further, LookUp, Race};
use crate::{
    OsError,
    error::RequestError,
    node::{Output, SocketKind},
    quic::{ConfigError, StreamId},
    service::{HostPort, Service},
    stats::Stats,
    tcp::{Form, TcpId, TcpOutput},
    tunnel::ProxyTunnel,
};

/// The templates that the paths of requests must match (RFC 9298 §2).
pub(super) struct Paths {
    udp: (PathMatcher, Template),
    tcp: (PathMatcher, Template),
    /// What stands before them in paths.
    secret: Option<SecretPath>,
}

impl Paths {
    pub(super) fn new(udp: Template, secret: Option<SecretPath>) -> Result<Self, ConfigError> {
        let with_matcher = |template: Template| {
            let matcher = PathMatcher::new(&template).map_err(|_| {
                ConfigError::Settings("the variables of the template cannot be separated")
            })?;
            Ok((matcher, template))
        };
        let tcp = with_matcher(ProxyConfig::default_tcp_template())?;
        Ok(Self { udp: with_matcher(udp)?, tcp, secret })
    }

    /// Whether only users know the paths.
    pub(super) const fn is_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// What stands before the paths of the templates: nothing, or a slash and the secret path.
    pub(super) fn before(&self) -> String {
        self.secret.as_ref().map(|secret| format!("/{}", secret.reveal())).unwrap_or_default()
    }

    /// The path of a request without the secret path. `None`: it begins with something else.
    pub(super) fn below_secret<'a>(&self, head: &'a RequestHead) -> Option<&'a str> {
        let path = head.path.as_deref().unwrap_or_default();
        self.secret.as_ref().map_or(Some(path), |secret| secret.strip(path))
    }

    /// The template of UDP.
    pub(super) const fn udp_template(&self) -> &Template {
        &self.udp.1
    }

    /// The target of a request.
    pub(super) fn target(
        &self,
        head: &RequestHead,
        service: Service,
    ) -> Result<HostPort, RequestError> {
        let malformed =
            |error: TargetError| RequestError::MalformedTarget(error.to_string().into());
        let (matcher, template) = match service {
            Service::Udp => &self.udp,
            Service::Tcp(Form::Capsules) => &self.tcp,
            Service::Tcp(Form::Classic) => {
                let authority = head.authority.as_deref().unwrap_or_default();
                return parse_target_authority(authority).map(HostPort::from).map_err(malformed);
            }
        };
        self.below_secret(head)
            .and_then(|path| matcher.match_path(path))
            .ok_or_else(|| RequestError::PathMismatch { template: template.as_str().to_owned() })?
            .map(HostPort::from)
            .map_err(malformed)
    }
}

impl Service {
    /// What the log calls a flow that does not carry UDP payloads.
    pub(super) const fn shown(self) -> Option<&'static str> {
        match self {
            Self::Udp => None,
            Self::Tcp(_) => Some("tcp"),
        }
    }

    /// The memory of an idle flow in bytes, with its request stream and its socket.
    pub(super) const fn memory(self) -> usize {
        match self {
            Self::Udp => 3300,
            Self::Tcp(_) => 4000,
        }
    }

    /// The error for a request whose target cannot be reached.
    pub(super) fn unreachable(self, target: &HostPort, error: OsError) -> RequestError {
        match self {
            Self::Udp => RequestError::for_socket(error),
            Self::Tcp(_) => RequestError::Unreachable { target: target.to_string().into(), error },
        }
    }

    /// Begins an attempt to reach an address of a target, for a user.
    pub(super) fn attempt(
        self,
        targets: &mut Targets,
        now: Instant,
        id: FlowId,
        (peer, user): (SocketAddr, Option<u64>),
    ) -> Result<(Attempt, Output), RequestError> {
        match self {
            Self::Udp => targets.open(now, id, SocketKind::Connected(peer)),
            Self::Tcp(_) => targets.connect(now, id, (peer, user)),
        }
    }

    /// Counts the end of a flow.
    pub(super) const fn count_end(self, is_open: bool, end: &End, stats: &mut Stats) {
        match self {
            Self::Udp => udp::count_end(is_open, end, stats),
            Self::Tcp(_) => tcp::count_end(is_open, end, &mut stats.tcp),
        }
    }
}

impl Attempt {
    /// Ends an attempt that is no longer needed. `end_tcp` says how a TCP connection ends.
    pub(super) fn give_up(
        self,
        targets: &mut Targets,
        end_tcp: impl FnOnce(TcpId) -> TcpOutput,
    ) -> Output {
        match self {
            Self::Udp(socket) => targets.close(socket),
            Self::Tcp(tcp) => {
                targets.disconnect(tcp);
                Output::Tcp(end_tcp(tcp))
            }
        }
    }
}

/// What a flow has, once its request is granted.
#[derive(Debug)]
pub(super) enum Open {
    Udp(Outlet),
    Tcp(Box<Tcp>),
}

impl Open {
    pub(super) fn target(&self) -> SocketAddr {
        match self {
            Self::Udp(outlet) => outlet.target,
            Self::Tcp(tcp) => tcp.target,
        }
    }

    /// When something has to be done for the flow. `idle`: when it will have been silent for too long.
    pub(super) fn timeout(&self, idle: Instant) -> Option<Instant> {
        match self {
            Self::Udp(_) => Some(idle),
            Self::Tcp(tcp) => tcp.resume_at,
        }
    }

    /// Whether the flow goes on at the time of its timer, instead of ending.
    pub(super) const fn resumes(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// The memory in bytes of what waits for the target.
    pub(super) fn unwritten(&self) -> usize {
        match self {
            Self::Udp(outlet) => outlet.others.as_ref().map_or(0, |others| others.memory()),
            Self::Tcp(tcp) => tcp.splice.socket.unwritten(),
        }
    }

    /// The socket through which payloads leave. `None`: the flow carries none.
    pub(super) const fn outlet(&mut self) -> Option<&mut Outlet> {
        match self {
            Self::Udp(outlet) => Some(outlet),
            Self::Tcp(_) => None,
        }
    }

    /// The counters of payloads. `None`: the flow carries none.
    pub(super) const fn payloads(&self) -> Option<&Outlet> {
        match self {
            Self::Udp(outlet) => Some(outlet),
            Self::Tcp(_) => None,
        }
    }

    /// Counts a payload that has passed.
    pub(super) fn on_passed(&mut self, way: Direction, bytes: usize, stats: &mut Stats) {
        if let Self::Udp(outlet) = self {
            outlet.on_passed(way);
            match way {
                Direction::ToTarget => stats.count_to_target(true, bytes),
                Direction::ToClient => stats.count_to_client(bytes),
            }
        }
    }

    /// Says something to the client, encoded as a capsule, before its stream ends. Returns how the stream ends then.
    /// `None`: the stream cannot carry it.
    pub(super) fn say(
        &self,
        tunnel: &mut ProxyTunnel,
        stream: StreamId,
        capsule: impl FnOnce() -> Bytes,
    ) -> Option<StreamFate> {
        match self {
            Self::Tcp(tcp) if tcp.takes_last_words() => {
                tunnel.send_bytes(stream, capsule(), Bytes::new());
                tunnel.finish_bytes(stream);
                Some(StreamFate::Drains)
            }
            // A frame that was sent in part can only be cut by a reset.
            Self::Udp(_) if tunnel.explains_end(stream) && !tunnel.is_within_frame(stream) => {
                Some(StreamFate::FinishWith(capsule()))
            }
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// The bytes that the flow has carried. `None`: the meter knows those of payloads.
    pub(super) fn bytes(&self) -> Option<EachWay> {
        match self {
            Self::Udp(_) => None,
            Self::Tcp(tcp) => {
                Some(EachWay { to_target: tcp.splice.to_tcp, to_client: tcp.splice.from_tcp })
            }
        }
    }
}

impl Proxy {
    /// Opens a flow for a permitted request.
    pub(super) fn open(
        &mut self,
        now: Instant,
        id: FlowId,
        request: Permitted<'_>,
    ) -> Result<(), RequestError> {
        match request.service {
            Service::Udp => self.open_udp(now, id, request),
            Service::Tcp(_) => self.open_tcp(now, id, request),
        }
    }

    /// Closes what an open flow has towards its target.
    pub(super) fn close(&mut self, open: &mut Open) {
        match open {
            Open::Udp(outlet) => {
                self.outputs.push_back(self.targets.close(outlet.socket));
                if let Some(others) = outlet.others.take() {
                    self.forget_others(&others);
                }
            }
            Open::Tcp(tcp) => {
                tcp.splice.socket.reset(&mut self.outputs);
                self.targets.disconnect(tcp.splice.socket.tcp());
            }
        }
    }
}

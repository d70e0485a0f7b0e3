//! A proxy that is a web site to everybody who has no right to it.
//!
//! What a stranger gets, whatever it asks for, comes from the same code as at an origin ([`Site`]). A request is the
//! proxy's only if it is for one of its services or for its configuration document, has a path of the proxy, and shows
//! the right credentials.

use std::time::Instant;

use tandem_wire::RequestHead;

use super::{Access, FlowId, Proxy, access::User, peers::Peer, request::Admission};
use crate::{
    error::RequestError,
    h3,
    origin::{Content, Edge, Site},
    quic::ConnectionId,
    service::Service,
    token::is_same,
};

/// The site that a proxy is to those who have no right to it.
#[derive(Clone, Debug)]
pub struct ProxySite {
    /// Where the site comes from.
    pub content: Content,
    /// The path below which the proxy's templates are. `None`: they are at the root, where everybody looks for them.
    pub secret_path: Option<SecretPath>,
}

/// The first segment of the paths of a proxy's templates, which only its users know. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretPath(String);

/// The error for a text that is not a secret path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret path has 22 to 200 characters out of A-Z a-z 0-9 - . _ ~, and no slash")]
pub struct SecretPathError;

impl SecretPath {
    /// The allowed lengths. 22 characters of base64 are 131 bits: a path is looked at as often as a stranger asks.
    const LEN: std::ops::RangeInclusive<usize> = 22..=200;

    /// Parses a secret path, without the slashes around it. Its characters need no encoding in a URI (RFC 3986 §2.3).
    pub fn parse(text: &str) -> Result<Self, SecretPathError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if !Self::LEN.contains(&text.len()) || !text.bytes().all(allowed) {
            return Err(SecretPathError);
        }
        Ok(Self(text.to_owned()))
    }

    /// The secret itself, for a place that only its owner can read.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The path of a request without the secret before it. `None`: it begins with something else. The comparison takes
    /// the same time for each text of the same length.
    pub(super) fn strip<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix('/')?;
        let (first, rest) = rest.split_at(rest.find('/')?);
        is_same(self.0.as_bytes(), first.as_bytes()).then_some(rest)
    }
}

impl std::fmt::Debug for SecretPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretPath(..)")
    }
}

impl Admission {
    /// Whether a request is for this proxy by its method and its path, whoever sends it.
    pub(super) fn names_proxy(&self, head: &RequestHead, service: Service) -> bool {
        !matches!(self.paths.target(head, service), Err(RequestError::PathMismatch { .. }))
    }

    /// Whether everybody may send a request that is for this proxy. A path that only users know is a right, but CONNECT
    /// for a TCP connection (RFC 9114 §4.4) has no path.
    const fn is_open_to_all(&self, has_path: bool) -> bool {
        matches!(self.access, Access::Anyone) && !(has_path && self.paths.is_secret())
    }
}

impl Proxy {
    /// The site, and what it uses of this node. `None`: this proxy is no site.
    pub(super) fn site(&mut self, now: Instant) -> Option<(&mut Site, Edge<'_>)> {
        let Self { server, site, outputs, stats, .. } = self;
        Some((site.as_mut()?, Edge { now, server, outputs, stats }))
    }

    /// Who sends a request that is the proxy's, or the error for a user who may not have what it asks for now. `None`:
    /// the request is for the site. Nothing that a stranger can see depends on why.
    pub(super) fn user_beside_site(
        &mut self,
        now: Instant,
        id: ConnectionId,
        head: &RequestHead,
    ) -> Option<Result<User, RequestError>> {
        let (has_path, is_named) = if self.is_for_pvd(head) {
            (true, true)
        } else {
            let service = Admission::service(head).ok()?;
            (service.is_resource(), self.admission.names_proxy(head, service))
        };
        if self.admission.is_open_to_all(has_path) || !is_named {
            return None;
        }
        match self.identify(now, id, head) {
            Err(error) if error.is_of_stranger() => None,
            result => Some(result),
        }
    }

    /// Whether a request stream belongs to the site, and not to a flow.
    pub(super) fn is_of_site(&self, (id, stream): FlowId) -> bool {
        let is_flow = |it: &Peer| {
            it.flows.contains_key(&stream) || it.tunnel.has(stream) || it.passwords.holds(stream)
        };
        self.site.is_some() && !self.peers.get(id).is_some_and(is_flow)
    }

    /// Lets the site handle what HTTP/3 says of a request.
    pub(super) fn tell_site(&mut self, now: Instant, id: ConnectionId, event: h3::Event) {
        if let Some((site, mut cx)) = self.site(now) {
            site.on_http(&mut cx, id, event);
        }
    }

    /// Handles the datagrams of a connection whose peer has shown no right yet. Those that may belong to a request
    /// which has not arrived wait for it in the tunnel, which nobody sees. Others are the site's.
    pub(super) fn take_strange(&mut self, now: Instant, id: ConnectionId) {
        let Self { server, site, outputs, stats, peers, .. } = self;
        let (Some(site), Some(peer)) = (site, peers.get_mut(id)) else { return };
        let cx = &mut Edge { now, server, outputs, stats };
        site.take_datagrams(cx, id, |carrier, datagram| {
            peer.tunnel.on_early(now, carrier, datagram);
        });
        self.has_arrivals(id);
    }

    /// Whether the peer of a connection has shown no right to this proxy, which is a site to it.
    pub(super) fn is_stranger(&self, id: ConnectionId) -> bool {
        let has_user = self.peers.get(id).is_some_and(|it| it.standing.user.is_some());
        self.site.is_some() && !has_user
    }
}

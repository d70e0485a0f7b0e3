//! Whether the client may use its last proxy, which a client without UDP listeners asks at its start.
//!
//! The question costs the proxy nothing: it is a request for a TCP connection to port 0, which no proxy opens. A proxy
//! that checks a request's token first refuses only a wrong one with a status that says so.

use tandem_wire::{Code, ResponseHead};

use super::{Context, Verdict, tcp::Tcp};
use crate::{
    client::{
        FlowConfig,
        chain::{Hop, Request},
    },
    h3,
    quic::StreamId,
    service::Service,
    tcp::Form,
};

/// A target that no proxy reaches: RFC 6761 §6.4 lets no name end in "invalid", and there is no port 0.
const TARGET: (&str, u16) = ("right.invalid", 0);

/// The request that no proxy grants.
pub(super) fn question(form: Form) -> Request {
    Request::new(Service::Tcp(form), FlowConfig::new(TARGET.0, TARGET.1))
}

/// Whether an answer of the last proxy means the token. A server of ours that says nothing as a proxy is a web site to
/// this client.
pub(super) fn is_refused(head: &ResponseHead, hop: &Hop) -> bool {
    let is_site = hop.tunnel.is_to_tandem() && !head.headers.contains_key("proxy-status");
    match head.status.as_u16() {
        401 | 407 | 429 => true,
        404 | 405 | 501 => is_site,
        _ => false,
    }
}

/// What is known of the right to use the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Right {
    /// The client does not check it.
    #[default]
    NotWanted,
    /// It is to be asked for.
    Wanted,
    /// The request has this stream.
    Asked(StreamId),
}

impl Right {
    pub(super) fn is_asked_on(self, stream: StreamId) -> bool {
        self == Self::Asked(stream)
    }

    /// Notes that the tunnel has ended, with an open request.
    pub(super) const fn forget_stream(&mut self) {
        if matches!(self, Self::Asked(_)) {
            *self = Self::Wanted;
        }
    }
}

impl Tcp {
    pub(super) const fn check_right(&mut self) {
        self.right = Right::Wanted;
    }

    /// Whether the client may use the proxy, as far as it is known. Asks the proxy first, if that was asked for. A
    /// client that has only the standard input does not ask, since its only request tells.
    pub(super) fn has_right(&mut self, cx: &mut Context<'_>) -> bool {
        let has_listener = (0..self.services.len()).any(|it| self.listen_address(it).is_some());
        match self.right {
            Right::Wanted if has_listener => {
                let form = self.form_for(cx.hop);
                let stream = cx.hop.request_tcp(&question(form));
                self.right = stream.map_or(Right::NotWanted, Right::Asked);
                stream.is_none() // a proxy that takes no request now will answer those of programs
            }
            Right::NotWanted | Right::Wanted => true,
            Right::Asked(_) => false,
        }
    }

    /// Handles what comes on the stream of the question. Only an answer that means the token is a refusal.
    pub(super) fn on_right(&mut self, stream: StreamId, event: &h3::Event, cx: &mut Context<'_>) {
        let refusal = match event {
            h3::Event::Response(_, head) => {
                let error = cx.hop.refused("any target".to_owned(), head);
                cx.hop.end_tcp(stream, Code::H3_REQUEST_CANCELLED);
                is_refused(head, cx.hop).then_some(error)
            }
            h3::Event::Failed(..) => {
                cx.hop.end_tcp(stream, Code::H3_REQUEST_CANCELLED);
                None
            }
            _ => return,
        };
        // After a refusal that may pass, the client asks again.
        self.right = if refusal.is_some() { Right::Wanted } else { Right::NotWanted };
        cx.verdict = Some(refusal.map_or(Verdict::Checked, Verdict::AheadFailed));
    }
}

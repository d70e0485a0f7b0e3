//! The flows through a hop.

use tandem_wire::{Code, FeedbackField, ResponseHead, StrangerText};

use crate::{
    Cause,
    client::{FlowConfig, programs::Source},
    h3::has_content,
    quic::StreamId,
    reason::explain,
    service::{Service, authority_of},
    tunnel::{Flows, StreamEnd},
};

/// The packets that a flow carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Carries {
    /// The packets of the connection to the next hop or to the origin.
    NextPeer,
    /// The payloads of a program.
    Program(Source),
}

/// What is asked of a proxy: the service and the target of a flow, and how the tunnel treats the flow.
#[derive(Clone, Debug)]
pub(in crate::client) struct Request {
    pub(in crate::client) service: Service,
    pub(in crate::client) config: FlowConfig,
    /// Whether the flow carries a QUIC connection.
    pub(in crate::client) carries_quic: bool,
}

impl Request {
    /// A request for a flow of which it is not known that it carries a QUIC connection.
    pub(in crate::client) const fn new(service: Service, config: FlowConfig) -> Self {
        Self { service, config, carries_quic: false }
    }

    /// A request for a flow that carries a QUIC connection, with the default urgency and weight.
    pub(in crate::client) fn for_quic(host: String, port: u16) -> Self {
        Self { carries_quic: true, ..Self::new(Service::Udp, FlowConfig::new(host, port)) }
    }

    /// Host and port of the target, as the authority of a CONNECT request has them.
    pub(in crate::client) fn authority(&self) -> String {
        authority_of(&self.config.host, self.config.port)
    }

    /// The parameters for the tunnel. `first`: the flow that the request joins.
    pub(in crate::client) fn wishes(&self, first: Option<StreamId>) -> Flows {
        let FlowConfig { urgency, weight, oversize, .. } = self.config;
        let weight = weight.clamp(1, FeedbackField::WEIGHT_MAX);
        Flows {
            service: self.service,
            urgency,
            weight,
            first,
            oversize,
            carries_quic: self.carries_quic,
        }
    }
}

/// A flow through a hop, or a request stream that joined one.
#[derive(Debug)]
pub(in crate::client) struct Flow {
    pub(in crate::client) carries: Carries,
    pub(in crate::client) request: Request,
    /// The bytes of payloads that have come since they were last divided
    /// ([`Division`](crate::client::programs::Division)).
    pub(in crate::client) arrived: u64,
}

impl Flow {
    pub(in crate::client) const fn new(carries: Carries, request: Request) -> Self {
        Self { carries, request, arrived: 0 }
    }

    /// The target's host and port, for messages.
    pub(in crate::client) fn target(&self) -> String {
        format!("{}:{}", self.request.config.host, self.request.config.port)
    }
}

/// Why a flow ends.
#[derive(Debug)]
pub(in crate::client) struct FlowEnd {
    /// The error code that is sent to the proxy.
    pub(in crate::client) code: Code,
    /// The reason for messages.
    pub(in crate::client) reason: StrangerText,
    /// The cause, if the proxy has told it.
    pub(in crate::client) cause: Option<Cause>,
    /// Whether the proxy ended the flow without an error, for example because it was idle.
    pub(in crate::client) is_orderly: bool,
}

impl FlowEnd {
    pub(in crate::client) fn new(code: Code, reason: impl Into<StrangerText>) -> Self {
        Self { code, reason: reason.into(), cause: None, is_orderly: false }
    }

    /// The end of a flow that the proxy ended without an error.
    pub(in crate::client) fn orderly(reason: impl Into<StrangerText>) -> Self {
        Self { is_orderly: true, ..Self::new(Code::H3_NO_ERROR, reason) }
    }

    /// The end of a flow whose stream was reset with this code.
    pub(in crate::client) fn reset_by_proxy(code: Code) -> Self {
        let reason = match code {
            // RFC 9114 §8.1: "The connection established in response to a CONNECT request was reset
            // or abnormally closed."
            Code::H3_CONNECT_ERROR => format!("the proxy cannot reach the target ({code})"),
            code => format!("its stream was reset ({code})"),
        };
        Self::new(Code::H3_REQUEST_CANCELLED, reason)
    }
}

impl From<StreamEnd> for FlowEnd {
    fn from(end: StreamEnd) -> Self {
        match end {
            StreamEnd::Finished => Self::orderly("the proxy ended the request stream"),
            StreamEnd::Reset(code) if code == Code::H3_NO_ERROR => Self::orderly(code.to_string()),
            StreamEnd::Reset(code) => Self::reset_by_proxy(code),
            StreamEnd::Failed(status) => {
                let cause = Cause::told(&status);
                Self { cause, ..Self::new(Code::H3_NO_ERROR, explain(&status)) }
            }
            StreamEnd::Malformed(code, reason) => Self::new(code, reason),
        }
    }
}

/// Whether a successful answer is allowed for a request whose stream carries capsules.
///
/// RFC 9297 §3.2: "HTTP status codes 204 (No Content), 205 (Reset Content), and 206 (Partial Content)
/// MUST NOT be sent on responses that use the Capsule Protocol."
pub(in crate::client) fn grants(head: &ResponseHead) -> bool {
    !matches!(head.status.as_u16(), 204..=206) && !has_content(&head.headers)
}

//! The flows through a hop.

use std::net::SocketAddr;

use tandem_wire::{Code, FeedbackField, StrangerText};

use super::{FlowConfig, own::FlowId};
use crate::{node::SocketId, quic::StreamId, tunnel::Flows};

/// A listening socket and the address of a local program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LocalFlowId {
    pub(super) socket: SocketId,
    pub(super) program: SocketAddr,
}

/// The packets that a flow carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Carries {
    /// The packets of the connection to the next hop or to the origin.
    NextPeer,
    /// The packets of a local program.
    Local(LocalFlowId),
    /// The payloads of a flow that the embedding program opened.
    Own(FlowId),
    /// No packets yet. The flow was requested ahead of the programs of this listener, to find out
    /// whether the proxy grants it.
    Ahead(usize),
}

/// The target of a flow, and how the tunnel treats the flow.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) config: FlowConfig,
    /// Whether the flow carries a QUIC connection.
    pub(super) carries_quic: bool,
}

impl Target {
    /// The target of a QUIC connection, with the default urgency and weight.
    pub(super) fn new(host: String, port: u16) -> Self {
        Self { config: FlowConfig::new(host, port), carries_quic: true }
    }

    /// The parameters of a request for this flow.
    pub(super) fn wishes(&self, first: Option<StreamId>) -> Flows {
        let FlowConfig { urgency, weight, oversize, .. } = self.config;
        let weight = weight.clamp(1, FeedbackField::WEIGHT_MAX);
        Flows { urgency, weight, first, oversize, carries_quic: self.carries_quic }
    }
}

/// A flow through a hop, or a request stream that joined one.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) carries: Carries,
    pub(super) target: Target,
    /// The bytes of payloads that have come since they were last divided ([`Division`](super::divide::Division)).
    pub(super) arrived: u64,
}

impl Flow {
    pub(super) const fn new(carries: Carries, target: Target) -> Self {
        Self { carries, target, arrived: 0 }
    }

    /// The target's host and port, for messages.
    pub(super) fn target(&self) -> String {
        format!("{}:{}", self.target.config.host, self.target.config.port)
    }
}

/// Why a flow ends.
#[derive(Debug)]
pub(super) struct FlowEnd {
    /// The error code that is sent to the proxy.
    pub(super) code: Code,
    /// The reason for messages.
    pub(super) reason: StrangerText,
    /// Whether the proxy ended the flow without an error, for example because it was idle.
    pub(super) is_orderly: bool,
}

impl FlowEnd {
    pub(super) fn new(code: Code, reason: impl Into<StrangerText>) -> Self {
        Self { code, reason: reason.into(), is_orderly: false }
    }

    /// The end of a flow that the proxy ended without an error.
    pub(super) fn orderly(reason: impl Into<StrangerText>) -> Self {
        Self { is_orderly: true, ..Self::new(Code::H3_NO_ERROR, reason) }
    }

    /// The end of a flow whose stream was reset with this code.
    pub(super) fn reset_by_proxy(code: Code) -> Self {
        let reason = match code {
            // RFC 9114 §8.1: "The connection established in response to a CONNECT request was reset
            // or abnormally closed."
            Code::H3_CONNECT_ERROR => format!("the proxy cannot reach the target ({code})"),
            code => format!("its stream was reset ({code})"),
        };
        Self::new(Code::H3_REQUEST_CANCELLED, reason)
    }
}

//! The flows through a hop, and what comes through them.

use bytes::Bytes;
use tandem_wire::{CapsuleDecoder, Code, DecodeError, FeedbackField, Urgency, VarInt};

use super::forward::LocalFlowId;
use crate::{
    h3::ConnectionError, quic::StreamId, repair_fields::Said, stream_group::StreamGroup,
    tunnel_queue::TooLarge,
};

/// Whom a flow carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// The next hop's connection, or the origin's.
    NextPeer,
    /// The packets of a local program.
    Local(LocalFlowId),
}

/// Where a flow goes.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// A host name or an address, the latter without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) urgency: Urgency,
    /// Its share of the tunnel among flows that are as urgent, 1 to [`FeedbackField::WEIGHT_MAX`].
    pub(super) weight: u8,
}

impl Target {
    /// Somewhere with no wishes.
    pub(super) fn new(host: String, port: u16) -> Self {
        Self { host, port, urgency: Urgency::default(), weight: 1 }
    }

    /// Takes what is allowed for a weight.
    pub(super) fn with_weight(self, weight: u8) -> Self {
        Self { weight: weight.clamp(1, FeedbackField::WEIGHT_MAX), ..self }
    }
}

/// A flow through a hop.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) carries: Carries,
    pub(super) target: Target,
    pub(super) is_granted: bool,
    /// What came under Context IDs that the grant, which is late, may name.
    pub(super) early: Vec<Arrived>,
    /// The flow that it has joined.
    pub(super) first: Option<StreamId>,
    /// The request streams of the flow: itself and those that joined it.
    pub(super) group: StreamGroup,
    pub(super) too_large: TooLarge,
    /// The capsules on its request stream.
    pub(super) capsules: CapsuleDecoder,
    /// What the proxy's grant says of repair.
    pub(super) repair: Said,
    /// How often the proxy was last asked to repair, if it speaks the draft.
    pub(super) asked_limit: u8,
}

impl Flow {
    /// Host and port, for messages.
    pub(super) fn target(&self) -> String {
        format!("{}:{}", self.target.host, self.target.port)
    }
}

/// A payload that came through a hop.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) stream: StreamId,
    pub(super) context_id: VarInt,
    pub(super) payload: Bytes,
}

/// What came on a flow's request stream.
#[derive(Debug)]
pub(super) enum OnStream {
    /// A payload in a capsule.
    Payload(Arrived),
    /// A payload without a Context ID.
    Malformed,
    /// The end of the flow.
    Ended(StreamId, FlowEnd),
    /// What the proxy may not send.
    Broken(ConnectionError),
}

/// Why a flow ends.
#[derive(Debug)]
pub(super) struct FlowEnd {
    /// For the proxy.
    pub(super) code: Code,
    /// For people.
    pub(super) reason: String,
}

impl FlowEnd {
    pub(super) fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// RFC 9297 §3.3: an error in the Capsule Protocol "MUST be treated as if it were a malformed or
    /// incomplete message".
    pub(super) fn malformed(error: &DecodeError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

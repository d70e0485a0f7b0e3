//! One flow: a CONNECT-UDP request (RFC 9298) and the socket towards its target.

use std::{fmt, net::SocketAddr, time::Instant};

use tandem_wire::Code;

use super::access::User;
use crate::{
    beside,
    limits::Limits,
    node::{QueryId, SocketId},
};

/// The state of a flow.
#[derive(Debug)]
pub(super) enum State {
    /// The target's name is being resolved.
    Resolving { query: QueryId, deadline: Instant },
    /// The socket is being opened.
    Opening { socket: SocketId, target: SocketAddr },
    /// The request is granted.
    Open { socket: SocketId, target: SocketAddr },
}

/// Who opened a flow, as logs say it.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) user: User,
    /// The client's address, if logs may show it.
    pub(super) client: Option<SocketAddr>,
}

/// One flow.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) state: State,
    pub(super) owner: Owner,
    /// What the request says of packets beside the connection.
    pub(super) beside: beside::Asked,
    /// The target's host and port, as in the request.
    pub(super) requested: (String, u16),
    /// When the last packet passed, in either direction.
    pub(super) last_active: Instant,
    /// When the flow's timer is due.
    pub(super) next_look: Instant,
    pub(super) to_target_datagrams: u64,
    pub(super) to_client_datagrams: u64,
    /// Those of both directions that travelled beside the connection, and the largest to the client.
    pub(super) beside_datagrams: u64,
    pub(super) beside_size_max: usize,
    /// Payloads from the target that were dropped because they did not fit the tunnel.
    pub(super) too_large: u64,
    /// When the target may be told again that its packets are too large.
    pub(super) next_too_big: Instant,
}

impl Flow {
    pub(super) fn new(
        state: State,
        owner: Owner,
        requested: (String, u16),
        limits: &Limits,
        now: Instant,
    ) -> Self {
        let next_look = match state {
            State::Resolving { deadline, .. } => deadline,
            State::Opening { .. } | State::Open { .. } => now + limits.flow_idle,
        };
        Self {
            state,
            owner,
            beside: beside::Asked::default(),
            requested,
            last_active: now,
            next_look,
            to_target_datagrams: 0,
            to_client_datagrams: 0,
            beside_datagrams: 0,
            beside_size_max: 0,
            too_large: 0,
            next_too_big: now,
        }
    }

    /// The socket and the target, once the request is granted.
    pub(super) fn open(&self) -> Option<(SocketId, SocketAddr)> {
        match self.state {
            State::Open { socket, target } => Some((socket, target)),
            State::Resolving { .. } | State::Opening { .. } => None,
        }
    }
}

/// Why a flow ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client finished the request stream.
    ByClient,
    /// The client reset the request stream with this code.
    Reset(Code),
    /// No packet passed during the idle timeout.
    Idle,
    /// The operating system reported that the target cannot be reached.
    Unreachable,
    /// The client sent something that it must not send.
    Malformed(String),
    /// The client's connection ended.
    WithConnection,
    /// The request was refused.
    Refused,
    /// The operator removed the flow's token.
    Revoked,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByClient => f.write_str("closed by the client"),
            Self::Reset(code) => write!(f, "reset by the client with {code}"),
            Self::Idle => f.write_str("idle"),
            Self::Unreachable => f.write_str("target unreachable"),
            Self::Malformed(reason) => f.write_str(reason),
            Self::WithConnection => f.write_str("connection ended"),
            Self::Refused => f.write_str("refused"),
            Self::Revoked => f.write_str("token removed"),
        }
    }
}

//! One flow: a CONNECT-UDP request (RFC 9298) and the socket towards its target.

use std::{
    collections::VecDeque,
    fmt,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use bytes::Bytes;
use tandem_wire::{CapsuleDecoder, Code};

use super::group::Invitation;
use crate::{
    limits::Limits,
    node::{QueryId, SocketId},
    quic::StreamId,
    repair_fields::Said,
    stream_group::StreamGroup,
    tunnel_queue::{Form, TooLarge},
};

/// How far a flow has come.
#[derive(Debug)]
pub(super) enum State {
    /// Its target's name is being resolved.
    Resolving { query: QueryId, host: String, port: u16, deadline: Instant },
    /// Its socket is being opened.
    Opening { socket: SocketId, target: SocketAddr },
    /// The request is granted.
    Open { socket: SocketId, target: SocketAddr },
    /// The request is granted; the socket is that of another flow.
    Joined { first: StreamId, socket: SocketId, target: SocketAddr },
}

/// One flow.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) state: State,
    /// In which form payloads go to the client: that in which they came last.
    pub(super) form: Form,
    /// What to do with a payload that fits no datagram.
    pub(super) too_large: TooLarge,
    /// Payloads that came before the request was granted.
    early: VecDeque<Bytes>,
    early_bytes: usize,
    early_max: usize,
    early_bytes_max: usize,
    /// The request streams of the flow.
    pub(super) group: StreamGroup,
    /// Whether others may join it.
    pub(super) invitation: Option<Invitation>,
    /// What its request says of repair.
    pub(super) repair: Said,
    /// The weight of a flow that is reported on.
    pub(super) feedback: Option<u8>,
    /// The capsules on the request stream.
    pub(super) capsules: CapsuleDecoder,
    /// When a packet last passed, either way.
    pub(super) last_active: Instant,
    /// When to look at it next.
    pub(super) next_look: Instant,
    pub(super) to_target_datagrams: u64,
    pub(super) to_client_datagrams: u64,
}

impl Flow {
    pub(super) fn new(
        stream: StreamId,
        state: State,
        (form, too_large): (Form, TooLarge),
        limits: &Limits,
        now: Instant,
    ) -> Self {
        let next_look = match state {
            State::Resolving { deadline, .. } => deadline,
            State::Opening { .. } | State::Open { .. } | State::Joined { .. } => {
                now + limits.flow_idle
            }
        };
        Self {
            state,
            form,
            too_large,
            early: VecDeque::new(),
            early_bytes: 0,
            early_max: limits.early_datagrams_per_flow,
            early_bytes_max: limits.early_bytes_per_flow,
            group: StreamGroup::new(stream),
            invitation: None,
            repair: Said::Nothing,
            feedback: None,
            capsules: CapsuleDecoder::new(limits.capsule),
            last_active: now,
            next_look,
            to_target_datagrams: 0,
            to_client_datagrams: 0,
        }
    }

    /// Keeps a payload until the request is granted. `false`: there is no room for it.
    pub(super) fn keep_early(&mut self, payload: Bytes) -> bool {
        let bytes = self.early_bytes + payload.len();
        let has_room = self.early.len() < self.early_max && bytes <= self.early_bytes_max;
        if has_room {
            self.early_bytes = bytes;
            self.early.push_back(payload);
        }
        has_room
    }

    /// The next of the payloads that were kept.
    pub(super) fn take_early(&mut self) -> Option<Bytes> {
        let payload = self.early.pop_front()?;
        self.early_bytes -= payload.len();
        Some(payload)
    }

    /// The socket and the target, once the request is granted.
    pub(super) fn open(&self) -> Option<(SocketId, SocketAddr)> {
        match self.state {
            State::Open { socket, target } | State::Joined { socket, target, .. } => {
                Some((socket, target))
            }
            State::Resolving { .. } | State::Opening { .. } => None,
        }
    }

    /// The socket, if one was asked for that is its own.
    pub(super) fn socket(&self) -> Option<SocketId> {
        match self.state {
            State::Open { socket, .. } | State::Opening { socket, .. } => Some(socket),
            State::Resolving { .. } | State::Joined { .. } => None,
        }
    }
}

/// Why a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its client finished the request stream.
    ByClient,
    /// Its client gave the request stream up, with this code.
    Reset(Code),
    /// No packet passed it for long.
    Idle,
    /// The operating system says so of its target.
    Unreachable,
    /// Its client sent what it must not.
    Malformed(&'static str),
    /// The connection around it ended.
    WithConnection,
    /// It was never granted.
    Refused,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByClient => f.write_str("closed by the client"),
            Self::Reset(code) => write!(f, "given up by the client with {code}"),
            Self::Idle => f.write_str("idle"),
            Self::Unreachable => f.write_str("target unreachable"),
            Self::Malformed(what) => f.write_str(what),
            Self::WithConnection => f.write_str("connection ended"),
            Self::Refused => f.write_str("refused"),
        }
    }
}

/// The first address that may be reached; otherwise the first that may not.
pub(super) fn choose(
    addresses: &[IpAddr],
    permits: impl Fn(IpAddr) -> bool,
) -> Result<IpAddr, Option<IpAddr>> {
    let permitted = addresses.iter().copied().find(|&address| permits(address));
    permitted.ok_or_else(|| addresses.first().copied())
}

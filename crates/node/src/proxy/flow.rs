//! One flow: a CONNECT-UDP request (RFC 9298) and the socket towards its target.

use std::{fmt, net::SocketAddr, time::Instant};

use tandem_wire::{Code, StrangerText, TraceId};

use super::{
    access::User,
    shares::Who,
    users::{Meter, Place},
};
use crate::{
    beside,
    limits::Limits,
    node::{QueryId, SocketId},
    quic::ConnectionId,
    rounds::Party,
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

/// Who opened a flow, and what the flow costs this user.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) user: User,
    pub(super) meter: Meter,
    /// The flow's place among those of the user.
    pub(super) _place: Place,
    /// The client's address, if logs may show it.
    pub(super) client: Option<SocketAddr>,
    /// What the client calls the request.
    pub(super) trace_id: Option<TraceId>,
}

impl Owner {
    /// Whose credit the flow uses, which is on this connection.
    pub(super) fn who(&self, connection: ConnectionId) -> Who {
        self.user.party().map_or(Party::Alone(connection), Party::User)
    }
}

/// The size of packets on which their sender relies. It uses a size for many packets in a row only after one
/// has arrived; a single larger packet is a search for the path MTU, and may be lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsedSize {
    size: usize,
    /// How many larger packets came in a row, and the least size among them.
    larger: u32,
    least: usize,
}

impl UsedSize {
    /// Enough packets in a row.
    const ENOUGH: u32 = 16;

    /// Notes a packet. Returns the size if it has become larger.
    pub(super) fn on_packet(&mut self, size: usize) -> Option<usize> {
        if size <= self.size {
            self.larger = 0;
            return None;
        }
        self.least = if self.larger == 0 { size } else { self.least.min(size) };
        self.larger += 1;
        if self.larger < Self::ENOUGH {
            return None;
        }
        (self.size, self.larger) = (self.least, 0);
        Some(self.size)
    }
}

/// One flow.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) state: State,
    pub(super) owner: Owner,
    /// What the request says of packets beside the connection, until the grant.
    pub(super) beside: Option<Box<beside::Asked>>,
    /// The target's host and port, as in the request.
    pub(super) requested: (String, u16),
    /// When the last packet passed, in either direction.
    pub(super) last_active: Instant,
    /// When the flow's timer is due.
    pub(super) next_look: Instant,
    pub(super) to_target_datagrams: u64,
    pub(super) to_client_datagrams: u64,
    /// Those of both directions that travelled beside the connection.
    pub(super) beside_datagrams: u64,
    /// The size of those to the client.
    pub(super) beside_size: UsedSize,
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
        let next_look = owner.user.until.map_or(next_look, |until| until.min(next_look));
        Self {
            state,
            owner,
            beside: None,
            requested,
            last_active: now,
            next_look,
            to_target_datagrams: 0,
            to_client_datagrams: 0,
            beside_datagrams: 0,
            beside_size: UsedSize::default(),
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
    Malformed(StrangerText),
    /// The client's connection ended.
    WithConnection,
    /// The request was refused.
    Refused,
    /// The operator removed the flow's token.
    Revoked,
    /// The flow's token has expired.
    Expired,
    /// The user has carried as many bytes in this month as it may.
    MonthUsed,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByClient => f.write_str("closed by the client"),
            Self::Reset(code) => write!(f, "reset by the client with {code}"),
            Self::Idle => f.write_str("idle"),
            Self::Unreachable => f.write_str("target unreachable"),
            Self::Malformed(reason) => reason.fmt(f),
            Self::WithConnection => f.write_str("connection ended"),
            Self::Refused => f.write_str("refused"),
            Self::Revoked => f.write_str("token removed"),
            Self::Expired => f.write_str("token expired"),
            Self::MonthUsed => f.write_str("the user's bytes of this month are used up"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_larger_packets_do_not_count_as_a_size_that_is_used() {
        let mut used = UsedSize::default();
        let many = |used: &mut UsedSize, size| (0..20).filter_map(|_| used.on_packet(size)).last();
        assert_eq!(many(&mut used, 1200), Some(1200));
        for _ in 0..100 {
            assert_eq!((used.on_packet(1360), used.on_packet(1200)), (None, None));
        }
        assert_eq!(many(&mut used, 1280), Some(1280));
        assert_eq!(many(&mut used, 300), None);
    }
}

//! One flow: a request for a target, what reaches it, and who pays for it.

use std::{fmt, io, net::SocketAddr, time::Instant};

use tandem_wire::{Code, StrangerText, TraceId};

use super::{
    access::User,
    request::Asks,
    service::{LookUp, Race, Service},
    shares::Who,
    users::{Meter, OpenPlace},
};
use crate::{
    Cause, beside,
    limits::Limits,
    node::SocketId,
    quic::{ConnectionId, earliest},
    rounds::Party,
    stats::Stats,
};

/// The life of a flow.
#[derive(Debug)]
pub(super) enum Stage {
    /// The target's name is being resolved.
    Resolving(LookUp),
    /// The target's addresses are tried. An open flow does not pay for the size of this.
    Reaching(Box<Race>),
    /// The request is granted.
    Open(Service),
}

/// Who opened a flow, and what the flow costs this user.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) user: User,
    pub(super) meter: Meter,
    /// The flow's place among those of the user.
    pub(super) _place: OpenPlace,
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

/// One flow.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) stage: Stage,
    pub(super) asks: Asks,
    pub(super) owner: Owner,
    /// What the request says of packets beside the connection, until the grant.
    pub(super) beside: Option<Box<beside::Asked>>,
    /// The target's host and port, as in the request.
    pub(super) requested: (String, u16),
    /// When the last packet passed, in either direction. Of flows of UDP payloads.
    pub(super) last_active: Instant,
    /// When the flow's timer is set to.
    pub(super) timer: Option<Instant>,
}

impl Flow {
    pub(super) const fn new(
        now: Instant,
        stage: Stage,
        asks: Asks,
        owner: Owner,
        requested: (String, u16),
    ) -> Self {
        Self { stage, asks, owner, beside: None, requested, last_active: now, timer: None }
    }

    /// The socket and the target, once a request for UDP payloads is granted.
    pub(super) const fn open(&self) -> Option<(SocketId, SocketAddr)> {
        match &self.stage {
            Stage::Open(Service::Udp(udp)) => Some((udp.socket, udp.target)),
            _ => None,
        }
    }

    /// The race for the flow's target.
    pub(super) fn race(&mut self) -> Option<&mut Race> {
        match &mut self.stage {
            Stage::Reaching(race) => Some(race),
            _ => None,
        }
    }

    /// When something has to be done for the flow.
    pub(super) fn timeout(&self, limits: &Limits) -> Option<Instant> {
        let idle = || Some(self.last_active + limits.flow_idle);
        let own = match &self.stage {
            Stage::Resolving(look_up) => Some(look_up.deadline),
            Stage::Reaching(race) => Some(race.next_timeout()),
            Stage::Open(Service::Udp(_)) => idle(),
            Stage::Open(Service::Tcp(tcp)) => tcp.resume_at,
        };
        earliest(own, self.owner.user.until)
    }

    /// Counts the end of the flow.
    pub(super) const fn count(&self, end: &End, stats: &mut Stats) {
        let is_open = matches!(self.stage, Stage::Open(_));
        let (udp, tcp) = (&mut stats.flows_ended, &mut stats.tcp);
        let counter = match (self.asks, end) {
            (Asks::Udp, _) if !is_open => return, // it has not counted as a flow
            (Asks::Udp, End::Idle) => &mut udp.idle,
            (Asks::Udp, End::Unreachable | End::Failed(_)) => &mut udp.unreachable,
            (Asks::Udp, End::Malformed(_)) => &mut udp.malformed,
            (Asks::Udp, End::WithConnection) => &mut udp.with_connection,
            (Asks::Udp, End::Revoked | End::Expired | End::MonthUsed) => &mut udp.revoked,
            (
                Asks::Udp,
                End::ByClient | End::Reset(_) | End::Refused | End::Finished | End::CutOff,
            ) => &mut udp.by_client,
            (Asks::Tcp(_), End::Refused) => return, // refused requests count elsewhere
            (Asks::Tcp(_), End::Finished | End::ByClient) => &mut tcp.finished,
            (Asks::Tcp(_), End::Reset(Code::H3_NO_ERROR)) if is_open => &mut tcp.finished,
            (Asks::Tcp(_), End::Failed(_)) => &mut tcp.reset,
            (Asks::Tcp(_), _) => &mut tcp.aborted,
        };
        *counter += 1;
    }

    /// The bytes of memory that the flow takes with its socket.
    pub(super) fn memory(&self) -> usize {
        match (&self.stage, self.asks) {
            (Stage::Open(service), _) => service.memory(),
            (_, Asks::Udp) => Service::UDP_MEMORY,
            (_, Asks::Tcp(_)) => Service::TCP_MEMORY,
        }
    }
}

/// Why a flow ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both ends of a TCP connection have finished it.
    Finished,
    /// The client finished the request stream.
    ByClient,
    /// The client reset the request stream with this code.
    Reset(Code),
    /// The client cut a TCP connection off.
    CutOff,
    /// No packet passed during the idle timeout.
    Idle,
    /// The operating system reported that the target cannot be reached.
    Unreachable,
    /// The operating system reported an error of a TCP connection.
    Failed(io::ErrorKind),
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

impl End {
    /// The cause that the client is told, if the flow ends because its user may not use it any longer.
    pub(super) const fn cause(&self) -> Option<Cause> {
        match self {
            Self::Revoked => Some(Cause::TokenRemoved),
            Self::Expired => Some(Cause::TokenExpired),
            Self::MonthUsed => Some(Cause::Month),
            _ => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("finished"),
            Self::ByClient => f.write_str("closed by the client"),
            Self::Reset(code) => write!(f, "reset by the client with {code}"),
            Self::CutOff => f.write_str("cut off by the client"),
            Self::Idle => f.write_str("idle"),
            Self::Unreachable => f.write_str("target unreachable"),
            Self::Failed(error) => error.fmt(f),
            Self::Malformed(reason) => reason.fmt(f),
            Self::WithConnection => f.write_str("connection ended"),
            Self::Refused => f.write_str("refused"),
            Self::Revoked => f.write_str("token removed"),
            Self::Expired => f.write_str("token expired"),
            Self::MonthUsed => f.write_str("the user's bytes of this month are used up"),
        }
    }
}

/// What becomes of the request stream of a flow that ends.
#[derive(Debug)]
pub(super) enum StreamFate {
    /// It has ended, or somebody else ends it.
    Left,
    /// It ends by itself, after what waits for it in the tunnel's queue.
    Drains,
    /// The proxy finishes it, as the client has.
    Finish,
    /// The proxy finishes it with these bytes, and reads no more of it.
    FinishWith(bytes::Bytes),
    Reset(Code),
}

//! One flow: a request for a target, what reaches it, and who pays for it.

use std::{fmt, io, net::SocketAddr, time::Instant};

use tandem_wire::{Code, StrangerText, TraceId};

use super::{
    ab_test::Transfer,
    access::User,
    relay::Outlet,
    service::{LookUp, Open, Race},
    shares::Who,
    users::{Direction, Meter, OpenPlace},
};
use crate::{
    Cause, beside,
    limits::Limits,
    quic::{ConnectionId, earliest},
    rounds::Party,
    service::{HostPort, Service},
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
    Open(Open),
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
    /// What the flow is for.
    pub(super) service: Service,
    pub(super) owner: Owner,
    /// What the request says of packets beside the connection, until the grant.
    pub(super) beside: Option<Box<beside::Asked>>,
    /// The present transfer, if the flow takes part in an A/B test.
    pub(super) transfer: Option<Box<Transfer>>,
    /// The target's host and port, as in the request.
    pub(super) requested: HostPort,
    /// When the last packet passed, in either direction. Of flows of UDP payloads.
    pub(super) last_active: Instant,
    /// When the flow's timer is set to.
    pub(super) timer: Option<Instant>,
}

impl Flow {
    pub(super) const fn new(
        now: Instant,
        stage: Stage,
        service: Service,
        owner: Owner,
        requested: HostPort,
    ) -> Self {
        Self {
            stage,
            service,
            owner,
            beside: None,
            transfer: None,
            requested,
            last_active: now,
            timer: None,
        }
    }

    /// Counts a payload that has passed, if the flow takes part in an A/B test.
    pub(super) fn count_in_test(
        &mut self,
        now: Instant,
        payload: (Direction, usize),
        stats: &mut Stats,
    ) {
        if let Some(transfer) = &mut self.transfer {
            transfer.on_payload(now, payload, &mut stats.transfers);
        }
    }

    /// What the flow has, once its request is granted.
    pub(super) const fn open(&self) -> Option<&Open> {
        match &self.stage {
            Stage::Open(open) => Some(open),
            _ => None,
        }
    }

    /// The socket of a granted flow of payloads.
    pub(super) fn outlet(&mut self) -> Option<&mut Outlet> {
        match &mut self.stage {
            Stage::Open(open) => open.outlet(),
            _ => None,
        }
    }

    /// The race for the flow's target, or what is left of it while nothing has come from the target.
    pub(super) fn race(&mut self) -> Option<&mut Race> {
        match &mut self.stage {
            Stage::Reaching(race) => Some(race),
            Stage::Open(open) => Some(open.outlet()?.others.as_mut()?.race()),
            Stage::Resolving(_) => None,
        }
    }

    /// When something has to be done for the flow.
    pub(super) fn timeout(&self, limits: &Limits) -> Option<Instant> {
        let own = match &self.stage {
            Stage::Resolving(look_up) => Some(look_up.deadline),
            Stage::Reaching(race) => Some(race.next_timeout()),
            Stage::Open(open) => open.timeout(self.last_active + limits.flow_idle),
        };
        earliest(own, self.owner.user.until)
    }

    /// The bytes of memory that the flow takes with its socket.
    pub(super) fn memory(&self) -> usize {
        self.service.memory() + self.open().map_or(0, Open::unwritten)
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

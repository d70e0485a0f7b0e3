//! What users have used, as numbers.

use std::time::Duration;

use super::{Month, UserLimits};

/// Why a request of a user was refused, although the user may use the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The user may not reach the target.
    Target,
    /// The user has as many connections as it may have.
    Connections,
    /// The user has as many flows as it may have.
    Flows,
    /// The user opens flows faster than it may.
    FlowRate,
    /// As many names are being resolved for the user as may be.
    Lookups,
    /// The user has carried as many bytes in this month as it may.
    Month,
}

impl Refusal {
    /// The number of causes.
    pub(super) const NUMBER: usize = 6;

    /// Whether the next request may be permitted soon, for instance after the user has closed something.
    pub const fn may_pass_soon(self) -> bool {
        matches!(self, Self::Connections | Self::Flows | Self::FlowRate | Self::Lookups)
    }

    /// What to say of a user who has reached this limit.
    pub(crate) fn of_limit(self, max: u32) -> String {
        let what = match self {
            Self::Target => return "may not reach this target".to_owned(),
            Self::Month => return "has used up its bytes of this month (UTC)".to_owned(),
            Self::FlowRate => {
                return format!(
                    "opens more than {max} flows a second, which is its limit; try again soon"
                );
            }
            Self::Connections => "connections open",
            Self::Flows => "flows open",
            Self::Lookups => "names being resolved",
        };
        format!("has {max} {what}, which is its limit; try again after some of them have ended")
    }
}

/// How many requests of a user were refused, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// See [`Refusal::Target`].
    pub target: u64,
    /// See [`Refusal::Connections`].
    pub connections: u64,
    /// See [`Refusal::Flows`].
    pub flows: u64,
    /// See [`Refusal::FlowRate`].
    pub flow_rate: u64,
    /// See [`Refusal::Lookups`].
    pub lookups: u64,
    /// See [`Refusal::Month`]. A flow that ended for this reason counts too.
    pub month: u64,
}

/// Something in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EachWay {
    /// From clients to targets.
    pub to_target: u64,
    /// From targets to clients.
    pub to_client: u64,
}

impl EachWay {
    /// Both directions together.
    pub const fn total(self) -> u64 {
        self.to_target.saturating_add(self.to_client)
    }
}

/// What a user has open and has carried. Bytes are payload of UDP and TCP. Numbers that only grow count from the
/// start of the process, or from the moment when the user became known to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserCounters {
    /// The connections that are open.
    pub connections: u32,
    /// The UDP flows and TCP connections that are open or being opened.
    pub flows: u32,
    /// The names that are being resolved.
    pub lookups: u32,
    /// The bytes of payload.
    pub bytes: EachWay,
    /// The UDP payloads.
    pub datagrams: EachWay,
    /// The UDP payloads that were dropped because they came faster than the user's rate.
    pub over_rate_datagrams: EachWay,
    /// The requests that were refused.
    pub refused: Refused,
}

/// A user, its limits, and what it has used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserUsage {
    /// The user's name.
    pub name: String,
    /// The group whose limits the user has.
    pub group: Option<String>,
    /// What the user has open and has carried.
    pub counters: UserCounters,
    /// The bytes of this month in UTC, also before the process began, if the embedding program has
    /// restored them.
    pub month_bytes: EachWay,
    /// The part of `month_bytes` that the embedding program does not keep yet.
    pub unkept_bytes: EachWay,
    /// When the user was last seen: the time since 1970.
    pub last_seen: Option<Duration>,
    /// The limits that are in force.
    pub limits: UserLimits,
}

/// What a user has used, as an embedding program keeps it or learns it from another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptUsage {
    /// The user's name.
    pub name: String,
    /// The month of the bytes.
    pub month: Month,
    /// The bytes of that month.
    pub bytes: EachWay,
    /// When the user was last seen: the time since 1970.
    pub last_seen: Duration,
}

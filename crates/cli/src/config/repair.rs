//! How tunnels of modes rmdt and tecc repair what they lose.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_node::client::{Order, Repair, UnknownOrder};
use tandem_units::HumanDuration;

use crate::{error::ConfigError, outcome::Mode};

/// Table `[repair]` of a file, and its flags.
#[derive(Clone, Copy, Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RepairSettings {
    /// Order in which payloads leave a tunnel that repairs them: off (as they come), window (none more
    /// than 100 ahead of one that is being repaired) or ordered (as they were sent, which any origin
    /// takes well) [default: window with tecc, else ordered]
    #[arg(long, value_name = "ORDER", env = "TANDEM_RESEQUENCE")]
    pub(crate) resequence: Option<Resequence>,

    /// Neither send nor repair, in modes rmdt and tecc, what has waited for so long, 1ms to 60s [default: 12
    /// RTTs of the tunnel, for repairs only]
    #[arg(long = "repair-deadline", value_name = "TIME", env = "TANDEM_REPAIR_DEADLINE")]
    pub(crate) deadline: Option<HumanDuration>,

    /// Send nothing more often than so many times again; 0 repairs nothing [default: no limit]
    #[arg(long = "repair-limit", value_name = "N", env = "TANDEM_REPAIR_LIMIT")]
    pub(crate) limit: Option<u8>,
}

/// An order as files and flags have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&str")]
pub(crate) struct Resequence(Order);

impl std::str::FromStr for Resequence {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Self, UnknownOrder> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for Resequence {
    type Error = UnknownOrder;

    fn try_from(text: String) -> Result<Self, UnknownOrder> {
        text.parse()
    }
}

impl From<Resequence> for &str {
    fn from(Resequence(order): Resequence) -> Self {
        order.as_str()
    }
}

impl RepairSettings {
    pub(crate) fn or(self, lower: Self) -> Self {
        Self {
            resequence: self.resequence.or(lower.resequence),
            deadline: self.deadline.or(lower.deadline),
            limit: self.limit.or(lower.limit),
        }
    }
}

/// The checked form of [`RepairSettings`].
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RepairSetup {
    resequence: Resequence,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<HumanDuration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u8>,
}

impl RepairSetup {
    /// Checks the settings; what is not said is as the mode wants it.
    pub(crate) fn new(settings: RepairSettings, mode: Mode) -> Result<Self, ConfigError> {
        let RepairSettings { resequence, deadline, limit } = settings;
        let allowed = Duration::from_millis(1)..=Duration::from_secs(60);
        if let Some(deadline) = deadline.filter(|deadline| !allowed.contains(&deadline.0)) {
            return Err(ConfigError::TimeOutOfRange {
                name: "repair-deadline",
                seen: deadline,
                allowed: "1ms to 60s",
            });
        }
        let resequence = resequence.unwrap_or(Resequence(mode.order()));
        Ok(Self { resequence, deadline, limit })
    }

    /// The node's form.
    pub(crate) fn to_node(self) -> Repair {
        Repair {
            order: self.resequence.0,
            deadline: self.deadline.map(|deadline| deadline.0),
            limit: self.limit,
        }
    }
}

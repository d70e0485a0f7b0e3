//! How tunnels of modes rmdt and tecc repair losses.

use std::ops::RangeInclusive;

use serde::Serialize;
use tandem_node::{
    client::{Order, Repair, TunnelMode},
    mode::Mode,
};
use tandem_units::HumanDuration;
use tandem_wire::RepairField;

use super::{Setting, Within};

/// Flags, and keys of a file.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct RepairSettings {
    /// Order in which payloads leave a tunnel that repairs losses: off (as they arrive), window (at most
    /// 100 ahead of a lost one) or ordered (as they were sent, which suits every origin) [default: ordered
    /// for QUIC packets; with auto and tecc, window for origins that follow reports, and off for other packets]
    #[arg(long, value_name = "ORDER", env = "TANDEM_RESEQUENCE")]
    pub(crate) resequence: Option<Order>,

    #[arg(
        long = "repair-deadline", value_name = "TIME", env = "TANDEM_REPAIR_DEADLINE",
        help = RepairDeadline::help(
            "In modes rmdt and tecc, drop a payload that has waited this long in the tunnel's queue, and \
             do not send a lost payload again after this time",
            "12 RTTs of the tunnel for lost payloads, and no limit for those in the queue",
        )
    )]
    pub(crate) deadline: Option<Within<RepairDeadline>>,

    /// In modes rmdt and tecc, send a lost payload again at most this many times, 0 to 255 [default: no
    /// limit]
    #[arg(long = "repair-limit", value_name = "N", env = "TANDEM_REPAIR_LIMIT")]
    pub(crate) limit: Option<u8>,
}

/// The age after which a payload is neither sent nor sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepairDeadline;

impl Setting for RepairDeadline {
    type Value = HumanDuration;
    const ALLOWED: RangeInclusive<HumanDuration> =
        HumanDuration(*RepairField::DEADLINE.start())..=HumanDuration(*RepairField::DEADLINE.end());
}

/// The checked form of [`RepairSettings`].
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RepairSetup {
    /// The order in the first tunnel.
    resequence: Order,
    /// Whether it was chosen, so that all tunnels have it.
    #[serde(skip)]
    is_chosen: bool,
    #[serde(rename = "repair-deadline", skip_serializing_if = "Option::is_none")]
    deadline: Option<Within<RepairDeadline>>,
    #[serde(rename = "repair-limit", skip_serializing_if = "Option::is_none")]
    limit: Option<u8>,
}

impl RepairSetup {
    /// The settings, with the order of the first tunnel's mode as the default.
    pub(crate) fn new(settings: RepairSettings, mode: Mode) -> Self {
        let RepairSettings { resequence, deadline, limit } = settings;
        let is_chosen = resequence.is_some();
        Self { resequence: resequence.unwrap_or(mode.usual_order()), is_chosen, deadline, limit }
    }

    /// The tunnel of a mode. Without a chosen order, a client of ours in mode tecc chooses it as in mode auto, because
    /// most origins do not follow reports.
    pub(crate) fn tunnel(self, mode: Mode, group_streams: u8) -> TunnelMode {
        let deadline = self.deadline.map(|Within(deadline)| deadline.into());
        let order = if self.is_chosen { self.resequence } else { mode.usual_order() };
        let repair = Repair { order, deadline, limit: self.limit };
        match mode {
            Mode::Tecc if !self.is_chosen => {
                let repair = Repair { order: Mode::Auto.usual_order(), ..repair };
                TunnelMode::Auto { repair, asked: mode }
            }
            Mode::Auto if self.is_chosen => TunnelMode::Tecc(repair),
            _ => mode.tunnel(repair, group_streams).unwrap_or_default(),
        }
    }
}

//! What a client chooses for a download in mode `auto`.
//!
//! An origin that slows down at each loss (CUBIC, Reno) needs a tunnel that repairs losses and keeps the order. An origin
//! that follows the proxy's reports (TECC) tolerates reordering. An origin that models the path (BBR) needs neither, and
//! where the tunnel is most of the path it loses by both: each repair takes a round trip, in which everything behind the lost
//! packet waits, and the origin takes that for a longer path. The client cannot ask an origin what it does, but it sees it in
//! the reports: after the first losses that are not repaired, the rate of what arrives at the proxy falls, or it does not.

use std::{
    fmt,
    time::{Duration, Instant},
};

use tandem_units::Ratio;
use tandem_wire::{Order, TunnelInfo};

use crate::mode::Repair;

/// What a client has chosen for the payloads that come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Losses are repaired, and payloads leave the tunnel in their order.
    Ordered,
    /// Losses are repaired, and a payload leaves the tunnel at most 100 payloads before a lost one.
    Window,
    /// Losses are not repaired.
    Unrepaired,
}

impl Choice {
    /// The repair, with the deadline and limit that the user wants.
    pub(crate) const fn repair(self, wish: Repair) -> Repair {
        match self {
            Self::Ordered => Repair { order: Order::Ordered, ..wish },
            Self::Window => Repair { order: Order::Window, ..wish },
            Self::Unrepaired => Repair { order: Order::Off, limit: Some(0), ..wish },
        }
    }

    /// A name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Window => "window",
            Self::Unrepaired => "unrepaired",
        }
    }
}

/// What was chosen, and why.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordered => {
                "the tunnel sends lost packets again and keeps their order, because the server may slow down at each loss"
            }
            Self::Window => {
                "the tunnel sends lost packets again and hardly waits for them, because the server follows the proxy's \
                 reports"
            }
            Self::Unrepaired => {
                "the tunnel does not send lost packets again, because it is most of the path and the server does not slow \
                 down at losses"
            }
        })
    }
}

/// The least part of the end-to-end RTT, in percent, that is the tunnel's when losses may go unrepaired. With less, a repair
/// is so much faster than one of the origin that it helps every origin.
const SHARE_LEAST: u32 = 60;

/// Rounds after which a rate has stopped to grow.
const STILL_ROUNDS: u32 = 2;

/// How much faster a round must be than the fastest one before, in percent, for a rate that grows.
const GROWTH: u64 = 125;

/// A round in which less than this arrives, in percent of what arrived while losses were repaired, is a slow one.
const SLOW: u64 = 75;

/// Slow rounds in a row after which the origin counts as one that slows down at losses.
const SLOW_ROUNDS: u32 = 2;

/// The time until the next trial after one has failed, in rounds. It doubles with each.
const BACKOFF_ROUNDS: u32 = 32;

/// The shortest round. Reports come at most this often on short paths.
const ROUND_LEAST: Duration = Duration::from_millis(20);

/// Chooses for one download.
#[derive(Debug)]
pub(super) struct Judge {
    choice: Choice,
    round: Option<Round>,
    /// The rate of the fastest round in bytes per second, as all rates here, and how many have ended since without a faster one.
    best: (u64, u32),
    /// The rates of the last rounds.
    last: [u64; 3],
    /// The rate in the last rounds before losses went unrepaired.
    before: u64,
    slow_rounds: u32,
    /// Whether something was lost since the choice.
    has_losses: bool,
    /// Rounds until the next trial, and after the one that fails next.
    wait: u32,
    backoff: u32,
}

/// A part of the time that lasts for an end-to-end RTT.
#[derive(Clone, Copy, Debug)]
struct Round {
    began: Instant,
    last: Instant,
    bytes: u64,
}

impl Judge {
    pub(super) const fn new() -> Self {
        Self {
            choice: Choice::Ordered,
            round: None,
            best: (0, 0),
            last: [0; 3],
            before: 0,
            slow_rounds: 0,
            has_losses: false,
            wait: 0,
            backoff: BACKOFF_ROUNDS,
        }
    }

    pub(super) const fn choice(&self) -> Choice {
        self.choice
    }

    /// Takes a report of the proxy. `end_to_end`: the RTT to the origin. `is_followed`: the origin takes reports. Returns
    /// the choice if it is another than before.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        info: &TunnelInfo,
        end_to_end: Duration,
        is_followed: bool,
    ) -> Option<Choice> {
        self.has_losses |= info.retransmit_ratio != Ratio::ZERO;
        let rate = self.count(now, info, end_to_end);
        let next = if is_followed {
            Choice::Window
        } else if info.min_rtt * 100 < end_to_end * SHARE_LEAST {
            Choice::Ordered
        } else {
            rate.map_or(self.choice, |rate| self.on_round(rate))
        };
        let is_new = std::mem::replace(&mut self.choice, next) != next;
        is_new.then_some(next)
    }

    /// Counts what has arrived. Returns the rate of a round that has ended.
    fn count(&mut self, now: Instant, info: &TunnelInfo, end_to_end: Duration) -> Option<u64> {
        let round = self.round.get_or_insert(Round { began: now, last: now, bytes: 0 });
        let since = now.saturating_duration_since(round.last);
        let arrived = info.arrival_rate.map_or(0, |rate| rate.bytes_in(since).get());
        round.bytes = round.bytes.saturating_add(arrived);
        round.last = now;
        let lasted = now.saturating_duration_since(round.began);
        if lasted < end_to_end.max(ROUND_LEAST) {
            return None;
        }
        let rate = u128::from(round.bytes) * 1_000_000 / lasted.as_micros().max(1);
        *round = Round { began: now, last: now, bytes: 0 };
        Some(rate.try_into().unwrap_or(u64::MAX))
    }

    fn on_round(&mut self, rate: u64) -> Choice {
        self.wait = self.wait.saturating_sub(1);
        self.last.rotate_left(1);
        self.last[2] = rate;
        match self.choice {
            Choice::Unrepaired => {
                let is_slow = rate < percent(self.before, SLOW);
                self.slow_rounds = if is_slow { self.slow_rounds + 1 } else { 0 };
                if self.slow_rounds < SLOW_ROUNDS {
                    return Choice::Unrepaired;
                }
                self.wait = self.backoff;
                self.backoff = self.backoff.saturating_mul(2);
                self.best = (0, 0);
                self.has_losses = false;
                Choice::Ordered
            }
            Choice::Ordered | Choice::Window => {
                let (best, still) = self.best;
                let grows = rate > percent(best, GROWTH);
                self.best = if grows { (rate, 0) } else { (best.max(rate), still + 1) };
                if self.best.1 < STILL_ROUNDS || self.wait > 0 || !self.has_losses {
                    return Choice::Ordered;
                }
                self.before = mean(self.last);
                self.slow_rounds = 0;
                Choice::Unrepaired
            }
        }
    }
}

fn mean(rates: [u64; 3]) -> u64 {
    rates.into_iter().fold(0, u64::saturating_add) / 3
}

fn percent(of: u64, percent: u64) -> u64 {
    of.saturating_mul(percent) / 100
}

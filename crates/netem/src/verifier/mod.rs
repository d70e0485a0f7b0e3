//! Checks links while they work, from a log of the events in them. The verifier states the rules of
//! a link a second time. It shares only the configuration with the code of the link: no queue, no
//! transmitter and no search in a trace. It stores no packets, so that it can always be enabled.

use std::{
    fmt,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate};

use crate::{Capacity, LinkConfig, LinkStats, LossAt, RateTrace, Traffic};

/// The largest number of violations that are kept for one link. One is enough for an investigation.
const KEPT_MAX: usize = 10;

/// Mahimahi's bytes per opportunity, and the bytes that each packet counts with in addition to its
/// IP length.
const TRACE_LINE_BYTES: u64 = 1504;
const TRACE_HEADER_BYTES: u64 = 4;

/// An event of a packet in a link. All sizes are those of IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It entered the link.
    Entered,
    /// It was dropped because the link was off.
    DroppedOutage,
    /// It was dropped because it was too large.
    DroppedMtu,
    /// It was lost by chance.
    DroppedLoss,
    /// It came to the bottleneck's queue, which may drop it or send it at once.
    Queued,
    /// The queue dropped it for lack of room.
    DroppedQueue,
    /// The queue's control law dropped it.
    DroppedCoDel,
    /// It left the queue to be sent.
    Started,
    /// Its last bit left the bottleneck.
    Carried,
    /// It was copied after the bottleneck.
    Duplicated,
    /// It left the link.
    Delivered,
}

const KINDS: usize = What::Delivered as usize + 1;

/// A violation of a rule by a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The number of the link in its path, counted from 0.
    pub link: usize,
    /// The time of the violation, counted from the start of the path.
    pub at: Duration,
    /// The rule that was violated.
    pub rule: BrokenRule,
}

/// The rule that was violated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum BrokenRule {
    #[error("a packet of {size} left the bottleneck earlier than the rate allows")]
    TooFast { size: ByteCount },
    #[error("a packet of {size} left the bottleneck between two opportunities of its trace")]
    NoOpportunity { size: ByteCount },
    #[error("{bytes} in {packets} packets wait in a queue with a limit of {limit}")]
    QueueTooLong { bytes: ByteCount, packets: u64, limit: crate::QueueLimit },
    #[error("a packet of {size} passed a link that was off")]
    PassedOutage { size: ByteCount },
    #[error("a packet of {size} passed a link with an MTU of {mtu}")]
    PassedMtu { size: ByteCount, mtu: ByteCount },
    #[error("there are more {what} than went in: packets appear from nowhere")]
    FromNowhere { what: &'static str },
    #[error("two packets are sent at the same time")]
    TwoAtATime,
    #[error("a packet arrived sooner than its delay of {delay:?}")]
    TooSoon { delay: Duration },
    #[error("time ran backwards")]
    Backwards,
    #[error(
        "{seen} bytes came in, but {delivered} were delivered, {dropped} dropped and {held} held"
    )]
    Unbalanced { seen: u64, delivered: u64, dropped: u64, held: u64 },
    #[error("the link counted {counted:?} {what}, but there were {seen:?}")]
    Miscounted { what: &'static str, counted: Traffic, seen: Traffic },
}

/// The violations of several links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// The number of violations.
    pub total: u64,
    /// The first violations of each link.
    pub first: Vec<Violation>,
}

impl FromIterator<(u64, Vec<Violation>)> for Violations {
    fn from_iter<I: IntoIterator<Item = (u64, Vec<Violation>)>>(links: I) -> Self {
        let mut all = Self::default();
        for (total, first) in links {
            all.total += total;
            all.first.extend(first);
        }
        all
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {} after {:?}: {}", self.link, self.at, self.rule)
    }
}

/// Checks the events of one link.
#[derive(Debug)]
pub(crate) struct LinkVerifier {
    config: LinkConfig,
    link: usize,
    start: Instant,
    last: Instant,
    counts: [Traffic; KINDS],
    speed: Speed,
    /// The first violations.
    violations: Vec<Violation>,
    violations_total: u64,
}

/// The limit on the packets that a bottleneck can have carried.
#[derive(Debug)]
enum Speed {
    Unlimited,
    Constant {
        rate: Rate,
        /// The earliest time at which the last packet can have left and the next packet can have
        /// started, in nanoseconds times bits per second.
        earliest: u128,
    },
    Trace(Walk),
}

/// A walk along a trace, line by line.
#[derive(Debug)]
struct Walk {
    trace: std::sync::Arc<RateTrace>,
    offset_nanos: u128,
    /// Number of rounds that are complete, and number of lines that were passed in the current
    /// round.
    rounds: u128,
    lines: usize,
    /// Time of the last opportunity that was passed, from the beginning of the trace.
    last_nanos: Option<u128>,
    /// Bytes that could leave since the bottleneck was last idle, minus those that did.
    room: u128,
}

impl LinkVerifier {
    /// Makes a verifier for link number `link` of a path that starts at `start`.
    pub(crate) fn new(start: Instant, link: usize, config: LinkConfig) -> Self {
        let speed = match &config.capacity {
            Capacity::Unlimited => Speed::Unlimited,
            Capacity::Constant(rate) => Speed::Constant { rate: *rate, earliest: 0 },
            Capacity::Trace { trace, offset } => Speed::Trace(Walk {
                trace: trace.clone(),
                offset_nanos: offset.as_nanos(),
                rounds: 0,
                lines: 0,
                last_nanos: None,
                room: 0,
            }),
        };
        Self {
            config,
            link,
            start,
            last: start,
            counts: [Traffic::default(); KINDS],
            speed,
            violations: Vec::new(),
            violations_total: 0,
        }
    }

    /// Checks and counts an event.
    pub(crate) fn log(&mut self, at: Instant, what: What, size: ByteCount) {
        if at > self.last {
            self.check_queue(self.last); // the state at the end of the last instant
        } else if at < self.last {
            self.broken(at, BrokenRule::Backwards);
        }
        self.last = at;
        match what {
            What::Queued => self.check_queued(at, size),
            What::Started if self.in_transmission() > 0 => {
                self.broken(at, BrokenRule::TwoAtATime);
            }
            What::Carried => self.check_carried(at, size),
            What::Delivered if at.duration_since(self.start) < self.config.delay => {
                self.broken(at, BrokenRule::TooSoon { delay: self.config.delay });
            }
            _ => {}
        }
        if let Some(counts) = self.counts.get_mut(what as usize) {
            counts.count(size);
        }
        self.check_sources(at, what);
    }

    /// The number of violations so far and the first of them. They include those that only the
    /// balance of the counters shows.
    pub(crate) fn violations(&self, stats: &LinkStats) -> (u64, Vec<Violation>) {
        let mut end = Self {
            config: self.config.clone(),
            speed: Speed::Unlimited,
            violations: self.violations.clone(),
            ..*self
        };
        end.check_queue(self.last);
        end.check_balance(stats);
        (end.violations_total, end.violations)
    }

    fn check_queued(&mut self, at: Instant, size: ByteCount) {
        let since_start = at.duration_since(self.start);
        if self.is_off(since_start) {
            self.broken(at, BrokenRule::PassedOutage { size });
        }
        let trace_mtu = matches!(self.config.capacity, Capacity::Trace { .. })
            .then_some(ByteCount::new(TRACE_LINE_BYTES - TRACE_HEADER_BYTES));
        let mtu = self.config.mtu.into_iter().chain(trace_mtu).min();
        if let Some(mtu) = mtu.filter(|mtu| size > *mtu) {
            self.broken(at, BrokenRule::PassedMtu { size, mtu });
        }
        if self.waiting().packets == 0 && self.in_transmission() == 0 {
            self.speed.begin(since_start);
        }
    }

    fn check_carried(&mut self, at: Instant, size: ByteCount) {
        let since_start = at.duration_since(self.start);
        if let Err(rule) = self.speed.carry(since_start, size) {
            self.broken(at, rule);
        }
    }

    /// Checks that no more packets leave a place than went into it before.
    fn check_sources(&mut self, at: Instant, what: What) {
        let packets = |kinds: &[What]| kinds.iter().map(|kind| self.seen(*kind).packets).sum();
        let (into, out_of, name): (u64, u64, _) = match what {
            What::Entered | What::Duplicated => return,
            What::Queued | What::DroppedOutage | What::DroppedMtu => {
                let kinds = [What::Queued, What::DroppedOutage, What::DroppedMtu];
                (packets(&[What::Entered]), packets(&kinds), "packets on the link")
            }
            What::Started | What::DroppedQueue | What::DroppedCoDel => {
                let kinds = [What::Started, What::DroppedQueue, What::DroppedCoDel];
                (packets(&[What::Queued]), packets(&kinds), "packets from the queue")
            }
            What::Carried => (packets(&[What::Started]), packets(&[What::Carried]), "packets sent"),
            What::Delivered | What::DroppedLoss => {
                let is_before = self.config.loss_at == LossAt::Before;
                let at_end = [What::Delivered, What::DroppedLoss];
                let out_of = if is_before { &at_end[..1] } else { &at_end[..] };
                let source = match self.config.capacity {
                    Capacity::Unlimited => What::Entered,
                    _ if is_before && what == What::DroppedLoss => return,
                    _ => What::Carried,
                };
                let into = packets(&[source, What::Duplicated]);
                (into, packets(out_of), "packets at the end")
            }
        };
        if out_of > into {
            self.broken(at, BrokenRule::FromNowhere { what: name });
        }
    }

    fn check_queue(&mut self, at: Instant) {
        let Some(limit) = self.config.queue.limit() else { return };
        let Traffic { packets, bytes } = self.waiting();
        let is_trace = matches!(self.config.capacity, Capacity::Trace { .. });
        let headers = if is_trace { TRACE_HEADER_BYTES * packets } else { 0 };
        let bytes = bytes + ByteCount::new(headers);
        let is_long = limit.bytes.is_some_and(|limit| bytes > limit)
            || limit.packets.is_some_and(|limit| packets > limit);
        if is_long {
            self.broken(at, BrokenRule::QueueTooLong { bytes, packets, limit });
        }
    }

    fn check_balance(&mut self, stats: &LinkStats) {
        let at = self.last;
        let counters = [
            ("entered", What::Entered, stats.entered),
            ("dropped in an outage", What::DroppedOutage, stats.dropped_outage),
            ("dropped for their size", What::DroppedMtu, stats.dropped_mtu),
            ("lost", What::DroppedLoss, stats.dropped_loss),
            ("dropped from a full queue", What::DroppedQueue, stats.dropped_queue),
            ("dropped by CoDel", What::DroppedCoDel, stats.dropped_codel),
            ("carried", What::Carried, stats.carried),
            ("duplicated", What::Duplicated, stats.duplicated),
            ("delivered", What::Delivered, stats.delivered),
        ];
        for (what, kind, counted) in counters {
            let seen = self.seen(kind);
            if counted != seen {
                self.broken(at, BrokenRule::Miscounted { what, counted, seen });
            }
        }
        let bytes = |kind: What| self.seen(kind).bytes.get();
        let seen = bytes(What::Entered) + bytes(What::Duplicated);
        let delivered = bytes(What::Delivered);
        let dropped = [
            What::DroppedOutage,
            What::DroppedMtu,
            What::DroppedLoss,
            What::DroppedQueue,
            What::DroppedCoDel,
        ];
        let dropped = dropped.into_iter().map(bytes).sum();
        let held = stats.held.bytes.get();
        if seen != delivered + dropped + held {
            self.broken(at, BrokenRule::Unbalanced { seen, delivered, dropped, held });
        }
    }

    fn seen(&self, what: What) -> Traffic {
        self.counts.get(what as usize).copied().unwrap_or_default()
    }

    /// The packets in the queue.
    fn waiting(&self) -> Traffic {
        let out = [What::DroppedQueue, What::DroppedCoDel, What::Started];
        let out = out.map(|kind| self.seen(kind));
        let queued = self.seen(What::Queued);
        out.iter().fold(queued, |left, out| Traffic {
            packets: left.packets.saturating_sub(out.packets),
            bytes: left.bytes - out.bytes,
        })
    }

    fn in_transmission(&self) -> u64 {
        self.seen(What::Started).packets.saturating_sub(self.seen(What::Carried).packets)
    }

    fn is_off(&self, since_start: Duration) -> bool {
        let Some(outages) = self.config.outages else { return false };
        let mut begins = outages.first;
        if let (Some(period), true) = (outages.period, since_start > begins) {
            let periods = since_start.saturating_sub(begins).as_nanos() / period.as_nanos().max(1);
            begins += period * u32::try_from(periods).unwrap_or(u32::MAX);
        }
        begins <= since_start && since_start < begins + outages.length
    }

    fn broken(&mut self, at: Instant, rule: BrokenRule) {
        self.violations_total += 1;
        if self.violations.len() < KEPT_MAX {
            let at = at.duration_since(self.start);
            self.violations.push(Violation { link: self.link, at, rule });
        }
    }
}

impl Speed {
    /// Notes that a packet came to an idle bottleneck.
    fn begin(&mut self, now: Duration) {
        match self {
            Self::Unlimited => {}
            Self::Constant { rate, earliest } => *earliest = (*earliest).max(scaled(now, *rate)),
            Self::Trace(walk) => {
                walk.pass(now);
                walk.room = 0; // earlier capacity is lost
            }
        }
    }

    /// Checks a packet that leaves the bottleneck.
    fn carry(&mut self, now: Duration, size: ByteCount) -> Result<(), BrokenRule> {
        match self {
            Self::Unlimited => Ok(()),
            Self::Constant { rate, earliest } => {
                let now = scaled(now, *rate);
                let left = *earliest + u128::from(size.get()) * 8 * 1_000_000_000;
                // Times are rounded up to a nanosecond, so the packet left within the nanosecond
                // that ends now.
                let nanosecond = u128::from(rate.bits_per_second());
                *earliest = left.max((now + 1).saturating_sub(nanosecond));
                if now < left { Err(BrokenRule::TooFast { size }) } else { Ok(()) }
            }
            Self::Trace(walk) => {
                walk.pass(now);
                let bytes = u128::from(size.get() + TRACE_HEADER_BYTES);
                if walk.last_nanos != Some(now.as_nanos() + walk.offset_nanos) {
                    return Err(BrokenRule::NoOpportunity { size });
                }
                let left = walk.room.checked_sub(bytes);
                walk.room = left.unwrap_or(0);
                left.map(|_| ()).ok_or(BrokenRule::TooFast { size })
            }
        }
    }
}

/// Nanoseconds times bits per second.
fn scaled(time: Duration, rate: Rate) -> u128 {
    time.as_nanos().saturating_mul(rate.bits_per_second().into())
}

impl Walk {
    /// Passes every opportunity up to `now` (inclusive).
    fn pass(&mut self, now: Duration) {
        let now_nanos = now.as_nanos() + self.offset_nanos;
        let lines = self.trace.lines_ms();
        let Some(length_ms) = lines.last().map(|last| u128::from(*last)) else { return };
        let round_nanos = length_ms * 1_000_000;
        // Complete rounds are skipped without a walk.
        if self.trace.repeats() && now_nanos >= (self.rounds + 2) * round_nanos {
            let skipped = now_nanos / round_nanos - 1 - self.rounds;
            self.room += skipped * lines.len() as u128 * u128::from(TRACE_LINE_BYTES);
            self.rounds += skipped;
        }
        loop {
            let Some(line_ms) = lines.get(self.lines) else {
                if !self.trace.repeats() {
                    return;
                }
                self.rounds += 1;
                self.lines = 0;
                continue;
            };
            let at = self.rounds * round_nanos + u128::from(*line_ms) * 1_000_000;
            if at > now_nanos {
                return;
            }
            self.lines += 1;
            self.last_nanos = Some(at);
            self.room += u128::from(TRACE_LINE_BYTES);
        }
    }
}

#[cfg(test)]
mod tests;

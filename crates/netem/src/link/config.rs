use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use serde_with::{DeserializeFromStr, SerializeDisplay};
use tandem_units::{ByteCount, HumanDuration, ParseUnitError, Rate, Ratio};

use crate::{LossAt, LossModel, OPPORTUNITY, QueueConfig, RateTrace, TRACE_OVERHEAD};

/// One link: random loss before or after a bottleneck with its queue, then a delay.
///
/// The default is a perfect link: infinitely fast, no delay, no loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// The capacity of the bottleneck.
    pub capacity: Capacity,
    /// Propagation delay, one way.
    pub delay: Duration,
    /// The maximum of a random time that is added to the delay of each packet. The time is
    /// uniformly distributed between zero and this maximum. No packet overtakes the one ahead of it
    /// because of jitter.
    pub jitter: Duration,
    /// The model of random loss.
    pub loss: LossModel,
    /// The place at which random loss happens.
    pub loss_at: LossAt,
    /// The queue in front of the bottleneck. Nothing queues on a link without a bottleneck.
    pub queue: QueueConfig,
    /// Delays some packets, so that later packets overtake them.
    pub reorder: Option<Reorder>,
    /// Share of packets that arrive twice, both copies at the same time.
    pub duplicate: Ratio,
    /// The times at which the link is off.
    pub outages: Option<Outages>,
    /// Largest IP packet that the link carries. Larger packets vanish without a message, as behind
    /// a firewall that drops ICMP. With `None` there is no limit, except that a trace carries at
    /// most 1500 bytes.
    pub mtu: Option<ByteCount>,
}

/// The capacity of a bottleneck.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Capacity {
    /// Unlimited: every packet passes at once.
    #[default]
    Unlimited,
    /// A constant rate, which counts IP packets.
    Constant(Rate),
    /// A recorded rate, which counts IP packets and [`TRACE_OVERHEAD`] for each of them.
    Trace {
        /// The recording.
        trace: Arc<RateTrace>,
        /// The time in the recording at which the path starts.
        offset: Duration,
    },
}

impl Capacity {
    /// The time that it takes, from `from` on, to carry this number of bytes in full packets.
    /// Smaller packets would take longer on a trace. Times count from the start of the path. The
    /// result is [`Duration::MAX`] if a trace ends before.
    pub fn time_to_carry(&self, bytes: ByteCount, from: Duration) -> Duration {
        match self {
            Self::Unlimited => Duration::ZERO,
            Self::Constant(rate) => rate.time_to_send(bytes),
            Self::Trace { trace, offset } => {
                let packets = bytes.get().div_ceil((OPPORTUNITY - TRACE_OVERHEAD).get());
                trace.time_to_carry(OPPORTUNITY.saturating_mul(packets), *offset + from)
            }
        }
    }

    /// The bytes that can be carried after `from` up to `to`; on a trace they include
    /// [`TRACE_OVERHEAD`] for each packet. Times count from the start of the path. The result is
    /// `None` if there is no limit.
    pub fn bytes_between(&self, from: Duration, to: Duration) -> Option<ByteCount> {
        match self {
            Self::Unlimited => None,
            Self::Constant(rate) => Some(rate.bytes_in(to.saturating_sub(from))),
            Self::Trace { trace, offset } => {
                Some(trace.bytes_between(*offset + from, *offset + to))
            }
        }
    }
}

impl From<Rate> for Capacity {
    fn from(rate: Rate) -> Self {
        Self::Constant(rate)
    }
}

/// Reordering: some packets have an additional delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// Share of packets that have the additional delay.
    pub ratio: Ratio,
    /// The additional delay.
    pub extra_delay: Duration,
}

/// Times at which a link is off: packets that enter it vanish. Packets that are already in the link
/// continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub struct Outages {
    /// Start of the first outage, counted from the start of the path.
    pub first: Duration,
    /// Length of each outage.
    pub length: Duration,
    /// Time from the start of an outage to the start of the next. With `None` there is only one
    /// outage.
    pub period: Option<Duration>,
}

impl Outages {
    /// Whether the link is off at this time. An outage includes its first instant and excludes its
    /// end.
    pub(crate) fn cover(&self, since_start: Duration) -> bool {
        let Some(since_first) = since_start.checked_sub(self.first) else { return false };
        let since_last = match self.period.map_or(0, |period| period.as_nanos()) {
            0 => since_first.as_nanos(),
            period => since_first.as_nanos() % period,
        };
        since_last < self.length.as_nanos()
    }
}

/// The reason for which a text does not describe outages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseOutagesError {
    /// The number of parts is wrong.
    #[error("{seen:?} does not have the form FIRST,LENGTH or FIRST,LENGTH,PERIOD")]
    Parts {
        /// The text.
        seen: String,
    },
    /// A time is malformed.
    #[error(transparent)]
    Time(#[from] ParseUnitError),
    /// The period is not longer than the outage, so the link would never be on.
    #[error(
        "outages of {length} every {period} never end; the period must be longer than the length"
    )]
    Period {
        /// Length of each outage.
        length: HumanDuration,
        /// Time from the start of an outage to the start of the next.
        period: HumanDuration,
    },
}

impl FromStr for Outages {
    type Err = ParseOutagesError;

    fn from_str(text: &str) -> Result<Self, ParseOutagesError> {
        let times: Result<Vec<HumanDuration>, _> =
            text.split(',').map(|time| time.trim().parse()).collect();
        let (first, length, period) = match *times? {
            [first, length] => (first, length, None),
            [first, length, period] => (first, length, Some(period)),
            _ => return Err(ParseOutagesError::Parts { seen: text.to_owned() }),
        };
        if let Some(period) = period.filter(|period| *period <= length) {
            return Err(ParseOutagesError::Period { length, period });
        }
        let (HumanDuration(first), HumanDuration(length)) = (first, length);
        Ok(Self { first, length, period: period.map(Duration::from) })
    }
}

impl fmt::Display for Outages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", HumanDuration(self.first), HumanDuration(self.length))?;
        self.period.map_or(Ok(()), |period| write!(f, ",{}", HumanDuration(period)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn outages_are_read_and_printed() {
        let once = Outages { first: 10_000 * MS, length: 500 * MS, period: None };
        let often = Outages { period: Some(30_000 * MS), ..once };
        for (text, outages) in [("10s,500ms", once), ("10s,500ms,30s", often)] {
            assert_eq!(text.parse(), Ok(outages));
            assert_eq!(outages.to_string(), text);
        }
        for (text, part) in [
            ("10s", "FIRST,LENGTH"),
            ("1s,2s,3s,4s", "FIRST,LENGTH"),
            ("1s,2", "allowed: ns, us, ms"),
            ("1s,2s,2s", "outages of 2s every 2s"),
        ] {
            let error = text.parse::<Outages>().expect_err(text).to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_outage_includes_its_first_instant_and_excludes_its_end() {
        const MS_NANOS: u64 = 1_000_000;
        let once = Outages { first: 10 * MS, length: 2 * MS, period: None };
        let often = Outages { period: Some(5 * MS), ..once };
        for (at_nanos, is_off_once, is_off_often) in [
            (10 * MS_NANOS - 1, false, false),
            (10 * MS_NANOS, true, true),
            (12 * MS_NANOS - 1, true, true),
            (12 * MS_NANOS, false, false),
            (15 * MS_NANOS - 1, false, false),
            (15 * MS_NANOS, false, true),
            (501 * MS_NANOS, false, true),
            (502 * MS_NANOS, false, false),
        ] {
            let at = Duration::from_nanos(at_nanos);
            assert_eq!((once.cover(at), often.cover(at)), (is_off_once, is_off_often), "{at:?}");
        }
    }
}

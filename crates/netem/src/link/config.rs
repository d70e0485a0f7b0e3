use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use serde_with::{DeserializeFromStr, SerializeDisplay};
use tandem_units::{ByteCount, HumanDuration, ParseUnitError, Rate, Ratio};

use crate::{LossAt, LossModel, OPPORTUNITY, QueueConfig, RateTrace, TRACE_OVERHEAD};

/// One link: random loss before or after a bottleneck with its queue, then a delay.
///
/// The default is a perfect link: infinitely fast, no delay, no loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// What the bottleneck can carry.
    pub capacity: Capacity,
    /// Propagation delay, one way.
    pub delay: Duration,
    /// The longest time that is added to the delay: each packet takes up to this much longer, any
    /// time with the same probability, but arrives no earlier than the packet ahead of it.
    pub jitter: Duration,
    /// Which packets are lost by chance.
    pub loss: LossModel,
    /// Where they are lost.
    pub loss_at: LossAt,
    /// The queue in front of the bottleneck; without a bottleneck nothing ever queues.
    pub queue: QueueConfig,
    /// Makes some packets late, so that later ones overtake them.
    pub reorder: Option<Reorder>,
    /// Share of packets that arrives twice, both at the same time.
    pub duplicate: Ratio,
    /// Times at which the link is off.
    pub outages: Option<Outages>,
    /// Largest IP packet that the link carries; larger ones vanish without a message, as behind a
    /// firewall that drops ICMP. `None`: no limit but that of a trace, which carries 1500 bytes.
    pub mtu: Option<ByteCount>,
}

/// What a bottleneck can carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Capacity {
    /// Anything, in no time.
    #[default]
    Unlimited,
    /// Always the same, counting IP packets.
    Constant(Rate),
    /// What a recording says, counting IP packets and 4 bytes each.
    Trace {
        /// The recording.
        trace: Arc<RateTrace>,
        /// Where in the recording the start of the path lies.
        offset: Duration,
    },
}

impl Capacity {
    /// How long it takes, from `from` on, to carry this many bytes in full packets; smaller ones
    /// would take longer on a trace. Times count from the start of the path. [`Duration::MAX`] if a
    /// trace ends before.
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

    /// The bytes that can be carried after `from` up to `to`, on a trace with
    /// [`TRACE_OVERHEAD`] for each packet. Times count from the start of the path. `None` if there
    /// is no limit.
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

/// Reordering: some packets take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// Share of packets that is late.
    pub ratio: Ratio,
    /// How much later they arrive.
    pub extra_delay: Duration,
}

/// Times at which what comes to a link vanishes. What is in it already goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub struct Outages {
    /// When the first one begins, after the start of the path.
    pub first: Duration,
    /// How long each lasts.
    pub length: Duration,
    /// From the beginning of one to that of the next; `None`: there is only one.
    pub period: Option<Duration>,
}

impl Outages {
    /// True at the first instant of an outage, false at the first one after it.
    pub(crate) fn cover(&self, since_start: Duration) -> bool {
        let Some(since_first) = since_start.checked_sub(self.first) else { return false };
        let since_last = match self.period.map_or(0, |period| period.as_nanos()) {
            0 => since_first.as_nanos(),
            period => since_first.as_nanos() % period,
        };
        since_last < self.length.as_nanos()
    }
}

/// Why a text says no times of outages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseOutagesError {
    /// There are more or fewer parts than there should be.
    #[error("{seen:?} does not have the form FIRST,LENGTH or FIRST,LENGTH,PERIOD")]
    Parts {
        /// The text.
        seen: String,
    },
    /// A time is malformed.
    #[error(transparent)]
    Time(#[from] ParseUnitError),
    /// The link would never be on, or the outage never end.
    #[error("outages of {length} every {period} leave nothing; a period is longer than a length")]
    Period {
        /// How long each lasts.
        length: HumanDuration,
        /// From one to the next.
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
    fn an_outage_has_its_first_instant_and_not_its_last() {
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

use std::{sync::Arc, time::Duration};

use tandem_units::{ByteCount, Rate, Ratio};

use crate::{
    LossAt, LossModel, QueueConfig, RateTrace, TRACE_OVERHEAD, ideal::carried_bytes,
    ideal_completion,
};

/// One link: random loss before or after a bottleneck with its queue, then a delay.
///
/// The default is a perfect link: infinitely fast, no delay, no loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// What the bottleneck can carry.
    pub capacity: Capacity,
    /// Propagation delay, one way.
    pub delay: Duration,
    /// Most of what comes on top of the delay: each packet takes up to so much longer, any time
    /// with the same probability, but arrives no earlier than the packet ahead of it.
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

impl From<Rate> for Capacity {
    fn from(rate: Rate) -> Self {
        Self::Constant(rate)
    }
}

impl Capacity {
    /// [`ideal_completion`] of a download that begins so long after the start of the path; `None`
    /// without a bottleneck. On a trace: what the opportunities carry from two round trips after
    /// the beginning on, each packet with 4 bytes more (of 1500 bytes, rounded up).
    pub fn ideal_completion(
        &self,
        size: ByteCount,
        e2e_rtt: Duration,
        loss: Ratio,
        begin: Duration,
    ) -> Option<Duration> {
        match self {
            Self::Unlimited => None,
            Self::Constant(rate) => Some(ideal_completion(size, *rate, e2e_rtt, loss)),
            Self::Trace { trace, offset } => {
                let bytes = carried_bytes(size, loss)?;
                let packets = bytes.get().div_ceil(1500);
                let bytes = bytes.saturating_add(TRACE_OVERHEAD.saturating_mul(packets));
                let from = *offset + begin + e2e_rtt * 2;
                Some(e2e_rtt * 2 + trace.time_to_carry(bytes, from))
            }
        }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

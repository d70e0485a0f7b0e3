//! How late a packet may be before it is lost: the thresholds of RFC 9002 §6.1, which learn from losses that were
//! none, as the reordering window of RACK does ([RFC 8985 §6.2]).
//!
//! [RFC 8985 §6.2]: https://www.rfc-editor.org/rfc/rfc8985#section-6.2

use std::time::Duration;

use crate::rtt::{GRANULARITY, Rtt};

/// The thresholds by number and by time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reordering {
    /// A packet is declared lost when a packet is acknowledged whose number is higher by this: `kPacketThreshold`.
    pub(crate) packets: u64,
    /// `RACK.reo_wnd_mult`, in quarters of the minimum RTT. 0: no loss has proven spurious.
    quarters: u32,
    /// In how many congestion events from now everything is forgotten: `RACK.reo_wnd_persist`.
    persist: u32,
    /// The window grows once in a round trip: when a packet from this number on is acknowledged late.
    grows_from: u64,
}

impl Reordering {
    const PACKET_THRESHOLD: u64 = 3;

    /// As far as the packet threshold grows. A longer delay is a matter of time.
    const PACKET_THRESHOLD_MAX: u64 = 1024;

    /// The window is bounded by the smoothed RTT, so that more quarters have no effect.
    const QUARTERS_MAX: u32 = 64;

    /// RFC 8985 §6.2: what was learnt persists for 16 recoveries.
    const PERSIST: u32 = 16;

    pub(crate) const fn new() -> Self {
        Self { packets: Self::PACKET_THRESHOLD, quarters: 0, persist: 0, grows_from: 0 }
    }

    /// The time after which a packet is lost if a later one is acknowledged: 9/8 of the RTT (`kTimeThreshold`), or the
    /// RTT and the reordering window, and at most 2 RTT.
    pub(crate) fn loss_delay(&self, rtt: &Rtt) -> Duration {
        let longer = rtt.smoothed.max(rtt.latest);
        let window =
            (longer / 8).max(rtt.min * self.quarters / 4).min(rtt.smoothed.max(longer / 8));
        (longer + window).max(GRANULARITY)
    }

    /// A lost packet was acknowledged, `distance` packets before the largest in the same ACK frame. `next_number` is
    /// that of the next packet.
    pub(crate) fn on_spurious_loss(&mut self, number: u64, distance: u64, next_number: u64) {
        self.packets = self.packets.max(distance + 1).min(Self::PACKET_THRESHOLD_MAX);
        self.persist = Self::PERSIST;
        if number >= self.grows_from {
            self.quarters = (self.quarters + 1).min(Self::QUARTERS_MAX);
            self.grows_from = next_number;
        }
    }

    /// A congestion event begins.
    pub(crate) fn on_congestion_event(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            *self = Self { grows_from: self.grows_from, ..Self::new() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_grow_with_spurious_losses_and_forget_after_16_events() {
        let ms = Duration::from_millis;
        let mut rtt = Rtt::new(ms(333));
        rtt.on_sample(ms(80), ms(0));
        let mut reordering = Reordering::new();
        assert_eq!((reordering.packets, reordering.loss_delay(&rtt)), (3, ms(90)));
        reordering.on_spurious_loss(10, 7, 100);
        assert_eq!((reordering.packets, reordering.loss_delay(&rtt)), (8, ms(100)));
        reordering.on_spurious_loss(11, 4, 110);
        assert_eq!((reordering.packets, reordering.loss_delay(&rtt)), (8, ms(100)), "same round");
        for round in 1..9 {
            reordering.on_spurious_loss(100 * round, 5000, 100 * round + 100);
        }
        assert_eq!((reordering.packets, reordering.loss_delay(&rtt)), (1024, ms(160)), "2 RTT");
        for _ in 0..15 {
            reordering.on_congestion_event();
        }
        assert_eq!(reordering.packets, 1024);
        reordering.on_congestion_event();
        assert_eq!((reordering.packets, reordering.loss_delay(&rtt)), (3, ms(90)));
    }
}

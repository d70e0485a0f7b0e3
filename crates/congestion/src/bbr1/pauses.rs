//! Room in the window for packets that wait on the path and arrive together.

use std::time::Duration;

use tandem_units::ByteCount;

use super::{Bbr1, Flavor};
use crate::Factor;

/// The time for which hosts and radio links may deliver nothing, however short the RTT is: a process that
/// does not run, or a Wi-Fi network that collects packets in both directions.
const PAUSE: Duration = Duration::from_millis(25);
/// The queue of a small router. What comes at once after a pause must not overflow it.
const PAUSE_MAX: ByteCount = ByteCount::new(256_000);
/// What has arrived at once beyond the rate shows that packets are delayed, but the delay of a packet is a multiple
/// of it: where the delay varies, most packets wait for one before them that had a longer delay. Measured with delays
/// that are even between nothing and several least RTTs (`docs/design/adr/0067`).
const JITTER: Factor = Factor::from_percent(400);
/// The longest jitter for which a tunnel's window has room.
const JITTER_MAX: Duration = Duration::from_millis(80);

impl Bbr1 {
    /// The room for packets that wait on the path and arrive together. A tunnel measures a link, which
    /// keeps no packets back to restore their order.
    pub(super) fn extra_acked(&self) -> ByteCount {
        match (self.config.flavor, self.full_pipe.is_filled()) {
            (Flavor::Plain, true) => self.aggregation.extra_acked(),
            _ => ByteCount::ZERO,
        }
    }

    /// What a tunnel's bottleneck sends in [`PAUSE`], so that it does not run dry meanwhile, and at most
    /// [`PAUSE_MAX`].
    pub(super) fn paused_target(&self) -> ByteCount {
        match (self.config.flavor, self.bottleneck_bandwidth) {
            (Flavor::Tunnel, Some(bandwidth)) => bandwidth.bytes_in(PAUSE).min(PAUSE_MAX),
            _ => ByteCount::ZERO,
        }
    }

    /// The bandwidth-delay product of a tunnel and what its path sends while the delay varies. Where that is longer
    /// than the least RTT, a window of twice the product would limit the rate, the estimate of the bandwidth would
    /// fall, and with it the window. Where it is shorter, the window has room for it anyway.
    pub(super) fn jitter_target(&self) -> ByteCount {
        match (self.config.flavor, self.bottleneck_bandwidth) {
            (Flavor::Tunnel, Some(bandwidth)) if self.full_pipe.is_filled() => {
                let jitter = JITTER.of_bytes(self.aggregation.extra_acked());
                self.in_flight_target(Factor::ONE) + jitter.min(bandwidth.bytes_in(JITTER_MAX))
            }
            _ => ByteCount::ZERO,
        }
    }
}

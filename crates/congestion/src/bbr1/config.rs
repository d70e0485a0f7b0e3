//! The settings of `BBRv1`.

use std::ops::RangeInclusive;

/// The settings of [`Bbr1`](crate::Bbr1). The default follows the draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bbr1Config {
    /// The initial window in full datagrams, at least 4.
    pub initial_window_packets: u32,
    /// The pacing gain, in percent, of the phase of `ProbeBW` that probes for more bandwidth. It is
    /// at least 100; at 100 the controller never probes.
    ///
    /// A gain of 200 follows a bandwidth that rises quickly, as on cellular links, at the cost of a
    /// longer queue. Above 125 the cycle has a second probing phase in its middle, with a gain of
    /// 125 %.
    pub up_gain_percent: u32,
    /// The variant of the algorithm.
    pub flavor: Flavor,
    /// The seed of the random choice of the phase in which the controller enters `ProbeBW`.
    pub seed: u64,
}

impl Bbr1Config {
    /// The gains that are allowed, in percent. With 100 the controller does not probe; its gain at
    /// start-up is 289.
    pub const UP_GAIN_PERCENT: RangeInclusive<u32> = 100..=300;
}

/// The variants of [`Bbr1`](crate::Bbr1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavor {
    /// The draft's algorithm, with the differences that the source of [`Bbr1`](crate::Bbr1) lists.
    #[default]
    Plain,
    /// For an origin that follows the reports of a tunnel: without room for packets that arrive
    /// together, because the reports tell what waits in the tunnel.
    Follower,
    /// A variant for a tunnel over radio links, whose rate varies and whose queues are short:
    ///
    /// - If the path delivers nothing for longer than one RTT and 100 ms, the time beyond that does
    ///   not lower the delivery rate.
    /// - If a round loses far more packets than usual while packets wait in a queue, the
    ///   bottleneck's queue overflows. The bandwidth estimate is then reset to the last rounds, and
    ///   the bytes in flight are bounded for a while.
    /// - If a probe loses far more packets than usual, and many, although packets do not wait in a
    ///   queue, the queue is too short for such probes. The next ones have the draft's gain until the
    ///   bandwidth has changed or a queue has overflowed.
    /// - The window is at least what the bottleneck sends in 25 ms, up to 256 kB, so that a path with a
    ///   shorter RTT does not run dry while a host or a radio link pauses.
    /// - The window is also at least the bandwidth-delay product and four times what has arrived at once
    ///   beyond the rate, of which at most 80 ms of the rate count, so that jitter that is longer than the
    ///   RTT does not limit the rate.
    /// - `ProbeRTT` keeps half of the bandwidth-delay product in flight, which drains a queue as
    ///   well.
    Tunnel,
}

impl Default for Bbr1Config {
    fn default() -> Self {
        Self {
            initial_window_packets: 10,
            up_gain_percent: 125,
            flavor: Flavor::default(),
            seed: 0,
        }
    }
}

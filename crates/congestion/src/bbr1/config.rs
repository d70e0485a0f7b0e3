//! The settings of `BBRv1`.

use std::ops::RangeInclusive;

/// The settings of [`Bbr1`](crate::Bbr1). The default is the draft's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bbr1Config {
    /// The initial window in full datagrams, at least 4.
    pub initial_window_packets: u32,
    /// The pacing gain, in percent, of the phase of `ProbeBW` that looks for more bandwidth; at
    /// least 100, which never looks.
    ///
    /// 200 follows a rate that rises quickly, as cellular links do, at the cost of more queue. Above
    /// 125 there is a second, plain 125 % phase in the middle of the cycle.
    pub up_gain_percent: u32,
    /// Where it differs from the draft.
    pub flavor: Flavor,
    /// Where the randomness begins: it picks the phase in which `ProbeBW` is entered.
    pub seed: u64,
}

impl Bbr1Config {
    /// The gains that are allowed, in percent. With 100 the controller does not probe; its gain at
    /// start-up is 289.
    pub const UP_GAIN_PERCENT: RangeInclusive<u32> = 100..=300;
}

/// Where [`Bbr1`](crate::Bbr1) differs from the draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavor {
    /// Nowhere but in what the module says.
    #[default]
    Plain,
    /// For a tunnel over radio links, whose rate changes and whose queues are short:
    ///
    /// - Time in which the path stands still says nothing of its rate, beyond a round trip and 100 ms.
    /// - Where far more is lost than usual while packets wait, the bottleneck's queue overflows: the
    ///   estimate begins anew, and less is sent for a while.
    /// - `ProbeRTT` keeps half of what fills the path in flight, which drains a queue as well.
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

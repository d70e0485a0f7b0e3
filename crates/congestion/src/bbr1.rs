//! `BBRv1`: [draft-cardwell-iccrg-bbr-congestion-control-00], with delivery-rate samples from
//! [`DeliveryRate`].
//!
//! | draft | here |
//! | --- | --- |
//! | `BBR.BtlBw`, `BBR.BtlBwFilter` | `bottleneck_bandwidth`, `bandwidth_filter` |
//! | `BBR.RTprop`, `BBR.rtprop_stamp` | `round_trip_propagation`, `.._stamp` |
//! | `BBR.state`, `BBR.pacing_gain`, `BBR.cwnd_gain` | `state`, `pacing_gain()`, `cwnd_gain()` |
//! | `BBR.cycle_index`, `BBR.cycle_stamp` | in [`PathState::ProbeBw`] |
//! | `BBR.probe_rtt_done_stamp`, `.._round_done` | in [`PathState::ProbeRtt`] |
//! | `BBR.round_start`, `BBR.next_round_delivered` | in [`Round`] |
//! | `BBR.filled_pipe`, `BBR.full_bw`, `BBR.full_bw_count` | in [`FullPipe`] |
//! | `BBR.idle_restart`, `BBR.prior_cwnd` | `is_idle_restart`, `prior_cwnd` |
//! | `BBR.pacing_rate`, `BBR.send_quantum`, `cwnd` | the methods of [`Algorithm`] |
//! | `BW.delivered`, `C.app_limited` | `delivery` |
//! | `rs.packets_lost`, `packets_delivered` | `newly_lost`, `newly_acked` |
//!
//! This implementation differs from the draft as follows:
//!
//! - Loss does not shrink the window (`BBRModulateCwndForRecovery` is left out). Only persistent
//!   congestion does, which takes the place of a retransmission timeout.
//! - Before the first RTT sample the nominal RTT is 10 ms, not 1 ms, and the first sample
//!   reinitialises the pacing rate, as in Linux.
//! - The bandwidth filter counts only rounds with samples that are not application-limited, so an
//!   application's pause does not make the estimate expire.
//! - The window has room for packets that arrive together (`aggregation`), as in Linux.
//! - Startup also ends after one round without growth that loses two fifths of many packets
//!   (`full_pipe`).
//! - Startup also ends after eight application-limited rounds without growth. A sender that waits
//!   for flow control is application-limited all the time and would never leave Startup.
//! - [`Flavor::Tunnel`] lists the differences for tunnels.
//!
//! [draft-cardwell-iccrg-bbr-congestion-control-00]:
//! https://datatracker.ietf.org/doc/html/draft-cardwell-iccrg-bbr-congestion-control-00

mod aggregation;
mod caution;
mod config;
mod full_pipe;
mod gain;
mod overflow;
mod pauses;

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

use self::aggregation::{Aggregation, EXCESS_TIME_MAX};
use self::caution::Caution;
pub use self::config::{Bbr1Config, Flavor};
use self::full_pipe::{FullPipe, StartupRound};
use self::overflow::{Overflow, OverflowGuard};
use crate::max_filter::MaxFilter;
use crate::random::Random;
use crate::{
    Ack, AcksEnd, Algorithm, CongestionEvent, CongestionSignal, DeliveryRate, Factor, Lost,
    RateSample, Sent,
};

/// The controller `BBRv1`; the table of the module relates its fields to the draft's variables.
#[derive(Clone, Debug)]
pub struct Bbr1 {
    config: Bbr1Config,
    random: Random,
    max_datagram_size: ByteCount,
    state: PathState,
    delivery: DeliveryRate,

    bandwidth_filter: MaxFilter,
    bottleneck_bandwidth: Option<Rate>,
    round_trip_propagation: Option<Duration>,
    round_trip_propagation_stamp: Instant,
    round: Round,
    full_pipe: FullPipe,
    overflow: OverflowGuard,
    aggregation: Aggregation,
    caution: Caution,

    is_idle_restart: bool,
    bytes_in_flight: ByteCount,
    newly_acked: ByteCount,
    newly_lost: ByteCount,

    pacing_rate: Rate,
    congestion_window: ByteCount,
    /// The congestion window before `ProbeRTT`, in bytes.
    prior_cwnd: ByteCount,
}

/// A packet-timed round trip.
#[derive(Clone, Debug, Default)]
struct Round {
    /// Whether the current ACK frame begins a round.
    is_start: bool,
    /// Whether the round had a sample that the bandwidth filter counts.
    is_counted: bool,
    /// The round ends when a packet is acknowledged that was sent after this number of bytes had
    /// been delivered.
    next_delivered: ByteCount,
}

/// The states of the draft's state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathState {
    /// Doubles the sending rate every round to find the bottleneck bandwidth.
    Startup,
    /// Drains the queue that Startup created.
    Drain,
    /// Sends at the bottleneck bandwidth, and probes for more in one phase of eight.
    ProbeBw { cycle_index: usize, cycle_stamp: Instant },
    /// Keeps very little in flight, to measure the RTT without a queue.
    ProbeRtt { done: Option<ProbeRttDone> },
}

/// The conditions under which [`PathState::ProbeRtt`] ends; they are known once the queue is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProbeRttDone {
    stamp: Instant,
    is_round_done: bool,
}

/// `RTpropFilterLen`: the age at which the minimum RTT expires and must be measured again.
const RTT_FILTER_LENGTH: Duration = Duration::from_secs(10);
/// `ProbeRTTDuration`: the least duration of `ProbeRTT`.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// The path has stalled if it delivers nothing for one RTT plus this time. Schedulers of radio
/// links leave gaps of some tens of milliseconds, which do not count.
const STANDSTILL_AFTER: Duration = Duration::from_millis(100);
/// `BBRGainCycleLen`: the number of phases of `ProbeBW`.
const CYCLE_LENGTH: usize = 8;
/// `BBRMinPipeCwnd` in datagrams. The pipe never runs empty with it if the receiver acknowledges
/// every second packet.
const MIN_PIPE_PACKETS: u64 = 4;
/// The RTT that is assumed before the first sample. With an initial window of 10 datagrams it paces
/// the first flight at 2.885 windows in 10 ms, some 33 Mbit/s. This delays the first flight hardly
/// at all, and is not a burst that overflows queues.
const NOMINAL_RTT: Duration = Duration::from_millis(10);

impl Bbr1 {
    /// Creates the controller of a new connection, which begins at `now` with datagrams of at most
    /// `max_datagram_size` bytes of UDP payload.
    pub fn new(mut config: Bbr1Config, now: Instant, max_datagram_size: ByteCount) -> Self {
        let least_gain = *Bbr1Config::UP_GAIN_PERCENT.start();
        config.up_gain_percent = config.up_gain_percent.max(least_gain);
        let mut controller = Self {
            random: Random::new(config.seed),
            config,
            max_datagram_size,
            state: PathState::Startup,
            delivery: DeliveryRate::new(now),
            bandwidth_filter: MaxFilter::default(),
            bottleneck_bandwidth: None,
            round_trip_propagation: None,
            round_trip_propagation_stamp: now,
            round: Round::default(),
            full_pipe: FullPipe::default(),
            overflow: OverflowGuard::default(),
            aggregation: Aggregation::new(now),
            caution: Caution::default(),
            is_idle_restart: false,
            bytes_in_flight: ByteCount::ZERO,
            newly_acked: ByteCount::ZERO,
            newly_lost: ByteCount::ZERO,
            pacing_rate: Rate::from_mbps(1),
            congestion_window: ByteCount::ZERO,
            prior_cwnd: ByteCount::ZERO,
        };
        controller.congestion_window = controller.initial_window();
        controller.pacing_rate = controller.initial_pacing_rate(NOMINAL_RTT);
        controller
    }

    /// Returns whether the last ACK frame began a round.
    pub(crate) const fn is_round_start(&self) -> bool {
        self.round.is_start
    }

    /// `BBRUpdateRound`: a round ends when a packet is acknowledged that was sent after the
    /// previous round had ended.
    fn update_round(&mut self, sample: &RateSample) {
        self.round.is_start = sample.prior_delivered >= self.round.next_delivered;
        if self.round.is_start {
            self.round.next_delivered = self.delivery.delivered();
            self.round.is_counted = false;
        }
    }

    /// `BBRUpdateBtlBw`: application-limited samples can only raise the estimate.
    fn update_bottleneck_bandwidth(&mut self, sample: &RateSample) {
        let Some(rate) = sample.delivery_rate else { return };
        if sample.is_app_limited && self.bottleneck_bandwidth.is_some_and(|max| rate < max) {
            return;
        }
        if !sample.is_app_limited && !self.round.is_counted {
            self.round.is_counted = true;
            self.bandwidth_filter.advance();
        }
        self.bandwidth_filter.insert(rate);
        self.bottleneck_bandwidth = self.bandwidth_filter.max();
    }

    fn update_aggregation(&mut self, now: Instant) {
        if self.round.is_start {
            self.aggregation.on_round();
        }
        if let (Some(bandwidth), Some(rtt)) =
            (self.bottleneck_bandwidth, self.round_trip_propagation)
        {
            // Packets that wait at the exit of a tunnel wait for a retransmission, which takes one least RTT.
            let longest = match self.config.flavor {
                Flavor::Plain | Flavor::Follower => EXCESS_TIME_MAX.min(rtt),
                Flavor::Tunnel => EXCESS_TIME_MAX,
            };
            self.aggregation.on_acked(now, self.newly_acked, bandwidth, longest);
        }
    }

    /// Resets the bandwidth estimate to the last two rounds if the bottleneck's queue overflows.
    fn check_overflow(&mut self, sample: &RateSample, prior_in_flight: ByteCount) {
        if self.config.flavor != Flavor::Tunnel {
            return;
        }
        self.overflow.on_acked(self.newly_acked, prior_in_flight, sample.rtt);
        let Some(least_rtt) = self.round_trip_propagation.filter(|_| self.round.is_start) else {
            return;
        };
        match self.overflow.on_round(least_rtt, self.max_datagram_size) {
            Some(Overflow::OfQueue) => {
                self.bandwidth_filter.forget_but_last();
                self.bottleneck_bandwidth = self.bandwidth_filter.max();
                self.full_pipe.fill();
                self.caution.end();
            }
            Some(Overflow::WithoutQueue) if matches!(self.state, PathState::ProbeBw { .. }) => {
                self.caution.begin(self.bottleneck_bandwidth);
            }
            Some(Overflow::WithoutQueue) | None => {}
        }
        self.caution.on_round(self.bottleneck_bandwidth);
        let far = self.in_flight_target(gain::HIGH);
        self.overflow.forget_bound_above(far);
    }

    /// `BBRCheckCyclePhase`: begins the next phase of `ProbeBW` if the present one is over.
    fn check_cycle_phase(&mut self, now: Instant, prior_in_flight: ByteCount) {
        let PathState::ProbeBw { cycle_index, cycle_stamp } = self.state else { return };
        let elapsed = now.saturating_duration_since(cycle_stamp);
        let is_full_length = self.round_trip_propagation.is_some_and(|rtt| elapsed > rtt);
        let gain = self.pacing_gain();
        let is_over = match gain.cmp(&Factor::ONE) {
            Ordering::Equal => is_full_length,
            Ordering::Less => {
                is_full_length || prior_in_flight <= self.in_flight_target(Factor::ONE)
            }
            // The phase lasts until the bytes in flight have reached the gain, or packets are lost
            // because the path cannot hold more.
            Ordering::Greater => {
                let has_shown = prior_in_flight >= self.in_flight_target(gain);
                is_full_length && (has_shown || !self.newly_lost.is_zero())
            }
        };
        if is_over {
            let cycle_index = (cycle_index + 1) % CYCLE_LENGTH;
            self.state = PathState::ProbeBw { cycle_index, cycle_stamp: now };
        }
    }

    /// `BBREnterProbeBW`: flows start in random phases, but never in the one that drains.
    fn enter_probe_bw(&mut self, now: Instant) {
        let skipped = match self.random.below(CYCLE_LENGTH as u64 - 1) {
            0 => 0,
            phase => phase + 1,
        };
        let cycle_index = usize::try_from(skipped).expect("below the length of the cycle");
        self.state = PathState::ProbeBw { cycle_index, cycle_stamp: now };
    }

    /// `BBRCheckFullPipe`: determines whether the pipe is full, also in an application-limited
    /// Startup.
    fn check_full_pipe(&mut self, sample: &RateSample) {
        self.full_pipe.on_acked(self.newly_acked, self.newly_lost);
        let Some(bandwidth) = self.bottleneck_bandwidth.filter(|_| self.round.is_start) else {
            return;
        };
        self.full_pipe.on_round(StartupRound {
            bandwidth,
            is_app_limited: sample.is_app_limited,
            delivered: self.delivery.delivered(),
            initial_window_packets: self.config.initial_window_packets,
            packet: self.max_datagram_size,
            ends_at_overflow: self.config.flavor != Flavor::Tunnel,
        });
    }

    /// `BBRCheckDrain`: enters Drain when the pipe is full, and `ProbeBW` when the queue is
    /// drained.
    fn check_drain(&mut self, now: Instant) {
        if self.state == PathState::Startup && self.full_pipe.is_filled() {
            self.state = PathState::Drain;
        }
        if self.state == PathState::Drain
            && self.bytes_in_flight <= self.in_flight_target(Factor::ONE)
        {
            self.enter_probe_bw(now);
        }
    }

    /// `BBRUpdateRTprop`; returns whether the minimum had expired.
    fn update_round_trip_propagation(&mut self, now: Instant, rtt: Duration) -> bool {
        let age = now.saturating_duration_since(self.round_trip_propagation_stamp);
        let is_expired = age > RTT_FILTER_LENGTH;
        if self.round_trip_propagation.is_none() {
            // The first sample replaces the nominal RTT.
            self.pacing_rate = self.initial_pacing_rate(rtt);
        }
        if is_expired || self.round_trip_propagation.is_none_or(|min| rtt <= min) {
            self.round_trip_propagation = Some(rtt);
            self.round_trip_propagation_stamp = now;
        }
        is_expired
    }

    /// `BBRCheckProbeRTT`: enters `ProbeRTT` when the minimum RTT has expired.
    fn check_probe_rtt(&mut self, now: Instant, has_rtt_expired: bool) {
        let is_probing = matches!(self.state, PathState::ProbeRtt { .. });
        if !is_probing && has_rtt_expired && !self.is_idle_restart {
            self.prior_cwnd = self.congestion_window;
            self.state = PathState::ProbeRtt { done: None };
        }
        if let PathState::ProbeRtt { done } = self.state {
            self.handle_probe_rtt(now, done);
        }
        self.is_idle_restart = false;
    }

    /// `BBRHandleProbeRTT`: the state lasts for 200 ms and one round with very little in flight.
    fn handle_probe_rtt(&mut self, now: Instant, done: Option<ProbeRttDone>) {
        // This state, not the path, limits the samples.
        self.delivery.on_app_limited(self.bytes_in_flight);
        if let Some(mut done) = done {
            done.is_round_done |= self.round.is_start;
            self.state = PathState::ProbeRtt { done: Some(done) };
            self.check_probe_rtt_done(now);
        } else if self.bytes_in_flight <= self.probe_rtt_cwnd() {
            let done = ProbeRttDone { stamp: now + PROBE_RTT_DURATION, is_round_done: false };
            self.state = PathState::ProbeRtt { done: Some(done) };
            self.round.next_delivered = self.delivery.delivered();
        }
    }

    /// Ends `ProbeRTT` if it has lasted long enough. The minimum RTT then holds for the next ten
    /// seconds.
    fn check_probe_rtt_done(&mut self, now: Instant) {
        let PathState::ProbeRtt { done: Some(done) } = self.state else { return };
        if !done.is_round_done || now <= done.stamp {
            return;
        }
        self.round_trip_propagation_stamp = now;
        self.congestion_window = self.congestion_window.max(self.prior_cwnd);
        if self.full_pipe.is_filled() {
            self.enter_probe_bw(now);
        } else {
            self.state = PathState::Startup;
        }
    }

    /// `BBRHandleRestartFromIdle`: after an idle period the sender resumes at the estimated
    /// bandwidth.
    fn handle_restart_from_idle(&mut self, now: Instant) {
        self.is_idle_restart = true;
        if let (PathState::ProbeBw { .. }, Some(bandwidth)) =
            (self.state, self.bottleneck_bandwidth)
        {
            self.pacing_rate = bandwidth;
        }
        // Nothing was in flight during the idle period, which therefore stands for a round.
        if let PathState::ProbeRtt { done: Some(done) } = self.state {
            self.state =
                PathState::ProbeRtt { done: Some(ProbeRttDone { is_round_done: true, ..done }) };
            self.check_probe_rtt_done(now);
        }
    }

    /// `BBRSetPacingRate`: the rate only grows until the pipe is full.
    fn set_pacing_rate(&mut self) {
        let Some(bandwidth) = self.bottleneck_bandwidth else { return };
        let rate = self.pacing_gain().of_rate(bandwidth);
        if self.full_pipe.is_filled() || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// `BBRSetCwnd`: sets the congestion window after `newly_acked` bytes were acknowledged.
    fn set_cwnd(&mut self, newly_acked: ByteCount) {
        let target = self.in_flight_target(self.cwnd_gain()) + self.extra_acked();
        let target = target.max(self.paused_target()).max(self.jitter_target());
        let grown = self.congestion_window + newly_acked;
        if self.full_pipe.is_filled() {
            self.congestion_window = grown.min(target);
        } else if self.congestion_window < target
            || self.delivery.delivered() < self.initial_window()
        {
            self.congestion_window = grown;
        }
        if let Some(bound) = self.overflow.bound() {
            let least = self.in_flight_target(Factor::ONE);
            self.congestion_window = self.congestion_window.min(bound.max(least));
        }
        self.congestion_window = self.congestion_window.max(self.min_pipe_cwnd());
        if matches!(self.state, PathState::ProbeRtt { .. }) {
            self.congestion_window = self.congestion_window.min(self.probe_rtt_cwnd());
        }
    }

    /// `BBRInflight`: the bandwidth-delay product times a gain, plus room for the packets that
    /// hosts send, receive and acknowledge in batches.
    fn in_flight_target(&self, gain: Factor) -> ByteCount {
        let (Some(bandwidth), Some(rtt)) = (self.bottleneck_bandwidth, self.round_trip_propagation)
        else {
            return self.initial_window();
        };
        let quanta = self.quantum().saturating_mul(3);
        gain.of_bytes(bandwidth.bytes_in(rtt)) + quanta
    }

    /// `BBRSetSendQuantum`: the number of bytes that may be sent back to back.
    fn quantum(&self) -> ByteCount {
        const SLOW: Rate = Rate::from_bps(1_200_000).expect("not zero");
        const FAST: Rate = Rate::from_mbps(24);
        const MAX: ByteCount = ByteCount::new(65_536);
        match self.pacing_rate {
            rate if rate < SLOW => self.max_datagram_size,
            rate if rate < FAST => self.max_datagram_size.saturating_mul(2),
            rate => rate.bytes_in(Duration::from_millis(1)).min(MAX),
        }
    }

    fn pacing_gain(&self) -> Factor {
        match self.state {
            PathState::Startup => gain::HIGH,
            PathState::Drain => gain::DRAIN,
            PathState::ProbeRtt { .. } => Factor::ONE,
            PathState::ProbeBw { cycle_index, .. } => {
                let up = self.caution.gain(Factor::from_percent(self.config.up_gain_percent));
                match cycle_index {
                    0 => up,
                    1 => gain::drained_by(up),
                    4 if up > gain::FULL_BANDWIDTH => gain::FULL_BANDWIDTH,
                    _ => Factor::ONE,
                }
            }
        }
    }

    fn cwnd_gain(&self) -> Factor {
        match self.state {
            PathState::Startup | PathState::Drain => gain::HIGH,
            PathState::ProbeBw { .. } => gain::CWND,
            PathState::ProbeRtt { .. } => Factor::ONE,
        }
    }

    fn min_pipe_cwnd(&self) -> ByteCount {
        self.max_datagram_size.saturating_mul(MIN_PIPE_PACKETS)
    }

    /// Returns the congestion window of `ProbeRTT`.
    fn probe_rtt_cwnd(&self) -> ByteCount {
        let half =
            match (self.config.flavor, self.bottleneck_bandwidth, self.round_trip_propagation) {
                (Flavor::Tunnel, Some(bandwidth), Some(rtt)) => bandwidth.bytes_in(rtt / 2),
                _ => ByteCount::ZERO,
            };
        half.max(self.min_pipe_cwnd())
    }

    /// `BBRInitPacingRate`: the pacing rate before the first bandwidth sample.
    fn initial_pacing_rate(&self, rtt: Duration) -> Rate {
        let rtt = rtt.max(Duration::from_millis(1));
        Rate::average(self.initial_window(), rtt)
            .map_or(Rate::from_mbps(1), |rate| gain::HIGH.of_rate(rate))
    }
}

impl Algorithm for Bbr1 {
    fn on_packet_sent(&mut self, sent: Sent) {
        if self.bytes_in_flight.is_zero() && self.delivery.is_app_limited() {
            self.handle_restart_from_idle(sent.now);
        }
        self.delivery.on_packet_sent(sent, self.bytes_in_flight);
        self.bytes_in_flight += sent.bytes;
    }

    fn on_ack(&mut self, ack: Ack) {
        self.newly_acked += ack.bytes;
        self.delivery.on_ack(&ack);
    }

    fn on_acks_end(&mut self, end: AcksEnd) {
        let prior_in_flight = self.bytes_in_flight;
        self.bytes_in_flight = end.bytes_in_flight;
        if self.config.flavor == Flavor::Tunnel
            && let Some(rtt) = self.round_trip_propagation
        {
            self.delivery.forgive_standstill(end.now, rtt + STANDSTILL_AFTER);
        }
        if let Some(sample) = self.delivery.on_acks_end(end.now) {
            self.update_round(&sample);
            self.update_bottleneck_bandwidth(&sample);
            self.update_aggregation(end.now);
            self.check_overflow(&sample, prior_in_flight);
            self.check_cycle_phase(end.now, prior_in_flight);
            self.check_full_pipe(&sample);
            self.check_drain(end.now);
            let has_rtt_expired = self.update_round_trip_propagation(end.now, sample.rtt);
            self.check_probe_rtt(end.now, has_rtt_expired);
            self.set_pacing_rate();
            self.set_cwnd(self.newly_acked);
        }
        self.newly_acked = ByteCount::ZERO;
        self.newly_lost = ByteCount::ZERO;
        if end.is_app_limited {
            self.delivery.on_app_limited(end.bytes_in_flight);
        }
    }

    fn on_packet_lost(&mut self, lost: Lost) {
        self.newly_lost += lost.bytes;
        self.overflow.on_lost(lost.bytes);
        self.bytes_in_flight -= lost.bytes;
        self.delivery.on_packet_lost(&lost);
    }

    fn on_congestion_event(&mut self, event: CongestionEvent) {
        match event.signal {
            CongestionSignal::Loss | CongestionSignal::Ecn => {}
            CongestionSignal::PersistentLoss => {
                // The window restarts at its minimum. Acknowledgements let it grow back to the
                // target of the bandwidth estimate. Startup restarts its measurement of growth.
                self.congestion_window = self.min_pipe_cwnd();
                self.full_pipe.restart();
            }
        }
    }

    fn on_mtu_update(&mut self, max_datagram_size: ByteCount) {
        self.max_datagram_size = max_datagram_size;
        self.congestion_window = self.congestion_window.max(self.min_pipe_cwnd());
    }

    fn congestion_window(&self) -> ByteCount {
        self.congestion_window
    }

    fn initial_window(&self) -> ByteCount {
        let packets = u64::from(self.config.initial_window_packets).max(MIN_PIPE_PACKETS);
        self.max_datagram_size.saturating_mul(packets)
    }

    /// Returns the bandwidth-delay product with room for batches, once Startup has ended, as in
    /// Linux.
    fn ssthresh(&self) -> Option<ByteCount> {
        self.full_pipe.is_filled().then(|| self.in_flight_target(Factor::ONE))
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.pacing_rate)
    }

    fn send_quantum(&self) -> Option<ByteCount> {
        Some(self.quantum())
    }

    fn bandwidth_estimate(&self) -> Option<Rate> {
        self.bottleneck_bandwidth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: ByteCount = ByteCount::new(1452);

    #[test]
    fn the_cycle_drains_what_its_first_phase_queued() {
        for (up_gain_percent, gains) in [
            (100, [1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000]),
            (125, [1250, 750, 1000, 1000, 1000, 1000, 1000, 1000]),
            (150, [1500, 500, 1000, 1000, 1250, 1000, 1000, 1000]),
            (200, [2000, 500, 1000, 1000, 1250, 1000, 1000, 1000]),
        ] {
            let now = crate::test_start();
            let config = Bbr1Config { up_gain_percent, ..Bbr1Config::default() };
            let mut controller = Bbr1::new(config, now, DATAGRAM);
            let cycle = std::array::from_fn(|cycle_index| {
                controller.state = PathState::ProbeBw { cycle_index, cycle_stamp: now };
                controller.pacing_gain().thousandths()
            });
            assert_eq!(cycle, gains, "{up_gain_percent} %");
        }
    }

    #[test]
    fn flows_enter_the_cycle_in_every_phase_but_the_one_that_drains() {
        let now = crate::test_start();
        let mut entered = [0; CYCLE_LENGTH];
        for seed in 0..100 {
            let config = Bbr1Config { seed, ..Bbr1Config::default() };
            let mut controller = Bbr1::new(config, now, DATAGRAM);
            controller.enter_probe_bw(now);
            let PathState::ProbeBw { cycle_index, .. } = controller.state else { panic!("{seed}") };
            entered[cycle_index] += 1;
        }
        assert_eq!(entered[1], 0);
        assert!(entered.iter().enumerate().all(|(phase, flows)| phase == 1 || *flows > 0));
    }

    #[test]
    fn the_first_flight_is_neither_delayed_nor_a_burst() {
        for packets in [10, 32] {
            let config = Bbr1Config { initial_window_packets: packets, ..Bbr1Config::default() };
            let controller = Bbr1::new(config, crate::test_start(), DATAGRAM);
            let rate = controller.pacing_rate().expect("BBR paces");
            let flight = rate.time_to_send(controller.congestion_window());
            assert!(flight > Duration::from_millis(3), "{flight:?}");
            assert!(flight < Duration::from_millis(4), "{flight:?}");
        }
    }
}

//! Algorithm 1 of TECC (NSDI '24, §4.2.4): the sending rate and the congestion window that follow
//! from a tunnel's reports.
//!
//! The names of the paper: Tr is the tunnel's sending rate, q(t) its queue, r(t) its retransmission
//! ratio, U the utilisation of the tunnel that the origin aims at, Sr the origin's sending rate,
//! `T_s` the end-to-end RTT and `T_l` the tunnel's RTT.

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::TunnelInfo;

use super::{
    config::{Leg, RetransmissionUnits, TeccConfig, WindowRtt},
    guard::{BehindProxy, E2eDelays, Trust},
    is_older,
};
use crate::{Ack, Applied, Factor};

/// The window holds this number of full packets in addition to the bandwidth-delay product.
const WINDOW_EXTRA: u64 = 3;

/// During this number of rounds the window may reach [`TeccConfig::first_flight`], although no
/// acknowledgement confirms yet that the path carries it.
const FIRST_ROUNDS: u32 = 3;

/// The limit of the bytes in flight as a multiple of the acknowledged rate times the least RTT.
/// Slow start sends two bytes for each acknowledged byte; this limit is twice as high.
const TRUST: Factor = Factor::from_percent(400);

/// The same limit after reports have proved wrong.
const SHAKEN_TRUST: Factor = Factor::from_percent(125);

/// The limit of the bytes in flight as a multiple of the acknowledged rate times the least RTT and the time for
/// which packets wait in the tunnel. Acknowledgements confirm that time, so that slow start would send as many bytes.
const QUEUE_TRUST: Factor = Factor::from_percent(200);

/// The most retransmissions of one packet for which the window has room.
const REPAIRS_MAX: f64 = 3.0;

/// The lifetime of a report in smoothed end-to-end RTTs.
const LIFETIME_RTTS: u32 = 2;

/// The least lifetime of a report, for RTTs that are shorter than the time between reports.
const LIFETIME_LEAST: Duration = Duration::from_millis(20);

/// If neither a report nor an acknowledgement arrives for longer than this, the tunnel's link is
/// taken to be interrupted.
const SILENCE_LEAST: Duration = Duration::from_millis(100);

/// After a round with an interruption, the rate that this round reached outside the interruption
/// stands for the path's rate during this number of further rounds.
const SILENT_ROUNDS: u32 = 3;

/// The end-to-end RTT that is assumed until the connection has measured one.
const NOMINAL_RTT: Duration = Duration::from_millis(100);

/// What one packet-timed end-to-end round trip has acknowledged so far.
#[derive(Clone, Copy, Debug, Default)]
struct AckedRound {
    since: Option<Instant>,
    acked: ByteCount,
    /// The time for which the link was interrupted.
    silence: Duration,
}

impl AckedRound {
    fn beginning(now: Instant) -> Self {
        Self { since: Some(now), ..Self::default() }
    }

    /// Returns the acknowledged rate over the time in which the link was not interrupted, or `None`
    /// if the link was never interrupted.
    fn outside_silence(&self, now: Instant, least_rtt: Duration) -> Option<Rate> {
        let took = self.since.filter(|_| !self.silence.is_zero()).map(|since| now - since)?;
        Rate::average(self.acked, took.saturating_sub(self.silence).max(least_rtt))
    }
}

/// The state of Algorithm 1 for one connection.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// The settings, or `None` until a controller is attached.
    config: Option<TeccConfig>,
    max_datagram_size: ByteCount,
    /// The newest report and the time of its arrival.
    report: Option<(Instant, TunnelInfo)>,
    /// Whether the sender follows the report.
    is_followed: bool,
    /// The moving average of U.
    utilization: Option<f64>,
    /// Sr before any cap.
    rate: Option<Rate>,
    /// `T_s`: the least and the smoothed RTT.
    rtts: Option<(Duration, Duration)>,
    /// The least RTT since the last report.
    cycle_rtt: Option<Duration>,
    /// The bandwidth estimate of BBR, which follows from acknowledgements.
    acked_rate: Option<Rate>,
    /// The time of the last report or acknowledgement.
    last_contact: Option<Instant>,
    /// The longest interruption since the last report.
    cycle_silence: Duration,
    round: AckedRound,
    /// The rate of the last interrupted round outside its interruption, and the number of further
    /// rounds for which it holds.
    outside_silence: Option<(Rate, u32)>,
    /// The number of rounds in which the sender followed reports.
    rounds: u32,
    behind_proxy: BehindProxy,
    trust: Trust,
    /// Whether reports have lately proved wrong.
    is_shaken: bool,
}

impl Control {
    pub(super) fn attach(&mut self, config: TeccConfig, max_datagram_size: ByteCount) {
        self.config = Some(config);
        self.max_datagram_size = max_datagram_size;
    }

    pub(crate) fn apply(&mut self, now: Instant, info: &TunnelInfo) -> Applied {
        let Some(config) = self.config else { return Applied::NotListening };
        if self.report.is_some_and(|(_, last)| info.sequence <= last.sequence) {
            return Applied::Stale;
        }
        self.note_contact(now);
        let rate = self.sending_rate(&config, info);
        self.rate = Some(rate);
        if config.has_guard {
            let (least_rtt, smoothed_rtt) = self.rtts();
            let cycle_rtt = self.cycle_rtt.take();
            let silence = std::mem::take(&mut self.cycle_silence);
            let delays = E2eDelays { least_rtt, smoothed_rtt, cycle_rtt, silence };
            self.behind_proxy.on_report(now, info, rate, delays);
        }
        self.report = Some((now, *info));
        self.follow(now);
        Applied::Used
    }

    /// Computes Sr from a report: Algorithm 1, lines 2 to 5.
    fn sending_rate(&mut self, config: &TeccConfig, info: &TunnelInfo) -> Rate {
        let (_, smoothed) = self.rtts();
        let leg = match config.theta_leg {
            Leg::EndToEnd => smoothed,
            Leg::Tunnel => info.smoothed_rtt,
        };
        let theta = config.theta.get() * leg.as_secs_f64().max(0.001);
        let tunnel_rate = to_f64(info.sending_rate.bits_per_second()) / 8.0;
        let queue = to_f64(info.queue.get()) - config.queue_target.as_secs_f64() * tunnel_rate;
        let again = config.delta.get() * info.retransmit_ratio.as_f64() * tunnel_rate;
        let again = match config.units {
            RetransmissionUnits::Theta => again * theta,
            RetransmissionUnits::Literal => again,
        };
        let excess = (queue + again) / (theta * tunnel_rate);
        let least = 1.0 - config.max_penalty.get();
        // While a tunnel is in slow start or Startup, its sending rate is above the bandwidth that
        // it has measured.
        let is_starting = info.bandwidth.is_some_and(|seen| seen < info.sending_rate);
        let most = if is_starting { 1.0 } else { config.max_utilization.get() };
        let newest = (1.0 - excess).clamp(least, most);
        let weight = config.ewma_weight.get();
        let before = self.utilization.unwrap_or(newest);
        let utilization = (1.0 - weight) * before + weight * newest;
        self.utilization = Some(utilization);
        let additive = config.additive_increase.get() * to_f64(self.max_datagram_size.get())
            / smoothed.as_secs_f64().max(0.001);
        to_rate((utilization * tunnel_rate + additive) * 8.0)
    }

    pub(super) fn on_sent(&mut self, now: Instant) {
        self.follow(now);
    }

    /// Notes that a report or an acknowledgement has arrived from the client.
    fn note_contact(&mut self, now: Instant) {
        let silence = self.last_contact.replace(now).map_or(Duration::ZERO, |last| now - last);
        if silence > SILENCE_LEAST {
            self.cycle_silence = self.cycle_silence.max(silence);
            self.round.silence += silence;
        }
    }

    pub(super) fn on_ack(&mut self, ack: &Ack) {
        self.note_contact(ack.now);
        let latest = ack.latest_rtt();
        let least = self.rtts.map_or(latest, |(least, _)| least.min(latest));
        self.rtts = Some((least, ack.smoothed_rtt));
        self.cycle_rtt = Some(self.cycle_rtt.map_or(latest, |least| least.min(latest)));
        self.round.acked += ack.bytes;
        self.trust.on_acked(ack.bytes);
    }

    pub(super) fn on_acks_end(&mut self, now: Instant, is_round: bool, acked: Option<Rate>) {
        self.acked_rate = acked;
        if is_round {
            let round = std::mem::replace(&mut self.round, AckedRound::beginning(now));
            let before =
                self.outside_silence.and_then(|(rate, left)| Some((rate, left.checked_sub(1)?)));
            let newest =
                round.outside_silence(now, self.least_rtt()).map(|rate| (rate, SILENT_ROUNDS));
            self.outside_silence = newest.or(before);
        }
        if is_round && self.is_followed {
            self.rounds = self.rounds.saturating_add(1);
        }
        self.follow(now);
    }

    pub(super) fn on_lost(&mut self, now: Instant, bytes: ByteCount) {
        let (_, smoothed) = self.rtts();
        self.trust.on_lost(now, bytes, (smoothed, self.acked_rate));
    }

    pub(super) fn forget_report(&mut self) {
        self.is_followed = false;
        self.rate = None;
    }

    pub(super) fn set_max_datagram_size(&mut self, bytes: ByteCount) {
        self.max_datagram_size = bytes;
    }

    /// Determines whether the sender still follows the report.
    fn follow(&mut self, now: Instant) {
        let has_guard = self.config.is_some_and(|config| config.has_guard);
        let lifetime = self.lifetime();
        self.is_followed = self.rate.is_some()
            && self.report.is_some_and(|(came, _)| !is_older(now, came, lifetime))
            && (!has_guard || self.trust.holds(now));
        self.is_shaken = self.trust.is_shaken(now);
        if self.is_followed {
            self.trust.on_followed(now);
        }
    }

    fn lifetime(&self) -> Duration {
        let (_, smoothed) = self.rtts();
        smoothed.saturating_mul(LIFETIME_RTTS).max(LIFETIME_LEAST)
    }

    /// Returns `T_s`, the least and the smoothed RTT.
    fn rtts(&self) -> (Duration, Duration) {
        self.rtts.unwrap_or((NOMINAL_RTT, NOMINAL_RTT))
    }

    fn least_rtt(&self) -> Duration {
        self.rtts().0
    }

    /// Returns the bytes that acknowledgements allow in flight: the limit of every window that
    /// follows from reports. `waiting` is the time beyond the least RTT for which packets wait in the tunnel.
    fn trusted_window(&self, config: &TeccConfig, waiting: Duration) -> ByteCount {
        let rate = self.acked_rate.max(self.outside_silence.map(|(rate, _)| rate));
        let in_flight = |time| rate.map_or(ByteCount::ZERO, |rate| rate.bytes_in(time));
        let least = self.least_rtt();
        let with_waiting = in_flight(least + self.confirmed(waiting));
        let trusted = if config.has_guard && self.is_shaken {
            SHAKEN_TRUST.of_bytes(with_waiting)
        } else {
            TRUST.of_bytes(in_flight(least)).max(QUEUE_TRUST.of_bytes(with_waiting))
        };
        if self.rounds < FIRST_ROUNDS { trusted.max(config.first_flight) } else { trusted }
    }

    /// Returns a delay of which reports speak, as far as the end-to-end RTT confirms it.
    fn confirmed(&self, delay: Duration) -> Duration {
        let (least, smoothed) = self.rtts();
        delay.min(smoothed.saturating_sub(least))
    }

    /// Returns the delay of queues that the window covers. Where other flows fill the queue of the tunnel's
    /// bottleneck, a window without it would be smaller than what the tunnel could send, the tunnel would take
    /// its own rate for smaller, and so on down. The proxy's queue tells this from a link that has become
    /// slower: there it grows, and a larger window would only make it longer.
    fn in_queues(&self, config: &TeccConfig) -> Duration {
        let report = self.report.map(|(_, info)| info);
        let is_short =
            |info: &TunnelInfo| info.queue < info.sending_rate.bytes_in(config.queue_target);
        report.filter(is_short).map_or(Duration::ZERO, |info| {
            self.confirmed(info.smoothed_rtt.saturating_sub(info.min_rtt))
        })
    }

    /// Returns Sr after all caps, or `None` if the sender follows no report.
    pub(super) fn rate(&self) -> Option<Rate> {
        let config = self.config.filter(|_| self.is_followed)?;
        let rate = self.rate?;
        let cap = Rate::average(self.trusted_window(&config, Duration::ZERO), self.least_rtt())?;
        let caps = [Some(cap), self.behind_proxy.cap()];
        Some(caps.into_iter().flatten().fold(rate, Rate::min))
    }

    /// Returns how long packets wait at the tunnel's exit for one that is lost.
    fn at_exit(&self) -> Duration {
        let report = self.report.map(|(_, info)| info);
        let repairing = report.filter(|info| info.retransmit_ratio > Ratio::ZERO);
        repairing.map_or(Duration::ZERO, |info| info.min_rtt.mul_f64(self.repairs(&info)))
    }

    /// Returns how many retransmissions the last of the packets needs that the tunnel sends in one RTT, at least
    /// one. Of n packets, n r are lost, n r^2 are lost twice, and so on until n r^k is one: k is log n / -log r.
    fn repairs(&self, info: &TunnelInfo) -> f64 {
        let bytes = info.sending_rate.bytes_in(info.min_rtt);
        let packets = to_f64(bytes.get()) / to_f64(self.max_datagram_size.get().max(1));
        // A ratio of one would be without a logarithm to divide by.
        let lost = info.retransmit_ratio.as_f64().clamp(1e-6, 0.9);
        (packets.max(1.0).ln() / -lost.ln()).clamp(1.0, REPAIRS_MAX)
    }

    /// Returns the congestion window, or `None` if the sender follows no report.
    pub(super) fn window(&self) -> Option<ByteCount> {
        let config = self.config.filter(|_| self.is_followed)?;
        let (least, smoothed) = self.rtts();
        let rtt = match config.window_rtt {
            WindowRtt::Least => least,
            WindowRtt::Smoothed => smoothed,
        };
        let extra = self.max_datagram_size.saturating_mul(WINDOW_EXTRA);
        // The window must not keep the tunnel's queue from its target. On a path whose tunnel is most of
        // it, packets wait for a retransmission about as long as the path's RTT.
        let waiting = self.in_queues(&config) + self.at_exit();
        let least = rtt + config.queue_target + waiting;
        let time = rtt.mul_f64(config.window.get()).max(least);
        let wanted = self.rate()?.bytes_in(time) + extra;
        Some(wanted.min(self.trusted_window(&config, waiting)).max(extra + self.max_datagram_size))
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates and sizes are far below 2^52")]
const fn to_f64(number: u64) -> f64 {
    number as f64
}

/// Rounds down to whole bits per second, to at least 1 bit/s and at most 10^15 bit/s.
fn to_rate(bits_per_second: f64) -> Rate {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let bits_per_second = bits_per_second.clamp(1.0, 1e15) as u64;
    Rate::from_bps(bits_per_second).unwrap_or(Rate::from_mbps(1))
}

#[cfg(test)]
mod tests {
    use tandem_wire::VarInt;

    use super::*;
    use crate::test_start;

    const MS: Duration = Duration::from_millis(1);
    const RATE: Rate = Rate::from_mbps(10);

    /// The state after an acknowledgement with this RTT, on a path with a least RTT of 80 ms and this
    /// acknowledged rate, and then a report.
    fn control(rtt: Duration, info: &TunnelInfo) -> Control {
        let now = test_start() + 10_000 * MS;
        let mut control = Control::default();
        control.attach(TeccConfig::default(), ByteCount::new(1200));
        control.rounds = FIRST_ROUNDS;
        for latest in [80 * MS, rtt] {
            control.on_ack(&Ack {
                now,
                sent: now.checked_sub(latest).unwrap(),
                packet_number: 0,
                bytes: ByteCount::new(1200),
                is_app_limited: false,
                smoothed_rtt: latest,
                min_rtt: 80 * MS,
            });
        }
        control.on_acks_end(now, false, Some(RATE));
        assert_eq!(control.apply(now, info), Applied::Used);
        control
    }

    /// A report on a tunnel of 10 Mbit/s with a least RTT of 40 ms.
    fn info(smoothed_rtt: Duration, queue: u64) -> TunnelInfo {
        TunnelInfo {
            sequence: VarInt::from_u32(1),
            sending_rate: RATE,
            bandwidth: Some(RATE),
            queue: ByteCount::new(queue),
            retransmit_ratio: Ratio::ZERO,
            min_rtt: 40 * MS,
            smoothed_rtt,
            arrival_rate: Some(RATE),
        }
    }

    /// The time in which the sending rate sends the window, in ms, without the three packets that it has in addition.
    fn window_ms(control: &Control) -> u64 {
        let window = control.window().unwrap() - ByteCount::new(3600);
        let time = control.rate().unwrap().time_to_send(window);
        u64::try_from(time.as_millis()).unwrap()
    }

    #[test]
    fn the_window_covers_the_queue_of_others_while_the_proxys_queue_is_short() {
        // The end-to-end RTT, T_l, both in ms, q in bytes (the target is 50 kB), and the time that the window lasts.
        for (rtt, smoothed, queue, expected) in [
            (80, 40, 0, 160),
            (120, 80, 0, 160),
            // Another flow keeps 200 ms in the bottleneck: 80 + 40 + 200.
            (280, 240, 0, 320),
            (480, 440, 49_000, 520),
            // The tunnel has enough to send.
            (280, 240, 50_000, 160),
            (280, 240, 500_000, 160),
            // The end-to-end RTT confirms only 100 ms of what the report says.
            (180, 60_000, 0, 220),
            (80, 60_000, 0, 160),
        ] {
            let control = control(rtt * MS, &info(u32::try_from(smoothed).unwrap() * MS, queue));
            let seen = window_ms(&control);
            assert!(seen.abs_diff(expected) <= 1, "{rtt} {smoothed} {queue}: {seen} ms");
        }
    }

    #[test]
    fn the_window_covers_the_retransmissions_of_packets_that_are_lost_again() {
        // Tr in Mbit/s, r in per cent, and the retransmissions. The tunnel's least RTT is 40 ms, so that its
        // packets in an RTT are 4, 42, 417 and 4167.
        for (mbps, percent, expected) in [
            (1, 5, 1.0),
            (10, 5, 1.25),
            (100, 5, 2.01),
            (100, 1, 1.31),
            (1000, 5, 2.78),
            (1000, 10, 3.0),
            (1, 100, 3.0),
        ] {
            let repairing = TunnelInfo {
                sending_rate: Rate::from_mbps(mbps),
                retransmit_ratio: Ratio::of(percent, 100),
                ..info(40 * MS, 0)
            };
            let control = control(400 * MS, &repairing);
            let seen = control.at_exit().as_secs_f64() / 0.04;
            assert!((seen - expected).abs() < 0.01, "{mbps} Mbit/s, {percent} %: {seen}");
        }
        let nothing_lost = control(400 * MS, &info(40 * MS, 0));
        assert_eq!(nothing_lost.at_exit(), Duration::ZERO);
    }

    #[test]
    fn a_window_in_doubt_has_room_for_packets_that_wait_for_a_repair() {
        let repairing = TunnelInfo { retransmit_ratio: Ratio::of(1, 100), ..info(40 * MS, 0) };
        // The end-to-end RTT in ms, and the bytes: 1.25 times 10 Mbit/s in 80 ms, or in 120 ms.
        for (rtt, expected) in [(80, 125_000), (120, 187_500), (400, 187_500)] {
            let mut control = control(rtt * MS, &repairing);
            control.is_shaken = true;
            control.rate = Some(Rate::from_mbps(100));
            assert_eq!(control.window().unwrap().get(), expected, "{rtt} ms");
        }
    }
}

//! Tests of the controllers on a small model of a link, without a QUIC library.

mod link;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use link::{Link, LinkConfig};
use tandem_congestion::{
    Ack, AcksEnd, Algorithm, Bbr1, Bbr1Config, CongestionEvent, CongestionSignal, Flavor, Lost,
    NewReno, Sent,
};
use tandem_units::{ByteCount, Rate, Ratio};

const DATAGRAM: ByteCount = ByteCount::new(1452);
const RTT: Duration = Duration::from_millis(140);
/// A packet is lost when the third one after it is acknowledged (RFC 9002 §6.1.1).
const PACKET_THRESHOLD: u64 = 3;
/// If no acknowledgement arrives for this time, everything in flight is lost.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A sender, its link and its receiver. The receiver acknowledges every packet, and ACKs are never
/// lost.
struct Flow {
    algorithm: Box<dyn Algorithm>,
    link: Link,
    now: Instant,
    in_flight: BTreeMap<u64, Instant>,
    next_packet_number: u64,
    /// The time at which each ACK arrives, and the packet that it acknowledges.
    acks: VecDeque<(Instant, u64)>,
    last_ack: Instant,
    /// The earliest time at which the pacer releases the next packet.
    next_send: Instant,
    smoothed_rtt: Duration,
    /// The rate at which the application writes; `None` if it always has data.
    application: Option<Rate>,
    /// The time at which the application has its next datagram.
    next_write: Instant,
    delivered: ByteCount,
    lost: ByteCount,
}

impl Flow {
    fn new(link: LinkConfig, new: impl FnOnce(Instant) -> Box<dyn Algorithm>, seed: u64) -> Self {
        let start = start();
        Self {
            algorithm: new(start),
            link: Link::new(link, start, seed),
            now: start,
            in_flight: BTreeMap::new(),
            next_packet_number: 0,
            acks: VecDeque::new(),
            last_ack: start,
            next_send: start,
            smoothed_rtt: Duration::from_millis(333),
            application: None,
            next_write: start,
            delivered: ByteCount::ZERO,
            lost: ByteCount::ZERO,
        }
    }

    fn bbr1(link: LinkConfig, config: Bbr1Config) -> Self {
        let seed = config.seed;
        Self::new(link, |now| Box::new(Bbr1::new(config, now, DATAGRAM)), seed)
    }

    /// Changes the rate at which the application writes.
    fn write_at(&mut self, application: Option<Rate>) {
        self.application = application;
        self.next_write = self.now;
    }

    /// Returns the goodput of the next seconds, in thousandths of `rate`.
    fn goodput_permille(&mut self, rate: Rate, seconds: u64) -> u64 {
        let (before, from) = (self.delivered, self.now);
        self.run_for(Duration::from_secs(seconds));
        let possible = rate.bytes_in(self.now - from);
        (self.delivered - before).mul_div_floor(ByteCount::new(1000), possible).get()
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.send(end);
            let mut next = end;
            if let Some((ack, _)) = self.acks.front() {
                next = next.min(*ack);
            }
            if !self.in_flight.is_empty() {
                next = next.min(self.last_ack + TIMEOUT);
            }
            if self.has_window() {
                next = next.min(self.next_send.max(self.next_write));
            }
            self.now = next.max(self.now);
            match self.acks.front() {
                Some(&(ack, packet_number)) if ack <= self.now => {
                    self.acks.pop_front();
                    self.acknowledge(packet_number);
                }
                _ if self.now >= self.last_ack + TIMEOUT && !self.in_flight.is_empty() => {
                    self.lose_below(u64::MAX, CongestionSignal::PersistentLoss);
                    self.last_ack = self.now;
                }
                _ => {}
            }
        }
    }

    fn bytes_in_flight(&self) -> ByteCount {
        DATAGRAM.saturating_mul(self.in_flight.len() as u64)
    }

    fn has_window(&self) -> bool {
        self.bytes_in_flight() + DATAGRAM <= self.algorithm.congestion_window()
    }

    fn is_app_limited(&self) -> bool {
        self.next_write > self.now
    }

    fn send(&mut self, end: Instant) {
        while self.has_window() && self.next_send <= self.now && !self.is_app_limited() {
            let packet_number = self.next_packet_number;
            self.next_packet_number += 1;
            if self.in_flight.is_empty() {
                self.last_ack = self.now;
            }
            self.in_flight.insert(packet_number, self.now);
            let sent = Sent { now: self.now, packet_number, bytes: DATAGRAM };
            self.algorithm.on_packet_sent(sent);
            if let Some(arrival) = self.link.carry(self.now, DATAGRAM) {
                self.acks.push_back((arrival + RTT / 2, packet_number));
            }
            self.next_send = self.next_send.max(self.now) + self.pace();
            if let Some(rate) = self.application {
                self.next_write += rate.time_to_send(DATAGRAM);
            }
            assert!(self.now <= end);
        }
    }

    /// Returns the time between two datagrams. Without a pacing rate, the sender sends 1.25 windows
    /// per round trip.
    fn pace(&self) -> Duration {
        let window = self.algorithm.congestion_window().get();
        let rate = self
            .algorithm
            .pacing_rate()
            .or_else(|| Rate::average(ByteCount::new(window + window / 4), self.smoothed_rtt));
        rate.map_or(Duration::ZERO, |rate| rate.time_to_send(DATAGRAM))
    }

    fn acknowledge(&mut self, packet_number: u64) {
        let Some(sent) = self.in_flight.remove(&packet_number) else { return };
        let (now, is_app_limited) = (self.now, self.is_app_limited());
        self.last_ack = now;
        self.delivered += DATAGRAM;
        self.algorithm.on_ack(Ack {
            now,
            sent,
            packet_number,
            bytes: DATAGRAM,
            is_app_limited,
            smoothed_rtt: self.smoothed_rtt,
            min_rtt: RTT,
        });
        self.smoothed_rtt = (self.smoothed_rtt * 7 + (now - sent)) / 8;
        let bytes_in_flight = self.bytes_in_flight();
        let largest_acked = Some(packet_number);
        self.algorithm.on_acks_end(AcksEnd { now, bytes_in_flight, is_app_limited, largest_acked });
        let below = (packet_number + 1).saturating_sub(PACKET_THRESHOLD);
        self.lose_below(below, CongestionSignal::Loss);
    }

    fn lose_below(&mut self, packet_number: u64, signal: CongestionSignal) {
        let now = self.now;
        let mut lost = ByteCount::ZERO;
        let mut newest = None;
        while let Some(packet) = self.in_flight.first_entry()
            && *packet.key() < packet_number
        {
            let (packet_number, sent) = packet.remove_entry();
            self.algorithm.on_packet_lost(Lost { now, packet_number, bytes: DATAGRAM });
            lost += DATAGRAM;
            newest = Some((packet_number, sent));
        }
        self.lost += lost;
        if let Some((packet_number, sent)) = newest {
            let event = CongestionEvent { now, signal, sent, packet_number, lost };
            self.algorithm.on_congestion_event(event);
        }
    }

    fn window_packets(&self) -> u64 {
        self.algorithm.congestion_window().get() / DATAGRAM.get()
    }

    fn estimate(&self) -> Rate {
        self.algorithm.bandwidth_estimate().expect("packets were acknowledged")
    }
}

#[expect(clippy::disallowed_methods, reason = "a world needs one time to count from")]
fn start() -> Instant {
    Instant::now()
}

/// A link of `RTT` whose queue holds two bandwidth-delay products.
fn link(rate: Rate, loss_percent: u64) -> LinkConfig {
    let queue = rate.bytes_in(2 * RTT).max(DATAGRAM.saturating_mul(10));
    LinkConfig { rate, delay: RTT / 2, queue, loss: Ratio::of(loss_percent, 100) }
}

const TEN: Rate = Rate::from_mbps(10);

fn seeded(seed: u64) -> Bbr1Config {
    Bbr1Config { seed, ..Bbr1Config::default() }
}

#[test]
fn bbr1_fills_a_lossy_link() {
    // Shares are in thousandths of the goodput that the loss allows. Loss lowers each delivery-rate
    // sample. The maximum over ten rounds compensates for that at low loss rates, because random
    // loss varies between rounds.
    for (up_gain_percent, shares) in [
        (125, [(0, 950), (1, 950), (5, 950), (10, 920), (15, 870)]),
        (200, [(0, 950), (1, 950), (5, 950), (10, 950), (15, 950)]),
    ] {
        for (loss_percent, at_least) in shares {
            let config = Bbr1Config { up_gain_percent, ..seeded(1) };
            let mut flow = Flow::bbr1(link(TEN, loss_percent), config);
            let share = flow.goodput_permille(TEN, 60) * 100 / (100 - loss_percent);
            println!("gain {up_gain_percent} %, loss {loss_percent} %: {share}");
            assert!(share >= at_least, "gain {up_gain_percent} %, loss {loss_percent} %: {share}");
        }
    }
}

#[test]
fn bbr1_works_from_1_mbps_to_1_gbps() {
    for (mbps, seconds) in [(1, 60), (100, 10), (1000, 5)] {
        let rate = Rate::from_mbps(mbps);
        let mut flow = Flow::bbr1(link(rate, 0), seeded(2));
        flow.run_for(Duration::from_secs(3));
        let goodput = flow.goodput_permille(rate, seconds);
        println!("{mbps} Mbit/s: {goodput}");
        assert!(goodput >= 930, "{mbps} Mbit/s: {goodput}");
    }
}

#[test]
fn bbr1_does_not_fill_a_deep_queue() {
    let deep = LinkConfig { queue: TEN.bytes_in(10 * RTT), ..link(TEN, 0) };
    let mut flow = Flow::bbr1(deep, seeded(3));
    flow.run_for(Duration::from_secs(5));
    // ProbeBW allows two bandwidth-delay products in flight; one of them is in the queue.
    flow.link.longest_queue = ByteCount::ZERO;
    flow.run_for(Duration::from_secs(60));
    let (queue, bdp) = (flow.link.longest_queue, TEN.bytes_in(RTT));
    println!("longest queue {queue}, one bandwidth-delay product is {bdp}");
    assert!(queue <= bdp + DATAGRAM.saturating_mul(10), "{queue}");
}

#[test]
fn bbr1_sends_at_the_known_rate_after_a_pause() {
    let mut flow = Flow::bbr1(link(TEN, 1), seeded(4));
    flow.run_for(Duration::from_secs(8));
    for pause in [1, 30] {
        flow.write_at(Rate::from_bps(1)); // one datagram in three hours
        flow.run_for(Duration::from_secs(pause));
        flow.link.longest_queue = ByteCount::ZERO;
        flow.write_at(None);
        flow.run_for(RTT * 2);
        let queue = flow.link.longest_queue;
        assert!(queue <= DATAGRAM.saturating_mul(40), "a burst of {queue} after {pause} s");
        let goodput = flow.goodput_permille(TEN, 4);
        println!("after {pause} s: {goodput}, queue {queue}");
        assert!(goodput >= 900, "after {pause} s: {goodput}");
    }
}

#[test]
fn bbr1_does_not_take_the_application_for_the_path() {
    let mut flow = Flow::bbr1(link(TEN, 1), seeded(5));
    flow.run_for(Duration::from_secs(8));
    let before = flow.estimate();
    flow.write_at(Some(Rate::from_mbps(1)));
    flow.run_for(Duration::from_secs(60));
    let after = flow.estimate();
    println!("{before} before, {after} after a minute at 1 Mbit/s");
    assert!(after >= Rate::from_mbps(9), "{after}");
    flow.write_at(None);
    let goodput = flow.goodput_permille(TEN, 3);
    assert!(goodput >= 900, "{goodput}");
}

#[test]
fn bbr1_leaves_startup_although_the_application_is_slow() {
    let mut flow = Flow::bbr1(link(TEN, 0), seeded(6));
    flow.write_at(Some(Rate::from_mbps(4)));
    flow.run_for(Duration::from_secs(20));
    let estimate = flow.estimate();
    let pacing_rate = flow.algorithm.pacing_rate().expect("BBR paces");
    println!("estimate {estimate}, pacing rate {pacing_rate}");
    assert!(estimate >= Rate::from_mbps(4), "{estimate}");
    assert!(pacing_rate.bits_per_second() <= estimate.bits_per_second() * 5 / 4, "{pacing_rate}");
}

/// Returns the time, in milliseconds, for which the window is at its minimum in the next seconds.
fn probe_rtt_millis(flow: &mut Flow, seconds: u64) -> u64 {
    let is_minimal = |flow: &mut Flow| {
        flow.run_for(Duration::from_millis(1));
        flow.window_packets() == 4
    };
    (0..seconds * 1000).filter(|_| is_minimal(flow)).count() as u64
}

#[test]
fn bbr1_enters_probe_rtt_only_if_necessary() {
    // A link that is always full hides its propagation delay. ProbeRTT then takes one round trip to
    // drain the queue, and 200 ms more.
    let mut flow = Flow::bbr1(link(TEN, 0), seeded(10));
    flow.run_for(Duration::from_secs(5));
    let millis = probe_rtt_millis(&mut flow, 20);
    println!("{millis} ms in 20 s");
    assert!((2 * 340..2 * 450).contains(&millis), "{millis} ms in 20 s");
    // A link that is not full shows its propagation delay all the time.
    flow.write_at(Some(Rate::from_mbps(1)));
    flow.run_for(Duration::from_secs(12));
    assert_eq!(probe_rtt_millis(&mut flow, 30), 0, "while the application is slow");
    // After a pause the first packets find an empty link.
    flow.write_at(Rate::from_bps(1));
    flow.run_for(Duration::from_secs(30));
    flow.write_at(None);
    assert_eq!(probe_rtt_millis(&mut flow, 5), 0, "after a pause");
}

#[test]
fn bbr1_recovers_after_an_outage() {
    let mut flow = Flow::bbr1(link(TEN, 0), seeded(7));
    flow.run_for(Duration::from_secs(5));
    let working = flow.link.replace_config(link(TEN, 100));
    flow.run_for(Duration::from_secs(10));
    assert_eq!(flow.window_packets(), 4, "persistent congestion");
    flow.link.replace_config(working);
    flow.run_for(Duration::from_secs(2));
    let goodput = flow.goodput_permille(TEN, 3);
    assert!(goodput >= 900, "{goodput}");
}

#[test]
fn bbr1_follows_the_rate_of_the_link() {
    let mut flow = Flow::bbr1(link(TEN, 1), seeded(8));
    flow.run_for(Duration::from_secs(5));
    for (mbps, settle_seconds) in [(2, 8), (8, 12)] {
        let rate = Rate::from_mbps(mbps);
        flow.link.replace_config(link(rate, 1));
        flow.run_for(Duration::from_secs(settle_seconds));
        let goodput = flow.goodput_permille(rate, 10);
        println!("{mbps} Mbit/s: {goodput}");
        assert!(goodput >= 900, "{mbps} Mbit/s: {goodput}");
    }
}

/// A link of 300 Mbit/s whose queue holds a thirty-fifth of the bandwidth-delay product.
fn link_with_short_queue() -> LinkConfig {
    LinkConfig { queue: ByteCount::new(150_000), ..link(Rate::from_mbps(300), 0) }
}

#[test]
fn probes_of_a_tunnel_lose_little_before_a_short_queue() {
    let config = Bbr1Config { up_gain_percent: 200, flavor: Flavor::Tunnel, ..seeded(1) };
    let mut flow = Flow::bbr1(link_with_short_queue(), config);
    flow.run_for(Duration::from_secs(10));
    let (lost, delivered) = (flow.lost, flow.delivered);
    let goodput = flow.goodput_permille(Rate::from_mbps(300), 20);
    let (lost, delivered) = (flow.lost - lost, flow.delivered - delivered);
    let permille = lost.mul_div_floor(ByteCount::new(1000), lost + delivered).get();
    println!("{permille} lost, {goodput} delivered");
    assert!(permille <= 40, "{permille}");
    assert!(goodput >= 950, "{goodput}");
}

#[test]
fn startup_ends_soon_before_a_short_queue() {
    let mut flow = Flow::bbr1(link_with_short_queue(), seeded(1));
    flow.run_for(Duration::from_secs(4));
    let packets = flow.lost.get() / DATAGRAM.get();
    println!("{packets} packets");
    assert!(packets <= 14_000, "{packets}"); // two of three in one round, and the first probes
}

/// Returns the window in whole packets at the end of each of 24 round trips of 140 ms.
fn windows(mut flow: Flow) -> Vec<u64> {
    let mut windows = Vec::new();
    for _ in 0..24 {
        flow.run_for(RTT);
        windows.push(flow.window_packets());
    }
    windows
}

#[test]
fn windows_of_the_first_rounds_do_not_change() {
    let new_reno = |link| {
        let initial_window = DATAGRAM.saturating_mul(10);
        Flow::new(link, |_| Box::new(NewReno::new(initial_window, DATAGRAM)), 9)
    };
    for (name, flow, expected) in [
        (
            "newreno, no loss",
            new_reno(link(TEN, 0)),
            [
                10, 16, 24, 40, 75, 144, 258, 379, 499, 620, 362, 362, 362, 362, 362, 362, 363,
                181, 181, 181, 181, 181, 182, 183,
            ],
        ),
        (
            "newreno, 1 % loss",
            new_reno(link(TEN, 1)),
            [
                10, 16, 10, 10, 11, 12, 13, 13, 14, 15, 16, 17, 18, 19, 9, 9, 10, 11, 11, 12, 13,
                14, 15, 16,
            ],
        ),
        (
            "bbr1, no loss",
            Flow::bbr1(link(TEN, 0), seeded(9)),
            [
                10, 20, 40, 71, 129, 240, 359, 359, 359, 359, 359, 359, 359, 359, 369, 369, 369,
                262, 262, 262, 262, 262, 250, 250,
            ],
        ),
        (
            "bbr1, 10 % loss",
            Flow::bbr1(link(TEN, 10), seeded(9)),
            [
                10, 18, 35, 64, 106, 193, 302, 327, 328, 329, 329, 330, 330, 340, 340, 241, 241,
                241, 241, 241, 235, 235, 235, 234,
            ],
        ),
    ] {
        let windows = windows(flow);
        assert_eq!(windows, expected, "{name}");
    }
}

//! What the controllers do on a small model of a link, without a QUIC library.

mod link;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use link::{Link, LinkConfig};
use tandem_congestion::{
    Ack, AcksEnd, Algorithm, Bbr1, Bbr1Config, CongestionEvent, CongestionSignal, Lost, NewReno,
    Sent,
};
use tandem_units::{ByteCount, Rate, Ratio};

const DATAGRAM: ByteCount = ByteCount::new(1452);
const RTT: Duration = Duration::from_millis(140);
/// Packets are lost when the third after them is acknowledged, RFC 9002 §6.1.1.
const PACKET_THRESHOLD: u64 = 3;
/// When nothing was acknowledged for so long, everything in flight is lost.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A sender, its link and its receiver, which acknowledges every packet. ACKs are not lost.
struct Flow {
    algorithm: Box<dyn Algorithm>,
    link: Link,
    now: Instant,
    start: Instant,
    in_flight: BTreeMap<u64, Instant>,
    next_packet_number: u64,
    /// When the ACK of which packet arrives.
    acks: VecDeque<(Instant, u64)>,
    last_ack: Instant,
    /// Before this the pacer does not release a packet.
    next_send: Instant,
    smoothed_rtt: Duration,
    /// The rate at which the application writes; `None`: it always has data.
    application: Option<Rate>,
    /// When the application has its next datagram.
    next_write: Instant,
    delivered: ByteCount,
}

impl Flow {
    fn new(link: LinkConfig, new: impl FnOnce(Instant) -> Box<dyn Algorithm>, seed: u64) -> Self {
        let start = start();
        Self {
            algorithm: new(start),
            link: Link::new(link, start, seed),
            now: start,
            start,
            in_flight: BTreeMap::new(),
            next_packet_number: 0,
            acks: VecDeque::new(),
            last_ack: start,
            next_send: start,
            smoothed_rtt: Duration::from_millis(333),
            application: None,
            next_write: start,
            delivered: ByteCount::ZERO,
        }
    }

    fn bbr1(link: LinkConfig, seed: u64) -> Self {
        let config = Bbr1Config { seed, ..Bbr1Config::default() };
        Self::new(link, |now| Box::new(Bbr1::new(config, now, DATAGRAM)), seed)
    }

    /// The application changes its mind.
    fn write_at(&mut self, application: Option<Rate>) {
        self.application = application;
        self.next_write = self.now;
    }

    /// What is delivered per time in the next seconds, as a share of the link's rate.
    fn goodput_of(&mut self, rate: Rate, seconds: u64) -> f64 {
        let (before, from) = (self.delivered, self.now);
        self.run_for(Duration::from_secs(seconds));
        let delivered = (self.delivered - before).get() as f64;
        delivered / rate.bytes_in(self.now - from).get() as f64
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

    /// The time that one datagram takes; without a rate, a window and a quarter per round trip.
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

#[test]
fn bbr1_fills_a_lossy_link() {
    for (loss_percent, share) in [(0, 0.95), (1, 0.95), (5, 0.95), (10, 0.95), (15, 0.0)] {
        for seed in 1..=3 {
            let mut flow = Flow::bbr1(link(TEN, loss_percent), seed);
            let goodput = flow.goodput_of(TEN, 60);
            let possible = 1.0 - loss_percent as f64 / 100.0;
            println!(
                "{loss_percent} %, seed {seed}: {:.3} of what is possible",
                goodput / possible
            );
            assert!(goodput >= share * possible, "{loss_percent} %, seed {seed}: {goodput}");
        }
    }
}

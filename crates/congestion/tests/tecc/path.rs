//! A model of a sender that always has data, and of a path with one bottleneck.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tandem_congestion::{
    Ack, AcksEnd, Algorithm, Applied, Bbr1, Bbr1Config, CongestionEvent, CongestionSignal,
    Feedback, Lost, Sent, Tecc, TeccConfig,
};
use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{TunnelInfo, VarInt};

/// The size of every packet.
pub(crate) const PACKET: ByteCount = ByteCount::new(1200);

/// RFC 9002's `kPacketThreshold`.
const PACKET_THRESHOLD: u64 = 3;

/// A sender that can get reports, next to one that cannot.
pub(crate) struct Sender {
    pub(crate) now: Instant,
    pub(crate) tecc: Tecc,
    /// A controller that sees the same events, but no reports.
    pub(crate) bbr: Bbr1,
    pub(crate) feedback: Feedback,
    next_report: u64,
    next_number: u64,
    in_flight: VecDeque<Packet>,
    smoothed_rtt: Option<Duration>,
    min_rtt: Duration,
    pub(crate) acked: ByteCount,
    pub(crate) lost: ByteCount,
    pub(crate) sent: ByteCount,
}

#[derive(Clone, Copy)]
struct Packet {
    number: u64,
    sent: Instant,
    /// The time at which its acknowledgement arrives; `None` if the packet is lost.
    acked: Option<Instant>,
}

/// A report on a tunnel of 10 Mbit/s and 40 ms without a queue and without losses.
pub(crate) fn report() -> TunnelInfo {
    TunnelInfo {
        sequence: VarInt::from_u32(0),
        sending_rate: Rate::from_mbps(10),
        bandwidth: Some(Rate::from_mbps(10)),
        queue: ByteCount::ZERO,
        retransmit_ratio: Ratio::ZERO,
        min_rtt: Duration::from_millis(40),
        smoothed_rtt: Duration::from_millis(40),
        arrival_rate: Some(Rate::from_mbps(10)),
    }
}

impl Sender {
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    pub(crate) fn new(config: TeccConfig) -> Self {
        let now = Instant::now();
        let bbr = || Bbr1::new(Bbr1Config::default(), now, PACKET);
        let feedback = Feedback::default();
        Self {
            now,
            tecc: Tecc::new(bbr(), config, feedback.clone(), PACKET),
            bbr: bbr(),
            feedback,
            next_report: 0,
            next_number: 0,
            in_flight: VecDeque::new(),
            smoothed_rtt: None,
            min_rtt: Duration::MAX,
            acked: ByteCount::ZERO,
            lost: ByteCount::ZERO,
            sent: ByteCount::ZERO,
        }
    }

    /// Gives the controller a report with the next sequence number.
    pub(crate) fn report(&mut self, info: TunnelInfo) -> Applied {
        let sequence = VarInt::saturating_from(self.next_report);
        self.next_report += 1;
        self.feedback.apply(self.now, &TunnelInfo { sequence, ..info })
    }

    /// Sends one packet, which is acknowledged after `rtt`.
    pub(crate) fn round_trip(&mut self, rtt: Duration) {
        self.smoothed_rtt = Some(rtt);
        self.send(Some(self.now + rtt));
        self.now += rtt;
        self.receive();
    }

    pub(crate) fn rate(&self) -> Rate {
        self.tecc.pacing_rate().expect("it paces")
    }

    pub(crate) fn window(&self) -> ByteCount {
        self.tecc.congestion_window()
    }

    /// Returns whether the controller behaves as BBR without reports.
    pub(crate) fn is_bbr(&self) -> bool {
        self.tecc.pacing_rate() == self.bbr.pacing_rate()
            && self.tecc.congestion_window() == self.bbr.congestion_window()
    }

    pub(crate) fn bytes_in_flight(&self) -> ByteCount {
        PACKET.saturating_mul(self.in_flight.len() as u64)
    }

    pub(crate) fn send(&mut self, acked: Option<Instant>) {
        let (now, packet_number) = (self.now, self.next_number);
        self.next_number += 1;
        self.in_flight.push_back(Packet { number: packet_number, sent: now, acked });
        self.sent += PACKET;
        let sent = Sent { now, packet_number, bytes: PACKET };
        self.tecc.on_packet_sent(sent);
        self.bbr.on_packet_sent(sent);
    }

    /// Returns the time at which the next acknowledgement arrives.
    pub(crate) fn next_ack(&self) -> Option<Instant> {
        self.in_flight.iter().find_map(|packet| packet.acked)
    }

    /// Processes the acknowledgements that have arrived.
    pub(crate) fn receive(&mut self) {
        while let Some(index) = self.in_flight.iter().position(|packet| packet.acked.is_some()) {
            let packet = self.in_flight[index];
            if packet.acked > Some(self.now) {
                return;
            }
            self.in_flight.remove(index);
            self.acknowledge(packet);
            let is_lost = |old: &Packet| old.number + PACKET_THRESHOLD <= packet.number;
            let lost = self.in_flight.iter().take_while(|old| is_lost(old)).count();
            self.lose(lost, CongestionSignal::Loss);
        }
    }

    fn acknowledge(&mut self, packet: Packet) {
        let rtt = self.now - packet.sent;
        let before = self.smoothed_rtt.unwrap_or(rtt);
        let smoothed_rtt = (before * 7 + rtt) / 8;
        self.smoothed_rtt = Some(smoothed_rtt);
        self.min_rtt = self.min_rtt.min(rtt);
        self.acked += PACKET;
        let ack = Ack {
            now: self.now,
            sent: packet.sent,
            packet_number: packet.number,
            bytes: PACKET,
            is_app_limited: false,
            smoothed_rtt,
            min_rtt: self.min_rtt,
        };
        let end = AcksEnd {
            now: self.now,
            bytes_in_flight: self.bytes_in_flight(),
            is_app_limited: false,
            largest_acked: Some(packet.number),
        };
        self.tecc.on_ack(ack);
        self.bbr.on_ack(ack);
        self.tecc.on_acks_end(end);
        self.bbr.on_acks_end(end);
    }

    /// Declares the oldest packets in flight lost.
    pub(crate) fn lose(&mut self, count: usize, signal: CongestionSignal) {
        let lost: Vec<_> = self.in_flight.drain(..count.min(self.in_flight.len())).collect();
        for packet in &lost {
            let lost = Lost { now: self.now, packet_number: packet.number, bytes: PACKET };
            self.lost += PACKET;
            self.tecc.on_packet_lost(lost);
            self.bbr.on_packet_lost(lost);
        }
        if let Some(last) = lost.last() {
            let event = CongestionEvent {
                now: self.now,
                signal,
                sent: last.sent,
                packet_number: last.number,
                lost: PACKET.saturating_mul(lost.len() as u64),
            };
            self.tecc.on_congestion_event(event);
            self.bbr.on_congestion_event(event);
        }
    }

    /// Acknowledges packets in flight, after the first `skip` ones, independently of the path.
    pub(crate) fn acknowledge_next(&mut self, skip: usize, count: usize) {
        for _ in 0..count {
            let Some(packet) = self.in_flight.remove(skip.min(self.in_flight.len())) else { break };
            self.acknowledge(packet);
        }
    }
}

/// A path with a bottleneck, whose queue drops packets that do not fit.
pub(crate) struct Path {
    pub(crate) rate: Rate,
    pub(crate) rtt: Duration,
    pub(crate) queue: ByteCount,
    /// Every packet with a multiple of this number is lost behind the bottleneck; 0 means no loss.
    pub(crate) loss_every: u64,
    pub(crate) free: Option<Instant>,
    carried: u64,
}

impl Path {
    pub(crate) fn new(rate: Rate, rtt: Duration, queue: ByteCount) -> Self {
        Self { rate, rtt, queue, loss_every: 0, free: None, carried: 0 }
    }

    /// Returns the number of bytes that wait at the bottleneck.
    pub(crate) fn backlog(&self, now: Instant) -> ByteCount {
        self.free
            .map_or(ByteCount::ZERO, |free| self.rate.bytes_in(free.saturating_duration_since(now)))
    }

    /// Carries a packet that is sent now. Returns the time at which its acknowledgement arrives, or
    /// `None` if it is lost.
    fn carry(&mut self, now: Instant) -> Option<Instant> {
        if self.backlog(now) + PACKET > self.queue {
            return None;
        }
        let free = self.free.unwrap_or(now).max(now) + self.rate.time_to_send(PACKET);
        self.free = Some(free);
        self.carried += 1;
        let is_lost = self.loss_every > 0 && self.carried.is_multiple_of(self.loss_every);
        (!is_lost).then_some(free + self.rtt)
    }

    /// Sends for `time`, and calls `reports` every 40 ms.
    pub(crate) fn run(
        &mut self,
        sender: &mut Sender,
        time: Duration,
        mut reports: impl FnMut(&mut Self, &mut Sender),
    ) {
        let end = sender.now + time;
        let mut next_report = sender.now;
        let mut next_send = sender.now;
        while sender.now < end {
            if sender.now >= next_report {
                reports(self, sender);
                next_report += Duration::from_millis(40);
            }
            sender.receive();
            let has_room = sender.bytes_in_flight() + PACKET <= sender.window();
            if has_room && sender.now >= next_send {
                let acked = self.carry(sender.now);
                sender.send(acked);
                next_send = next_send.max(sender.now) + sender.rate().time_to_send(PACKET);
                continue;
            }
            if !has_room && sender.next_ack().is_none() {
                sender.lose(usize::MAX, CongestionSignal::Loss);
            }
            let send = has_room.then_some(next_send);
            let events = [Some(next_report), sender.next_ack(), send];
            let next = events.into_iter().flatten().min().unwrap_or(end);
            sender.now = next.max(sender.now + Duration::from_nanos(1));
        }
    }
}

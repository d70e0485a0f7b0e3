//! A peer that has the keys and means no good.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tandem_congestion::ControllerName;
use tandem_transport::{
    CloseReason, Config, DropCause, Ecn, PACKETS_MAX, Protection, Transport, Violation,
    seal::{OpenError, TAG_LEN, header_len},
};
use tandem_wire::VarInt;

use crate::{
    owner::{Fate, Owner},
    plain::Plain,
};

/// A transport whose peer is the test.
struct Victim {
    transport: Transport<Plain>,
    owner: Owner,
    now: Instant,
    /// The number of the peer's next packet.
    number: u64,
}

impl Victim {
    fn new(controller: ControllerName) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
        let now = Instant::now();
        let config = Config {
            packet_size: 1200,
            packet_size_min: 1200,
            initial_rtt: Duration::from_millis(100),
            min_rtt: None,
            has_ecn: true,
            ack_wait: None,
            seed: 7,
        };
        let transport = Transport::new(config, Plain::new(), crate::built(controller, now), now);
        Self { transport, owner: Owner::default(), now, number: 0 }
    }

    fn offer(&mut self, count: u64) {
        let first = (self.owner.fates.len() + self.owner.queue.len()) as u64;
        (first..first + count).for_each(|tag| self.owner.offer(tag.into(), 1170));
    }

    /// Sends what may leave. Returns how many packets.
    fn transmit(&mut self) -> usize {
        let (mut out, mut packets) = (Vec::new(), 0);
        while let Some(sent) = self.transport.poll_transmit(self.now, &mut out, 64, &mut self.owner)
        {
            packets += sent.size.div_ceil(sent.segment_size);
            out.clear();
        }
        packets
    }

    /// Time goes by. Returns how many packets are sent.
    fn wait(&mut self, time: Duration) -> (usize, usize) {
        let (end, mut packets, mut wakes) = (self.now + time, 0, 0);
        while let Some(next) = self.transport.next_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.transport.handle_timeout(self.now, &mut self.owner);
            packets += self.transmit();
            wakes += 1;
        }
        self.now = end;
        (packets, wakes)
    }

    fn receive(&mut self, payload: &[u8]) -> Result<(), DropCause> {
        self.number += 1;
        let mut packet = vec![0; Plain::HEADER_LEN];
        packet.extend_from_slice(payload);
        Plain::new().protect(self.number - 1, 0, &mut packet).expect("there are numbers");
        let ecn = Some(Ecn::Ect0);
        self.transport.handle_packet(self.now, &mut packet, ecn, &mut self.owner).map(drop)
    }

    /// Receives an ACK frame of these ranges, from the highest.
    fn ack(&mut self, ranges: &[(u64, u64)], ecn: Option<[u64; 3]>) -> Result<(), DropCause> {
        self.receive(&ack_frame(ranges, ecn))
    }

    fn sent(&self) -> u64 {
        self.owner.packets.last().map_or(0, |last| last + 1)
    }
}

fn ack_frame(ranges: &[(u64, u64)], ecn: Option<[u64; 3]>) -> Vec<u8> {
    let (first, last) = ranges[0];
    let mut fields = vec![last, 0, ranges.len() as u64 - 1, last - first];
    for pair in ranges.windows(2) {
        fields.extend([pair[0].0 - pair[1].1 - 2, pair[1].1 - pair[1].0]);
    }
    fields.extend(ecn.into_iter().flatten());
    let mut frame = vec![if ecn.is_some() { 3 } else { 2 }];
    for field in fields {
        VarInt::saturating_from(field).encode(&mut frame);
    }
    frame
}

#[test]
fn what_a_peer_must_not_send_ends_the_transport() {
    let many: Vec<(u64, u64)> = (0..65).rev().map(|it| (3 * it, 3 * it)).collect();
    for (payload, expected) in [
        (vec![], Violation::NoFrame),
        (vec![0x1c, 0, 0, 0], Violation::UnknownFrame),
        (vec![0x01, 0x08, 0, 0], Violation::UnknownFrame),
        (vec![0x40, 0x02, 0, 0, 0, 0], Violation::UnknownFrame), // a longer encoding of the type
        (vec![0x02, 0, 0], Violation::Truncated),
        (vec![0x03, 0, 0, 0, 0, 0, 0], Violation::Truncated),
        (vec![0x31, 5, 1, 2, 3, 4], Violation::Truncated),
        (vec![0x02, 3, 0, 0, 4], Violation::AckRange),
        (vec![0x02, 3, 0, 1, 0, 2, 0], Violation::AckRange),
        (vec![0x02, 3, 0, 1, 0, 0, 2], Violation::AckRange),
        (ack_frame(&many, None), Violation::TooManyRanges),
        (ack_frame(&[(10, 10)], None), Violation::NeverSent),
        (ack_frame(&[((1 << 62) - 1, (1 << 62) - 1)], None), Violation::NeverSent),
        ([ack_frame(&[(0, 0)], None), ack_frame(&[(1, 1)], None)].concat(), Violation::SecondAck),
    ] {
        let mut victim = Victim::new(ControllerName::NewReno);
        victim.offer(10);
        assert_eq!(victim.transmit(), 10);
        let refused = victim.receive(&payload);
        assert_eq!(refused, Err(DropCause::Violation(expected)), "{payload:?}");
        assert_eq!(victim.transport.closed(), Some(CloseReason::Violation(expected)));
        assert_eq!(victim.owner.count(Fate::Lost), 10, "each datagram has a fate");
        assert_eq!(victim.receive(&[1]), Err(DropCause::Closed));
        victim.offer(1);
        assert_eq!(victim.transmit(), 0);
        assert_eq!(victim.transport.next_timeout(), None);
    }
}

#[test]
fn an_optimistic_receiver_is_found_out() {
    let mut victim = Victim::new(ControllerName::NewReno);
    victim.offer(1000);
    while victim.transport.closed().is_none() {
        victim.transmit();
        victim.now += Duration::from_millis(10);
        let sent = victim.sent();
        assert!(sent < 200, "{sent} packets");
        victim.ack(&[(0, sent - 1)], None).ok();
    }
    let expected = CloseReason::Violation(Violation::NeverSent);
    assert_eq!(victim.transport.closed(), Some(expected));
}

/// The ranges of what was really sent.
fn honest(owner: &Owner) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in &owner.packets {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges.reverse();
    ranges
}

#[test]
fn the_same_acknowledgements_again_and_again_change_nothing() {
    let mut victim = Victim::new(ControllerName::Off);
    victim.offer(2000);
    victim.transmit();
    let all = honest(&victim.owner);
    let last = all[0].1;
    // Each frame has one packet more at one end, and has the first packet never.
    for from in (last - 200..last).rev() {
        for _ in 0..3 {
            victim.ack(&[(from, last)], None).expect("these were sent");
        }
    }
    let acked = victim.owner.count(Fate::Acked);
    victim.ack(&[(last - 200, last)], None).expect("these were sent");
    assert_eq!(victim.owner.count(Fate::Acked), acked);
    victim.ack(&all, None).expect("these were sent");
    assert_eq!(victim.owner.count(Fate::Acked) + victim.owner.count(Fate::LateAcked), 2000);
}

#[test]
fn packet_numbers_may_jump() {
    let mut victim = Victim::new(ControllerName::NewReno);
    for jump in [1, 3, 4096, 1 << 20, 1 << 40, 1 << 60] {
        victim.number += jump;
        assert_eq!(victim.receive(&[1]), Ok(()));
        victim.number -= 1;
        let replayed = Err(DropCause::Open(OpenError::Replayed));
        assert_eq!(victim.receive(&[1]), replayed, "the same number again");
    }
    for number in (0..2000_u64).map(|it| (1 << 60) + 2 * it) {
        victim.number = number + (1 << 50) + (1 << 41);
        victim.receive(&[1]).ok();
    }
    assert!(victim.transport.memory() < 12_000, "{}", victim.transport.memory());
    assert!(victim.transmit() > 0, "it acknowledges");
}

#[test]
fn false_counts_of_marks_end_the_marks_and_open_no_window() {
    for counts in [[0, 0, 0], [1 << 40, 0, 0], [5, 5, 0], [0, 0, 1 << 61], [1, 0, 1]] {
        let mut victim = Victim::new(ControllerName::NewReno);
        victim.offer(5);
        victim.transmit();
        assert!(victim.transport.marks_ecn());
        let window = victim.transport.congestion_window();
        victim.now += Duration::from_millis(50);
        victim.ack(&[(0, 4)], Some(counts)).expect("these were sent");
        assert!(!victim.transport.marks_ecn(), "{counts:?}");
        assert!(victim.transport.congestion_window() <= window);
    }
}

#[test]
fn a_peer_that_never_acknowledges_gets_a_window_and_probes() {
    for controller in [ControllerName::Bbr1, ControllerName::NewReno, ControllerName::Tecc] {
        let mut victim = Victim::new(controller);
        victim.offer(10_000);
        let first = victim.transmit();
        let (packets, wakes) = victim.wait(Duration::from_secs(60));
        assert!(first + packets < 32 + 130, "{controller}: {first} and {packets} packets");
        assert!(wakes < 200, "{controller}: {wakes} wakes");
        assert!(victim.transport.memory() < 40_000);
    }
}

#[test]
fn the_memory_of_a_sender_without_control_is_bounded() {
    let mut victim = Victim::new(ControllerName::Off);
    for _ in 0..20 {
        victim.offer(10_000);
        victim.transmit();
        victim.wait(Duration::from_secs(2));
    }
    assert!(victim.owner.fates.len() < PACKETS_MAX);
    assert!(victim.transport.memory() < 6_000_000, "{}", victim.transport.memory());
    victim.wait(Duration::from_secs(4000));
    assert_eq!(victim.transport.closed(), None);
    assert!(victim.owner.count(Fate::Lost) > 0, "the oldest are lost when probes need their place");
}

#[test]
fn acknowledgements_of_single_packets_work() {
    let mut victim = Victim::new(ControllerName::NewReno);
    victim.offer(2000);
    for _ in 0..2000 {
        victim.transmit();
        let Some(open) = victim.owner.packets.iter().copied().find(|it| victim.number <= *it)
        else {
            break;
        };
        victim.now += Duration::from_millis(1);
        victim.number = open;
        victim.ack(&[(open, open)], None).expect("it was sent");
    }
    assert!(victim.owner.count(Fate::Acked) >= 1990, "{}", victim.owner.count(Fate::Acked));
    assert_eq!(victim.owner.count(Fate::Lost), 0);
}

#[test]
fn nothing_leaves_while_it_must_not_and_a_new_path_starts_anew() {
    let mut victim = Victim::new(ControllerName::NewReno);
    victim.offer(40);
    let first = victim.transmit();
    assert_eq!(first, 10, "the initial window");
    victim.transport.set_may_send(false);
    let (packets, wakes) = victim.wait(Duration::from_secs(10));
    assert_eq!((packets, wakes), (0, 0));
    victim.transport.set_may_send(true);
    victim.transport.on_new_path(victim.now, crate::built(ControllerName::NewReno, victim.now));
    assert_eq!(victim.transport.bytes_in_flight().get(), 0);
    assert_eq!(victim.transmit(), 10, "the window of the new path");
    victim.now += Duration::from_millis(50);
    let window = victim.transport.congestion_window();
    victim.ack(&[(0, 9)], None).expect("these were sent");
    assert_eq!(victim.owner.count(Fate::Acked), 10, "fates of the old path are told");
    assert_eq!(victim.transport.congestion_window(), window, "they tell nothing of the new one");
    assert_eq!(victim.transport.smoothed_rtt(), None);
    victim.ack(&[(10, 19)], None).expect("these were sent");
    assert_eq!(victim.transport.smoothed_rtt(), Some(Duration::from_millis(50)));
    assert_eq!(victim.transport.bytes_in_flight().get(), 0);
}

proptest! {
    #[test]
    fn any_payload_is_taken_or_ends_the_transport(
        payloads in prop::collection::vec(
            prop::collection::vec(prop_oneof![0..4_u8, 0x30..0x32_u8, any::<u8>()], 0..40),
            1..30,
        ),
    ) {
        let mut victim = Victim::new(ControllerName::Bbr1);
        victim.offer(20);
        for payload in payloads {
            victim.transmit();
            victim.now += Duration::from_millis(3);
            match victim.receive(&payload) {
                Ok(()) => prop_assert_eq!(victim.transport.closed(), None),
                Err(_) => prop_assert!(victim.transport.closed().is_some()),
            }
        }
        if victim.transport.closed().is_some() {
            prop_assert_eq!(victim.owner.count(Fate::Sent), 0);
        }
    }
}

/// The header and the tag are what the layout says.
#[test]
fn a_packet_has_29_bytes_more_than_its_frames() {
    assert_eq!((header_len(8) + TAG_LEN, header_len(8)), (29, Plain::HEADER_LEN));
    let victim = Victim::new(ControllerName::Off);
    assert_eq!(victim.transport.datagram_max(), 1200 - 30);
}

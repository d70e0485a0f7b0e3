use std::time::Duration;

use tandem_wire::PepId;

use super::*;
use crate::test_start;

const MS: Duration = Duration::from_millis(1);
const BYTES: u16 = 1200;

/// A sender with 10 ms to the PEP and back, and 20 ms to the receiver and back.
struct Sender {
    domains: Domains,
    start: Instant,
    sequence: u32,
}

impl Sender {
    /// Sends packet n after n milliseconds.
    fn new(packets: u64) -> Self {
        let mut domains = Domains::default();
        let start = test_start();
        for number in 0..packets {
            domains.on_sent(at(start, number), number, BYTES);
        }
        Self { domains, start, sequence: 0 }
    }

    /// A PEP-ACK of packets, 10 ms after the last one was sent.
    fn pep_ack(&mut self, packets: impl IntoIterator<Item = u64>) -> News {
        self.pep_ack_of((7, true), packets)
    }

    fn pep_ack_of(
        &mut self,
        (pep, is_authentic): (u32, bool),
        packets: impl IntoIterator<Item = u64>,
    ) -> News {
        let numbers: Vec<_> = packets.into_iter().collect();
        let last = numbers.iter().copied().max().unwrap();
        let packets: Vec<_> = numbers
            .iter()
            .map(|number| (*number, MS * u32::try_from(last - number).unwrap()))
            .collect();
        let (sequence, pep) = (self.sequence, PepId(pep));
        self.sequence = sequence.wrapping_add(1);
        let passed = Passed { pep, is_authentic, sequence, packets: &packets };
        self.domains.on_passed(at(self.start, last + 10), &passed)
    }

    fn acked(&mut self, number: u64) -> Option<Duration> {
        let sent = at(self.start, number);
        self.domains.on_acked(sent + 20 * MS, number, sent)
    }

    fn losses(&self) -> (u64, u64, u64) {
        let losses = self.domains.stats().unwrap().losses;
        (losses.wired, losses.access, losses.unknown)
    }
}

fn at(start: Instant, ms: u64) -> Instant {
    start + Duration::from_millis(ms)
}

#[test]
fn each_domain_has_its_part_of_the_rtt() {
    let mut sender = Sender::new(10);
    assert_eq!(sender.domains.stats(), None);
    let news = sender.pep_ack(0..5);
    assert_eq!((news.passed.get(), news.missing), (5 * u64::from(BYTES), None));
    assert_eq!(sender.acked(0), Some(10 * MS));
    assert_eq!(sender.acked(7), None);
    let stats = sender.domains.stats().unwrap();
    assert_eq!((stats.wired.least, stats.access.least), (10 * MS, 10 * MS));
    assert_eq!(stats.behind_pep.get(), 4 * u64::from(BYTES));
}

#[test]
fn losses_belong_to_a_domain() {
    let mut sender = Sender::new(20);
    let news = sender.pep_ack([0, 1, 3, 4, 5]);
    assert_eq!(news.missing, Some(at(sender.start, 2)));
    assert_eq!(sender.domains.on_lost(2, BYTES), Some(Domain::Wired));
    assert_eq!(sender.domains.on_lost(4, BYTES), Some(Domain::Access));
    assert_eq!(sender.domains.on_lost(15, BYTES), None);
    assert_eq!(sender.losses(), (1, 1, 1));
    // Nothing is counted twice, and a packet of another path is none of these.
    assert_eq!(sender.domains.on_lost(2, BYTES), None);
    assert_eq!(sender.domains.on_lost(5, BYTES - 1), None);
    assert_eq!(sender.losses(), (1, 1, 1));
}

#[test]
fn two_reordered_packets_are_not_missing() {
    let mut sender = Sender::new(20);
    assert_eq!(sender.pep_ack([0, 2, 3]).missing, None);
    assert_eq!(sender.pep_ack([1, 4, 5]).missing, None);
    assert_eq!(sender.domains.on_lost(1, BYTES), Some(Domain::Access));
}

#[test]
fn what_a_lost_pep_ack_could_have_said_is_unknown() {
    let mut sender = Sender::new(20);
    sender.pep_ack(0..4);
    sender.sequence += 1; // of packets 4 to 7, perhaps
    assert_eq!(sender.pep_ack(8..12).missing, None);
    assert_eq!(sender.domains.on_lost(5, BYTES), None);
    assert_eq!(sender.losses(), (0, 0, 1));
}

#[test]
fn a_pep_that_counts_again_is_heard_again() {
    let mut sender = Sender::new(30);
    sender.sequence = 5_000;
    sender.pep_ack(0..4);
    sender.sequence = 0;
    assert_eq!(sender.pep_ack(8..12).missing, None, "packets 4 to 7 are unknown");
    assert!(sender.pep_ack([12, 14, 15, 16, 17]).missing.is_some());
    assert_eq!(sender.domains.on_lost(13, BYTES), Some(Domain::Wired));
    // A late one changes no verdict.
    sender.sequence -= 1;
    assert_eq!(sender.pep_ack([20, 25]).missing, None);
}

#[test]
fn a_sender_listens_to_one_pep_and_prefers_an_authentic_one() {
    let mut sender = Sender::new(20);
    sender.pep_ack_of((1, false), 0..2);
    assert!(!sender.domains.is_followed(at(sender.start, 11)));
    sender.pep_ack_of((2, true), 2..4);
    assert_eq!(sender.pep_ack_of((1, false), 4..6), News::default());
    assert_eq!(sender.pep_ack_of((3, true), 6..8), News::default());
    let stats = sender.domains.stats().unwrap();
    assert_eq!((stats.pep, stats.is_authentic, stats.unauthentic), (PepId(2), true, 2));
}

#[test]
fn two_silent_rtts_end_the_two_domains() {
    let mut sender = Sender::new(4);
    sender.pep_ack(0..4);
    sender.acked(0);
    let late = at(sender.start, 40);
    assert!(sender.domains.is_followed(late), "nothing was sent since");
    sender.domains.on_sent(late, 4, BYTES);
    assert!(sender.domains.is_followed(late + 20 * MS));
    assert!(!sender.domains.is_followed(late + 23 * MS));
}

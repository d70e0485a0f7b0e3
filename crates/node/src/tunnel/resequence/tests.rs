use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const NOTHING: [u64; 0] = [];

const RTT: Duration = Duration::from_millis(40);

/// The time after which a gap is given up: 12 RTTs and 50 ms.
const GAP_TIME: Duration = Duration::from_millis(530);

fn numbered(number: u64, repair_floor: u64, payload: Bytes) -> Sequenced {
    let [sequence, floor] = [number, repair_floor].map(tandem_wire::VarInt::saturating_from);
    Sequenced { sequence, floor, payload }
}

/// A resequencer with a clock, whose payloads begin with their number.
struct Egress {
    resequencer: Resequencer,
    now: Instant,
    floor: u64,
}

impl Egress {
    #[expect(clippy::disallowed_methods, reason = "a world needs one instant to begin with")]
    fn new(mode: Resequence) -> Self {
        Self::with_bounds(mode, Bounds::default(), Instant::now())
    }

    fn with_bounds(mode: Resequence, bounds: Bounds, now: Instant) -> Self {
        let mut resequencer = Resequencer::new(mode, bounds);
        resequencer.set_smoothed_rtt(RTT);
        Self { resequencer, now, floor: 0 }
    }

    /// Takes the payload with this number. Returns the numbers that this releases.
    fn push(&mut self, number: u64) -> Vec<u64> {
        let repair_floor = self.floor;
        let payload = Bytes::copy_from_slice(&number.to_be_bytes());
        self.resequencer.push(self.now, numbered(number, repair_floor, payload));
        self.take()
    }

    fn push_all(&mut self, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
        numbers.into_iter().flat_map(|number| self.push(number)).collect()
    }

    fn take(&mut self) -> Vec<u64> {
        let released = std::iter::from_fn(|| self.resequencer.poll_release(self.now));
        released.map(|payload| u64::from_be_bytes(payload[..8].try_into().unwrap())).collect()
    }

    fn wait(&mut self, time: Duration) -> Vec<u64> {
        self.now += time;
        self.take()
    }

    fn stats(&self) -> &ResequencerStats {
        self.resequencer.stats()
    }

    fn given_up(&self) -> GivenUpGaps {
        self.stats().given_up
    }
}

/// An egress that has released number 0 and waits for number 1.
fn waiting(mode: Resequence) -> Egress {
    let mut egress = Egress::new(mode);
    assert_eq!(egress.push(0), [0]);
    egress
}

#[test]
fn each_mode_holds_the_payloads_that_it_promises_to_hold() {
    let cases: [(Resequence, &[u64], &[u64]); 4] = [
        (Resequence::Off, &[2, 3, 4, 5], &[1]),
        (Resequence::Window(0), &[], &[1, 2, 3, 4, 5]),
        (Resequence::Window(2), &[2, 3], &[1, 4, 5]),
        (Resequence::Ordered, &[], &[1, 2, 3, 4, 5]),
    ];
    for (mode, at_once, when_repaired) in cases {
        let mut egress = waiting(mode);
        assert_eq!(egress.push_all(2..6), at_once, "{mode:?}");
        assert_eq!(egress.push(1), when_repaired, "{mode:?}");
        assert_eq!(egress.push(6), [6], "{mode:?}");
        assert_eq!(egress.given_up(), GivenUpGaps::default());
    }
}

#[test]
fn a_filled_gap_releases_only_payloads_before_the_next_gap() {
    let mut egress = waiting(Resequence::Ordered);
    assert_eq!(egress.push_all([2, 4, 6]), NOTHING);
    assert_eq!(egress.push(3), NOTHING);
    assert_eq!(egress.push(1), [1, 2, 3, 4]);
    assert_eq!(egress.push(5), [5, 6]);
}

#[test]
fn the_window_follows_the_oldest_gap() {
    let mut egress = waiting(Resequence::Window(3));
    // 1 and 3 are missing. 4 is three ahead of 1, and 6 is three ahead of 3.
    assert_eq!(egress.push_all([2, 4, 5, 6, 7]), [2, 4]);
    assert_eq!(egress.push(1), [1, 5, 6]);
    assert_eq!(egress.push(3), [3, 7]);
}

#[test]
fn numbers_between_the_floor_and_the_first_arrival_are_waited_for() {
    let mut egress = Egress::new(Resequence::Ordered);
    egress.floor = 7;
    assert_eq!(egress.push_all([9, 8]), NOTHING);
    assert_eq!(egress.push(7), [7, 8, 9]);
}

#[test]
fn a_floor_releases_payloads_that_waited_in_vain() {
    let mut egress = waiting(Resequence::Ordered);
    assert_eq!(egress.push_all([2, 4, 6]), NOTHING);
    egress.floor = 4;
    assert_eq!(egress.push(8), [2, 4]);
    assert_eq!(egress.given_up(), GivenUpGaps { floor: 2, ..GivenUpGaps::default() });
    egress.resequencer.raise_floor(egress.now, 8);
    assert_eq!(egress.take(), [6, 8]);
    assert_eq!(egress.given_up().floor, 4);
}

#[test]
fn a_sender_without_repair_delays_nothing() {
    let mut egress = Egress::new(Resequence::Ordered);
    for number in [5, 6, 9, 7, 20] {
        egress.floor = number + 1;
        assert_eq!(egress.push(number), [number]);
    }
    assert_eq!((egress.stats().waited, egress.stats().late), (0, 1));
}

#[test]
fn duplicates_of_waiting_and_released_payloads_are_dropped() {
    for mode in [Resequence::Off, Resequence::WINDOW, Resequence::Ordered] {
        let mut egress = waiting(mode);
        egress.push_all([2, 3]);
        assert_eq!(egress.push_all([2, 0]), NOTHING, "waiting or released, {mode:?}");
        egress.push(1);
        assert_eq!(egress.push_all([1, 2, 3]), NOTHING, "{mode:?}");
        assert_eq!((egress.stats().duplicates, egress.stats().released), (5, 4));
    }
}

#[test]
fn a_payload_after_its_gap_was_given_up_is_released_once() {
    let mut egress = waiting(Resequence::Ordered);
    egress.floor = 2;
    assert_eq!(egress.push(2), [2]);
    assert_eq!(egress.push_all([1, 1]), [1]);
    assert_eq!((egress.stats().late, egress.stats().duplicates), (1, 1));
}

#[test]
fn a_payload_older_than_the_history_is_dropped() {
    let mut egress = Egress::new(Resequence::Ordered);
    egress.push_all((0..10).chain(20..21));
    egress.floor = 20;
    egress.push_all(21..12 + HISTORY);
    assert_eq!(egress.push_all([11, 12]), [12]);
    assert_eq!((egress.stats().stale, egress.stats().late), (1, 1));
}

#[test]
fn a_gap_that_is_overtaken_for_long_enough_is_given_up() {
    let mut egress = waiting(Resequence::Ordered);
    let mut passed = Duration::ZERO;
    egress.push(2);
    for number in 3.. {
        egress.now += RTT;
        passed += RTT;
        let released = egress.push(number);
        if passed >= GAP_TIME {
            assert_eq!(released, (2..=number).collect::<Vec<_>>());
            break;
        }
        assert_eq!(released, NOTHING, "{passed:?}");
    }
    assert_eq!(egress.given_up(), GivenUpGaps { time: 1, ..GivenUpGaps::default() });
}

#[test]
fn gaps_that_were_found_together_are_given_up_together() {
    let mut egress = waiting(Resequence::Ordered);
    egress.push_all([5, 7, 9]);
    egress.now += RTT;
    egress.push(11);
    // Ten more arrivals let the first three gaps time out. 10 was found missing one RTT later.
    for number in 12..24 {
        egress.now += RTT;
        assert_eq!(egress.push(number), NOTHING);
    }
    egress.now += RTT;
    assert_eq!(egress.push(24), [5, 7, 9]);
    assert_eq!(egress.given_up().time, 6);
    egress.now += RTT;
    assert_eq!(egress.push(25), (11..26).collect::<Vec<_>>());
}

#[test]
fn an_outage_uses_up_a_tenth_of_the_time_and_no_more() {
    let mut egress = waiting(Resequence::Ordered);
    egress.push(2);
    assert_eq!(egress.wait(Duration::from_secs(5)), NOTHING);
    let mut number = 3;
    // 13 RTTs of 40 ms and a tenth of the gap time make 573 ms. With 11 RTTs the sum is below 530
    // ms.
    for _ in 0..11 {
        assert_eq!(egress.push(number), NOTHING);
        egress.now += RTT;
        number += 1;
    }
    assert_eq!(egress.push(1), (1..number).collect::<Vec<_>>());
    assert_eq!(egress.given_up(), GivenUpGaps::default());
}

#[test]
fn the_clock_stands_while_retransmissions_fill_the_oldest_gap() {
    let mut egress = waiting(Resequence::Ordered);
    egress.push(1000);
    for number in 1..999 {
        egress.now += Duration::from_millis(5);
        assert_eq!(egress.push(number), [number]);
    }
    assert_eq!(egress.push(999), [999, 1000]);
    assert_eq!(egress.given_up(), GivenUpGaps::default());
}

#[test]
fn silence_ends_the_wait_at_last() {
    let mut egress = waiting(Resequence::Ordered);
    egress.push(2);
    let timeout = egress.resequencer.next_timeout().unwrap();
    assert_eq!(timeout, egress.now + Bounds::default().gap_max);
    assert_eq!(egress.wait(Duration::from_millis(9_999)), NOTHING);
    assert_eq!(egress.wait(Duration::from_millis(1)), [2]);
    assert_eq!(egress.given_up(), GivenUpGaps { silence: 1, ..GivenUpGaps::default() });
    assert_eq!(egress.resequencer.next_timeout(), None);
}

#[test]
fn there_is_no_timeout_while_no_payload_waits() {
    for mode in [Resequence::Off, Resequence::Window(5)] {
        let mut egress = waiting(mode);
        assert_eq!(egress.push_all([2, 3]), [2, 3]);
        assert_eq!(egress.resequencer.next_timeout(), None);
    }
}

#[test]
fn a_huge_rtt_does_not_extend_the_wait_beyond_the_maximum() {
    let mut egress = waiting(Resequence::Ordered);
    egress.resequencer.set_smoothed_rtt(Duration::MAX);
    egress.push(2);
    let numbers = (3..).take(11);
    let freed = numbers.map(|number| {
        egress.now += Duration::from_secs(1);
        egress.push(number).len()
    });
    assert_eq!(freed.collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 1]);
}

#[test]
fn the_byte_bound_gives_up_the_oldest_gap_and_keeps_the_newest() {
    // Each of the payloads also shows a gap.
    let bounds = Bounds { bytes: 3 * (8 + 2 * OVERHEAD), ..Bounds::default() };
    let mut egress = Egress::with_bounds(Resequence::Ordered, bounds, waiting(Resequence::Off).now);
    egress.push(0);
    assert_eq!(egress.push_all([2, 4, 6]), NOTHING);
    assert_eq!(egress.push(8), [2]);
    assert_eq!(egress.given_up(), GivenUpGaps { bytes: 1, ..GivenUpGaps::default() });
    assert_eq!(egress.push_all([3, 5, 7]), [3, 4, 5, 6, 7, 8]);
    assert_eq!(egress.stats().held_bytes_max, 24);
}

#[test]
fn a_payload_larger_than_the_byte_bound_does_not_wait() {
    let bounds = Bounds { bytes: 7 + 2 * OVERHEAD, ..Bounds::default() };
    let mut egress = Egress::with_bounds(Resequence::Ordered, bounds, waiting(Resequence::Off).now);
    assert_eq!(egress.push_all([0, 5, 9]), [0, 5, 9]);
    assert_eq!(egress.given_up().bytes, 7);
    assert_eq!(egress.stats().held_bytes_max, 0);
}

#[test]
fn the_packet_bound_gives_up_the_oldest_gap() {
    let mut egress = waiting(Resequence::Ordered);
    let last = u64::from(Bounds::default().packets);
    assert_eq!(egress.push_all(2..=last), NOTHING);
    assert_eq!(egress.push(last + 1), (2..last + 2).collect::<Vec<_>>());
    assert_eq!(egress.given_up(), GivenUpGaps { packets: 1, ..GivenUpGaps::default() });
    assert_eq!(egress.stats().held_packets_max as u64, last - 1);
}

#[test]
fn implausible_numbers_are_ignored_and_counted() {
    let mut egress = waiting(Resequence::Ordered);
    let absurd = [1 << 61, 2 + JUMP_MAX, NUMBER_MAX, 1 << 62, u64::MAX];
    assert_eq!(egress.push_all(absurd), NOTHING);
    assert_eq!(egress.stats().out_of_range, 5);
    assert_eq!(egress.push(1), [1]);
}

#[test]
fn a_flow_may_begin_with_any_number() {
    for first in [0, 1, 1 << 31, 1 << 61, NUMBER_MAX] {
        let mut egress = Egress::new(Resequence::Ordered);
        egress.floor = first;
        assert_eq!(egress.push(first), [first]);
    }
    let mut egress = Egress::new(Resequence::Ordered);
    assert_eq!(
        egress.push(1 << 61),
        NOTHING,
        "its floor is 0, so all lower numbers may still arrive"
    );
    assert_eq!(egress.given_up(), GivenUpGaps::default());
}

#[test]
fn a_jump_releases_waiting_payloads_and_waits_within_its_bounds() {
    let mut egress = waiting(Resequence::Ordered);
    egress.push_all([2, 3, 5]);
    let far = JUMP_MAX - 1;
    assert_eq!(egress.push(far), [2, 3, 5]);
    let waited_for = u64::from(Bounds::default().packets) - 1;
    assert_eq!(egress.given_up().packets, far - waited_for - 4);
    egress.floor = far;
    assert_eq!(egress.push(far + 1), [far, far + 1]);
    assert_eq!(egress.given_up().floor, waited_for);
}

#[test]
fn implausible_floors_are_ignored_and_counted() {
    let mut egress = waiting(Resequence::Ordered);
    for floor in [4, 1 << 61, u64::MAX] {
        egress.floor = floor;
        assert_eq!(egress.push(2), NOTHING);
    }
    egress.resequencer.raise_floor(egress.now, 1 << 61);
    assert_eq!(egress.stats().floors_out_of_range, 4);
    egress.floor = 0;
    assert_eq!(egress.push(1), [1, 2]);
}

#[test]
fn a_floor_that_moves_backwards_changes_nothing() {
    let mut egress = waiting(Resequence::Ordered);
    egress.floor = 5;
    assert_eq!(egress.push(5), [5]);
    egress.floor = 1;
    assert_eq!(egress.push(6), [6]);
}

#[test]
fn a_flush_releases_everything_in_order() {
    let mut egress = waiting(Resequence::Ordered);
    egress.push_all([9, 4, 2]);
    egress.resequencer.flush(egress.now);
    assert_eq!(egress.take(), [2, 4, 9]);
    assert_eq!(egress.given_up(), GivenUpGaps { flush: 6, ..GivenUpGaps::default() });
    assert_eq!(egress.push(10), [10]);
}

#[test]
fn waiting_is_counted_in_packets_and_time() {
    let mut egress = waiting(Resequence::Ordered);
    egress.push(2);
    egress.now += RTT;
    egress.push(3);
    egress.now += RTT;
    egress.push(1);
    egress.now += RTT;
    egress.push(4);
    let stats = egress.stats();
    assert_eq!((stats.waited, stats.waited_time, stats.released), (2, 3 * RTT, 5));
    assert_eq!((stats.held_packets_max, stats.held_bytes_max), (2, 16));
}

#[test]
fn a_caller_that_takes_no_payloads_cannot_exceed_the_bounds() {
    let bounds = Bounds { bytes: 100 + 3 * OVERHEAD, ..Bounds::default() };
    let now = waiting(Resequence::Off).now;
    let mut resequencer = Resequencer::new(Resequence::Off, bounds);
    for number in 0..20 {
        let payload = Bytes::from_static(&[0; 30]);
        resequencer.push(now, numbered(number, 0, payload));
        assert!(resequencer.held_bytes() <= bounds.bytes);
    }
    assert_eq!(resequencer.stats().overrun, 17);
}

/// Bytes that a flow with numbers keeps beside its payloads: which numbers arrived, and the first
/// nodes of its maps.
const FLOW_BYTES: usize = 2500;

#[test]
fn what_is_held_is_what_the_process_keeps() {
    let in_order: Vec<u64> = (1..2000).collect();
    let with_gaps: Vec<u64> = (1..3000).map(|number| 2 * number).collect();
    let backwards: Vec<u64> = with_gaps.iter().rev().copied().collect();
    let mixed: Vec<u64> = (1..3000).map(|number| number * 1201 % 5987 + 2).collect();
    for (numbers, len) in [in_order, with_gaps, backwards, mixed].iter().zip([1, 8, 100, 1200]) {
        let mut egress = waiting(Resequence::Ordered);
        let Egress { resequencer, now, .. } = &mut egress;
        let payload = Bytes::from(vec![0; len]);
        resequencer.push(*now, numbered(1 << 13, 0, payload.clone()));
        let kept = allocation_counter::measure(|| {
            for &number in numbers {
                // Number 1 is missing.
                let number = (1 << 13) + number + 1;
                resequencer.push(*now, numbered(number, 0, payload.clone()));
            }
        });
        let kept = usize::try_from(kept.bytes_current).unwrap();
        let held = resequencer.held_bytes();
        assert!(kept <= held + FLOW_BYTES, "{kept} bytes are kept, {held} are counted");
        assert!(kept + FLOW_BYTES >= held / 3, "{kept} bytes are kept, {held} are counted");
        assert!(resequencer.memory() >= held);
    }
}

#[test]
fn two_payloads_far_apart_take_no_more_memory_than_two_next_to_each_other() {
    let now = waiting(Resequence::Off).now;
    let mut kept = [2, 7100].map(|far| {
        let mut resequencer = None;
        let kept = allocation_counter::measure(|| {
            let new = Resequencer::new(Resequence::Ordered, Bounds::default());
            let new = resequencer.insert(new);
            for number in [1, far] {
                new.push(now, numbered(number, 0, Bytes::from_static(b"x")));
            }
        });
        kept.bytes_current
    });
    kept.sort_unstable();
    assert!(kept[1] < 2500 && kept[1] - kept[0] < 600, "{kept:?} bytes");
}

#[test]
fn memory_is_given_back_after_a_peak() {
    let mut egress = waiting(Resequence::Ordered);
    let kept = allocation_counter::measure(|| {
        drop(egress.push_all((2..7000).filter(|number| number % 3 > 0)));
        egress.resequencer.flush(egress.now);
        assert_eq!(egress.take().len(), 4665);
    });
    let kept = usize::try_from(kept.bytes_current).unwrap();
    assert!(kept < 3000 && kept <= egress.resequencer.memory() + 1000, "{kept} bytes");
    assert_eq!(egress.resequencer.held_bytes(), 0);
}

#[test]
fn a_flow_without_numbers_takes_no_memory() {
    let mut flows = Vec::with_capacity(100);
    let kept = allocation_counter::measure(|| {
        flows.extend((0..100).map(|_| Resequencer::new(Resequence::Ordered, Bounds::default())));
    });
    assert_eq!((kept.bytes_current, flows[0].memory()), (0, 0));
}

/// The same rules in the plainest form, without regard to speed.
#[derive(Default)]
struct Model {
    ahead_max: u64,
    bounds: Bounds,
    next: u64,
    end: u64,
    come: BTreeSet<u64>,
    held: BTreeMap<u64, usize>,
    /// When each number was found missing, what `overtaken` was, and which number showed it.
    found: BTreeMap<u64, (Duration, Duration, u64)>,
    overtaken: Duration,
    last: Duration,
    released: Vec<u64>,
    given_up: u64,
}

impl Model {
    fn push(&mut self, now: Duration, (number, floor, len): (u64, u64, usize)) {
        let packets = u64::from(self.bounds.packets);
        if number > self.end + JUMP_MAX {
            return;
        }
        if floor <= number + 1 {
            self.give_up_below(floor.min(number));
        }
        if self.come.contains(&number) || number + HISTORY < self.next {
            return;
        }
        self.come.insert(number);
        if number < self.next {
            self.released.push(number);
            return;
        }
        self.come.remove(&number);
        if number > self.next {
            self.overtaken += now.saturating_sub(self.last).min(GAP_TIME / 10);
        }
        self.last = now;
        self.give_up_below((number + 1).saturating_sub(packets));
        while number > self.next + self.ahead_max
            && self.waiting() + len + (1 + usize::from(self.shows_gap(number))) * OVERHEAD
                > self.bounds.bytes
        {
            let after = (self.next..number).find(|n| self.come.contains(n)).unwrap_or(number);
            self.give_up_below(after);
        }
        if self.shows_gap(number) {
            for missing in self.end..number {
                self.found.insert(missing, (now, self.overtaken, number));
            }
        }
        self.end = self.end.max(number + 1);
        self.come.insert(number);
        self.held.insert(number, len);
        self.settle();
        self.expire(now);
    }

    /// Bytes of memory that waiting payloads take, and the gaps that were found.
    fn waiting(&self) -> usize {
        let gaps: BTreeSet<u64> = self.found.values().map(|(_, _, below)| *below).collect();
        let gaps = gaps.iter().filter(|&&below| below > self.next).count();
        self.held.values().sum::<usize>() + (self.held.len() + gaps) * OVERHEAD
    }

    /// Whether the arrival of a number shows a gap that matters.
    fn shows_gap(&self, number: u64) -> bool {
        number > self.end && self.ahead_max < u64::from(self.bounds.packets)
    }

    fn settle(&mut self) {
        while self.come.contains(&self.next) {
            self.next += 1;
        }
        self.end = self.end.max(self.next);
        let free: Vec<u64> = self.held.keys().copied().collect();
        for number in free.into_iter().filter(|&number| number <= self.next + self.ahead_max) {
            self.held.remove(&number);
            self.released.push(number);
        }
    }

    fn give_up_below(&mut self, number: u64) {
        if number > self.next {
            self.given_up += (self.next..number).filter(|n| !self.come.contains(n)).count() as u64;
            self.next = number;
            self.settle();
        }
    }

    fn expire(&mut self, now: Duration) {
        while !self.held.is_empty() {
            let (found, overtaken, below) = self.found[&self.next];
            let overtaken = self.overtaken.saturating_sub(overtaken);
            if overtaken < GAP_TIME && now.saturating_sub(found) < self.bounds.gap_max {
                return;
            }
            self.give_up_below(below);
        }
    }
}

#[derive(Clone, Debug)]
struct Step {
    after: Duration,
    /// Ahead of the highest so far, or behind it.
    number: i64,
    /// Behind the number, or above it.
    floor: i64,
    len: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let number = prop_oneof![
        12 => Just(1_i64),
        6 => 2..4_i64,
        8 => -12..1_i64,
        1 => -2000..2000_i64,
        1 => Just(1 << 61),
    ];
    let floor = prop_oneof![6 => -60..-20_i64, 2 => -20..2_i64, 1 => 2..3_i64];
    let after = prop_oneof![8 => 0..60_u64, 1 => 60..2_000_u64, 1 => 2_000..12_000_u64];
    (after, number, floor, 8..40_usize).prop_map(|(after, number, floor, len)| Step {
        after: Duration::from_millis(after),
        number,
        floor,
        len,
    })
}

fn mode() -> impl Strategy<Value = Resequence> {
    prop_oneof![
        Just(Resequence::Off),
        (0..30_u32).prop_map(Resequence::Window),
        Just(Resequence::Ordered),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn it_follows_the_plain_rules(
        mode in mode(),
        (bytes, packets) in (50..20_000_usize, 1..200_u32),
        first in prop_oneof![Just(0), 0..5_000_u64],
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let bounds = Bounds { bytes, packets, ..Bounds::default() };
        let start = waiting(Resequence::Off).now;
        let mut egress = Egress::with_bounds(mode, bounds, start);
        let ahead_max = mode.ahead_max().min(1 << 40);
        let mut model = Model { ahead_max, bounds, next: first, end: first, ..Model::default() };
        egress.floor = first;
        let mut released = egress.push(first);
        model.push(Duration::ZERO, (first, first, 8));
        for step in steps {
            egress.now += step.after;
            released.extend(egress.take());
            model.expire(egress.now - start);
            let number = (model.end - 1).saturating_add_signed(step.number);
            let repair_floor = number.saturating_add_signed(step.floor);
            let mut payload = number.to_be_bytes().to_vec();
            payload.resize(step.len, 0);
            let datagram = numbered(number, repair_floor, payload.into());
            egress.resequencer.push(egress.now, datagram);
            let most = bytes + step.len + (2 + ahead_max.min(30) as usize) * OVERHEAD;
            prop_assert!(egress.resequencer.held_bytes() <= most, "{bytes} bytes");
            let freed = std::iter::from_fn(|| egress.resequencer.poll_release(egress.now));
            released.extend(freed.map(|p| u64::from_be_bytes(p[..8].try_into().unwrap())));
            model.push(egress.now - start, (number, repair_floor, step.len));
            prop_assert_eq!(&released, &model.released);
            // Payloads within the window do not wait, but may show gaps.
            let in_window = ahead_max.min(30) as usize * OVERHEAD;
            prop_assert!(egress.resequencer.waiting_bytes() <= bytes + in_window);
            prop_assert_eq!(egress.resequencer.waiting_bytes(), model.waiting());
            prop_assert_eq!(egress.resequencer.held.len(), model.held.len());
            prop_assert!(egress.resequencer.held.len() < packets as usize);
            prop_assert!(egress.resequencer.gaps.len() <= packets as usize);
        }
        let given_up = egress.given_up();
        let GivenUpGaps { floor, time, silence, bytes, packets, flush: 0 } = given_up else {
            panic!("{given_up:?}");
        };
        prop_assert_eq!(floor + time + silence + bytes + packets, model.given_up);
    }

    #[test]
    fn every_payload_is_released_once_and_in_time_for_any_input(
        mode in mode(),
        steps in prop::collection::vec((any_number(), any_number(), 0..2_000_u64), 1..200),
    ) {
        let bounds = Bounds { bytes: 5_000, packets: 100, ..Bounds::default() };
        let mut egress = Egress::with_bounds(mode, bounds, waiting(Resequence::Off).now);
        let mut released = Vec::new();
        let mut accepted = BTreeSet::new();
        for (number, floor, after) in steps {
            released.extend(egress.wait(Duration::from_millis(after)));
            egress.floor = floor;
            let before = *egress.stats();
            released.extend(egress.push(number));
            let after = *egress.stats();
            let dropped = |stats: &ResequencerStats| {
                stats.out_of_range + stats.stale + stats.duplicates + stats.overrun
            };
            if dropped(&after) == dropped(&before) {
                prop_assert!(accepted.insert(number), "{number} was taken twice");
            }
            let in_window = 100 * OVERHEAD;
            prop_assert!(egress.resequencer.held_bytes() <= bounds.bytes + in_window);
            if let Some(timeout) = egress.resequencer.next_timeout() {
                prop_assert!(timeout <= egress.now + bounds.gap_max);
            }
        }
        // All gaps have been found by now, so that no payload waits longer than for one of them.
        released.extend(egress.wait(bounds.gap_max));
        prop_assert!(egress.resequencer.held.is_empty() && egress.resequencer.ready.is_empty());
        prop_assert_eq!(egress.resequencer.next_timeout(), None);
        egress.resequencer.flush(egress.now);
        prop_assert_eq!(egress.resequencer.held_bytes(), 0);
        let once: BTreeSet<u64> = released.iter().copied().collect();
        prop_assert_eq!(once.len(), released.len());
        prop_assert_eq!(once, accepted);
    }
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..150_u64,
        2 => 0..3_000_u64,
        1 => any::<u64>(),
        1 => (1_u64 << 62) - 5..(1 << 62) + 5,
        1 => JUMP_MAX - 200..JUMP_MAX + 200,
    ]
}

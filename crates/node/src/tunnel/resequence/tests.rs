use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const NOTHING: [u64; 0] = [];

const RTT: Duration = Duration::from_millis(40);

/// 12 RTTs and 50 ms.
const GAP_TIME: Duration = Duration::from_millis(530);

fn numbered(number: u64, repair_floor: u64, payload: Bytes) -> Sequenced {
    let [sequence, floor] = [number, repair_floor].map(tandem_wire::VarInt::saturating_from);
    Sequenced { sequence, floor, payload }
}

/// A resequencer with a clock, whose payloads begin with their number.
struct Exit {
    resequencer: Resequencer,
    now: Instant,
    floor: u64,
}

impl Exit {
    #[expect(clippy::disallowed_methods, reason = "a world needs one instant to begin with")]
    fn new(mode: Resequence) -> Self {
        Self::with_bounds(mode, Bounds::default(), Instant::now())
    }

    fn with_bounds(mode: Resequence, bounds: Bounds, now: Instant) -> Self {
        let mut resequencer = Resequencer::new(mode, bounds);
        resequencer.set_smoothed_rtt(RTT);
        Self { resequencer, now, floor: 0 }
    }

    /// What a number frees.
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

/// The exit with number 0 released and 1 missing.
fn waiting(mode: Resequence) -> Exit {
    let mut exit = Exit::new(mode);
    assert_eq!(exit.push(0), [0]);
    exit
}

#[test]
fn each_mode_holds_what_it_promises_to_hold() {
    let cases: [(Resequence, &[u64], &[u64]); 4] = [
        (Resequence::Off, &[2, 3, 4, 5], &[1]),
        (Resequence::Window(0), &[], &[1, 2, 3, 4, 5]),
        (Resequence::Window(2), &[2, 3], &[1, 4, 5]),
        (Resequence::Ordered, &[], &[1, 2, 3, 4, 5]),
    ];
    for (mode, at_once, when_repaired) in cases {
        let mut exit = waiting(mode);
        assert_eq!(exit.push_all(2..6), at_once, "{mode:?}");
        assert_eq!(exit.push(1), when_repaired, "{mode:?}");
        assert_eq!(exit.push(6), [6], "{mode:?}");
        assert_eq!(exit.given_up(), GivenUpGaps::default());
    }
}

#[test]
fn a_repaired_gap_frees_only_what_lies_before_the_next_gap() {
    let mut exit = waiting(Resequence::Ordered);
    assert_eq!(exit.push_all([2, 4, 6]), NOTHING);
    assert_eq!(exit.push(3), NOTHING);
    assert_eq!(exit.push(1), [1, 2, 3, 4]);
    assert_eq!(exit.push(5), [5, 6]);
}

#[test]
fn the_window_follows_the_oldest_gap() {
    let mut exit = waiting(Resequence::Window(3));
    // 1 and 3 are missing; 4 is three ahead of 1, and 6 three ahead of 3.
    assert_eq!(exit.push_all([2, 4, 5, 6, 7]), [2, 4]);
    assert_eq!(exit.push(1), [1, 5, 6]);
    assert_eq!(exit.push(3), [3, 7]);
}

#[test]
fn what_the_floor_says_is_missing_before_the_first_arrival_is_waited_for() {
    let mut exit = Exit::new(Resequence::Ordered);
    exit.floor = 7;
    assert_eq!(exit.push_all([9, 8]), NOTHING);
    assert_eq!(exit.push(7), [7, 8, 9]);
}

#[test]
fn the_floor_frees_what_waited_for_nothing() {
    let mut exit = waiting(Resequence::Ordered);
    assert_eq!(exit.push_all([2, 4, 6]), NOTHING);
    exit.floor = 4;
    assert_eq!(exit.push(8), [2, 4]);
    assert_eq!(exit.given_up(), GivenUpGaps { floor: 2, ..GivenUpGaps::default() });
    exit.resequencer.raise_floor(exit.now, 8);
    assert_eq!(exit.take(), [6, 8]);
    assert_eq!(exit.given_up().floor, 4);
}

#[test]
fn a_sender_that_repairs_nothing_holds_nothing_up() {
    let mut exit = Exit::new(Resequence::Ordered);
    for number in [5, 6, 9, 7, 20] {
        exit.floor = number + 1;
        assert_eq!(exit.push(number), [number]);
    }
    assert_eq!((exit.stats().waited, exit.stats().late), (0, 1));
}

#[test]
fn duplicates_are_dropped_whatever_became_of_the_first() {
    for mode in [Resequence::Off, Resequence::WINDOW, Resequence::Ordered] {
        let mut exit = waiting(mode);
        exit.push_all([2, 3]);
        assert_eq!(exit.push_all([2, 0]), NOTHING, "waiting or long gone, {mode:?}");
        exit.push(1);
        assert_eq!(exit.push_all([1, 2, 3]), NOTHING, "{mode:?}");
        assert_eq!((exit.stats().duplicates, exit.stats().released), (5, 4));
    }
}

#[test]
fn what_comes_after_it_was_given_up_is_released_once() {
    let mut exit = waiting(Resequence::Ordered);
    exit.floor = 2;
    assert_eq!(exit.push(2), [2]);
    assert_eq!(exit.push_all([1, 1]), [1]);
    assert_eq!((exit.stats().late, exit.stats().duplicates), (1, 1));
}

#[test]
fn what_is_older_than_the_history_is_dropped() {
    let mut exit = Exit::new(Resequence::Ordered);
    exit.push_all((0..10).chain(20..21));
    exit.floor = 20;
    exit.push_all(21..12 + HISTORY);
    assert_eq!(exit.push_all([11, 12]), [12]);
    assert_eq!((exit.stats().stale, exit.stats().late), (1, 1));
}

#[test]
fn a_gap_is_given_up_when_it_has_been_overtaken_for_its_time() {
    let mut exit = waiting(Resequence::Ordered);
    let mut passed = Duration::ZERO;
    exit.push(2);
    for number in 3.. {
        exit.now += RTT;
        passed += RTT;
        let released = exit.push(number);
        if passed >= GAP_TIME {
            assert_eq!(released, (2..=number).collect::<Vec<_>>());
            break;
        }
        assert_eq!(released, NOTHING, "{passed:?}");
    }
    assert_eq!(exit.given_up(), GivenUpGaps { time: 1, ..GivenUpGaps::default() });
}

#[test]
fn gaps_that_were_found_together_are_given_up_together() {
    let mut exit = waiting(Resequence::Ordered);
    exit.push_all([5, 7, 9]);
    exit.now += RTT;
    exit.push(11);
    // Ten more for the first three gaps; 10 was found missing one RTT later.
    for number in 12..24 {
        exit.now += RTT;
        assert_eq!(exit.push(number), NOTHING);
    }
    exit.now += RTT;
    assert_eq!(exit.push(24), [5, 7, 9]);
    assert_eq!(exit.given_up().time, 6);
    exit.now += RTT;
    assert_eq!(exit.push(25), (11..26).collect::<Vec<_>>());
}

#[test]
fn an_outage_uses_up_a_tenth_of_the_time_and_no_more() {
    let mut exit = waiting(Resequence::Ordered);
    exit.push(2);
    assert_eq!(exit.wait(Duration::from_secs(5)), NOTHING);
    let mut number = 3;
    // 13 RTTs of 40 ms and a tenth make 573 ms; 11 and a tenth are below 530.
    for _ in 0..11 {
        assert_eq!(exit.push(number), NOTHING);
        exit.now += RTT;
        number += 1;
    }
    assert_eq!(exit.push(1), (1..number).collect::<Vec<_>>());
    assert_eq!(exit.given_up(), GivenUpGaps::default());
}

#[test]
fn repairs_that_fill_the_oldest_gap_stop_the_clock() {
    let mut exit = waiting(Resequence::Ordered);
    exit.push(1000);
    for number in 1..999 {
        exit.now += Duration::from_millis(5);
        assert_eq!(exit.push(number), [number]);
    }
    assert_eq!(exit.push(999), [999, 1000]);
    assert_eq!(exit.given_up(), GivenUpGaps::default());
}

#[test]
fn silence_ends_the_wait_at_last() {
    let mut exit = waiting(Resequence::Ordered);
    exit.push(2);
    let timeout = exit.resequencer.next_timeout().unwrap();
    assert_eq!(timeout, exit.now + Bounds::default().gap_max);
    assert_eq!(exit.wait(Duration::from_millis(9_999)), NOTHING);
    assert_eq!(exit.wait(Duration::from_millis(1)), [2]);
    assert_eq!(exit.given_up(), GivenUpGaps { silence: 1, ..GivenUpGaps::default() });
    assert_eq!(exit.resequencer.next_timeout(), None);
}

#[test]
fn nothing_that_waits_means_no_timeout() {
    for mode in [Resequence::Off, Resequence::Window(5)] {
        let mut exit = waiting(mode);
        assert_eq!(exit.push_all([2, 3]), [2, 3]);
        assert_eq!(exit.resequencer.next_timeout(), None);
    }
}

#[test]
fn an_absurd_rtt_does_not_stall_for_longer_than_silence_would() {
    let mut exit = waiting(Resequence::Ordered);
    exit.resequencer.set_smoothed_rtt(Duration::MAX);
    exit.push(2);
    let numbers = (3..).take(11);
    let freed = numbers.map(|number| {
        exit.now += Duration::from_secs(1);
        exit.push(number).len()
    });
    assert_eq!(freed.collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 1]);
}

#[test]
fn the_byte_bound_gives_up_the_oldest_gap_and_keeps_the_newest() {
    let bounds = Bounds { bytes: 24, ..Bounds::default() };
    let mut exit = Exit::with_bounds(Resequence::Ordered, bounds, waiting(Resequence::Off).now);
    exit.push(0);
    assert_eq!(exit.push_all([2, 4, 6]), NOTHING);
    assert_eq!(exit.push(8), [2]);
    assert_eq!(exit.given_up(), GivenUpGaps { bytes: 1, ..GivenUpGaps::default() });
    assert_eq!(exit.push_all([3, 5, 7]), [3, 4, 5, 6, 7, 8]);
    assert_eq!(exit.stats().held_bytes_max, 24);
}

#[test]
fn a_payload_larger_than_the_byte_bound_does_not_wait() {
    let bounds = Bounds { bytes: 7, ..Bounds::default() };
    let mut exit = Exit::with_bounds(Resequence::Ordered, bounds, waiting(Resequence::Off).now);
    assert_eq!(exit.push_all([0, 5, 9]), [0, 5, 9]);
    assert_eq!(exit.given_up().bytes, 7);
    assert_eq!(exit.stats().held_bytes_max, 0);
}

#[test]
fn the_packet_bound_gives_up_the_oldest_gap() {
    let mut exit = waiting(Resequence::Ordered);
    let last = u64::from(Bounds::default().packets);
    assert_eq!(exit.push_all(2..=last), NOTHING);
    assert_eq!(exit.push(last + 1), (2..last + 2).collect::<Vec<_>>());
    assert_eq!(exit.given_up(), GivenUpGaps { packets: 1, ..GivenUpGaps::default() });
    assert_eq!(exit.stats().held_packets_max as u64, last - 1);
}

#[test]
fn absurd_numbers_are_ignored_and_counted() {
    let mut exit = waiting(Resequence::Ordered);
    let absurd = [1 << 61, 2 + JUMP_MAX, NUMBER_MAX, 1 << 62, u64::MAX];
    assert_eq!(exit.push_all(absurd), NOTHING);
    assert_eq!(exit.stats().out_of_range, 5);
    assert_eq!(exit.push(1), [1]);
}

#[test]
fn a_flow_may_begin_with_any_number() {
    for first in [0, 1, 1 << 31, 1 << 61, NUMBER_MAX] {
        let mut exit = Exit::new(Resequence::Ordered);
        exit.floor = first;
        assert_eq!(exit.push(first), [first]);
    }
    let mut exit = Exit::new(Resequence::Ordered);
    assert_eq!(exit.push(1 << 61), NOTHING, "its floor is 0, so all before may come");
    assert_eq!(exit.given_up(), GivenUpGaps::default());
}

#[test]
fn a_jump_frees_all_that_waits_and_waits_for_what_it_can() {
    let mut exit = waiting(Resequence::Ordered);
    exit.push_all([2, 3, 5]);
    let far = JUMP_MAX - 1;
    assert_eq!(exit.push(far), [2, 3, 5]);
    let waited_for = u64::from(Bounds::default().packets) - 1;
    assert_eq!(exit.given_up().packets, far - waited_for - 4);
    exit.floor = far;
    assert_eq!(exit.push(far + 1), [far, far + 1]);
    assert_eq!(exit.given_up().floor, waited_for);
}

#[test]
fn floors_that_no_sender_can_mean_are_ignored_and_counted() {
    let mut exit = waiting(Resequence::Ordered);
    for floor in [4, 1 << 61, u64::MAX] {
        exit.floor = floor;
        assert_eq!(exit.push(2), NOTHING);
    }
    exit.resequencer.raise_floor(exit.now, 1 << 61);
    assert_eq!(exit.stats().floors_out_of_range, 4);
    exit.floor = 0;
    assert_eq!(exit.push(1), [1, 2]);
}

#[test]
fn a_floor_that_runs_backwards_changes_nothing() {
    let mut exit = waiting(Resequence::Ordered);
    exit.floor = 5;
    assert_eq!(exit.push(5), [5]);
    exit.floor = 1;
    assert_eq!(exit.push(6), [6]);
}

#[test]
fn flushing_frees_everything_in_order() {
    let mut exit = waiting(Resequence::Ordered);
    exit.push_all([9, 4, 2]);
    exit.resequencer.flush(exit.now);
    assert_eq!(exit.take(), [2, 4, 9]);
    assert_eq!(exit.given_up(), GivenUpGaps { flush: 6, ..GivenUpGaps::default() });
    assert_eq!(exit.push(10), [10]);
}

#[test]
fn waiting_is_counted_in_packets_and_time() {
    let mut exit = waiting(Resequence::Ordered);
    exit.push(2);
    exit.now += RTT;
    exit.push(3);
    exit.now += RTT;
    exit.push(1);
    exit.now += RTT;
    exit.push(4);
    let stats = exit.stats();
    assert_eq!((stats.waited, stats.waited_time, stats.released), (2, 3 * RTT, 5));
    assert_eq!((stats.held_packets_max, stats.held_bytes_max), (2, 16));
}

#[test]
fn who_does_not_take_what_is_released_cannot_make_it_hold_more() {
    let bounds = Bounds { bytes: 100, ..Bounds::default() };
    let now = waiting(Resequence::Off).now;
    let mut resequencer = Resequencer::new(Resequence::Off, bounds);
    for number in 0..20 {
        let payload = Bytes::from_static(&[0; 30]);
        resequencer.push(now, numbered(number, 0, payload));
        assert!(resequencer.held_bytes() <= 100);
    }
    assert_eq!(resequencer.stats().overrun, 17);
}

/// The same rules as slowly and plainly as they can be said.
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
            && self.held.values().sum::<usize>() + len > self.bounds.bytes
        {
            let after = (self.next..number).find(|n| self.come.contains(n)).unwrap_or(number);
            self.give_up_below(after);
        }
        for missing in self.end..number {
            self.found.insert(missing, (now, self.overtaken, number));
        }
        self.end = self.end.max(number + 1);
        self.come.insert(number);
        self.held.insert(number, len);
        self.settle();
        self.expire(now);
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
    fn it_does_what_the_plain_rules_do(
        mode in mode(),
        (bytes, packets) in (50..2_000_usize, 1..200_u32),
        first in prop_oneof![Just(0), 0..5_000_u64],
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let bounds = Bounds { bytes, packets, ..Bounds::default() };
        let start = waiting(Resequence::Off).now;
        let mut exit = Exit::with_bounds(mode, bounds, start);
        let ahead_max = mode.ahead_max().min(1 << 40);
        let mut model = Model { ahead_max, bounds, next: first, end: first, ..Model::default() };
        exit.floor = first;
        let mut released = exit.push(first);
        model.push(Duration::ZERO, (first, first, 8));
        for step in steps {
            exit.now += step.after;
            released.extend(exit.take());
            model.expire(exit.now - start);
            let number = (model.end - 1).saturating_add_signed(step.number);
            let repair_floor = number.saturating_add_signed(step.floor);
            let mut payload = number.to_be_bytes().to_vec();
            payload.resize(step.len, 0);
            let datagram = numbered(number, repair_floor, payload.into());
            exit.resequencer.push(exit.now, datagram);
            let most = bytes + step.len;
            prop_assert!(exit.resequencer.held_bytes() <= most, "{bytes} bytes");
            let freed = std::iter::from_fn(|| exit.resequencer.poll_release(exit.now));
            released.extend(freed.map(|p| u64::from_be_bytes(p[..8].try_into().unwrap())));
            model.push(exit.now - start, (number, repair_floor, step.len));
            prop_assert_eq!(&released, &model.released);
            prop_assert!(exit.resequencer.held_bytes <= bytes);
            prop_assert_eq!(exit.resequencer.held_packets, model.held.len());
            prop_assert!(exit.resequencer.held_packets < packets as usize);
            prop_assert!(exit.resequencer.gaps.len() <= packets as usize);
        }
        let given_up = exit.given_up();
        let GivenUpGaps { floor, time, silence, bytes, packets, flush: 0 } = given_up else {
            panic!("{given_up:?}");
        };
        prop_assert_eq!(floor + time + silence + bytes + packets, model.given_up);
    }

    #[test]
    fn everything_comes_out_once_and_in_time_whatever_a_peer_sends(
        mode in mode(),
        steps in prop::collection::vec((any_number(), any_number(), 0..2_000_u64), 1..200),
    ) {
        let bounds = Bounds { bytes: 500, packets: 100, ..Bounds::default() };
        let mut exit = Exit::with_bounds(mode, bounds, waiting(Resequence::Off).now);
        let mut released = Vec::new();
        let mut accepted = BTreeSet::new();
        for (number, floor, after) in steps {
            released.extend(exit.wait(Duration::from_millis(after)));
            exit.floor = floor;
            let before = *exit.stats();
            released.extend(exit.push(number));
            let after = *exit.stats();
            let dropped = |stats: &ResequencerStats| {
                stats.out_of_range + stats.stale + stats.duplicates + stats.overrun
            };
            if dropped(&after) == dropped(&before) {
                prop_assert!(accepted.insert(number), "{number} was taken twice");
            }
            prop_assert!(exit.resequencer.held_bytes() <= bounds.bytes);
            prop_assert!(exit.resequencer.slots.len() <= 128);
            if let Some(timeout) = exit.resequencer.next_timeout() {
                prop_assert!(timeout <= exit.now + bounds.gap_max);
            }
        }
        // However many gaps there are, all were found by now, so that no wait is longer than one.
        released.extend(exit.wait(bounds.gap_max));
        prop_assert_eq!(exit.resequencer.held_bytes(), 0);
        prop_assert_eq!(exit.resequencer.next_timeout(), None);
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

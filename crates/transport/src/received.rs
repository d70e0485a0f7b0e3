//! Which packets have arrived, as far as ACK frames tell it.

use std::{collections::VecDeque, ops::RangeInclusive, time::Instant};

use crate::frame::{ACK_RANGES_MAX, EcnCounts};

/// The ECN codepoint of a packet ([RFC 3168 §5](https://www.rfc-editor.org/rfc/rfc3168#section-5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// ECT(0).
    Ect0,
    /// ECT(1).
    Ect1,
    /// Congestion experienced.
    Ce,
}

/// The packet numbers that have arrived, in at most [`ACK_RANGES_MAX`] ranges.
#[derive(Debug)]
pub(crate) struct Received {
    /// From the lowest. They do not touch each other.
    ranges: VecDeque<(u64, u64)>,
    /// When the packet with the largest number came.
    pub(crate) largest_came: Instant,
    ecn: EcnCounts,
}

impl Received {
    pub(crate) const fn new(now: Instant) -> Self {
        let ecn = EcnCounts { ect0: 0, ect1: 0, ce: 0 };
        Self { ranges: VecDeque::new(), largest_came: now, ecn }
    }

    /// Notes a packet that was not there before. Returns whether it came in order: its number follows the largest one.
    pub(crate) fn insert(&mut self, number: u64, now: Instant, ecn: Option<Ecn>) -> bool {
        match ecn {
            Some(Ecn::Ect0) => self.ecn.ect0 += 1,
            Some(Ecn::Ect1) => self.ecn.ect1 += 1,
            Some(Ecn::Ce) => self.ecn.ce += 1,
            None => {}
        }
        let newest = self.ranges.back_mut();
        if newest.as_ref().is_none_or(|(_, last)| *last < number) {
            self.largest_came = now;
        }
        match newest {
            Some((_, last)) if *last + 1 == number => {
                *last = number;
                return true;
            }
            None if number == 0 => {
                self.ranges.push_back((0, 0));
                return true;
            }
            _ => {}
        }
        self.insert_out_of_order(number);
        false
    }

    fn insert_out_of_order(&mut self, number: u64) {
        let place = self.ranges.partition_point(|(_, last)| *last < number);
        let touches_next = self.ranges.get(place).is_some_and(|(first, _)| *first <= number + 1);
        let before = place.checked_sub(1).and_then(|before| self.ranges.get_mut(before));
        if let Some((_, last)) = before
            && *last + 1 == number
        {
            *last = number;
            if touches_next
                && let Some((_, end)) = self.ranges.remove(place)
                && let Some((_, last)) = self.ranges.get_mut(place - 1)
            {
                *last = end;
            }
        } else if touches_next {
            if let Some((first, _)) = self.ranges.get_mut(place) {
                *first = number.min(*first);
            }
        } else if self.ranges.len() < ACK_RANGES_MAX {
            self.ranges.insert(place, (number, number));
        } else if place > 0 {
            self.ranges.pop_front();
            self.ranges.insert(place - 1, (number, number));
        }
    }

    /// The ranges, from the highest.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        self.ranges.iter().rev().map(|&(first, last)| first..=last)
    }

    pub(crate) fn ranges_len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn largest(&self) -> Option<u64> {
        self.ranges.back().map(|(_, last)| *last)
    }

    /// The counts, if there are any.
    pub(crate) fn ecn(&self) -> Option<EcnCounts> {
        (self.ecn != EcnCounts::default()).then_some(self.ecn)
    }

    /// The peer has an ACK frame whose largest number was this. Lower ones need no acknowledgement any more
    /// (RFC 9000 §13.2.4).
    pub(crate) fn on_ack_acked(&mut self, largest: u64) {
        while self.ranges.len() > 1
            && let Some((_, last)) = self.ranges.front()
            && *last < largest
        {
            self.ranges.pop_front();
        }
        if let Some((first, last)) = self.ranges.front_mut() {
            *first = (*first).max(largest.min(*last));
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.ranges.capacity() * size_of::<(u64, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::test_start;

    proptest! {
        #[test]
        fn ranges_are_those_of_a_set(
            numbers in prop::collection::vec(prop_oneof![0..60_u64, 0..1000_u64], 0..400),
            forget in prop::option::of(0..1000_u64),
        ) {
            let (mut received, mut set) = (Received::new(test_start()), BTreeSet::new());
            for number in numbers {
                if set.insert(number) {
                    let largest = received.largest();
                    let in_order = received.insert(number, test_start(), None);
                    prop_assert_eq!(in_order, number == largest.map_or(0, |largest| largest + 1));
                }
            }
            if let Some(forget) = forget {
                received.on_ack_acked(forget);
            }
            let ranges: Vec<_> = received.ranges().collect();
            prop_assert!(ranges.len() <= ACK_RANGES_MAX);
            prop_assert_eq!(received.largest(), set.last().copied());
            let told: BTreeSet<u64> = ranges.iter().cloned().flatten().collect();
            prop_assert_eq!(told.len() as u64, ranges.iter().map(|it| it.end() - it.start() + 1).sum());
            prop_assert!(ranges.windows(2).all(|pair| pair[1].end() + 1 < *pair[0].start()));
            prop_assert!(told.is_subset(&set));
            if forget.is_none() && set.len() <= ACK_RANGES_MAX {
                prop_assert_eq!(told, set, "nothing is left out");
            }
        }
    }
}

//! The packets that were sent, until nothing more will be heard of them.

use std::{collections::VecDeque, time::Instant};

use crate::fates::Tag;

/// The most packets in the ring: 78 MB in full packets of 1200 bytes. They are those from the oldest whose fate is open
/// to the newest.
pub const PACKETS_MAX: usize = 1 << 16;

/// The places that are left for acknowledgements and probes when datagrams have taken all others.
const RESERVE: usize = 1 << 10;

/// The most datagrams in a packet.
pub const DATAGRAMS_MAX: u8 = 16;

/// The most datagrams in the ring.
const TAGS_MAX: usize = 2 * PACKETS_MAX;

/// An idle ring keeps its memory if it has place for no more packets than this.
const SPARE_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its fate is open.
    InFlight,
    /// It was declared lost, and may be acknowledged late.
    Lost,
    /// It was acknowledged, or was never to be, or its number was skipped.
    Done,
}

/// A packet, or a number that was skipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPacket {
    pub(crate) sent: Instant,
    /// One more than the largest number in its ACK frame. 0: it has none.
    pub(crate) ack_until: u64,
    /// Where its tags begin, modulo 2^32.
    pub(crate) first_tag: u32,
    /// How many packets after this one are known to be done.
    pub(crate) run: u32,
    /// The congestion event that its loss was part of.
    pub(crate) loss_event: u32,
    pub(crate) size: u16,
    pub(crate) tags: u8,
    pub(crate) state: State,
    pub(crate) is_ack_eliciting: bool,
    pub(crate) is_marked: bool,
}

/// A ring of packets in the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct SentPackets {
    /// The number of the first packet in the ring.
    first: u64,
    packets: VecDeque<SentPacket>,
    tags: VecDeque<Tag>,
    /// The number of tags that have left the ring, modulo 2^32.
    first_tag: u32,
}

impl SentPacket {
    /// A packet that is not ack-eliciting, or a skipped number.
    pub(crate) const fn done(sent: Instant) -> Self {
        Self {
            sent,
            ack_until: 0,
            first_tag: 0,
            run: 0,
            loss_event: 0,
            size: 0,
            tags: 0,
            state: State::Done,
            is_ack_eliciting: false,
            is_marked: false,
        }
    }
}

impl SentPackets {
    /// A ring whose next packet has this number.
    #[cfg(test)]
    pub(crate) fn starting_at(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether there is room for a packet with datagrams.
    pub(crate) fn has_room(&self) -> bool {
        self.packets.len() < PACKETS_MAX - RESERVE
            && self.tags.len() < TAGS_MAX - usize::from(DATAGRAMS_MAX)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.packets.len() >= PACKETS_MAX
    }

    pub(crate) fn get(&self, number: u64) -> Option<&SentPacket> {
        self.packets.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut SentPacket> {
        self.packets.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Appends a tag of the next packet, which is pushed after its tags.
    pub(crate) fn push_tag(&mut self, tag: Tag) {
        self.tags.push_back(tag);
    }

    /// Appends the packet with the next number. The last `packet.tags` tags are its own.
    pub(crate) fn push(&mut self, mut packet: SentPacket) {
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
        let end = self.first_tag.wrapping_add(self.tags.len() as u32);
        packet.first_tag = end.wrapping_sub(packet.tags.into());
        if packet.state == State::Done && self.packets.is_empty() {
            self.first += 1; // nothing more will be heard of it
        } else {
            self.packets.push_back(packet);
        }
    }

    pub(crate) fn tags(&self, packet: &SentPacket) -> impl Iterator<Item = Tag> {
        let start = packet.first_tag.wrapping_sub(self.first_tag) as usize;
        self.tags.range(start..start + usize::from(packet.tags)).copied()
    }

    /// Forgets the oldest packets of which nothing more will be heard: those that are done, and lost ones that were
    /// sent before `late`.
    pub(crate) fn forget(&mut self, late: Option<Instant>) {
        while let Some(packet) = self.packets.front() {
            let is_late = || late.is_some_and(|late| packet.sent < late);
            if packet.state == State::Done || packet.state == State::Lost && is_late() {
                self.pop();
            } else {
                break;
            }
        }
    }

    /// Takes the oldest packet out.
    pub(crate) fn pop(&mut self) {
        debug_assert!(!self.packets.is_empty(), "whoever takes a packet out has seen it");
        let Some(packet) = self.packets.pop_front() else { return };
        self.first += 1;
        self.first_tag = self.first_tag.wrapping_add(packet.tags.into());
        for _ in 0..packet.tags {
            self.tags.pop_front();
        }
    }

    /// Gives memory back, if the ring is empty.
    pub(crate) fn release(&mut self) {
        if self.packets.is_empty() && self.has_spare() {
            (self.packets, self.tags) = (VecDeque::new(), VecDeque::new());
        }
    }

    /// Whether an idle ring keeps more memory than it should.
    pub(crate) fn has_spare(&self) -> bool {
        self.packets.capacity() > SPARE_MAX || self.tags.capacity() > SPARE_MAX
    }

    pub(crate) fn memory(&self) -> usize {
        self.packets.capacity() * size_of::<SentPacket>() + self.tags.capacity() * size_of::<Tag>()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_start;

    fn packet(sent: Instant, tags: u8) -> SentPacket {
        SentPacket {
            tags,
            state: State::InFlight,
            is_ack_eliciting: true,
            ..SentPacket::done(sent)
        }
    }

    #[test]
    fn tags_stay_with_their_packets() {
        let (mut sent, now) = (SentPackets::default(), test_start());
        sent.push(SentPacket::done(now));
        assert_eq!((sent.first(), sent.next_number()), (1, 1), "nothing is kept of it");
        for (number, tags) in [(1_u8, 2), (2, 0), (3, 3)] {
            (0..Tag::from(tags)).for_each(|tag| sent.push_tag(10 * Tag::from(number) + tag));
            sent.push(packet(now, tags));
        }
        let tags = |sent: &SentPackets, number| -> Vec<Tag> {
            sent.get(number).map(|packet| sent.tags(packet).collect()).unwrap_or_default()
        };
        assert_eq!([1, 2, 3].map(|it| tags(&sent, it)), [vec![10, 11], vec![], vec![30, 31, 32]]);
        sent.get_mut(2).unwrap().state = State::Done;
        sent.forget(None);
        assert_eq!(sent.first(), 1, "the first one is still in flight");
        sent.get_mut(1).unwrap().state = State::Lost;
        sent.forget(Some(now));
        assert_eq!(sent.first(), 1, "it may be acknowledged late");
        sent.forget(Some(now + Duration::from_millis(1)));
        assert_eq!(sent.first(), 3);
        assert_eq!(tags(&sent, 3), [30, 31, 32]);
        assert!(sent.get(2).is_none() && sent.get(4).is_none());
        sent.pop();
        assert!(sent.is_empty() && sent.next_number() == 4);
    }
}

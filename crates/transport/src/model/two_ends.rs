//! Two ends of a transport, and between them somebody without the keys who does with their packets what the input says:
//! loses, copies, delays, changes, cuts, marks and forges them. Meanwhile the ends change keys and paths.
//!
//! Nothing of that ends a transport. No datagram arrives twice or changed, and none counts as acknowledged that has not
//! arrived. Memory is bounded. When the network behaves again, all fates become known, and datagrams arrive as before.

use std::{
    collections::VecDeque,
    num::NonZeroU64,
    time::{Duration, Instant},
};

use tandem_congestion::ControllerName;

use super::{
    MEMORY_MAX, built,
    owner::{Fate, Owner},
};
use crate::{
    Config, DropCause, Ecn, Sealed, Transport,
    script::Reader,
    seal::{
        TAG_LEN,
        model::{HEADER_LEN, both_ends},
    },
};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 400;

/// The most datagrams of one end and run.
const DATAGRAMS_MAX: u64 = 3_000;

/// The most packets on their way in one direction. The oldest of more are lost.
const ON_THEIR_WAY_MAX: usize = 1_000;

/// The time between two steps of a network that behaves.
const STEP: Duration = Duration::from_millis(5);

struct End {
    transport: Transport<Sealed>,
    owner: Owner,
    offered: u64,
    /// The packets that are on their way to the other end, each with its place among all that have left.
    packets: VecDeque<(u64, Vec<u8>)>,
    left: u64,
    /// The place of the newest packet that has arrived, and one.
    arrived: u64,
    /// Whether too many packets were lost in a row, so that the receiver no longer has the keys for the next one.
    /// The protocol's generations have more packet numbers than can be in flight; those here are shorter.
    is_torn: bool,
}

struct Run {
    ends: [End; 2],
    controller: ControllerName,
    update_interval: u64,
    now: Instant,
}

/// Drives two ends as the input says. Returns how often the keys of each direction have changed.
///
/// # Panics
///
/// A transport breaks a promise.
pub fn run(input: &[u8]) -> [u64; 2] {
    let mut reader = Reader::new(input);
    let mut run = Run::new(&mut reader);
    reader.steps(STEPS_MAX, |reader| run.step(reader));
    run.heal();
    let interval = run.update_interval;
    run.ends.map(|end| end.arrived / interval)
}

impl Run {
    fn new(reader: &mut Reader<'_>) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a run needs one time to count from")]
        let now = Instant::now();
        let controller =
            reader.choose(&[ControllerName::NewReno, ControllerName::Bbr1, ControllerName::Tecc]);
        let update_interval = reader.choose(&[400, 1 << 20, 1000]);
        let protections = both_ends(NonZeroU64::new(update_interval).expect("it is not 0"));
        let ends = protections.map(|protection| {
            let config = Config {
                packet_size: 1252,
                packet_size_min: 1200,
                initial_rtt: Duration::from_millis(100),
                min_rtt: None,
                has_ecn: true,
                ack_wait: None,
                seed: reader.byte().into(),
            };
            End {
                transport: Transport::new(config, protection, built(controller, now), now),
                owner: Owner::default(),
                offered: 0,
                packets: VecDeque::new(),
                left: 0,
                arrived: 0,
                is_torn: false,
            }
        });
        Self { ends, controller, update_interval, now }
    }

    fn step(&mut self, reader: &mut Reader<'_>) {
        let letter = reader.byte() % 20;
        let at = usize::from(reader.byte() % 2);
        match letter {
            0..=3 => self.offer(at, reader.byte().into(), reader.choose(&[1200, 8, 500, 1222])),
            4..=7 => self.deliver(at, 1 + usize::from(reader.byte())),
            8 => self.change_one(at, reader),
            9 => self.forge(at, reader),
            10 => self.overtake(at, reader),
            11 => self.copy(at, reader),
            12 => self.lose(at, reader),
            13 => self.reflect(at, reader),
            14..=16 => self.wait(Duration::from_millis(reader.byte().into())),
            17 => self.ends[at].transport.set_may_send(reader.choose(&[true, false])),
            18 => {
                let controller = built(self.controller, self.now);
                self.ends[at].transport.on_new_path(self.now, controller);
            }
            _ => self.ends[at].transport.set_packet_size(reader.choose(&[1252, 1200, 1452])),
        }
        self.transmit();
        self.check();
    }

    fn offer(&mut self, at: usize, count: u64, len: usize) {
        let end = &mut self.ends[at];
        for _ in 0..count.min(DATAGRAMS_MAX - end.offered) {
            end.owner.offer(end.offered.into(), len.min(end.transport.datagram_max()));
            end.offered += 1;
        }
    }

    /// Lets the oldest packets arrive.
    fn deliver(&mut self, from: usize, count: usize) {
        for _ in 0..count {
            let Some((place, packet)) = self.ends[from].packets.pop_front() else { break };
            self.arrive(from, place, &packet, None);
        }
    }

    /// Lets a packet of this end arrive at the other one.
    fn arrive(&mut self, from: usize, place: u64, packet: &[u8], ecn: Option<Ecn>) {
        let is_torn = self.ends[from].is_torn;
        let receiver = &mut self.ends[1 - from];
        let mut packet = packet.to_vec();
        let handled =
            receiver.transport.handle_packet(self.now, &mut packet, ecn, &mut receiver.owner);
        match handled {
            Ok(mut datagrams) => {
                while let Some(range) = datagrams.next(&packet) {
                    receiver.owner.receive(&packet[range]);
                }
                self.ends[from].arrived = self.ends[from].arrived.max(place + 1);
            }
            // It came before, or its keys are gone.
            Err(DropCause::Open(_)) => {
                assert!(is_torn || place < self.ends[from].arrived, "{handled:?} at {place}");
            }
            Err(DropCause::Violation(_) | DropCause::Closed) => panic!("{handled:?}"),
        }
    }

    /// Delivers a packet that its sender has not sealed. It must be refused.
    fn refuse(&mut self, from: usize, mut packet: Vec<u8>) {
        let receiver = &mut self.ends[1 - from];
        let handled =
            receiver.transport.handle_packet(self.now, &mut packet, None, &mut receiver.owner);
        assert!(matches!(handled, Err(DropCause::Open(_))), "{handled:?}");
    }

    /// The index of a packet on its way.
    fn choose(&self, from: usize, reader: &mut Reader<'_>) -> Option<usize> {
        reader.number().checked_rem(self.ends[from].packets.len())
    }

    fn change_one(&mut self, from: usize, reader: &mut Reader<'_>) {
        let Some(index) = self.choose(from, reader) else { return };
        let mut packet = self.ends[from].packets[index].1.clone();
        match reader.byte() % 3 {
            0 => {
                let bit = reader.number() % (8 * packet.len());
                // The connection ID is the owner's matter.
                if (1..HEADER_LEN - 4).contains(&(bit / 8)) {
                    return;
                }
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            1 => packet.truncate(reader.number() % packet.len()),
            _ => packet.extend(vec![reader.byte(); 1 + usize::from(reader.byte())]),
        }
        self.refuse(from, packet);
    }

    fn forge(&mut self, from: usize, reader: &mut Reader<'_>) {
        let header =
            self.ends[from].packets.front().map(|(_, packet)| packet[..HEADER_LEN].to_vec());
        let mut packet = header.unwrap_or_default();
        packet.extend((0..reader.byte() % 64).map(|_| reader.byte()));
        packet.resize(packet.len() + TAG_LEN * usize::from(reader.byte() % 2), 0);
        self.refuse(from, packet);
    }

    /// A packet arrives before those that left earlier, perhaps with a mark.
    fn overtake(&mut self, from: usize, reader: &mut Reader<'_>) {
        let Some(index) = self.choose(from, reader) else { return };
        let ecn = reader.choose(&[None, Some(Ecn::Ce), Some(Ecn::Ect0), Some(Ecn::Ect1)]);
        if let Some((place, packet)) = self.ends[from].packets.remove(index) {
            self.arrive(from, place, &packet, ecn);
        }
    }

    fn copy(&mut self, from: usize, reader: &mut Reader<'_>) {
        let Some(index) = self.choose(from, reader) else { return };
        let (place, packet) = self.ends[from].packets[index].clone();
        self.arrive(from, place, &packet, None);
    }

    fn lose(&mut self, from: usize, reader: &mut Reader<'_>) {
        let count = reader.choose(&[1, 3, 30, usize::MAX]).min(self.ends[from].packets.len());
        self.ends[from].packets.drain(..count);
    }

    /// A packet comes back to its sender.
    fn reflect(&mut self, from: usize, reader: &mut Reader<'_>) {
        let Some(index) = self.choose(from, reader) else { return };
        let packet = self.ends[from].packets[index].1.clone();
        self.refuse(1 - from, packet);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.ends.iter().filter_map(|end| end.transport.next_timeout()).min()
    }

    fn wait(&mut self, time: Duration) {
        let (until, mut wakes) = (self.now + time, 0);
        while let Some(next) = self.next_timeout().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            for end in &mut self.ends {
                if end.transport.next_timeout().is_some_and(|due| due <= self.now) {
                    end.transport.handle_timeout(self.now, &mut end.owner);
                }
            }
            self.transmit();
            wakes += 1;
            assert!(wakes < 200 + 40 * time.as_millis(), "{wakes} wakes in {time:?}");
        }
        self.now = until;
    }

    fn transmit(&mut self) {
        for end in &mut self.ends {
            let mut out = Vec::new();
            let most = end.transport.datagram_max();
            end.owner.queue.retain(|(_, len)| *len <= most);
            while let Some(sent) =
                end.transport.poll_transmit(self.now, &mut out, 16, &mut end.owner)
            {
                for packet in out.chunks(sent.segment_size) {
                    end.packets.push_back((end.left, packet.to_vec()));
                    end.left += 1;
                }
                out.clear();
            }
            while end.packets.len() > ON_THEIR_WAY_MAX {
                end.packets.pop_front();
            }
            // Few numbers are skipped.
            end.is_torn |= end.left - end.arrived > self.update_interval * 9 / 10;
        }
    }

    fn check(&self) {
        for (at, end) in self.ends.iter().enumerate() {
            assert_eq!(end.transport.closed(), None);
            assert!(end.transport.memory() < MEMORY_MAX);
            let there = &self.ends[1 - at].owner.received;
            for (tag, fate) in &end.owner.fates {
                if matches!(fate, Fate::Acked | Fate::LateAcked) {
                    assert!(there.contains(tag), "{tag} was acknowledged and had not arrived");
                }
            }
        }
    }

    /// From now on the network behaves.
    fn heal(&mut self) {
        let before = self.ends.each_ref().map(|end| end.offered);
        for at in 0..2 {
            self.ends[at].transport.set_may_send(true);
            self.offer(at, 1, 1000);
        }
        self.transmit();
        for _ in 0..100_000 {
            self.deliver(0, usize::MAX);
            self.deliver(1, usize::MAX);
            self.transmit();
            if self.ends.iter().any(|end| !end.packets.is_empty()) {
                self.wait(STEP);
            } else if let Some(next) = self.next_timeout() {
                self.wait(next.saturating_duration_since(self.now));
            } else {
                break;
            }
        }
        self.check();
        if self.ends.iter().any(|end| end.is_torn) {
            return; // there is no way to acknowledge anything
        }
        for (at, offered) in before.into_iter().enumerate() {
            let end = &self.ends[at];
            assert_eq!((end.owner.count(Fate::Sent), end.owner.queue.len()), (0, 0));
            assert_eq!(end.transport.bytes_in_flight().get(), 0);
            assert_eq!(end.transport.next_timeout(), None, "an idle transport has no timer");
            let last = end.owner.fates.get(&offered.into());
            assert!(offered == end.offered || last == Some(&Fate::Acked), "{last:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nobody_without_the_keys_breaks_anything(
            input in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            super::run(&input);
        }
    }

    /// Both ends send as much as they can. Their keys change at the same packets, each time in the midst of this.
    #[test]
    fn keys_change_at_both_ends_at_once_whatever_the_network_does() {
        const OFFER: [u8; 8] = [0, 0, 100, 0, 0, 1, 100, 0];
        const DELIVER: [u8; 6] = [4, 0, 200, 4, 1, 200];
        const WAIT: [u8; 3] = [14, 0, 20];
        for (what, disturb) in [
            ("nothing", &[][..]),
            ("loss", &[12, 0, 1, 12, 1, 1]),
            ("packets overtake", &[10, 0, 0, 9, 0, 10, 1, 0, 8, 0]),
            ("copies", &[11, 0, 0, 3, 11, 1, 0, 5]),
            ("changes and forgeries", &[8, 0, 0, 2, 0, 0, 4, 9, 1, 2, 1, 2, 0]),
            ("marks", &[10, 0, 0, 0, 1, 10, 1, 0, 0, 1]),
            ("new paths of both ends", &[18, 0, 18, 1]),
        ] {
            let mut input = vec![1, 0, 7, 9];
            for _ in 0..27 {
                input.extend(OFFER);
                input.extend(WAIT);
                input.extend(disturb);
                for _ in 0..3 {
                    input.extend(DELIVER);
                    input.extend(WAIT);
                }
            }
            let changes = super::run(&input);
            assert!(changes.iter().all(|changes| *changes >= 3), "{what}: {changes:?}");
        }
    }
}

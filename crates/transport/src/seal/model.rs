//! The sealed packets of two flows on a network that loses, copies, reorders, changes and forges
//! packets, as the input says.
//!
//! Each receiver opens exactly the packets that a set of numbers accepts, with the payloads that
//! were sealed, and refuses all others for the right reason. It opens no packet twice, and none
//! that was not sealed for it.

use std::{collections::BTreeSet, num::NonZeroU64};

use super::{
    ConnectionId, OpenError, Opener, PACKET_NUMBER_MAX, Schedule, Sealer, Secret, TAG_LEN,
    header_len, keys::PacketKeys, replay::ReplayWindow,
};
use crate::{Sealed, script::Reader};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 300;

/// The largest number of packets of one flow and run.
const PACKETS_MAX: u64 = 10_000;

/// The largest number of packets that are on their way at the same time.
const IN_FLIGHT_MAX: usize = 64;

/// The length of all connection IDs.
const ID_LEN: usize = 8;

/// The length of the packets' headers.
pub(crate) const HEADER_LEN: usize = header_len(ID_LEN);

/// How many bytes a packet has more than its payload.
const OVERHEAD: usize = HEADER_LEN + TAG_LEN;

/// The length of the longest payload and one.
const PAYLOAD_END: usize = 1501;

// What an end keeps for a flow is bounded: this, the keys of another generation, and the bits of the window.
const _: () = assert!(
    (size_of::<Sealer>() + size_of::<Opener>() + size_of::<PacketKeys>()) as u64
        + ReplayWindow::LEN / 8
        < 3000
);

/// A packet on its way.
#[derive(Clone, PartialEq, Eq)]
struct SealedPacket {
    flow: usize,
    number: u64,
    payload: Vec<u8>,
    packet: Vec<u8>,
}

/// A flow in one direction, with both of its ends.
struct SealedDirection {
    sealer: Sealer,
    opener: Opener,
    schedule: Schedule,
    /// The number of the next packet that is sealed.
    next_sealed: u64,
    accepted: BTreeSet<u64>,
    /// The number after the highest one that was accepted.
    next: u64,
    /// Whether the flow was idle since the present generation of keys began.
    was_idle: bool,
    failures: u64,
}

struct SealRun {
    flows: [SealedDirection; 2],
    in_flight: Vec<SealedPacket>,
}

fn id(bytes: &[u8]) -> ConnectionId {
    ConnectionId::try_from(bytes).expect("it is short")
}

/// Drives two flows as the input says.
///
/// # Panics
///
/// A flow breaks a promise.
pub fn run(input: &[u8]) {
    let mut reader = Reader::new(input);
    let mut run = SealRun::new(&mut reader);
    reader.steps(STEPS_MAX, |reader| run.step(reader));
    while !run.in_flight.is_empty() {
        let sent = run.in_flight.remove(0);
        run.deliver(&sent);
    }
}

/// The protection of both ends of a transport. Their keys change each time after this number of packets.
pub(crate) fn both_ends(update_interval: NonZeroU64) -> [Sealed; 2] {
    // Packets of a generation are accepted late during a tenth of the next one, and no longer than in the protocol.
    let late_max = ReplayWindow::LEN.min(update_interval.get() / 10);
    let schedule = Schedule { update_interval, late_max, ..Schedule::PROTOCOL };
    [(1, 2), (2, 1)].map(|(own, peer)| Sealed {
        sealer: Sealer::with_schedule(Secret::new(&[own; 32]), id(&[peer; ID_LEN]), schedule),
        opener: Opener::with_schedule(Secret::new(&[peer; 32]), ID_LEN, schedule),
    })
}

/// An opener that ends after this number of packets that are not authentic.
#[cfg(test)]
pub(crate) fn opener_with_failures(failures_max: u64) -> Opener {
    Opener::with_schedule(
        Secret::new(&[2; 32]),
        ID_LEN,
        Schedule { failures_max, ..Schedule::PROTOCOL },
    )
}

impl SealedDirection {
    fn new(secret: u8, id: ConnectionId, schedule: Schedule) -> Self {
        let secret = || Secret::new(&[secret; 32]);
        Self {
            sealer: Sealer::with_schedule(secret(), id, schedule),
            opener: Opener::with_schedule(secret(), id.len(), schedule),
            schedule,
            next_sealed: schedule.first_number,
            accepted: BTreeSet::new(),
            next: schedule.first_number,
            was_idle: false,
            failures: 0,
        }
    }

    /// Seals a payload, and returns the number and the bytes of the packet.
    fn seal(&mut self, payload: &[u8]) -> Option<(u64, Vec<u8>)> {
        let mut out = Vec::new();
        let number = self.next_sealed;
        if self.sealer.seal(payload, &mut out).is_err() {
            assert!(number > PACKET_NUMBER_MAX && out.is_empty(), "{number} could be sealed");
            return None;
        }
        assert!(number <= PACKET_NUMBER_MAX);
        assert_eq!(out.len(), payload.len() + OVERHEAD);
        self.next_sealed += 1;
        Some((number, out))
    }

    /// Opens an unchanged packet of this flow.
    fn open(&mut self, sent: &SealedPacket) {
        let expected = self.verdict(sent.number);
        let mut packet = sent.packet.clone();
        let opened = self.opener.open(&mut packet);
        match opened {
            Ok(payload) => {
                assert_eq!(expected, Ok(()), "{} must not be opened", sent.number);
                assert_eq!(packet.get(payload), Some(&*sent.payload), "{}", sent.number);
                self.accepted.insert(sent.number);
                let before = self.present();
                self.next = self.next.max(sent.number + 1);
                self.was_idle &= self.present() == before;
            }
            Err(error) => {
                assert_eq!(expected, Err(error), "{}", sent.number);
                self.failures += u64::from(error == OpenError::NotAuthentic);
            }
        }
    }

    fn verdict(&self, number: u64) -> Result<(), OpenError> {
        let (generation, present) = (self.schedule.generation(number), self.present());
        if self.failures >= self.schedule.failures_max {
            Err(OpenError::Over)
        } else if generation != present && Some(generation) != self.other(present) {
            Err(OpenError::NotAuthentic)
        } else if number + ReplayWindow::LEN < self.next {
            Err(OpenError::TooOld)
        } else if self.accepted.contains(&number) {
            Err(OpenError::Replayed)
        } else {
            Ok(())
        }
    }

    /// The generation of the highest packet that was accepted.
    fn present(&self) -> u64 {
        let newest = self.next.saturating_sub(1).max(self.schedule.first_number);
        self.schedule.generation(newest)
    }

    /// The generation whose keys the receiver has beside those of the present one.
    fn other(&self, present: u64) -> Option<u64> {
        if self.next >= self.schedule.next_from(present) {
            return Some(present + 1);
        }
        present.checked_sub(1).filter(|_| !self.was_idle)
    }

    /// Lets the ends give memory back.
    fn release(&mut self) {
        self.sealer.release();
        self.opener.release();
        self.was_idle = true;
    }

    /// Refuses a packet that was not sealed for this flow.
    fn refuse(&mut self, mut packet: Vec<u8>) {
        let expected = if self.failures >= self.schedule.failures_max {
            OpenError::Over
        } else if packet.len() < OVERHEAD {
            OpenError::TooShort
        } else {
            self.failures += 1;
            OpenError::NotAuthentic
        };
        assert_eq!(self.opener.open(&mut packet), Err(expected));
    }
}

impl SealRun {
    fn new(reader: &mut Reader<'_>) -> Self {
        const BARRIER: u64 = 1 << 32;
        let (first_number, update_interval, late_max) = reader.choose(&[
            (0, 7, 3),
            (0, 1, 0),
            (0, 64, 30),
            (0, 5000, ReplayWindow::LEN),
            (0, 1 << 20, ReplayWindow::LEN),
            (BARRIER - 100, 1 << 30, ReplayWindow::LEN),
            (PACKET_NUMBER_MAX - 200, 1 << 62, ReplayWindow::LEN),
        ]);
        let schedule = Schedule {
            first_number,
            update_interval: NonZeroU64::new(update_interval).expect("it is not 0"),
            late_max,
            failures_max: reader.choose(&[Schedule::PROTOCOL.failures_max, 3]),
        };
        let id_of_second = id(reader.choose(&[&[1; ID_LEN][..], &[2; ID_LEN]]));
        let flows = [
            SealedDirection::new(1, id(&[1; ID_LEN]), schedule),
            SealedDirection::new(2, id_of_second, schedule),
        ];
        Self { flows, in_flight: Vec::new() }
    }

    fn step(&mut self, reader: &mut Reader<'_>) {
        match reader.byte() % 25 {
            0..=5 => self.seal(reader),
            6 => self.lose(reader),
            24 => self.flow(reader.byte().into()).release(),
            7..=11 if !self.in_flight.is_empty() => {
                let sent = self.in_flight.remove(0);
                self.deliver(&sent);
            }
            letter => self.change(letter, reader),
        }
    }

    fn flow(&mut self, number: usize) -> &mut SealedDirection {
        let [first, second] = &mut self.flows;
        if number.is_multiple_of(2) { first } else { second }
    }

    fn seal(&mut self, reader: &mut Reader<'_>) {
        let flow = usize::from(reader.byte() % 2);
        let payload = vec![reader.byte(); reader.number() % PAYLOAD_END];
        if self.flow(flow).next_sealed - self.flow(flow).schedule.first_number >= PACKETS_MAX {
            return;
        }
        let Some((number, packet)) = self.flow(flow).seal(&payload) else { return };
        if self.in_flight.len() == IN_FLIGHT_MAX {
            self.in_flight.remove(0);
        }
        self.in_flight.push(SealedPacket { flow, number, payload, packet });
    }

    /// Seals packets that never arrive.
    fn lose(&mut self, reader: &mut Reader<'_>) {
        let flow = self.flow(reader.byte().into());
        let sealed = flow.next_sealed - flow.schedule.first_number;
        let count = reader.choose(&[1, 6, 60, 300, 4090]);
        for _ in 0..count.min(PACKETS_MAX.saturating_sub(sealed)) {
            flow.seal(&[]);
        }
    }

    fn deliver(&mut self, sent: &SealedPacket) {
        self.flow(sent.flow).open(sent);
    }

    /// Does something to one of the packets on their way.
    fn change(&mut self, letter: u8, reader: &mut Reader<'_>) {
        let Some(index) = reader.number().checked_rem(self.in_flight.len()) else { return };
        let sent = self.in_flight.get(index).cloned().expect("it is within");
        let mut packet = sent.packet.clone();
        match letter {
            0..=13 => {
                self.in_flight.remove(index);
                return self.deliver(&sent);
            }
            14 | 15 => return self.deliver(&sent),
            16 => {
                self.in_flight.remove(index);
                return;
            }
            17 => {
                let bit = reader.number() % (8 * packet.len());
                *packet.get_mut(bit / 8).expect("it is within") ^= 1 << (bit % 8);
            }
            18 => packet.truncate(reader.number() % packet.len()),
            19 => packet.extend(vec![reader.byte(); 1 + usize::from(reader.byte())]),
            20 => return self.flow(sent.flow + 1).refuse(packet),
            21 => packet = Self::garbage(&packet, reader),
            22 => self.splice(&mut packet, reader),
            _ => {
                let id = packet.get_mut(1..=ID_LEN).expect("each packet has an ID");
                id.fill(reader.byte());
            }
        }
        if packet == sent.packet {
            self.deliver(&sent);
        } else {
            self.flow(sent.flow).refuse(packet);
        }
    }

    /// Bytes of the input, alone or after the connection ID of a packet.
    fn garbage(packet: &[u8], reader: &mut Reader<'_>) -> Vec<u8> {
        let kept = reader.choose(&[0, 1 + ID_LEN]);
        let mut garbage = packet.get(..kept).expect("each packet has an ID").to_vec();
        garbage.extend((0..reader.byte()).map(|_| reader.byte()));
        garbage
    }

    /// Gives a packet the header of another one that is on its way.
    fn splice(&self, packet: &mut [u8], reader: &mut Reader<'_>) {
        let other = reader.number() % self.in_flight.len();
        let other = self.in_flight.get(other).and_then(|other| other.packet.get(..HEADER_LEN));
        let header = packet.get_mut(..HEADER_LEN).expect("each packet has a header");
        header.copy_from_slice(other.expect("each packet has a header"));
    }
}

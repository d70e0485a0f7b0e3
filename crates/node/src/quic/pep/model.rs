//! Packets that an endpoint sends, and PEP-ACKs that come from PEPs and from others, as the input says.
//!
//! A PEP-ACK of a PEP with a key covers a packet only if the PEP made it. Each packet is covered at most once, with
//! its connection and its number, and every one that is recent enough is found. Every PEP-ACK is counted once. What
//! follows for the domains of the path is sound, whatever order reports, acknowledgements and losses come in.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tandem_congestion::{Applied, Feedback};
use tandem_wire::{PepAck, PepId, PepKey, SeenPacket, Slice};

use super::{AGE_MAX, ConnectionId, LIFETIME, Listener, PepAckStats, Peps};
use crate::script::Reader;

/// The largest number of steps of one run.
const STEPS_MAX: usize = 500;

/// The PEPs: one with a key, one without, and one to which the endpoint does not listen.
const PEPS: [PepId; 3] = [PepId(1), PepId(2), PepId(3)];

struct PepRun {
    listener: Listener,
    key: PepKey,
    now: Instant,
    /// The packet of each slice that was not reported yet, and when it was sent.
    untold: BTreeMap<Slice, (ConnectionId, u64, Instant)>,
    /// What the path of each connection looks like to its sender.
    feedback: [Feedback; 2],
    next_number: u64,
    sequence: u32,
    heard: u64,
    told: u64,
}

/// Drives a listener as the input says.
///
/// # Panics
///
/// A promise is broken.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "only a fuzz target is outside"))]
pub fn run(input: &[u8]) {
    let key = PepKey::new([7; PepKey::LEN]);
    let peps = Peps([(PEPS[0], Some(key.clone())), (PEPS[1], None)].into());
    #[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
    let now = Instant::now();
    let mut run = PepRun {
        listener: Listener::new(peps),
        key,
        now,
        untold: BTreeMap::new(),
        feedback: Default::default(),
        next_number: 0,
        sequence: 0,
        heard: 0,
        told: 0,
    };
    Reader::new(input).steps(STEPS_MAX, |reader| run.step(reader));
}

/// The slice of the packet with this number.
fn slice_of(number: u64) -> Slice {
    let mut slice = [0; Slice::LEN];
    slice[..8].copy_from_slice(&number.to_be_bytes());
    Slice(slice)
}

impl PepRun {
    fn step(&mut self, reader: &mut Reader<'_>) {
        match reader.byte() % 8 {
            0 => self.now += Duration::from_micros(reader.number() as u64),
            1 => self.now += Duration::from_millis(10 * reader.number() as u64),
            2 | 3 => self.send(reader.byte()),
            4 => self.settle(reader),
            5 => {
                let len = reader.number() % 1100;
                let bytes: Vec<u8> = (0..len).map(|_| reader.byte()).collect();
                self.hear(&bytes);
            }
            _ => self.hear_pep(reader),
        }
        self.check();
    }

    /// Sends packets of one connection.
    fn send(&mut self, how: u8) {
        let connection = usize::from(how % 2);
        for _ in 0..=how / 16 {
            let number = self.next_number;
            self.next_number += 1;
            let slice = slice_of(number);
            let id = ConnectionId(connection as u64);
            self.listener.insert(self.now, slice, (id, number));
            self.untold.insert(slice, (id, number, self.now));
            self.feedback(connection).on_sent(self.now, number, 1200);
        }
    }

    fn feedback(&self, connection: usize) -> &Feedback {
        self.feedback.get(connection).expect("there are two")
    }

    /// Acknowledges a packet, or gives it up.
    fn settle(&mut self, reader: &mut Reader<'_>) {
        let (how, back) = (reader.byte(), u64::from(reader.byte()));
        let feedback = self.feedback(usize::from(how % 2));
        let number = self.next_number.saturating_sub(back);
        match how / 2 % 4 {
            0 => feedback.on_lost(number, 1200),
            1 => feedback.on_acks_end(self.now, how & 0x80 != 0),
            2 if how & 0xf0 == 0xf0 => feedback.forget_path(),
            _ => {
                let sent = self.now.checked_sub(Duration::from_millis(back)).unwrap_or(self.now);
                feedback.on_acked(self.now, number, sent);
            }
        }
    }

    /// A PEP-ACK in the right form, which covers packets that were sent some numbers ago.
    fn hear_pep(&mut self, reader: &mut Reader<'_>) {
        let pep = reader.choose(&PEPS);
        let (how, back, count) = (reader.byte(), reader.byte(), reader.byte());
        let first = self.next_number.saturating_sub(back.into());
        let seen = (0..=u64::from(count % 16)).map(|at| {
            let number = if how & 1 == 0 { first + at } else { first.saturating_sub(at) };
            SeenPacket { slice: slice_of(number), age: u16::from(how) << 8 | u16::from(count) }
        });
        self.sequence = match how >> 1 & 7 {
            0 => u32::from(count) << 24,
            1 => self.sequence.wrapping_sub(3),
            _ => self.sequence.wrapping_add(1),
        };
        let (sequence, time) = (self.sequence, 0);
        let ack = PepAck { pep, sequence, time, seen: seen.collect() };
        let mut bytes = Vec::new();
        ack.encode((how & 0x10 == 0).then_some(&self.key), &mut bytes);
        self.hear(&bytes);
    }

    fn hear(&mut self, bytes: &[u8]) {
        let Self { listener, key, now, untold, feedback, told, .. } = self;
        self.heard += 1;
        let ack = PepAck::decode(bytes);
        let is_heard = ack.as_ref().is_ok_and(|ack| {
            ack.pep == PEPS[1] || (ack.pep == PEPS[0] && key.authenticates(bytes))
        });
        listener.on_pep_ack(bytes, |id, passed| {
            assert!(is_heard, "nobody else is believed");
            assert_eq!(passed.is_authentic, passed.pep == PEPS[0]);
            for (number, _) in passed.packets {
                let known = untold.remove(&slice_of(*number));
                assert_eq!(known.map(|(id, number, _)| (id, number)), Some((id, *number)));
                *told += 1;
            }
            let feedback = usize::try_from(id.0).ok().and_then(|at| feedback.get(at));
            let applied = feedback.expect("it is one of them").apply(*now, passed.clone());
            assert_ne!(applied, Applied::Used, "no controller follows PEPs here");
        });
        // What is still known is found.
        let seen = ack.iter().filter(|_| is_heard).flat_map(|ack| &ack.seen);
        for seen in seen.filter(|seen| seen.age < AGE_MAX) {
            let recent = untold.get(&seen.slice).filter(|(.., sent)| *now - *sent < LIFETIME);
            assert_eq!(recent, None, "{:?} was not found", seen.slice);
        }
    }

    fn check(&self) {
        let PepAckStats { used, packets, unknown, forged, foreign, malformed } =
            self.listener.stats();
        assert_eq!(used + unknown + forged + foreign + malformed, self.heard);
        assert_eq!(packets, self.told);
        assert!(self.listener.by_slice.len() <= self.listener.order.len());
        for feedback in &self.feedback {
            let Some(domains) = feedback.domains() else { continue };
            for rtt in [domains.wired, domains.access] {
                assert!(rtt.least <= rtt.latest && rtt.queue() <= rtt.latest, "{rtt:?}");
            }
        }
    }
}

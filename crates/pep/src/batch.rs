//! The packets of a flow of which the next PEP-ACK tells.

use std::time::Instant;

use tandem_wire::{
    Ends, PepAck, SeenPacket, Slice,
    pep_ack::tcp::{SeenBytes, TcpPepAck},
};

use super::{BATCH, Config};

/// The most bytes of one range. Sequence numbers can be compared within half of their space.
const RANGE_MAX: u32 = 1 << 30;

/// What is known of a flow.
#[derive(Debug)]
pub(crate) enum Batch {
    /// The QUIC packets that wait.
    Quic(Vec<(Slice, Instant)>),
    Tcp(Segments),
}

/// The TCP segments of a flow.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// Ranges of bytes that have come since the flow began; the one that grew last comes first. They stay,
    /// so that the next PEP-ACK makes up for a lost one.
    ranges: Vec<SeenBytes>,
    /// Segments that wait.
    waiting: usize,
    /// When the newest one came.
    newest: Option<Instant>,
    /// The newest sequence number that the server accepts.
    acknowledges: u32,
}

impl Batch {
    /// The number of packets that wait.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Quic(waiting) => waiting.len(),
            Self::Tcp(segments) => segments.waiting,
        }
    }

    /// Whether a PEP-ACK has room for no other packet.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Quic(waiting) if waiting.len() >= PepAck::SEEN_MAX)
    }

    /// Whether enough packets wait.
    pub(crate) fn is_enough(&self) -> bool {
        self.len() >= BATCH
    }
}

/// The PEP-ACK with this number of QUIC packets that wait, which wait no longer.
pub(crate) fn take_quic(
    waiting: &mut Vec<(Slice, Instant)>,
    (now, start): (Instant, Instant),
    sequence: u32,
    Config { id, key, .. }: &Config,
) -> Vec<u8> {
    let seen = waiting.drain(..).map(|(slice, at)| {
        let age = now.saturating_duration_since(at).as_micros();
        SeenPacket { slice, age: u16::try_from(age).unwrap_or(u16::MAX) }
    });
    let time = micros(now, start);
    let ack = PepAck { pep: *id, sequence, time, seen: seen.collect() };
    let mut payload = Vec::new();
    ack.encode(key.as_ref(), &mut payload);
    payload
}

impl Segments {
    /// The options of the PEP-ACK with this number, after which no segment waits.
    pub(crate) fn take(
        &mut self,
        (now, start): (Instant, Instant),
        (ends, sequence): (&Ends, u32),
        Config { id, key, .. }: &Config,
    ) -> Vec<u8> {
        self.waiting = 0;
        let time = micros(self.newest.unwrap_or(now), start);
        let ack = TcpPepAck { pep: *id, sequence, time, seen: self.ranges.clone() };
        let mut options = Vec::new();
        ack.encode(ends, key.as_ref(), &mut options);
        options
    }

    /// The newest sequence number that the server accepts.
    pub(crate) const fn accepted(&self) -> u32 {
        self.acknowledges
    }

    /// Adds a segment with data.
    pub(crate) fn add(&mut self, now: Instant, bytes: SeenBytes, acknowledges: u32) {
        let mut grown = bytes;
        self.ranges.retain(|range| {
            let touches = !is_after(grown.start, range.end) && !is_after(range.start, grown.end);
            if touches {
                grown = SeenBytes {
                    start: if is_after(grown.start, range.start) {
                        range.start
                    } else {
                        grown.start
                    },
                    end: if is_after(range.end, grown.end) { range.end } else { grown.end },
                };
            }
            !touches
        });
        if grown.end.wrapping_sub(grown.start) > RANGE_MAX {
            grown.start = grown.end.wrapping_sub(RANGE_MAX);
        }
        self.ranges.insert(0, grown);
        self.ranges.truncate(TcpPepAck::SEEN_MAX);
        if self.newest.is_none() || is_after(acknowledges, self.acknowledges) {
            self.acknowledges = acknowledges;
        }
        self.newest = Some(now);
        self.waiting += 1;
    }
}

/// Whether a sequence number comes after another one (RFC 9293 §3.4).
fn is_after(number: u32, other: u32) -> bool {
    (1..1 << 31).contains(&number.wrapping_sub(other))
}

/// The time since the start of the PEP, in microseconds modulo 2^32.
#[expect(clippy::cast_possible_truncation, reason = "the field counts modulo 2^32")]
fn micros(at: Instant, start: Instant) -> u32 {
    at.saturating_duration_since(start).as_micros() as u32
}

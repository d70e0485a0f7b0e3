//! The packets of a flow of which the next PEP-ACK tells.

use std::time::{Duration, Instant};

use tandem_wire::{
    Ends, PepAck, SeenPacket, Slice,
    pep_ack::tcp::{SeenBytes, TcpPepAck},
};

use super::{BATCH, Config, Notice, TcpForm};

/// For how long an acknowledgement of a client counts as new. If the client's segments take another way
/// now, the server soon knows acknowledgements so much newer that it would answer to an old one (RFC 5961 §5.2).
const CLIENT_LIFETIME: Duration = Duration::from_millis(100);

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
    client: Option<ClientSegments>,
}

/// What the client's own segments have told.
#[derive(Clone, Copy, Debug)]
struct ClientSegments {
    /// The first acknowledgement that was seen.
    first: u32,
    /// The newest one.
    acknowledges: u32,
    /// The sequence number after the newest data.
    next: u32,
    /// When a segment with the newest acknowledgement came.
    at: Instant,
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

    /// Forgets which packets have come. Returns the number of those that waited.
    pub(crate) fn clear(&mut self) -> usize {
        let waiting = self.len();
        match self {
            Self::Quic(waiting) => waiting.clear(),
            Self::Tcp(segments) => {
                segments.ranges.clear();
                segments.waiting = 0;
            }
        }
        waiting
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
    /// The PEP-ACK with this number, after which no segment waits. `None`: it cannot be sent, and what
    /// waits goes on to wait.
    pub(crate) fn take<U>(
        &mut self,
        (now, start): (Instant, Instant),
        (ends, number): (Ends, u32),
        Config { id, key, tcp_form, .. }: &Config,
    ) -> Option<Notice<U>> {
        let (sequence, acknowledges) = self.numbers(now, *tcp_form)?;
        self.waiting = 0;
        let time = micros(self.newest.unwrap_or(now), start);
        let ack = TcpPepAck { pep: *id, sequence: number, time, seen: self.ranges.clone() };
        let mut options = Vec::new();
        ack.encode(&ends, key.as_ref(), &mut options);
        Some(Notice::Tcp { ends, sequence, acknowledges, options })
    }

    /// Whether packets wait.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Notes the acknowledgement number of the client, and the sequence number after its data.
    pub(crate) fn hear(&mut self, now: Instant, (acknowledges, next): (u32, u32)) {
        let client = self.client.get_or_insert(ClientSegments {
            first: acknowledges,
            acknowledges,
            next,
            at: now,
        });
        if !is_after(client.acknowledges, acknowledges) {
            (client.acknowledges, client.at) = (acknowledges, now);
        }
        if is_after(next, client.next) {
            client.next = next;
        }
    }

    /// The sequence number and the acknowledgement number of a PEP-ACK. `None`: too little is known of
    /// the client.
    fn numbers(&self, now: Instant, form: TcpForm) -> Option<(u32, Option<u32>)> {
        if form == TcpForm::Flagless {
            return Some((self.acknowledges, None));
        }
        let client = self.client?;
        // Servers answer to acknowledgements of what they had sent before any data (RFC 5961 §5.2).
        let is_old_enough = client.acknowledges != client.first;
        let is_new = now.saturating_duration_since(client.at) < CLIENT_LIFETIME;
        let acknowledges = client.acknowledges.wrapping_sub(1);
        (is_old_enough && is_new).then_some((client.next, Some(acknowledges)))
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

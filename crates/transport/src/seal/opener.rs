use std::{fmt, mem, ops::Range};

use super::{
    Schedule, TAG_LEN,
    header::{self, HeaderProtection},
    header_len,
    keys::{Generations, PacketKeys, Secret},
    replay::{ReplayRefusal, ReplayWindow},
};

/// Opens the sealed packets of one flow in one direction.
pub struct Opener {
    generations: Generations,
    /// The present generation: that of the highest packet that was accepted.
    generation: u64,
    /// `None`: the flow is idle.
    keys: Option<Box<OpenerKeys>>,
    window: ReplayWindow,
    /// How many packets were not authentic.
    failures: u64,
    schedule: Schedule,
    header_len: usize,
}

/// The keys of two generations: of the present one, and of the one before as long as packets of that may arrive late,
/// then of the next one. So no packet makes an opener derive keys before the packet is known to be authentic.
struct OpenerKeys {
    header_protection: HeaderProtection,
    present: PacketKeys,
    /// A flow that has carried few packets has none, and saves the memory.
    other: Option<Box<PacketKeys>>,
    /// Whether `other` is the next generation.
    has_next: bool,
}

/// The reason why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The packet has no room for a header and a tag.
    #[error("a sealed packet is shorter than its header and its tag")]
    TooShort,
    /// Somebody else made or changed the packet, or its keys are more than a generation away.
    #[error("a sealed packet is not authentic")]
    NotAuthentic,
    /// A packet with this number was opened before.
    #[error("a sealed packet arrived again")]
    Replayed,
    /// The packet is older than the 4096 newest, so that it may have been opened before.
    #[error("a sealed packet arrived more than 4096 packets late")]
    TooOld,
    /// 2^36 packets were not authentic, and the flow opens no more.
    #[error("too many sealed packets of the flow were not authentic")]
    Over,
}

impl Opener {
    /// Expects packet number 0. The receiver finds the opener of a packet by the connection ID in
    /// it, which has `id_len` bytes; a packet with the ID of another flow is not authentic.
    pub fn new(secret: Secret, id_len: usize) -> Self {
        Self::with_schedule(secret, id_len, Schedule::PROTOCOL)
    }

    pub(super) fn with_schedule(secret: Secret, id_len: usize, schedule: Schedule) -> Self {
        let mut generations = Generations::new(secret);
        let generation = schedule.generation(schedule.first_number);
        (0..generation).for_each(|_| generations.advance());
        let window = ReplayWindow::new(schedule.first_number);
        let header_len = header_len(id_len);
        Self { generations, generation, keys: None, window, failures: 0, schedule, header_len }
    }

    /// Opens one packet, which is a whole UDP payload. Returns where its payload is: the packet is
    /// decrypted in place.
    ///
    /// # Errors
    ///
    /// The packet is to be dropped, and counted by cause. Its bytes are then unspecified.
    pub fn open(&mut self, packet: &mut [u8]) -> Result<Range<usize>, OpenError> {
        self.open_numbered(packet).map(|(_, payload)| payload)
    }

    /// As [`Self::open`], and returns the packet number too.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`].
    pub fn open_numbered(&mut self, packet: &mut [u8]) -> Result<(u64, Range<usize>), OpenError> {
        // RFC 9001 §6.6: "If the total number of received packets that fail authentication within
        // the connection, across all keys, exceeds the integrity limit for the selected AEAD, the
        // endpoint MUST immediately close the connection". Here, only the flow ends.
        if self.failures >= self.schedule.failures_max {
            return Err(OpenError::Over);
        }
        let Self { generations, window, schedule, header_len, .. } = self;
        // What is derived here does not depend on the packet.
        let keys = self.keys.get_or_insert_with(|| Box::new(OpenerKeys::new(generations)));
        if !keys.has_next && window.next() >= schedule.next_from(self.generation) {
            keys.prepare(generations);
        }
        let len = packet.len();
        let (header, sealed) =
            keys.header_protection.toggle(packet, *header_len).ok_or(OpenError::TooShort)?;
        let (&[first_byte], &truncated) =
            header.first_chunk().zip(header.last_chunk()).ok_or(OpenError::TooShort)?;
        let number = header::packet_number(truncated, window.next());
        let generation = schedule.generation(number);
        let (tried, is_kept) = keys.of(generation, self.generation);
        let is_opened = tried.open(number, header, sealed);
        if !(is_opened && is_kept && first_byte == header::first_byte(generation)) {
            self.failures += 1;
            return Err(OpenError::NotAuthentic);
        }
        window.accept(number)?;
        if generation > self.generation {
            keys.follow();
            generations.advance();
            self.generation = generation;
        }
        Ok((number, self.header_len..len - TAG_LEN))
    }

    /// Gives back the memory of keys while no packets come. The next packet makes it derive them again, whatever is in
    /// the packet.
    pub fn release(&mut self) {
        self.keys = None;
    }

    /// The bytes of memory that it has besides itself.
    pub fn memory(&self) -> usize {
        self.window.memory() + self.keys.as_ref().map_or(0, |keys| keys.memory())
    }
}

impl OpenerKeys {
    fn new(generations: &Generations) -> Self {
        Self {
            header_protection: generations.header_protection(),
            present: generations.keys(),
            other: None,
            has_next: false,
        }
    }

    /// Takes the keys of the next generation, because no more packets of the one before can be accepted.
    fn prepare(&mut self, generations: &Generations) {
        let next = generations.next_keys();
        match &mut self.other {
            Some(previous) => **previous = next,
            None => self.other = Some(Box::new(next)),
        }
        self.has_next = true;
    }

    /// The keys of a generation, and whether they are still or already there. If not, a packet is
    /// tried with others, so that all packets that are not authentic take the same time ([RFC 9001
    /// §9.5]).
    ///
    /// [RFC 9001 §9.5]: https://www.rfc-editor.org/rfc/rfc9001#section-9.5
    fn of(&self, generation: u64, present: u64) -> (&PacketKeys, bool) {
        let other = if self.has_next { present + 1 } else { present.wrapping_sub(1) };
        let kept = if generation == present {
            Some(&self.present)
        } else {
            self.other.as_deref().filter(|_| generation == other)
        };
        (kept.unwrap_or(&self.present), kept.is_some())
    }

    /// Moves to the next generation, of which a packet was accepted.
    fn follow(&mut self) {
        if let Some(next) = &mut self.other {
            mem::swap(&mut self.present, next);
        }
        self.has_next = false;
    }

    fn memory(&self) -> usize {
        size_of::<Self>() + self.other.as_ref().map_or(0, |keys| size_of_val(&**keys))
    }
}

impl From<ReplayRefusal> for OpenError {
    fn from(refused: ReplayRefusal) -> Self {
        match refused {
            ReplayRefusal::Replayed => Self::Replayed,
            ReplayRefusal::TooOld => Self::TooOld,
        }
    }
}

/// Without secrets.
impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("next_number", &self.window.next())
            .field("generation", &self.generation)
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

use std::{fmt, mem, ops::Range};

use super::{
    HEADER_LEN, Schedule, TAG_LEN,
    header::{self, HeaderProtection},
    keys::{Generations, PacketKeys, Secret},
    replay::{ReplayRefusal, ReplayWindow},
};

/// Opens the sealed packets of one flow in one direction.
///
/// It has the keys of three generations: of the highest packet that it accepted, of the one before
/// for packets that arrive late, and of the next one. So no packet makes it derive keys before the
/// packet is known to be authentic.
pub struct Opener {
    header_protection: HeaderProtection,
    generations: Generations,
    previous: Option<PacketKeys>,
    current: PacketKeys,
    next: PacketKeys,
    /// The generation of `current`.
    generation: u64,
    window: ReplayWindow,
    /// How many packets were not authentic.
    failures: u64,
    schedule: Schedule,
}

/// The reason why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The packet has no room for a header and a tag.
    #[error("a sealed packet is shorter than 29 bytes")]
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
    /// it, which has [`ID_LEN`](super::ID_LEN) bytes; a packet with the ID of another flow is not
    /// authentic.
    pub fn new(secret: Secret) -> Self {
        Self::with_schedule(secret, Schedule::PROTOCOL)
    }

    pub(super) fn with_schedule(secret: Secret, schedule: Schedule) -> Self {
        let header_protection = secret.header_protection();
        let mut generations = Generations::new(secret);
        let (current, next) = (generations.derive(), generations.derive());
        let window = ReplayWindow::new(schedule.first_number);
        let mut opener = Self {
            header_protection,
            generations,
            previous: None,
            current,
            next,
            generation: 0,
            window,
            failures: 0,
            schedule,
        };
        while opener.generation < schedule.generation(schedule.first_number) {
            opener.follow();
        }
        opener
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
        let len = packet.len();
        let (header, sealed) = self.header_protection.toggle(packet).ok_or(OpenError::TooShort)?;
        let number = header::packet_number(header, self.window.next());
        let generation = self.schedule.generation(number);
        let (keys, is_kept) = self.keys(generation);
        let is_opened = keys.open(number, header, sealed);
        let [first_byte, ..] = *header;
        if !(is_opened && is_kept && first_byte == header::first_byte(generation)) {
            self.failures += 1;
            return Err(OpenError::NotAuthentic);
        }
        if generation > self.generation {
            self.follow();
        }
        self.window.accept(number)?;
        Ok((number, HEADER_LEN..len - TAG_LEN))
    }

    /// The bytes of memory that it has besides itself.
    pub fn memory(&self) -> usize {
        self.window.memory()
    }

    /// The keys of a generation, and whether they are still or already there. If not, a packet is
    /// tried with others, so that all packets that are not authentic take the same time ([RFC 9001
    /// §9.5]).
    ///
    /// [RFC 9001 §9.5]: https://www.rfc-editor.org/rfc/rfc9001#section-9.5
    fn keys(&self, generation: u64) -> (&PacketKeys, bool) {
        let kept = if generation == self.generation {
            Some(&self.current)
        } else if generation == self.generation + 1 {
            Some(&self.next)
        } else if generation + 1 == self.generation {
            self.previous.as_ref()
        } else {
            None
        };
        (kept.unwrap_or(&self.current), kept.is_some())
    }

    /// Moves to the next generation.
    fn follow(&mut self) {
        let next = self.generations.derive();
        let current = mem::replace(&mut self.next, next);
        self.previous = Some(mem::replace(&mut self.current, current));
        self.generation += 1;
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

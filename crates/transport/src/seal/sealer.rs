use std::fmt;

use super::{
    ConnectionId, PACKET_NUMBER_MAX, Schedule, TAG_LEN,
    header::{self, HeaderProtection},
    header_len,
    keys::{Generations, PacketKeys, Secret},
};

/// Seals the payloads of one flow in one direction.
pub struct Sealer {
    generations: Generations,
    generation: u64,
    /// `None`: the flow is idle.
    keys: Option<Box<SealerKeys>>,
    id: ConnectionId,
    header_len: usize,
    /// The number of the next packet.
    next_number: u64,
    schedule: Schedule,
}

struct SealerKeys {
    header_protection: HeaderProtection,
    /// Those of the present generation.
    packet: PacketKeys,
}

/// The error of a [`Sealer`] that has used all of its packet numbers. Payloads then have to travel in
/// another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all 2^62 packet numbers of the flow are used")]
pub struct Exhausted;

impl Sealer {
    /// Starts with packet number 0. `id_of_receiver` is the connection ID at which the other end
    /// receives the flow's sealed packets.
    pub fn new(secret: Secret, id_of_receiver: ConnectionId) -> Self {
        Self::with_schedule(secret, id_of_receiver, Schedule::PROTOCOL)
    }

    pub(super) fn with_schedule(secret: Secret, id: ConnectionId, schedule: Schedule) -> Self {
        let mut generations = Generations::new(secret);
        let generation = schedule.generation(schedule.first_number);
        (0..generation).for_each(|_| generations.advance());
        let next_number = schedule.first_number;
        let header_len = header_len(id.len());
        Self { generations, generation, keys: None, id, header_len, next_number, schedule }
    }

    /// The length of the packets' header in bytes.
    pub const fn header_len(&self) -> usize {
        self.header_len
    }

    /// How many bytes a sealed packet has more than its payload.
    pub const fn overhead(&self) -> usize {
        self.header_len() + TAG_LEN
    }

    /// Appends one sealed packet to `out`, which grows by [`Self::overhead`] and the length of the
    /// payload. The payload has 0 to 65527 bytes (RFC 9298 §5); the caller sees to it that the packet
    /// fits the path.
    ///
    /// # Errors
    ///
    /// There are no more packet numbers. `out` is as before.
    pub fn seal(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Exhausted> {
        let start = out.len();
        out.reserve(self.overhead() + payload.len());
        out.resize(start + self.header_len(), 0);
        out.extend_from_slice(payload);
        let sealed = self.seal_in_place(self.next_number, start, out);
        if sealed.is_err() {
            out.truncate(start);
        }
        sealed
    }

    /// Seals the packet that begins at `start` in `out` and ends with `out`. It has [`Self::header_len`] bytes of any
    /// content and the payload; the tag is appended. `number` is above the numbers of all packets that were sealed
    /// before, and less than a generation of keys above the last one.
    ///
    /// # Errors
    ///
    /// There are no more packet numbers. `out` is as before.
    ///
    /// # Panics
    ///
    /// The number was used before, or there are fewer than [`Self::header_len`] bytes after `start`.
    pub fn seal_in_place(
        &mut self,
        number: u64,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Exhausted> {
        const BEGUN: &str = "the caller has begun the packet";
        // RFC 9000 §12.3: "A packet number MUST NOT be reused within the same packet number space".
        assert!(number >= self.next_number, "packet number {number} was used");
        if number > PACKET_NUMBER_MAX {
            return Err(Exhausted);
        }
        self.next_number = number + 1;
        let generation = self.schedule.generation(number);
        let keys = self.keys.get_or_insert_with(|| Box::new(SealerKeys::new(&self.generations)));
        while generation > self.generation {
            self.generations.advance();
            self.generation += 1;
            keys.packet = self.generations.keys();
        }
        let header_len = self.header_len;
        let packet = out.get_mut(start..).expect(BEGUN);
        let (header, plaintext) = packet.split_at_mut_checked(header_len).expect(BEGUN);
        header::encode(header, &self.id, number, generation).expect(BEGUN);
        let tag = keys.packet.seal(number, header, plaintext);
        out.extend_from_slice(tag.as_ref());
        let packet = out.get_mut(start..).expect(BEGUN);
        keys.header_protection.toggle(packet, header_len).expect("it has a header and a tag");
        Ok(())
    }

    /// Gives back the memory of keys while no packets leave.
    pub fn release(&mut self) {
        self.keys = None;
    }

    /// The bytes of memory that it has besides itself.
    pub fn memory(&self) -> usize {
        self.keys.as_ref().map_or(0, |keys| size_of_val(&**keys))
    }
}

impl SealerKeys {
    fn new(generations: &Generations) -> Self {
        let header_protection = generations.header_protection();
        Self { header_protection, packet: generations.keys() }
    }
}

/// Without secrets.
impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("next_number", &self.next_number).finish_non_exhaustive()
    }
}

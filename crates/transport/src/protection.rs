use std::ops::Range;

use crate::seal::{Exhausted, OpenError, Opener, Sealer};

/// How packets are protected. [`Sealed`] is that of the protocol; tests and fuzzing have one without cryptography.
///
/// A protected packet has a header before its payload, and [`TAG_LEN`](crate::seal::TAG_LEN) bytes more after it.
pub trait Protection {
    /// The length in bytes of the header of what this end sends. It never changes.
    fn header_len(&self) -> usize;

    /// Protects the packet that begins at `start` in `out` and ends with `out`: room for a header, and the payload. The
    /// tag is appended. Numbers only grow.
    ///
    /// # Errors
    ///
    /// There are no more packet numbers. `out` is as before.
    fn protect(&mut self, number: u64, start: usize, out: &mut Vec<u8>) -> Result<(), Exhausted>;

    /// Removes the protection of a packet in place. Returns its number and where its payload is. Each number is
    /// accepted once.
    ///
    /// # Errors
    ///
    /// The packet is to be dropped. Its bytes are then unspecified.
    fn open(&mut self, packet: &mut [u8]) -> Result<(u64, Range<usize>), OpenError>;

    /// Gives back memory that is seldom needed while no packets come and leave.
    fn release(&mut self);

    /// The bytes of memory that it has besides itself.
    fn memory(&self) -> usize;
}

/// The protection of sealed packets.
#[derive(Debug)]
pub struct Sealed {
    /// Seals what this end sends.
    pub sealer: Sealer,
    /// Opens what the other end sends.
    pub opener: Opener,
}

impl Protection for Sealed {
    fn header_len(&self) -> usize {
        self.sealer.header_len()
    }

    fn protect(&mut self, number: u64, start: usize, out: &mut Vec<u8>) -> Result<(), Exhausted> {
        self.sealer.seal_in_place(number, start, out)
    }

    fn open(&mut self, packet: &mut [u8]) -> Result<(u64, Range<usize>), OpenError> {
        self.opener.open_numbered(packet)
    }

    fn release(&mut self) {
        self.sealer.release();
        self.opener.release();
    }

    fn memory(&self) -> usize {
        self.sealer.memory() + self.opener.memory()
    }
}

//! A protection that protects nothing, for tests and measurements of the rest. Its packets have the same layout.

use std::ops::Range;

use tandem_transport::{
    Protection,
    arrived::Arrived,
    seal::{Exhausted, OpenError, TAG_LEN},
};

#[derive(Debug)]
pub(crate) struct Plain {
    next: u64,
    arrived: Arrived,
}

impl Plain {
    /// How many numbers are told apart from duplicates.
    const WINDOW: u64 = 4096;

    /// The length of its headers in bytes: that of sealed packets with an ID of 8 bytes.
    pub(crate) const HEADER_LEN: usize = 13;

    pub(crate) fn new() -> Self {
        Self { next: 0, arrived: Arrived::new(Self::WINDOW) }
    }
}

impl Protection for Plain {
    fn header_len(&self) -> usize {
        Self::HEADER_LEN
    }

    fn protect(&mut self, number: u64, start: usize, out: &mut Vec<u8>) -> Result<(), Exhausted> {
        let header = &mut out[start..start + Self::HEADER_LEN];
        header[0] = 0x43;
        header[5..].copy_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&[0; TAG_LEN]);
        Ok(())
    }

    fn open(&mut self, packet: &mut [u8]) -> Result<(u64, Range<usize>), OpenError> {
        if packet.len() < Self::HEADER_LEN + TAG_LEN {
            return Err(OpenError::TooShort);
        }
        let number = u64::from_be_bytes(packet[5..Self::HEADER_LEN].try_into().expect("8 bytes"));
        if number >= self.next {
            let start = |next: u64| next.saturating_sub(Self::WINDOW);
            self.arrived.forget(start(self.next)..start(number + 1));
            self.next = number + 1;
        } else if number + Self::WINDOW < self.next {
            return Err(OpenError::TooOld);
        } else if self.arrived.contains(number) {
            return Err(OpenError::Replayed);
        }
        self.arrived.insert(number);
        Ok((number, Self::HEADER_LEN..packet.len() - TAG_LEN))
    }

    fn release(&mut self) {}

    fn memory(&self) -> usize {
        self.arrived.memory()
    }
}

//! What the incremental decoders share: type-length-value items in a stream of chunks.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::VarInt;

/// Received bytes, in order, as they came. It is empty after every complete drain, because the
/// decoders take what they wait for into buffers of their own: a stranger who sends single bytes
/// cannot make us keep one packet for each.
#[derive(Debug, Default)]
pub(crate) struct Chunks(VecDeque<Bytes>);

impl Chunks {
    pub(crate) fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.0.push_back(chunk);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes at most `len_max` bytes that are together in memory; `None` if there are none.
    pub(crate) fn take_piece(&mut self, len_max: u64) -> Option<Bytes> {
        let front = self.0.front_mut()?;
        match usize::try_from(len_max) {
            Ok(len_max) if len_max < front.len() => Some(front.split_to(len_max)),
            Ok(_) | Err(_) => self.0.pop_front(),
        }
    }
}

/// The type and the length in front of a frame or capsule, as far as they have come.
#[derive(Debug, Default)]
pub(crate) struct HeaderBuffer {
    bytes: [u8; 2 * VarInt::LEN_MAX],
    len: usize,
}

impl HeaderBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes bytes until both integers are there, and then is empty again.
    pub(crate) fn fill(&mut self, chunks: &mut Chunks) -> Option<(VarInt, VarInt)> {
        loop {
            if let Some(header) = self.decode() {
                self.len = 0;
                return Some(header);
            }
            let byte = chunks.take_piece(1)?;
            let free = self.bytes.get_mut(self.len..).expect("two integers have at most 16 bytes");
            for (slot, byte) in free.iter_mut().zip(byte) {
                *slot = byte;
                self.len += 1;
            }
        }
    }

    fn decode(&self) -> Option<(VarInt, VarInt)> {
        let mut data = self.bytes.get(..self.len)?;
        let item_type = VarInt::decode(&mut data).ok()?;
        let len = VarInt::decode(&mut data).ok()?;
        Some((item_type, len))
    }
}

/// A value that is needed as a whole, as far as it has come.
#[derive(Debug)]
pub(crate) struct ValueBuffer {
    received: BytesMut,
    missing: usize,
}

impl ValueBuffer {
    /// Waits for `len` bytes. Memory is taken when they come, not when they are announced.
    pub(crate) fn new(len: usize) -> Self {
        Self { received: BytesMut::new(), missing: len }
    }

    /// The value once it is complete; shared, not copied, if it came in one piece.
    pub(crate) fn fill(&mut self, chunks: &mut Chunks) -> Option<Bytes> {
        while self.missing > 0 {
            let piece = chunks.take_piece(self.missing as u64)?;
            self.missing -= piece.len();
            if self.missing == 0 && self.received.is_empty() {
                return Some(piece);
            }
            self.received.extend_from_slice(&piece);
        }
        Some(self.received.split().freeze())
    }
}

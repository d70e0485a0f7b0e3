//! The common parts of the incremental decoders, which read type-length-value items from a stream
//! of chunks.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::VarInt;

/// The received chunks that are not decoded yet, in order.
///
/// It is empty whenever a decoder needs more input, because the decoders copy incomplete items to
/// buffers of their own. A peer that sends single bytes therefore cannot make a decoder keep one
/// packet for each byte.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// The first chunk. Empty: there are none.
    first: Bytes,
    /// The others. Decoders mostly get one chunk at a time, so that this rarely needs memory.
    others: VecDeque<Bytes>,
}

impl Chunks {
    pub(crate) fn push(&mut self, chunk: Bytes) {
        if self.first.is_empty() {
            self.first = chunk;
        } else if !chunk.is_empty() {
            self.others.push_back(chunk);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Takes at most `len_max` contiguous bytes off the front; `None` if there are no bytes.
    pub(crate) fn take_piece(&mut self, len_max: u64) -> Option<Bytes> {
        if self.first.is_empty() {
            return None;
        }
        match usize::try_from(len_max) {
            Ok(len_max) if len_max < self.first.len() => Some(self.first.split_to(len_max)),
            Ok(_) | Err(_) => {
                let next = self.others.pop_front().unwrap_or_default();
                Some(std::mem::replace(&mut self.first, next))
            }
        }
    }
}

/// The received part of the header of a frame or capsule: its type and its length.
#[derive(Debug, Default)]
pub(crate) struct HeaderBuffer {
    bytes: [u8; 2 * VarInt::LEN_MAX],
    len: usize,
}

impl HeaderBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes bytes until both integers are complete. Then it returns them and is empty again.
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

/// The received part of a value that is decoded as a whole.
#[derive(Debug)]
pub(crate) struct ValueBuffer {
    received: BytesMut,
    missing: usize,
}

impl ValueBuffer {
    /// Creates a buffer for `len` bytes. Memory is allocated when they arrive, not when they are
    /// announced.
    pub(crate) fn new(len: usize) -> Self {
        Self { received: BytesMut::new(), missing: len }
    }

    /// Bytes of memory that the received part takes.
    pub(crate) fn memory(&self) -> usize {
        self.received.capacity()
    }

    /// Takes bytes, and returns the value once it is complete. The value is shared, not copied, if
    /// it arrived in one chunk.
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

//! The received bytes of one stream in order.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use tandem_wire::Code;

use super::connection;

/// The most bytes of a held piece to which the next bytes of the stream are appended.
const PIECE_MAX: usize = 16 * 1024;

/// The memory of a held piece beside its bytes: its entry in the map and the allocator's share.
const PIECE_OVERHEAD: u64 = 128;

/// How much is held of one stream, or of all streams of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) bytes: u64,
    pub(super) pieces: u64,
}

impl Held {
    /// An estimate of the memory. A piece that grew may have twice its length.
    pub(super) const fn memory(self) -> u64 {
        2 * self.bytes + PIECE_OVERHEAD * self.pieces
    }
}

impl std::ops::Add for Held {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, pieces: self.pieces + other.pieces }
    }
}

impl std::ops::Sub for Held {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { bytes: self.bytes - other.bytes, pieces: self.pieces - other.pieces }
    }
}

/// What callers could read of one stream, or of all streams of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    /// About how many pieces wait in the engine.
    waiting: u64,
    /// How many bytes are held of streams whose next byte is held.
    pub(super) ready: u64,
}

impl Unread {
    pub(super) const NONE: Self = Self { waiting: 0, ready: 0 };

    /// About how many bytes it is.
    pub(super) const fn bytes(self) -> u64 {
        self.waiting * connection::PIECE_MAX + self.ready
    }
}

impl std::ops::AddAssign for Unread {
    fn add_assign(&mut self, other: Self) {
        self.waiting += other.waiting;
        self.ready += other.ready;
    }
}

impl std::ops::SubAssign for Unread {
    fn sub_assign(&mut self, other: Self) {
        self.waiting -= other.waiting;
        self.ready -= other.ready;
    }
}

/// What of a stream was taken from the engine, which returns it in the order of arrival.
///
/// Held bytes are copies. A slice of the engine's buffers could keep alive a buffer that is much
/// larger than the slice.
#[derive(Default)]
pub(super) struct Reassembly {
    /// The offset of the next byte for the caller.
    next: u64,
    /// How many bytes were taken from the engine.
    taken: u64,
    /// The end of the byte with the highest offset that was taken.
    end: u64,
    /// The bytes that the caller did not get yet, by their offset. They do not overlap.
    pieces: BTreeMap<u64, BytesMut>,
    /// The sum of the pieces' lengths.
    bytes: u64,
    /// About how many pieces of the stream wait in the engine. It may be too large, because
    /// repeated bytes are no piece.
    pub(super) waiting: u64,
    /// Whether the engine returns the stream's bytes in the order of arrival. It cannot go back.
    pub(super) is_unordered: bool,
    /// The code with which the peer reset the stream, until the caller learns it.
    pub(super) reset: Option<Code>,
}

impl Reassembly {
    /// The offset of the next byte for the caller.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Whether bytes are missing before others that were taken from the engine.
    pub(super) const fn has_gap(&self) -> bool {
        self.taken < self.end
    }

    /// Whether the caller could read bytes that are held.
    pub(super) fn is_ready(&self) -> bool {
        self.pieces.contains_key(&self.next)
    }

    /// What its caller could read.
    pub(super) fn unread(&self) -> Unread {
        Unread { waiting: self.waiting, ready: if self.is_ready() { self.bytes } else { 0 } }
    }

    /// How much is held.
    pub(super) fn held(&self) -> Held {
        Held { bytes: self.bytes, pieces: self.pieces.len() as u64 }
    }

    /// Notes that the caller gets these bytes at once, because they are the next ones.
    pub(super) fn pass(&mut self, len: usize) {
        self.note_taken(self.next, len);
        self.next += len as u64;
    }

    /// Whether a held piece ends at this offset.
    pub(super) fn continues(&self, offset: u64) -> bool {
        let before = self.pieces.range(..offset).next_back();
        before.is_some_and(|(start, piece)| start + piece.len() as u64 == offset)
    }

    /// Holds bytes until the caller asks for them. No byte may be held twice.
    pub(super) fn hold(&mut self, offset: u64, bytes: &[u8]) {
        self.note_taken(offset, bytes.len());
        self.bytes += bytes.len() as u64;
        let before = self.pieces.range_mut(..offset).next_back();
        if let Some((&start, piece)) = before
            && start + piece.len() as u64 == offset
            && piece.len() + bytes.len() <= PIECE_MAX
        {
            piece.extend_from_slice(bytes);
            return self.join(start, offset + bytes.len() as u64);
        }
        self.pieces.insert(offset, BytesMut::from(bytes));
    }

    /// Joins the piece at `start` with the one behind it, if no bytes are missing between them. The larger
    /// piece is not copied, so that no byte is copied often.
    fn join(&mut self, start: u64, end: u64) {
        let Some(behind) = self.pieces.get(&end).map(BytesMut::len) else { return }; // bytes are missing
        let Some(len) = self.pieces.get(&start).map(BytesMut::len) else { return };
        if behind > len || len + behind > PIECE_MAX {
            return;
        }
        if let Some(behind) = self.pieces.remove(&end)
            && let Some(piece) = self.pieces.get_mut(&start)
        {
            piece.extend_from_slice(&behind);
        }
    }

    /// At most `max` of the next bytes, if they are held.
    pub(super) fn pop(&mut self, max: usize) -> Option<Bytes> {
        let entry = self.pieces.first_entry().filter(|entry| *entry.key() == self.next)?;
        let mut piece = entry.remove();
        let popped = piece.split_to(piece.len().min(max));
        self.next += popped.len() as u64;
        self.bytes -= popped.len() as u64;
        if !piece.is_empty() {
            self.pieces.insert(self.next, piece);
        }
        Some(popped.freeze())
    }

    /// Drops what is held, because the peer reset the stream.
    pub(super) fn reset(&mut self, code: Code) {
        *self = Self { next: self.next, reset: Some(code), ..Self::default() };
    }

    fn note_taken(&mut self, offset: u64, len: usize) {
        self.taken += len as u64;
        self.end = self.end.max(offset + len as u64);
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

    use super::*;

    fn byte(offset: u64) -> u8 {
        (offset % 251) as u8
    }

    fn bytes(offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len).map(byte).collect()
    }

    #[test]
    fn any_order_gives_the_stream() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let largest = [1, 40, 1400, 40_000][random.random_range(0..4)];
            let mut pieces = Vec::new();
            let mut total = 0;
            for _ in 0..100 {
                let len = random.random_range(1..=largest);
                pieces.push((total, len));
                total += len;
            }
            match seed % 3 {
                0 => pieces.shuffle(&mut random),
                1 => pieces.reverse(),
                _ => pieces.swap(0, 99),
            }
            let mut reassembly = Reassembly::default();
            let mut read = Vec::new();
            for (offset, len) in pieces {
                reassembly.hold(offset, &bytes(offset, len));
                while random.random_bool(0.8) {
                    let Some(next) = reassembly.pop(random.random_range(1..3000)) else { break };
                    read.extend_from_slice(&next);
                }
            }
            assert!(!reassembly.has_gap());
            while let Some(next) = reassembly.pop(1000) {
                read.extend_from_slice(&next);
            }
            assert!(read == bytes(0, total), "seed {seed}");
            assert_eq!(reassembly.held(), Held::default(), "seed {seed}");
        }
    }

    #[test]
    fn small_bytes_in_order_become_few_pieces_and_gaps_count() {
        let mut reassembly = Reassembly::default();
        for offset in 1..=PIECE_MAX as u64 {
            reassembly.hold(offset, &[byte(offset)]);
        }
        assert_eq!(reassembly.held(), Held { bytes: PIECE_MAX as u64, pieces: 1 });
        assert!(reassembly.has_gap());
        let end = 1 + PIECE_MAX as u64;
        for number in 1..=10 {
            reassembly.hold(end + 2 * number, &[0]);
        }
        assert_eq!(reassembly.held(), Held { bytes: PIECE_MAX as u64 + 10, pieces: 11 });
        let buffers = reassembly.pieces.values().map(|piece| piece.capacity() as u64).sum::<u64>();
        assert!(buffers <= reassembly.held().memory(), "{buffers} bytes");
    }

    #[test]
    fn bytes_that_close_a_gap_join_the_pieces_around_it() {
        let mut reassembly = Reassembly::default();
        for offset in [100, 300, 500] {
            reassembly.hold(offset, &bytes(offset, 100));
        }
        assert_eq!(reassembly.held(), Held { bytes: 300, pieces: 3 });
        assert!(reassembly.continues(200) && !reassembly.continues(250));
        reassembly.hold(200, &bytes(200, 100));
        assert_eq!(reassembly.held(), Held { bytes: 400, pieces: 2 });
        reassembly.hold(400, &bytes(400, 100));
        assert_eq!(reassembly.held(), Held { bytes: 500, pieces: 1 });
        reassembly.hold(0, &bytes(0, 100));
        assert_eq!(reassembly.pop(1000).unwrap(), bytes(0, 100));
        assert_eq!(reassembly.pop(1000).unwrap(), bytes(100, 500));
    }

    #[test]
    fn passed_bytes_close_a_gap() {
        let mut reassembly = Reassembly::default();
        reassembly.pass(10);
        assert!(!reassembly.has_gap());
        reassembly.hold(15, &bytes(15, 5));
        assert_eq!(reassembly.pop(100), None);
        assert!(reassembly.has_gap());
        reassembly.pass(5);
        assert!(!reassembly.has_gap());
        assert_eq!(reassembly.pop(100).unwrap(), bytes(15, 5));
        assert_eq!(reassembly.next(), 20);
    }

    #[test]
    fn a_reset_drops_what_is_held() {
        let mut reassembly = Reassembly::default();
        reassembly.hold(100, &[1; 1000]);
        reassembly.reset(Code(7));
        assert_eq!(reassembly.held(), Held::default());
        assert_eq!((reassembly.reset, reassembly.has_gap()), (Some(Code(7)), false));
    }
}

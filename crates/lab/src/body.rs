//! The body that a host fetched.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// A body that a host fetched. The bytes themselves are dropped as soon as they are hashed.
pub struct Body {
    bytes: u64,
    chunks: u64,
    /// Hash of the bytes before `contiguous`.
    digest: Sha256,
    contiguous: u64,
    /// Chunks that came out of order, by offset.
    ahead: BTreeMap<u64, Bytes>,
}

impl Body {
    pub(crate) fn new() -> Self {
        Self { bytes: 0, chunks: 0, digest: Sha256::new(), contiguous: 0, ahead: BTreeMap::new() }
    }

    /// Takes a chunk.
    ///
    /// # Panics
    /// It panics if a byte comes twice, because a node must deliver each byte once.
    pub(crate) fn take(&mut self, offset: u64, data: Bytes) {
        self.chunks += 1;
        self.bytes += data.len() as u64;
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        let before = self.ahead.range(..end).next_back();
        let before = before.map_or(0, |(start, data)| start + data.len() as u64);
        assert!(
            offset >= self.contiguous.max(before),
            "bytes {offset}..{end} of a body came, but those up to {} were there already",
            self.contiguous.max(before),
        );
        self.ahead.insert(offset, data);
        while let Some(data) = self.ahead.remove(&self.contiguous) {
            self.digest.update(&data);
            self.contiguous += data.len() as u64;
        }
    }

    /// Number of bytes that came.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of chunks in which the bytes came.
    pub const fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Number of bytes from the first one up to the first gap.
    pub const fn contiguous(&self) -> u64 {
        self.contiguous
    }

    /// SHA-256 of the bytes up to the first gap.
    pub fn sha256(&self) -> [u8; 32] {
        self.digest.clone().finalize().into()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("bytes", &self.bytes)
            .field("contiguous", &self.contiguous)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Contents;

    #[test]
    fn chunks_in_any_order_hash_like_the_whole() {
        let whole = Bytes::from_static(b"to be or not to be");
        let mut body = Body::new();
        for (start, end) in [(6, 9), (15, 18), (0, 6), (9, 15)] {
            body.take(start as u64, whole.slice(start..end));
        }
        assert_eq!((body.bytes(), body.contiguous(), body.chunks()), (18, 18, 4));
        assert_eq!(body.sha256(), Contents::Literal(whole).sha256());
    }

    #[test]
    fn a_gap_stops_the_hash() {
        let mut body = Body::new();
        body.take(0, Bytes::from_static(b"ab"));
        body.take(3, Bytes::from_static(b"d"));
        assert_eq!((body.bytes(), body.contiguous()), (3, 2));
        assert_eq!(body.sha256(), Contents::Literal(Bytes::from_static(b"ab")).sha256());
    }

    #[test]
    #[should_panic(expected = "bytes 1..3 of a body came, but those up to 2 were there already")]
    fn a_byte_that_comes_twice_is_noticed() {
        let mut body = Body::new();
        body.take(0, Bytes::from_static(b"ab"));
        body.take(1, Bytes::from_static(b"bc"));
    }

    #[test]
    #[should_panic(expected = "came, but those up to 7 were there already")]
    fn a_byte_that_comes_twice_ahead_of_its_turn_is_noticed() {
        let mut body = Body::new();
        body.take(5, Bytes::from_static(b"ab"));
        body.take(4, Bytes::from_static(b"bc"));
    }
}

//! The buffer to which connections read.

use std::mem;

use bytes::{Bytes, BytesMut};

/// The buffer to which all connections of a driver read, so that an idle connection has none.
#[derive(Default)]
pub(super) struct Scratch(BytesMut);

impl Scratch {
    /// Returns the empty buffer with room for `len` bytes.
    pub(super) fn with_room(&mut self, len: usize) -> &mut BytesMut {
        self.0.clear();
        self.0.reserve(len);
        &mut self.0
    }

    /// Takes the bytes that were read.
    ///
    /// If they fill half of the buffer, the buffer itself is given away. Otherwise they are copied.
    /// A byte that the node keeps thus never keeps more than one other byte.
    pub(super) fn take(&mut self) -> Bytes {
        if self.0.len() >= self.0.capacity() / 2 {
            mem::take(&mut self.0).freeze()
        } else {
            Bytes::copy_from_slice(&self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_bytes_are_not_copied_and_few_do_not_keep_the_buffer() {
        let mut scratch = Scratch::default();
        for (len, is_copied) in [(1, true), (499, true), (500, false), (1000, false)] {
            let buffer = scratch.with_room(1000);
            assert_eq!(buffer.capacity(), 1000, "the buffer does not grow");
            buffer.extend_from_slice(&vec![7; len]);
            let place = buffer.as_ptr();
            let taken = scratch.take();
            assert_eq!(taken, vec![7; len]);
            assert_eq!(taken.as_ptr() != place, is_copied, "{len} of 1000 bytes");
        }
    }
}

//! Memory for UDP payloads that is used again and again.
//!
//! A payload lives for a moment: from a socket into the engine, or from a tunnel's queue into a packet. Its
//! bytes are in a buffer of which this module keeps a handle. Once no other handle of the buffer is left, the
//! next payload of its size gets it, so that a node in steady state asks the allocator for nothing.
//!
//! A buffer holds one payload, and is less than 64 bytes larger. So a part of a payload that is kept for long,
//! which peers can bring about, keeps no other payload's memory.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};

use bytes::{BufMut, BytesMut};

/// The sizes of buffers are multiples of this many bytes.
const STEP: usize = 64;

/// The largest buffer is `SIZES * STEP` bytes and holds a packet of an Ethernet. Larger payloads are rare.
const SIZES: usize = 24;

/// The most buffers of one size that a thread keeps. A repaired flow has as many in flight at 150 Mbit/s and
/// 20 ms. They take less than 400 kB.
const KEPT_MAX: usize = 256;

/// The number of payloads of one size after which a buffer is given back that none of them needed.
const UNNEEDED: u32 = 64;

thread_local! {
    static KEPT: RefCell<[SizeClass; SIZES]> =
        const { RefCell::new([const { SizeClass { handles: VecDeque::new(), unneeded: 0 } }; SIZES]) };
    static COPIED: Cell<u64> = const { Cell::new(0) };
}

/// The buffers of one size, in the order in which they were used.
struct SizeClass {
    handles: VecDeque<BytesMut>,
    /// How many payloads in turn got the buffer that was used last, so that the others were not needed.
    unneeded: u32,
}

impl SizeClass {
    /// Takes an unused buffer of this size. That of the last payload is tried first,
    /// because it is in the processor's cache, and then the oldest.
    fn take(&mut self, size: usize) -> Option<BytesMut> {
        if self.handles.back_mut()?.try_reclaim(size) {
            self.unneeded += 1;
            let last = self.handles.pop_back();
            if self.unneeded >= UNNEEDED {
                self.unneeded = 0;
                self.handles.pop_front();
            }
            return last;
        }
        self.unneeded = 0;
        if self.handles.front_mut()?.try_reclaim(size) {
            return self.handles.pop_front();
        }
        if self.handles.len() == KEPT_MAX {
            self.handles.pop_front();
        }
        None
    }
}

/// A copy of a payload.
pub fn copy(payload: &[u8]) -> BytesMut {
    filled(payload.len(), |buffer| buffer.put_slice(payload))
}

/// What `write` writes, which is at most `len` bytes.
pub(crate) fn filled(len: usize, write: impl FnOnce(&mut BytesMut)) -> BytesMut {
    COPIED.set(COPIED.get() + len as u64);
    let steps = len.div_ceil(STEP).max(1);
    KEPT.with_borrow_mut(|kept| {
        let Some(kept) = kept.get_mut(steps - 1) else {
            let mut buffer = BytesMut::with_capacity(len);
            write(&mut buffer);
            return buffer;
        };
        let size = steps * STEP;
        let mut buffer = kept.take(size).unwrap_or_else(|| BytesMut::with_capacity(size));
        write(&mut buffer);
        let filled = buffer.split();
        kept.handles.push_back(buffer);
        filled
    })
}

/// How many bytes this thread has copied into buffers, for tests that count copies.
pub fn copied() -> u64 {
    COPIED.get()
}

/// Frees all unused buffers, for tests that measure what others keep.
#[cfg(test)]
pub(crate) fn give_back() {
    KEPT.with_borrow_mut(|kept| kept.iter_mut().for_each(|kept| kept.handles = VecDeque::new()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of the memory of a payload.
    fn place(payload: &BytesMut) -> *const u8 {
        payload.as_ptr()
    }

    #[test]
    fn the_memory_of_a_payload_is_used_again_when_all_of_it_is_dropped() {
        let mut first = copy(&[1; 1250]);
        let place_of_first = place(&first);
        let rest = first.split_off(1249);
        drop(first);
        let second = copy(&[2; 1230]);
        assert_ne!(place(&second), place_of_first, "a byte of the first is still there");
        assert_eq!((&rest[..], &second[..]), (&[1][..], &[2; 1230][..]));
        drop(rest);
        assert_eq!(place(&copy(&[3; 1270])), place_of_first);
    }

    #[test]
    fn a_payload_of_any_size_is_copied() {
        for len in [0, 1, 63, 64, 65, 500, 1500, 1535, 1536, 1537, 65_527] {
            let payload: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
            assert_eq!(copy(&payload), payload[..]);
        }
    }

    #[test]
    fn payloads_share_no_memory() {
        for len in [1, 64, 65, 100, 1200, 1536] {
            let (one, other) = (copy(&vec![7; len]), copy(&vec![8; len]));
            let distance = place(&one).addr().abs_diff(place(&other).addr());
            assert!(distance >= len.next_multiple_of(STEP), "{len}");
            assert_eq!((one[0], other[0]), (7, 8), "{len}");
        }
    }

    #[test]
    fn buffers_that_are_not_needed_are_given_back() {
        let kept = || {
            KEPT.with_borrow(|kept| {
                kept[1200_usize.div_ceil(STEP) - 1..].first().map_or(0, |kept| kept.handles.len())
            })
        };
        let burst: Vec<_> = (0..2 * KEPT_MAX).map(|_| copy(&[0; 1200])).collect();
        assert_eq!(kept(), KEPT_MAX);
        drop(burst);
        for _ in 0..KEPT_MAX * UNNEEDED as usize {
            drop(copy(&[0; 1200]));
        }
        assert_eq!(kept(), 1);
    }
}

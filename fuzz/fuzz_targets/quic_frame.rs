//! The frames of any packet are its bytes, in their order and without a gap, and the data of a frame is
//! the end of it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_wire::{QuicFrame, QuicFrameKind, QuicFrames};

fuzz_target!(|payload: &[u8]| {
    let mut rest = payload;
    let mut is_over = false;
    for QuicFrame { kind, frame, data } in QuicFrames::new(payload) {
        assert!(!is_over && !frame.is_empty());
        assert!(rest.starts_with(frame) && frame.ends_with(data));
        assert!(matches!(kind, QuicFrameKind::Stream | QuicFrameKind::Datagram) || data.is_empty());
        rest = &rest[frame.len()..];
        is_over = rest.is_empty();
    }
    assert!(rest.is_empty());
});

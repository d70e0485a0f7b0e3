//! Decoded field lines are within the limit, and encode to a section that decodes to the same
//! lines.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_wire::qpack::{decode_field_section, encode_field_section};

const SIZE_MAX: u64 = 10_000;

fuzz_target!(|data: &[u8]| {
    let Ok(lines) = decode_field_section(Bytes::copy_from_slice(data), SIZE_MAX) else { return };
    let size: usize = lines.iter().map(|line| line.name.len() + line.value.len() + 32).sum();
    assert!(size as u64 <= SIZE_MAX);
    let encoded = encode_field_section(lines.iter().map(|line| (&line.name[..], &line.value[..])));
    assert_eq!(decode_field_section(encoded, SIZE_MAX), Ok(lines));
});

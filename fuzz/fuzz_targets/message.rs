//! Decoded requests and responses encode to sections that decode to the same message.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_wire::qpack::encode_field_section;
use tandem_wire::{RequestHead, ResponseHead, TraceId};

const SIZE_MAX: u64 = 10_000;

fuzz_target!(|data: &[u8]| {
    // The input is QPACK if its first byte is zero, as usual. Otherwise it has "name=value" lines,
    // with which the fuzzer finds messages much sooner.
    let is_qpack = data.first().is_none_or(|&first| first == 0);
    let section = if is_qpack { Bytes::copy_from_slice(data) } else { section(data) };
    if let Ok(request) = RequestHead::decode(section.clone(), SIZE_MAX) {
        TraceId::of(&request.headers);
        assert_eq!(RequestHead::decode(request.encode(), SIZE_MAX), Ok(request));
    }
    if let Ok(response) = ResponseHead::decode(section, SIZE_MAX) {
        assert_eq!(ResponseHead::decode(response.encode(), SIZE_MAX), Ok(response));
    }
});

fn section(text: &[u8]) -> Bytes {
    let lines = text.split(|&byte| byte == b'\n');
    encode_field_section(lines.map(|line| {
        let mut parts = line.splitn(2, |&byte| byte == b'=');
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    }))
}

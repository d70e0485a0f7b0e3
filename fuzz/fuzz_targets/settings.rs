//! Decoded settings encode to a payload that is not longer and decodes to the same settings.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_wire::Settings;

fuzz_target!(|data: &[u8]| {
    let Ok(settings) = Settings::decode(Bytes::copy_from_slice(data)) else { return };
    let mut encoded = Vec::new();
    settings.encode(&mut encoded);
    assert!(encoded.len() <= data.len(), "defaults and unknown settings are left out");
    assert_eq!(Settings::decode(encoded.into()), Ok(settings));
});

//! A decoded integer encodes to the shortest form, which decodes to the same integer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_wire::VarInt;

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    let Ok(varint) = VarInt::decode(&mut rest) else {
        assert!(data.len() < 8, "eight bytes hold every integer");
        return;
    };
    let mut encoded = Vec::new();
    varint.encode(&mut encoded);
    assert_eq!(encoded.len(), varint.encoded_len());
    assert!(encoded.len() <= data.len() - rest.len(), "the shortest form is never longer");
    assert_eq!(VarInt::decode(&mut &encoded[..]), Ok(varint));
});

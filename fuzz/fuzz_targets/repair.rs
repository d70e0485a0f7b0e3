//! Decoded sequenced payloads and `tandem-repair` fields encode to bytes that decode to the same
//! value.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tandem_wire::{RepairField, Sequenced};

fuzz_target!(|data: &[u8]| {
    if let Ok(sequenced) = Sequenced::decode(Bytes::copy_from_slice(data)) {
        assert!(sequenced.floor <= sequenced.sequence);
        let mut encoded = BytesMut::new();
        sequenced.encode(&mut encoded);
        assert!(encoded.len() <= data.len(), "the shortest integers are never longer");
        assert_eq!(encoded.len(), sequenced.overhead() + sequenced.payload.len());
        assert_eq!(Sequenced::decode(encoded.freeze()), Ok(sequenced));
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(field) = RepairField::parse(text)
    {
        let value = field.encode();
        assert_eq!(RepairField::parse(value.to_str().expect("it is ASCII")), Ok(field));
    }
});

//! A decoded datagram encodes to one that is not longer and decodes to the same value.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tandem_wire::HttpDatagram;

fuzz_target!(|data: &[u8]| {
    let Ok(datagram) = HttpDatagram::decode(Bytes::copy_from_slice(data)) else { return };
    let mut encoded = BytesMut::new();
    datagram.encode(&mut encoded);
    assert!(encoded.len() <= data.len(), "the shortest integers are never longer");
    assert_eq!(encoded, datagram.encode_to_bytes());
    assert_eq!(HttpDatagram::decode(encoded.freeze()), Ok(datagram));
});

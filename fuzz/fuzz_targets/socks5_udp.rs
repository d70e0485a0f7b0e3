//! A SOCKS5 datagram is dropped, or is exactly its header and its payload: what is decoded encodes
//! to the same bytes. A cut header is never taken for a whole one.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_node::client::local::{Address, DatagramError, decode_datagram, encode_datagram_header};

fuzz_target!(|datagram: &[u8]| match decode_datagram(datagram) {
    Ok((address, payload)) => {
        let mut encoded = Vec::new();
        encode_datagram_header(&address, &mut encoded);
        let header = encoded.len();
        encoded.extend(payload);
        assert_eq!(encoded, datagram);
        for len in 0..header {
            assert_eq!(decode_datagram(&datagram[..len]), Err(DatagramError::Malformed));
        }
        // A target is compared without case, and is the same target when it comes back.
        if let Ok(target) = address.to_target() {
            assert_ne!(target.port(), 0);
            assert_eq!(Address::from(&target).to_target(), Ok(target));
        }
    }
    Err(DatagramError::Fragment) => assert_ne!(datagram[2], 0),
    Err(DatagramError::Malformed) => {}
});

//! PEP-ACKs of QUIC and TCP: what decodes encodes to the same bytes, but for the MAC.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_wire::{Ends, PepAck, PepKey, Slice, pep_ack::tcp::TcpPepAck};

fuzz_target!(|input: &[u8]| {
    let key = PepKey::new([7; PepKey::LEN]);
    assert!(!key.authenticates(input), "nobody guesses a MAC");
    if let Ok(ack) = PepAck::decode(input) {
        assert!(PepAck::is_one(input), "it never reaches QUIC");
        let mut out = Vec::new();
        ack.encode(Some(&key), &mut out);
        let content = input.len() - PepKey::MAC_LEN;
        assert_eq!(out.get(..content), input.get(..content));
        assert!(key.authenticates(&out));
    }
    assert!(Slice::of(input).is_none_or(|slice| input.windows(Slice::LEN).any(|it| it == slice.0)));
    let end = |text: &str| text.parse().expect("it is an address");
    let ends = Ends { client: end("192.0.2.1:50000"), server: end("[2001:db8::1]:443") };
    if let Ok(ack) = TcpPepAck::decode(input) {
        let mut out = Vec::new();
        ack.encode(&ends, Some(&key), &mut out);
        assert_eq!(out.get(..out.len() - 8), input.get(..input.len() - 8));
        assert!(ends.authenticates(&key, &out) && !ends.authenticates(&key, input));
    }
});

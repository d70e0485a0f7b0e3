//! Decoded capsules are independent of the splitting of the stream, and encode to a stream that
//! decodes to the same capsules.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_fuzz::split;
use tandem_wire::capsule::CAPSULE_TYPE_DATAGRAM;
use tandem_wire::{
    Capsule, CapsuleDecoder, DecodeError, OWN_CAPSULE_MAX, OwnCapsule, VarInt, encode_capsule,
};

const LEN_MAX: usize = 100;

/// The types of the capsules of a service.
const OWN: &[VarInt] = &[VarInt::from_u32(0x01), VarInt::from_u32(0x02)];

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (lengths, data) = input;
    let whole = decode_all(&split(data, &[]));
    assert_eq!(decode_all(&split(data, &lengths)), whole);

    let (mut capsules, _) = whole;
    let is_kept =
        |it: &Capsule| matches!(it, Capsule::Datagram(_) | Capsule::Cid(_) | Capsule::Own(_));
    capsules.retain(is_kept);
    let mut encoded = Vec::new();
    for capsule in &capsules {
        match capsule {
            Capsule::Datagram(value) => {
                assert!(value.len() <= LEN_MAX);
                encode_capsule(CAPSULE_TYPE_DATAGRAM, value, &mut encoded);
            }
            Capsule::Cid(capsule) => capsule.encode(&mut encoded),
            Capsule::Own(OwnCapsule { capsule_type, value }) => {
                assert!(OWN.contains(capsule_type) && value.len() <= OWN_CAPSULE_MAX);
                encode_capsule(*capsule_type, value, &mut encoded);
            }
            _ => unreachable!("only these were kept"),
        }
    }
    assert_eq!(decode_all(&[encoded.into()]), (capsules, Ok(())));
});

fn decode_all(pieces: &[Bytes]) -> (Vec<Capsule>, Result<(), DecodeError>) {
    let mut decoder = CapsuleDecoder::new(LEN_MAX).with_own(OWN);
    let mut capsules = Vec::new();
    for piece in pieces {
        decoder.push(piece.clone());
        loop {
            match decoder.next() {
                Ok(Some(capsule)) => capsules.push(capsule),
                Ok(None) => break,
                Err(error) => return (capsules, Err(error)),
            }
        }
    }
    (capsules, decoder.finish())
}

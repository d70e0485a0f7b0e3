//! Decoded capsules with connection IDs encode to capsules that decode to the same value, and the
//! decoder of a whole stream gives the same result as that of a value.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_wire::{
    Capsule, CapsuleDecoder, CidCapsule, CidCapsuleError, CidCapsuleType, DecodeError,
    encode_capsule,
};

fuzz_target!(|data: &[u8]| {
    let Some((number, value)) = data.split_first() else { return };
    let types = CidCapsuleType::ALL;
    let capsule_type = types[usize::from(*number) % types.len()];
    let decoded = CidCapsule::decode(capsule_type, Bytes::copy_from_slice(value));
    assert!(decoded.is_err() || value.len() <= capsule_type.value_len_max());

    let mut stream = Vec::new();
    encode_capsule(capsule_type.get(), value, &mut stream);
    match (first_of(&stream), &decoded) {
        (Ok(seen), Ok(capsule)) => assert_eq!(seen, *capsule),
        (Err(CidCapsuleError::ValueTooLong { .. }), Err(_)) => {
            assert!(value.len() > capsule_type.value_len_max());
        }
        (seen, _) => assert_eq!(seen, decoded),
    }

    let Ok(capsule) = decoded else { return };
    assert_eq!(capsule.capsule_type(), capsule_type);
    let mut encoded = Vec::new();
    capsule.encode(&mut encoded);
    assert!(encoded.len() <= stream.len(), "the shortest integers are never longer");
    assert_eq!(first_of(&encoded), Ok(capsule.clone()));
    let mut again = Vec::new();
    first_of(&encoded).expect("it decodes").encode(&mut again);
    assert_eq!(again, encoded);
});

/// The only capsule of a stream.
fn first_of(stream: &[u8]) -> Result<CidCapsule, CidCapsuleError> {
    let mut decoder = CapsuleDecoder::new(0);
    decoder.push(Bytes::copy_from_slice(stream));
    match decoder.next() {
        Ok(Some(Capsule::Cid(capsule))) => {
            assert_eq!((decoder.next(), decoder.finish()), (Ok(None), Ok(())));
            Ok(capsule)
        }
        Err(DecodeError::CidCapsuleMalformed(error)) => Err(error),
        other => unreachable!("{other:?}"),
    }
}

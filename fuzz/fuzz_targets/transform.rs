//! Packets that are transformed for forwarded mode become themselves again, in both orders and in
//! both forms of the functions. No result has a long header, and what is refused leaves no trace.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_fuzz::input::Reader;
use tandem_wire::{
    ConnectionId, ScrambleKey, Transform,
    transform::{Decoder, Encoder},
};

fuzz_target!(|input: &[u8]| {
    let mut reader = Reader::new(input);
    let transform = Transform::ALL[usize::from(reader.byte()) % Transform::ALL.len()];
    let key = ScrambleKey::new(std::array::from_fn(|_| reader.byte()));
    let encoder = Encoder::new(transform, Some(&key)).expect("there is a key");
    let decoder = Decoder::new(transform, Some(&key)).expect("there is a key");
    let (cid, vcid) = (id(&reader.bytes()), id(&reader.bytes()));
    let packet = reader.bytes();

    let mut sent = Vec::new();
    match encoder.encode(&packet, cid.len(), &vcid, &mut sent) {
        Ok(()) => {
            assert_eq!(sent[0] & 0x80, 0);
            assert_eq!(sent.len() + cid.len(), packet.len() + vcid.len());
            let cid = id(&packet[1..=cid.len()]);
            let mut received = Vec::new();
            assert_eq!(decoder.decode(&sent, vcid.len(), &cid, &mut received), Ok(()));
            assert_eq!(received, packet);
            check_in_place(&packet, &sent, |place| encoder.encode_in_place(place, &vcid));
            check_in_place(&sent, &packet, |place| decoder.decode_in_place(place, &cid));
        }
        Err(_) => assert!(sent.is_empty()),
    }

    let mut received = Vec::new();
    match decoder.decode(&packet, vcid.len(), &cid, &mut received) {
        Ok(()) => {
            assert_eq!(received[0] & 0x80, 0);
            let vcid = id(&packet[1..=vcid.len()]);
            let mut sent = Vec::new();
            assert_eq!(encoder.encode(&received, cid.len(), &vcid, &mut sent), Ok(()));
            assert_eq!(sent, packet);
        }
        Err(_) => assert!(received.is_empty()),
    }
});

fn id(bytes: &[u8]) -> ConnectionId {
    let len = bytes.len().min(ConnectionId::LEN_MAX);
    ConnectionId::try_from(&bytes[..len]).expect("it is short enough")
}

/// Checks that the form without a copy has the same result, if both packets are equally long.
fn check_in_place<E: std::fmt::Debug + PartialEq>(
    before: &[u8],
    after: &[u8],
    run: impl Fn(&mut [u8]) -> Result<(), E>,
) {
    if before.len() == after.len() {
        let mut place = before.to_vec();
        assert_eq!(run(&mut place), Ok(()));
        assert_eq!(place, after);
    }
}

use std::{collections::BTreeSet, convert::Infallible, fmt::Write};

use proptest::prelude::*;
use ring::digest::{SHA512, digest};
use tandem_wire::VarInt;

use super::{
    header::HeaderProtection,
    keys::{Generations, PacketKeys},
    *,
};
use crate::sent::PACKETS_MAX;

/// The bytes of the ID in most of the tests.
const ID: &[u8; 8] = b"receiver";

/// The length of a header with this ID.
const HEADER_LEN: usize = 13;

/// How many bytes a packet has more than its payload.
const OVERHEAD: usize = HEADER_LEN + TAG_LEN;

fn id() -> ConnectionId {
    ConnectionId::try_from(&ID[..]).unwrap()
}

const PAYLOAD: &[u8] = b"a payload that is longer than one block of AES";

/// Keys change after every ten packets. With the fifth one, the keys of the generation before are gone, and those of
/// the next one are there.
const SHORT: Schedule =
    Schedule { update_interval: NonZeroU64::new(10).unwrap(), late_max: 5, ..Schedule::PROTOCOL };

/// Keys never change.
const LONG: Schedule =
    Schedule { update_interval: NonZeroU64::new(1 << 62).unwrap(), ..Schedule::PROTOCOL };

fn secret() -> Secret {
    Secret::new(&[7; 32])
}

fn pair(schedule: Schedule) -> (Sealer, Opener) {
    let sealer = Sealer::with_schedule(secret(), id(), schedule);
    (sealer, Opener::with_schedule(secret(), ID.len(), schedule))
}

impl Sealer {
    fn packet(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.seal(payload, &mut out).unwrap();
        out
    }

    /// Seals some packets and returns them in their order.
    fn packets(&mut self, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| self.packet(PAYLOAD)).collect()
    }
}

impl Opener {
    /// Opens a copy of a packet.
    fn payload(&mut self, packet: &[u8]) -> Result<Vec<u8>, OpenError> {
        let mut packet = packet.to_vec();
        self.open(&mut packet).map(|payload| packet[payload].to_vec())
    }

    /// What a receiver does with a packet.
    fn verdict(&mut self, packet: &[u8]) -> Result<(), OpenError> {
        self.payload(packet).map(drop)
    }
}

/// The header protection and the keys of these generations, with which tests make packets that no
/// sealer makes.
fn keys<const N: usize>() -> (HeaderProtection, [PacketKeys; N]) {
    let mut generations = Generations::new(secret());
    let header_protection = generations.header_protection();
    let next = |_| {
        let keys = generations.keys();
        generations.advance();
        keys
    };
    (header_protection, std::array::from_fn(next))
}

fn header(number: u64, generation: u64) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header::encode(&mut header, ID, number, generation).unwrap();
    header
}

/// Seals with these keys, whatever the header is.
fn forge(
    header_protection: &HeaderProtection,
    keys: &PacketKeys,
    number: u64,
    header: [u8; HEADER_LEN],
) -> Vec<u8> {
    let mut payload = PAYLOAD.to_vec();
    let tag = keys.seal(number, &header, &mut payload);
    let mut packet = [&header[..], &payload, tag.as_ref()].concat();
    header_protection.toggle(&mut packet, HEADER_LEN).unwrap();
    packet
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    let mut text = String::new();
    for byte in bytes.as_ref() {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

#[test]
fn the_packets_of_the_appendix_of_wire_md() {
    let secret = || Secret::new(&std::array::from_fn(|index| u8::try_from(index).unwrap()));
    let id = [0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
    for (first_number, payload, expected) in [
        (0, &b""[..], "6ec0c1c2c3c4c5c6c7dcf78e6abbb04d59c24c9b64117a622685bcf165"),
        (1, b"tandem", "77c0c1c2c3c4c5c6c70333927d5cd655c28ace6b7bd833acc60525c66f08196921ebd6"),
        (
            (1 << 20) - 1,
            b"tandem",
            "73c0c1c2c3c4c5c6c727406fb301d41b85cbece9a333c7d7e57b367b426b6db9058ee9",
        ),
        (
            1 << 20,
            b"tandem",
            "6ec0c1c2c3c4c5c6c70b69fecc0cc5706db8fe159196e63fbd68a737225f477b8af3d4",
        ),
    ] {
        let schedule = Schedule { first_number, ..Schedule::PROTOCOL };
        let id = ConnectionId::try_from(&id[..]).unwrap();
        let packet = Sealer::with_schedule(secret(), id, schedule).packet(payload);
        assert_eq!(hex(&packet), expected, "number {first_number}");
        let mut opener = Opener::with_schedule(secret(), id.len(), schedule);
        assert_eq!(opener.payload(&packet).as_deref(), Ok(payload), "number {first_number}");
    }
}

#[test]
fn labels_expand_as_in_quic() {
    // RFC 9001 A.1.
    let secret = [
        0xc0, 0x0c, 0xf1, 0x51, 0xca, 0x5b, 0xe0, 0x75, 0xed, 0x0e, 0xbf, 0xb5, 0xc8, 0x03, 0x23,
        0xc4, 0x2d, 0x6b, 0x7d, 0xb6, 0x78, 0x81, 0x28, 0x9a, 0xf4, 0x00, 0x8f, 0x1f, 0x6c, 0x35,
        0x7a, 0xea,
    ];
    let expanded = |label| Secret::new(&secret).expand_bytes::<16>(label);
    assert_eq!(hex(expanded("quic key")), "1f369613dd76d5467730efcbe3b1a22d");
    assert_eq!(hex(expanded("quic hp")), "9f50449e04a0e810283a1e9933adedd2");
    let iv = Secret::new(&secret).expand_bytes::<12>("quic iv");
    assert_eq!(hex(iv), "fa044b2f42a3fd3b46fb255c");
}

#[test]
fn the_exporter_is_asked_for_both_secrets_of_a_flow() {
    let mut asked = Vec::new();
    let secrets = Secrets::export(VarInt::from_u32(0x1234), |out, label, context| {
        asked = [label, context].concat();
        out.fill(1);
        out[32..].fill(2);
        (out.len() == 64).then_some(()).ok_or(())
    });
    assert_eq!(asked, b"EXPERIMENTAL-tandem-seal-1\0\0\0\0\0\0\x12\x34");
    let Secrets { to_proxy, to_client } = secrets.unwrap();
    for (secret, byte) in [(to_proxy, 1), (to_client, 2)] {
        let expected = Secret::new(&[byte; 32]).expand_bytes::<16>("tandem iv");
        assert_eq!(secret.expand_bytes("tandem iv"), expected);
    }
    let failed = Secrets::export(VarInt::from_u32(4), |_, _, _| Err("no handshake"));
    assert_eq!(failed.unwrap_err(), "no handshake");
}

#[test]
fn packets_are_appended_and_opened_in_place() {
    let (mut sealer, mut opener) = pair(SHORT);
    let mut out = b"before".to_vec();
    for _ in 0..25 {
        let start = out.len();
        sealer.seal(PAYLOAD, &mut out).unwrap();
        assert_eq!(out.len(), start + PAYLOAD.len() + OVERHEAD);
        let packet = &mut out[start..];
        assert_eq!(packet[0] & 0xc0, 0x40, "a short header");
        assert_eq!(packet[1..=ID.len()], ID[..]);
        assert_eq!(opener.open(packet), Ok(13..13 + PAYLOAD.len()));
        assert_eq!(&packet[13..13 + PAYLOAD.len()], PAYLOAD);
    }
    assert!(out.starts_with(b"before"));
}

#[test]
fn sealing_and_opening_allocate_nothing() {
    let (mut sealer, mut opener) = pair(SHORT);
    // Keys and the window are allocated once.
    for packet in sealer.packets(6) {
        opener.verdict(&packet).unwrap();
    }
    let mut out = Vec::with_capacity(PAYLOAD.len() + OVERHEAD);
    let allocated = allocation_counter::measure(|| {
        for _ in 0..100 {
            out.clear();
            sealer.seal(PAYLOAD, &mut out).unwrap();
            opener.open(&mut out).unwrap();
        }
    });
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn an_observer_sees_the_connection_id_and_the_size_and_nothing_else() {
    let mut sealer = Sealer::new(secret(), id());
    let packets: Vec<_> = (0..200).map(|_| sealer.packet(&[0; 20])).collect();
    for position in 0..packets[0].len() {
        let ones = packets.iter().fold(0xff, |ones, packet| ones & packet[position]);
        let zeros = packets.iter().fold(0, |zeros, packet| zeros | packet[position]);
        let constant = ones | !zeros;
        let expected = match position {
            0 => 0xc0,
            1..=8 => 0xff,
            _ => 0,
        };
        assert_eq!(constant, expected, "the constant bits of byte {position}");
    }
}

#[test]
fn every_changed_bit_is_refused() {
    // The third packet of a generation, and the last one, whose number may become one of the next.
    for count in [3, 10, 13] {
        let (mut sealer, mut opener) = pair(SHORT);
        let mut packets = sealer.packets(count);
        let packet = packets.pop().unwrap();
        for before in &packets {
            opener.verdict(before).unwrap();
        }
        for bit in 0..8 * packet.len() {
            let mut changed = packet.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opener.verdict(&changed), Err(OpenError::NotAuthentic), "bit {bit}");
        }
        assert_eq!(opener.payload(&packet).as_deref(), Ok(PAYLOAD));
    }
}

#[test]
fn every_other_length_is_refused() {
    let (mut sealer, mut opener) = pair(SHORT);
    let packet = sealer.packet(PAYLOAD);
    for len in 0..packet.len() {
        let expected = if len < OVERHEAD { OpenError::TooShort } else { OpenError::NotAuthentic };
        assert_eq!(opener.verdict(&packet[..len]), Err(expected), "length {len}");
    }
    for more in 1..100 {
        let longer = [&packet[..], &vec![0; more]].concat();
        assert_eq!(opener.verdict(&longer), Err(OpenError::NotAuthentic), "{more} more");
    }
    assert_eq!(opener.payload(&packet).as_deref(), Ok(PAYLOAD));
}

#[test]
fn packets_of_other_flows_directions_and_connections_are_refused() {
    let secrets = |connection: u8, stream| {
        let stream = VarInt::from_u32(stream);
        let exporter = |out: &mut [u8], label: &[u8], context: &[u8]| {
            let material = [&[connection], label, context].concat();
            out.copy_from_slice(digest(&SHA512, &material).as_ref());
            Ok::<_, Infallible>(())
        };
        Secrets::export(stream, exporter).unwrap()
    };
    let mut opener = Opener::new(secrets(0, 4).to_proxy, ID.len());
    for (what, secret) in [
        ("the other direction", secrets(0, 4).to_client),
        ("another flow", secrets(0, 8).to_proxy),
        ("another connection", secrets(1, 4).to_proxy),
    ] {
        let packet = Sealer::new(secret, id()).packet(PAYLOAD);
        assert_eq!(opener.verdict(&packet), Err(OpenError::NotAuthentic), "{what}");
    }
    let mut packet = Sealer::new(secrets(0, 4).to_proxy, id()).packet(PAYLOAD);
    assert_eq!(opener.verdict(&packet), Ok(()));
    packet[1..=ID.len()].copy_from_slice(b"somebody");
    assert_eq!(opener.verdict(&packet), Err(OpenError::NotAuthentic), "another connection ID");
}

#[test]
fn nothing_is_opened_twice() {
    let (mut sealer, mut opener) = pair(SHORT);
    let packets = sealer.packets(14);
    assert_eq!(opener.verdict(&packets[4]), Ok(()));
    for packet in packets.iter().rev().filter(|packet| **packet != packets[4]) {
        assert_eq!(opener.verdict(packet), Ok(()));
    }
    for packet in packets {
        assert_eq!(opener.verdict(&packet), Err(OpenError::Replayed));
    }
}

#[test]
fn a_packet_is_opened_until_4096_newer_ones_have_been_sealed() {
    let (mut sealer, mut opener) = pair(LONG);
    let packets = sealer.packets(4098);
    assert_eq!(opener.verdict(&packets[4097]), Ok(()));
    assert_eq!(opener.verdict(&packets[1]), Err(OpenError::TooOld));
    assert_eq!(opener.verdict(&packets[2]), Ok(()));
    assert_eq!(opener.verdict(&packets[2]), Err(OpenError::Replayed));
}

#[test]
fn late_packets_of_the_last_generation_are_opened_after_an_update() {
    let (mut sealer, mut opener) = pair(SHORT);
    let packets = sealer.packets(31);
    let verdicts = [
        (4, Ok(())),
        // The first packet of the next generation overtakes the last one of this generation.
        (10, Ok(())),
        (9, Ok(())),
        (9, Err(OpenError::Replayed)),
        (13, Ok(())),
        (8, Ok(())),
        // With this one, the keys of the first generation are gone.
        (14, Ok(())),
        (7, Err(OpenError::NotAuthentic)),
        (29, Ok(())),
        // All of the second generation but four are lost.
        (19, Err(OpenError::NotAuthentic)),
        (30, Ok(())),
    ];
    for (number, expected) in verdicts {
        assert_eq!(opener.verdict(&packets[number]), expected, "{number}");
    }
}

#[test]
fn a_receiver_follows_one_generation_at_a_time() {
    let (mut sealer, mut opener) = pair(SHORT);
    let packets = sealer.packets(30);
    let verdicts = [
        (3, Ok(())),
        (10, Err(OpenError::NotAuthentic)),
        // With this one, the keys of the second generation are there.
        (4, Ok(())),
        (20, Err(OpenError::NotAuthentic)),
        (10, Ok(())),
        (20, Err(OpenError::NotAuthentic)),
        (14, Ok(())),
        (20, Ok(())),
    ];
    for (number, expected) in verdicts {
        assert_eq!(opener.verdict(&packets[number]), expected, "{number}");
    }
}

#[test]
fn forged_key_updates_do_not_move_the_receiver() {
    let (mut sealer, mut opener) = pair(SHORT);
    let packets = sealer.packets(21);
    assert_eq!(opener.verdict(&packets[4]), Ok(()));
    let before = format!("{opener:?}").replace("failures: 0", "");
    let (header_protection, [first, second, _]) = keys();
    // Even with the key of the header protection, nobody without the next keys sets the key phase or
    // the number.
    for (number, generation) in [(1, 1), (10, 1), (11, 0), (20, 0), (20, 2)] {
        for _ in 0..5 {
            let header = header(number, generation);
            let packet = forge(&header_protection, &first, number, header);
            assert_eq!(opener.verdict(&packet), Err(OpenError::NotAuthentic), "{number}");
        }
    }
    // The peer itself has to use the key phase and the keys of the packet's number.
    for (number, generation, keys) in
        [(1, 1, &first), (10, 0, &second), (9, 1, &second), (20, 2, &second)]
    {
        let header = header(number, generation);
        let packet = forge(&header_protection, keys, number, header);
        assert_eq!(opener.verdict(&packet), Err(OpenError::NotAuthentic), "{number}");
    }
    let after = format!("{opener:?}").replace("failures: 29", "");
    assert_eq!(after, before);
    for packet in packets.iter().filter(|packet| **packet != packets[4]) {
        assert_eq!(opener.verdict(packet), Ok(()));
    }
}

#[test]
fn reserved_bits_and_lengths_of_packet_numbers_are_as_agreed() {
    let (header_protection, [first]) = keys();
    let mut opener = Opener::new(secret(), ID.len());
    for bit in 0..8 {
        let mut header = header(0, 0);
        header[0] ^= 1 << bit;
        let packet = forge(&header_protection, &first, 0, header);
        assert_eq!(opener.verdict(&packet), Err(OpenError::NotAuthentic), "bit {bit}");
    }
    let packet = forge(&header_protection, &first, 0, header(0, 0));
    assert_eq!(opener.verdict(&packet), Ok(()));
}

#[test]
fn packet_numbers_continue_beyond_32_bits() {
    let first_number = (1 << 32) - 5;
    // The receiver has seen no packet, and expects number 0.
    let mut opener = Opener::with_schedule(secret(), ID.len(), LONG);
    let mut sealer = Sealer::with_schedule(secret(), id(), Schedule { first_number, ..LONG });
    let packets = sealer.packets(10);
    for number in [0, 4, 5, 3, 9, 8, 1] {
        assert_eq!(opener.verdict(&packets[number]), Ok(()), "{number}");
        assert_eq!(opener.verdict(&packets[number]), Err(OpenError::Replayed), "{number}");
    }
}

#[test]
fn the_limits_are_those_of_wire_md_and_far_below_those_of_rfc_9001() {
    let Schedule { first_number, update_interval, late_max, failures_max } = Schedule::PROTOCOL;
    assert_eq!((first_number, update_interval.get(), failures_max), (0, 1 << 20, 1 << 36));
    // The next keys are there before the ring of sent packets lets the peer use them.
    assert!(late_max + PACKETS_MAX as u64 <= update_interval.get() / 2);
    // §6.6, for packets of up to 2^16 bytes.
    assert!(update_interval.get() <= (1 << 23) / 8 && failures_max <= (1 << 52) / 8);
    assert_eq!((OVERHEAD, PACKET_NUMBER_MAX), (29, (1 << 62) - 1));
}

#[test]
fn sealing_ends_with_the_last_packet_number() {
    let schedule = Schedule { first_number: PACKET_NUMBER_MAX - 2, ..LONG };
    let (mut sealer, mut opener) = pair(schedule);
    let packets = sealer.packets(3);
    for _ in 0..3 {
        let mut out = vec![1];
        assert_eq!(sealer.seal(PAYLOAD, &mut out), Err(Exhausted));
        assert_eq!(out, [1]);
    }
    for packet in packets.iter().rev() {
        assert_eq!(opener.verdict(packet), Ok(()));
        assert_eq!(opener.verdict(packet), Err(OpenError::Replayed));
    }
}

#[test]
fn a_receiver_ends_after_too_many_packets_that_are_not_authentic() {
    let (mut sealer, mut opener) = pair(Schedule { failures_max: 3, ..SHORT });
    let packets = sealer.packets(3);
    let forged = [0x40; 100];
    for _ in 0..2 {
        assert_eq!(opener.verdict(&forged), Err(OpenError::NotAuthentic));
        assert_eq!(opener.verdict(&forged[..28]), Err(OpenError::TooShort), "it is not counted");
    }
    assert_eq!(opener.verdict(&packets[0]), Ok(()));
    assert_eq!(opener.verdict(&packets[0]), Err(OpenError::Replayed), "it is not counted");
    assert_eq!(opener.verdict(&forged), Err(OpenError::NotAuthentic));
    assert_eq!(opener.verdict(&forged), Err(OpenError::Over));
    assert_eq!(opener.verdict(&packets[1]), Err(OpenError::Over));
}

#[test]
fn secrets_are_never_printed() {
    let (mut sealer, mut opener) = pair(SHORT);
    let packets = sealer.packets(11);
    for number in [4, 10] {
        opener.verdict(&packets[number]).unwrap();
    }
    let secrets = Secrets { to_proxy: secret(), to_client: secret() };
    assert_eq!(
        format!("{secrets:?} {sealer:?} {opener:?}"),
        "Secrets { to_proxy: Secret(..), to_client: Secret(..) } Sealer { next_number: 11, .. } \
         Opener { next_number: 11, generation: 1, failures: 0, .. }"
    );
}

proptest! {
    #[test]
    fn payloads_of_all_sizes_arrive_once_in_any_order(
        payloads in prop::collection::vec(
            (0..=1500_usize, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
            1..25,
        ),
        arrivals in prop::collection::vec(any::<prop::sample::Index>(), 0..80),
    ) {
        let (mut sealer, mut opener) = pair(SHORT);
        let packets: Vec<_> = payloads.iter().map(|payload| sealer.packet(payload)).collect();
        let mut accepted = BTreeSet::new();
        for arrival in arrivals {
            let number = arrival.index(packets.len());
            let next = accepted.last().map_or(0_usize, |newest| newest + 1);
            let current = next.saturating_sub(1) / 10;
            let other = if next < 10 * current + 5 { current.wrapping_sub(1) } else { current + 1 };
            let expected = if ![current, other].contains(&(number / 10)) {
                Err(OpenError::NotAuthentic)
            } else if accepted.insert(number) {
                Ok(payloads[number].clone())
            } else {
                Err(OpenError::Replayed)
            };
            prop_assert_eq!(opener.payload(&packets[number]), expected, "{}", number);
        }
    }

    #[test]
    fn what_nobody_sealed_is_refused(packet: Vec<u8>) {
        let error = Opener::new(secret(), ID.len()).verdict(&packet).unwrap_err();
        let expected = if packet.len() < OVERHEAD {
            OpenError::TooShort
        } else {
            OpenError::NotAuthentic
        };
        prop_assert_eq!(error, expected);
    }

    #[test]
    fn any_use_of_sealed_packets_keeps_their_promises(input: Vec<[u8; 4]>) {
        model::run(&input.concat());
    }
}

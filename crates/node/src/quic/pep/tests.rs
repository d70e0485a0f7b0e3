use proptest::prelude::*;
use tandem_wire::SeenPacket;

use super::*;

const PEP: PepId = PepId(7);

fn made(number: u64, bytes: u16) -> Made {
    Made { number, bytes }
}

/// A payload with a short header, of this size, with `mark` in its slice.
fn payload(mark: u8, size: usize) -> Vec<u8> {
    let mut payload = vec![0x45; size];
    if let Some(byte) = payload.get_mut(30) {
        *byte = mark;
    }
    payload
}

#[test]
fn payloads_are_matched_only_if_each_has_its_packet() {
    let (full, short) = (payload(1, 1200), payload(2, 80));
    let mut long = payload(3, 1200);
    long[0] = 0xc0;
    for (what, made, payloads, expected) in [
        ("two packets", vec![made(4, 1200), made(9, 80)], vec![&full, &short], Some(vec![4, 9])),
        ("nothing", vec![], vec![], Some(vec![])),
        ("one payload more", vec![made(4, 1200)], vec![&full, &short], None),
        ("one packet more", vec![made(4, 1200), made(5, 80)], vec![&full], None),
        ("another size", vec![made(4, 1200), made(5, 81)], vec![&full, &short], None),
        ("a long header", vec![made(0, 1200)], vec![&long], None),
        ("no slice", vec![made(0, 1200), made(1, 34)], vec![&full, &payload(4, 34)], Some(vec![0])),
    ] {
        let matched = matched(&made, payloads.iter().map(|payload| &***payload));
        let numbers = matched.map(|pairs| pairs.iter().map(|(made, _)| made.number).collect());
        assert_eq!(numbers, expected, "{what}");
    }
}

#[test]
fn a_packet_that_probes_the_size_of_the_path_gets_no_slice() {
    let passage = Passage::default();
    passage.on_made(made(1, 1400));
    let probe = payload(1, 1400);
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    let now = Instant::now();
    assert_eq!(passage.slices(now, (&probe, None), 1200), []);
    passage.on_made(made(2, 1400));
    assert_eq!(passage.slices(now, (&probe, None), 1400).len(), 1);
}

struct Heard {
    listener: Listener,
    now: Instant,
}

impl Heard {
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    fn new(key: Option<PepKey>) -> Self {
        Self { listener: Listener::new(Peps([(PEP, key)].into())), now: Instant::now() }
    }

    fn insert(&mut self, mark: u8) {
        let slice = Slice([mark; Slice::LEN]);
        self.listener.insert(self.now, slice, (ConnectionId(3), mark.into()));
    }

    /// Returns the numbers of the packets that were found, and whether the PEP-ACK was authentic.
    fn hear(&mut self, pep: PepId, key: Option<&PepKey>, marks: &[u8]) -> Vec<(u64, bool)> {
        let seen = marks.iter().map(|&mark| SeenPacket { slice: Slice([mark; 10]), age: 5 });
        let mut bytes = Vec::new();
        PepAck { pep, sequence: 0, time: 0, seen: seen.collect() }.encode(key, &mut bytes);
        let mut found = Vec::new();
        self.listener.on_pep_ack(&bytes, |id, passed| {
            assert_eq!(id, ConnectionId(3));
            let packets = passed.packets.iter();
            found.extend(packets.map(|&(number, _)| (number, passed.is_authentic)));
        });
        found
    }
}

#[test]
fn packets_are_found_once_and_only_with_the_key() {
    let (key, other) = (PepKey::new([1; 32]), PepKey::new([2; 32]));
    let mut heard = Heard::new(Some(key.clone()));
    (1..=3).for_each(|mark| heard.insert(mark));
    assert_eq!(heard.hear(PEP, None, &[1]), []);
    assert_eq!(heard.hear(PEP, Some(&other), &[1]), []);
    assert_eq!(heard.hear(PepId(8), Some(&key), &[1]), []);
    assert_eq!(heard.hear(PEP, Some(&key), &[1, 9, 2]), [(1, true), (2, true)]);
    assert_eq!(heard.hear(PEP, Some(&key), &[1, 2]), []);
    heard.listener.on_pep_ack(b"\x85TPEP\xff\x01\x00", |_, _| panic!("it is malformed"));
    let expected =
        PepAckStats { used: 1, packets: 2, unknown: 1, forged: 2, foreign: 1, malformed: 1 };
    assert_eq!(heard.listener.stats(), expected);
}

#[test]
fn without_a_key_nothing_is_authentic() {
    let mut heard = Heard::new(None);
    heard.insert(1);
    assert_eq!(heard.hear(PEP, None, &[1]), [(1, false)]);
}

#[test]
fn slices_are_forgotten_after_a_time_and_when_there_are_many() {
    let mut heard = Heard::new(None);
    heard.insert(1);
    heard.now += LIFETIME;
    heard.insert(2);
    assert_eq!(heard.hear(PEP, None, &[1, 2]), [(2, false)]);
    for number in 0..SLICES_MAX as u64 + 10 {
        let mut slice = [0; Slice::LEN];
        slice[..8].copy_from_slice(&number.to_be_bytes());
        heard.listener.insert(heard.now, Slice(slice), (ConnectionId(3), number));
    }
    assert_eq!(heard.listener.by_slice.len(), SLICES_MAX);
    assert_eq!(heard.listener.order.len(), SLICES_MAX);
}

proptest! {
    #[test]
    fn reports_come_from_peps_alone_and_each_packet_is_told_of_once(
        input in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        model::run(&input);
    }
}

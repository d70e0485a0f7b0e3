use tandem_wire::{PepAck, pep_ack::tcp::TcpPepAck};

use super::*;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

#[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
fn pep(flows_max: usize) -> (Pep, Instant) {
    let now = Instant::now();
    let key = Some(PepKey::new([3; PepKey::LEN]));
    let config = Config { id: PepId(5), key, flows_max, tcp_form: TcpForm::Flagless };
    (Pep::new(config, now), now)
}

fn ends(number: u8) -> Ends {
    let client = ([192, 0, 2, number], 50_000).into();
    Ends { client, server: ([198, 51, 100, 1], 443).into() }
}

fn quic(flow: u8, number: u8) -> Observed {
    Observed::Quic { ends: ends(flow), slice: Slice([number; Slice::LEN]) }
}

fn tcp(start: u32, end: u32) -> Observed {
    let bytes = SeenBytes { start, end };
    Observed::Tcp { ends: ends(1), bytes, acknowledges: 77, is_last: false }
}

/// The flow of a PEP-ACK, its sequence number, and its packets with their ages.
type Told = (Ends, u32, Vec<(u8, u16)>);

/// What the next PEP-ACK says.
fn next_quic(pep: &mut Pep, now: Instant) -> Option<Told> {
    match pep.poll(now)? {
        Notice::Udp { ends, payload } => {
            assert!(PepKey::new([3; PepKey::LEN]).authenticates(&payload));
            let ack = PepAck::decode(&payload).unwrap();
            assert_eq!(ack.pep, PepId(5));
            let seen = ack.seen.iter().map(|seen| (seen.slice.0[0], seen.age)).collect();
            Some((ends, ack.sequence, seen))
        }
        notice @ Notice::Tcp { .. } => panic!("{notice:?}"),
    }
}

fn next_tcp(pep: &mut Pep, now: Instant) -> Option<(u32, TcpPepAck)> {
    match pep.poll(now)? {
        Notice::Tcp { ends, sequence, acknowledges, options } => {
            assert_eq!(acknowledges, None);
            assert!(ends.authenticates(&PepKey::new([3; PepKey::LEN]), &options));
            Some((sequence, TcpPepAck::decode(&options).unwrap()))
        }
        notice @ Notice::Udp { .. } => panic!("{notice:?}"),
    }
}

#[test]
fn a_packet_waits_for_others_for_a_millisecond() {
    let (mut pep, start) = pep(10);
    pep.observe(start, quic(1, 1));
    pep.observe(start + 400 * US, quic(1, 2));
    assert_eq!(pep.next_timeout(), Some(start + MS));
    assert_eq!(next_quic(&mut pep, start + 999 * US), None);
    let expected = (ends(1), 0, vec![(1, 1000), (2, 600)]);
    assert_eq!(next_quic(&mut pep, start + MS), Some(expected));
    assert_eq!((next_quic(&mut pep, start + MS), pep.next_timeout()), (None, None));
    // The age of a packet has a limit.
    pep.observe(start + 5 * MS, quic(1, 3));
    let late = start + 100 * MS;
    assert_eq!(next_quic(&mut pep, late), Some((ends(1), 1, vec![(3, u16::MAX)])));
}

#[test]
fn ten_packets_leave_at_once_but_not_twice_in_a_millisecond() {
    let (mut pep, start) = pep(10);
    (0..10).for_each(|number| pep.observe(start, quic(1, number)));
    let (_, sequence, seen) = next_quic(&mut pep, start).unwrap();
    assert_eq!((sequence, seen.len()), (0, 10));
    (0..79).for_each(|number| pep.observe(start + 10 * US, quic(1, number)));
    assert_eq!((pep.next_timeout(), pep.is_full()), (Some(start + MS), false));
    pep.observe(start + 11 * US, quic(1, 79));
    assert!(pep.is_full());
    let (_, sequence, seen) = next_quic(&mut pep, start + 11 * US).unwrap();
    assert_eq!((sequence, seen.len()), (1, 80), "it is full");
    assert!(!pep.is_full());
    // Nobody takes the next one in time.
    (0..83).for_each(|number| pep.observe(start + 2 * MS, quic(1, number)));
    assert_eq!(next_quic(&mut pep, start + 2 * MS).unwrap().2.len(), 80);
    assert_eq!(*pep.stats(), Stats { observed: 10 + 80 + 83, notices: 3, untold: 3 });
}

#[test]
fn each_flow_has_packets_and_numbers_of_its_own() {
    let (mut pep, start) = pep(10);
    pep.observe(start, quic(1, 1));
    pep.observe(start + US, quic(2, 2));
    let late = start + 2 * MS;
    assert_eq!(next_quic(&mut pep, late).unwrap().0, ends(1));
    assert_eq!(next_quic(&mut pep, late), Some((ends(2), 0, vec![(2, 1999)])));
}

#[test]
fn the_flow_that_was_silent_for_longest_makes_room() {
    let (mut pep, start) = pep(3);
    (1..=3).for_each(|flow| pep.observe(start + u32::from(flow) * US, quic(flow, 0)));
    pep.observe(start + 10 * US, quic(1, 1)); // no longer the oldest
    pep.observe(start + 11 * US, quic(4, 0));
    assert_eq!((pep.flows(), pep.stats().untold), (3, 1), "flow 2 made room");
    let late = start + 2 * MS;
    let told: Vec<_> = std::iter::from_fn(|| next_quic(&mut pep, late)).map(|it| it.0).collect();
    assert_eq!(told, [ends(1), ends(3), ends(4)]);
    // A flow that ended by silence begins again with number 0.
    pep.observe(start + 9 * MS, quic(1, 9));
    assert_eq!(next_quic(&mut pep, start + 10 * MS).unwrap().1, 1);
    let later = start + 10 * MS + SILENCE;
    pep.observe(later, quic(1, 9));
    assert_eq!(pep.flows(), 1);
    assert_eq!(next_quic(&mut pep, later + MS).unwrap().1, 0);
}

#[test]
fn ten_thousand_flows_take_no_more_room_than_allowed() {
    let (mut pep, start) = pep(100);
    for number in 0..10_000_u16 {
        let [high, low] = number.to_be_bytes();
        let client = ([10, 0, high, low], 1).into();
        let ends = Ends { client, ..ends(1) };
        let slice = Slice([low; Slice::LEN]);
        pep.observe(start + u32::from(number) * US, Observed::Quic { ends, slice });
        assert!(pep.flows() <= 100);
    }
    assert_eq!(pep.stats().untold, 9_900, "nobody polled");
    let late = start + Duration::from_secs(1);
    assert_eq!(std::iter::from_fn(|| pep.poll(late)).count(), 100);
}

#[test]
fn tcp_ranges_grow_and_join() {
    let (mut pep, start) = pep(10);
    let bytes = |start, end| SeenBytes { start, end };
    for (packets, expected) in [
        (vec![(100, 200), (200, 300)], vec![bytes(100, 300)]),
        // A loss before the PEP.
        (vec![(400, 500)], vec![bytes(400, 500), bytes(100, 300)]),
        (vec![(500, 600)], vec![bytes(400, 600), bytes(100, 300)]),
        // It is retransmitted, together with old bytes.
        (vec![(250, 400)], vec![bytes(100, 600)]),
        // A second and a third gap: the oldest range is not told any longer.
        (vec![(700, 800)], vec![bytes(700, 800), bytes(100, 600)]),
        (vec![(900, 1000)], vec![bytes(900, 1000), bytes(700, 800)]),
        (vec![(800, 850)], vec![bytes(700, 850), bytes(900, 1000)]),
    ] {
        let now = start + 10 * MS * u32::try_from(pep.stats().observed).unwrap();
        for (start, end) in packets {
            pep.observe(now, tcp(start, end));
        }
        let (sequence, ack) = next_tcp(&mut pep, now + MS).unwrap();
        assert_eq!((sequence, ack.seen), (77, expected));
    }
}

#[test]
fn tcp_sequence_numbers_wrap_and_ranges_stay_short() {
    let (mut pep, start) = pep(10);
    pep.observe(start, tcp(u32::MAX - 99, 100));
    pep.observe(start, tcp(100, 200));
    let (_, ack) = next_tcp(&mut pep, start + MS).unwrap();
    assert_eq!(ack.seen, [SeenBytes { start: u32::MAX - 99, end: 200 }]);
    for step in 0..12_u32 {
        let first = 200_u32.wrapping_add(step << 28);
        pep.observe(start + 5 * MS, tcp(first, first.wrapping_add(1 << 28)));
    }
    let (_, ack) = next_tcp(&mut pep, start + 9 * MS).unwrap();
    let end = 200_u32.wrapping_add(12 << 28);
    assert_eq!(ack.seen, [SeenBytes { start: end.wrapping_sub(1 << 30), end }]);
}

#[test]
fn no_pep_ack_follows_the_end_of_a_tcp_connection_or_an_empty_segment() {
    let (mut pep, start) = pep(10);
    pep.observe(start, tcp(5, 5));
    assert_eq!((pep.flows(), pep.next_timeout()), (0, None));
    pep.observe(start, tcp(5, 9));
    let Observed::Tcp { ends, bytes, acknowledges, .. } = tcp(9, 9) else { unreachable!() };
    pep.observe(start, Observed::Tcp { ends, bytes, acknowledges, is_last: true });
    assert_eq!((pep.flows(), pep.poll(start + MS)), (0, None));
    assert_eq!(pep.stats().untold, 1);
}

#[test]
fn the_sequence_numbers_skip_one_where_packets_are_untold() {
    let (mut pep, start) = pep(10);
    (0..81).for_each(|number| pep.observe(start, quic(1, number)));
    let told = |pep: &mut Pep, now| {
        let (_, sequence, seen) = next_quic(pep, now).unwrap();
        (sequence, seen.len())
    };
    assert_eq!(told(&mut pep, start), (0, 80), "they came before the one that is untold");
    pep.observe(start + MS, quic(1, 1));
    assert_eq!(told(&mut pep, start + 2 * MS), (2, 1), "number 1 would have covered it");
    pep.observe(start + 3 * MS, quic(1, 2));
    assert_eq!(told(&mut pep, start + 4 * MS), (3, 1));
}

#[test]
fn packets_that_nobody_observed_are_a_gap_in_every_flow() {
    let (mut pep, start) = pep(10);
    pep.observe(start, quic(1, 1));
    pep.observe(start, quic(2, 1));
    pep.observe(start, tcp(100, 200));
    pep.miss();
    // What comes now may have followed a packet that was missed, so that one PEP-ACK cannot cover both.
    pep.observe(start + 100 * US, quic(1, 2));
    pep.observe(start + 100 * US, tcp(300, 400));
    let late = start + 2 * MS;
    assert_eq!(next_quic(&mut pep, late), Some((ends(2), 0, vec![(1, 2000)])));
    assert_eq!(next_quic(&mut pep, late), Some((ends(1), 1, vec![(2, 1900)])));
    let (_, ack) = next_tcp(&mut pep, late).unwrap();
    assert_eq!((ack.sequence, ack.seen), (1, vec![SeenBytes { start: 300, end: 400 }]));
    assert_eq!(pep.stats().untold, 2);
    pep.observe(late, quic(2, 2));
    assert_eq!(next_quic(&mut pep, late + MS).unwrap().1, 2, "number 1 is missing");
    pep.observe(late + MS, quic(3, 1));
    assert_eq!(next_quic(&mut pep, late + 2 * MS).unwrap().1, 0, "a new flow misses nothing");
}

#[test]
fn the_old_ack_is_older_than_an_acknowledgement_that_the_client_has_just_sent() {
    #[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
    let start = Instant::now();
    let config = Config { id: PepId(5), key: None, flows_max: 10, tcp_form: TcpForm::OldAck };
    let mut pep = Pep::new(config, start);
    let client = |acknowledges, next| Observed::Client { ends: ends(1), acknowledges, next };
    let numbers = |pep: &mut Pep, now| match pep.poll(now)? {
        Notice::Tcp { sequence, acknowledges, options, .. } => {
            let ack = TcpPepAck::decode(&options).unwrap();
            Some((sequence, acknowledges, ack.sequence, ack.seen))
        }
        notice @ Notice::Udp { .. } => panic!("{notice:?}"),
    };
    pep.observe(start, client(100, 500));
    assert_eq!(pep.flows(), 0, "a client alone makes no flow");
    pep.observe(start, tcp(100, 200));
    assert_eq!(numbers(&mut pep, start + MS), None, "nothing is known of the client");
    pep.observe(start + 2 * MS, client(100, 500));
    assert_eq!(numbers(&mut pep, start + 3 * MS), None, "no data is acknowledged");
    // Packets go on to wait.
    pep.observe(start + 4 * MS, client(200, 500));
    let seen = vec![SeenBytes { start: 100, end: 200 }];
    assert_eq!(numbers(&mut pep, start + 5 * MS), Some((500, Some(199), 0, seen)));
    assert_eq!((numbers(&mut pep, start + 9 * MS), pep.next_timeout()), (None, None));
    // The client's segments take another way from now on; an older one comes late.
    pep.observe(start + 90 * MS, tcp(200, 300));
    pep.observe(start + 91 * MS, client(150, 600));
    let seen = vec![SeenBytes { start: 100, end: 300 }];
    assert_eq!(numbers(&mut pep, start + 91 * MS), Some((600, Some(199), 1, seen)));
    pep.observe(start + 200 * MS, tcp(300, 400));
    assert_eq!(numbers(&mut pep, start + 300 * MS), None);
    assert_eq!(*pep.stats(), Stats { observed: 3, notices: 2, untold: 0 });
}

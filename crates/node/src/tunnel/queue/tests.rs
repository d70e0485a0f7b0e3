use super::{
    model::below::{Below, Stream},
    *,
};
use crate::{buffers, quic::Delivery};

const FIRST: StreamId = StreamId(0);
const SECOND: StreamId = StreamId(4);

fn queue_of(bytes_max: usize) -> Queue {
    Queue::new(&Limits { tunnel_queue: bytes_max, ..Limits::default() })
}

#[expect(clippy::disallowed_methods, reason = "the time does not matter")]
fn push_as(
    queue: &mut Queue,
    stream: StreamId,
    (form, too_large): (Form, TooLarge),
    (len, max): (usize, usize),
) -> bool {
    let data = &vec![0; len];
    queue.push(Instant::now(), stream, Payload { form, too_large, data }, max).is_ok()
}

fn push(queue: &mut Queue, stream: StreamId, len: usize) -> bool {
    // The quarter stream ID and the Context ID take one byte each.
    push_as(queue, stream, (Form::Datagram, TooLarge::Drop), (len - 2, 1200))
}

#[test]
fn a_single_flow_loses_new_payloads_when_the_queue_is_full() {
    let mut queue = queue_of(100);
    assert!(push(&mut queue, FIRST, 60));
    assert!(!push(&mut queue, FIRST, 41));
    assert!(push(&mut queue, FIRST, 40));
    assert!(!push(&mut queue, FIRST, 2));
    assert_eq!(queue.bytes, 100);
}

#[test]
fn a_flow_below_its_share_takes_room_from_the_longest_flow() {
    let mut queue = queue_of(1000);
    for _ in 0..10 {
        assert!(push(&mut queue, FIRST, 100));
    }
    for _ in 0..5 {
        assert!(push(&mut queue, SECOND, 100));
    }
    assert_eq!(queue.dropped().queue_full, 5);
    assert!(!push(&mut queue, SECOND, 100));
    assert_eq!(queue.bytes, 1000);
}

#[test]
fn what_fits_no_packet_is_refused() {
    let mut queue = queue_of(10_000);
    assert!(push(&mut queue, FIRST, 1200));
    assert!(!push(&mut queue, FIRST, 1201));
    let capsule = (Form::Capsule, TooLarge::Drop);
    assert!(push_as(&mut queue, FIRST, capsule, (5000, 1200)));
}

#[test]
fn a_payload_of_a_promised_size_goes_in_a_capsule() {
    let mut queue = queue_of(10_000);
    let form = (Form::Datagram, TooLarge::Capsule(1280));
    let mut push = |len: usize| push_as(&mut queue, FIRST, form, (len, 1160));
    assert!(push(1158));
    assert!(push(1280));
    assert!(!push(1281));
    let items: Vec<_> = queue.flows[&FIRST].items.iter().collect();
    assert!(
        matches!(items[..], [Item::Encoded(Form::Datagram, _), Item::Encoded(Form::Capsule, _)]),
        "{items:?}"
    );
}

#[test]
fn a_payload_of_a_size_that_has_fitted_goes_in_a_capsule() {
    for is_repaired in [false, true] {
        #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
        let (mut queue, mut below) = (queue_of(100_000), Below::new(Instant::now()));
        let mut stream = Stream::new();
        stream.room = 10_000;
        stream.sends.extend([(0, 0), (1, 0)]);
        below.streams.insert(FIRST, stream);
        (below.room, below.max_datagram_size) = (10_000, 1160);
        if is_repaired {
            queue.set_repair(FIRST, plan(false));
        }
        // The quarter stream ID and the Context ID take one byte each.
        let fits = 1398 - if is_repaired { NUMBERS } else { 0 };
        let mut push = |id: u32, len: usize, too_large, max| {
            let data = &[&id.to_be_bytes()[..], &vec![0; len - 4]].concat();
            queue.push(below.now, FIRST, Payload { form: Form::Datagram, too_large, data }, max)
        };
        // The packets of the tunnel grow, and then seem to shrink.
        let promised = TooLarge::Capsule(1280);
        assert_eq!(push(0, fits, promised, 1400), Ok(()));
        let unsent = Err(Unsent::TooLarge { fits: fits - 240 });
        assert_eq!(push(9, fits, TooLarge::Drop, 1160), unsent);
        assert_eq!(push(9, fits + 1, promised, 1160), Err(Unsent::TooLarge { fits }));
        assert_eq!(push(1, fits, promised, 1160), Ok(()));
        queue.feed(below.now, &mut below);
        // The first payload waited as a datagram, and no longer fits one.
        assert_eq!(below.streams[&FIRST].sends, [(0, 1), (1, 1)].into());
        assert_eq!((queue.len(), queue.dropped().too_large), (0, 2));
    }
}

#[test]
fn a_flow_that_goes_leaves_nothing() {
    let mut queue = queue_of(1000);
    push(&mut queue, FIRST, 100);
    push(&mut queue, SECOND, 100);
    queue.remove(FIRST);
    assert_eq!((queue.bytes, queue.turns.is_alone(), queue.flows.len()), (100, true, 1));
}

fn plan(keeps_queue_short: bool) -> RepairPlan {
    RepairPlan {
        context_id: Some(tandem_wire::VarInt::from_u32(2)),
        deadline: None,
        limit: None,
        keeps_queue_short,
        too_large: TooLarge::Capsule(1280),
    }
}

#[test]
fn a_numbered_payload_needs_room_for_its_number() {
    let mut queue = queue_of(10_000);
    queue.set_repair(FIRST, plan(false));
    let form = (Form::Datagram, TooLarge::Drop);
    // The quarter stream ID and the Context ID take one byte each, the numbers six.
    assert!(push_as(&mut queue, FIRST, form, (1192, 1200)));
    assert!(!push_as(&mut queue, FIRST, form, (1193, 1200)));
    let form = (Form::Datagram, TooLarge::Capsule(1280));
    assert!(push_as(&mut queue, FIRST, form, (1280, 1200)));
    assert!(!push_as(&mut queue, FIRST, form, (1281, 1200)));
    assert_eq!(queue.len(), 1192 + 1280 + 2 * NUMBERS);
}

/// The allocated bytes that an action leaves.
fn kept(act: impl FnOnce()) -> usize {
    usize::try_from(allocation_counter::measure(act).bytes_current).unwrap()
}

#[test]
fn small_payloads_take_no_more_memory_than_the_queue_says() {
    for payload in [1, 40, 1000] {
        let (mut queue, mut flows) = (queue_of(1_000_000), 0);
        let kept = kept(|| {
            for stream in (0..20).map(|flow| StreamId(4 * flow)) {
                // A numbered payload takes more than its bytes say.
                queue.set_repair(stream, plan(false));
                flows += 1;
                let form = (Form::Datagram, TooLarge::Drop);
                while push_as(&mut queue, stream, form, (payload, 1200)) && queue.items < 9_900 {}
            }
            for _ in 0..1000 {
                push(&mut queue, StreamId(0), 3);
            }
            buffers::give_back(); // what the thread keeps is not the queue's
        });
        assert!(queue.dropped().queue_full > 0, "{flows} flows");
        assert!(queue.bytes <= 1_000_000 && queue.items <= 10_000, "{} items", queue.items);
        let memory = queue.memory();
        assert!(kept <= memory + 5_000, "{payload}: {kept} bytes are kept, {memory} are counted");
        assert!(memory < 3_000_000, "{payload}: {memory} bytes");
        for stream in (0..20).map(|flow| StreamId(4 * flow)) {
            queue.remove(stream);
        }
        assert_eq!((queue.bytes, queue.items, queue.memory()), (0, 0, 0));
    }
}

#[test]
fn a_flow_with_few_payloads_takes_a_place_from_the_flow_with_most() {
    let mut queue = queue_of(7000);
    for _ in 0..70 {
        assert!(push(&mut queue, FIRST, 10));
    }
    assert!(!push(&mut queue, FIRST, 10));
    assert!(push(&mut queue, SECOND, 100));
    assert_eq!((queue.flows[&FIRST].items.len(), queue.items), (69, 70));
    assert_eq!(queue.dropped().queue_full, 2);
}

/// Numbers and keeps datagrams of `flows` flows, in turns, which `done` then changes.
fn outstanding(
    (flows, numbers, len): (u64, u64, usize),
    mut done: impl FnMut(&mut Outstanding, StreamId, u64),
) -> (Outstanding, usize) {
    #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
    let now = Instant::now();
    let mut outstanding = Outstanding::new(1_000_000);
    let kept = kept(|| {
        for stream in (0..flows).map(|flow| StreamId(4 * flow)) {
            outstanding.set_plan(stream, plan(false));
        }
        for turn in 0..flows * numbers {
            let stream = StreamId(4 * (turn % flows));
            let (number, _) = outstanding.number(stream, len, now);
            outstanding.keep(stream, number, vec![0; len].into());
            done(&mut outstanding, stream, number);
        }
    });
    (outstanding, kept)
}

#[test]
fn datagrams_for_retransmission_take_no_more_memory_than_their_bound() {
    for load in [(1, 5000, 10), (10, 1000, 10), (3, 1000, 1200)] {
        let (mut outstanding, kept) = outstanding(load, |_, _, _| {});
        assert!(outstanding.stats().given_up.room > 0, "{load:?}");
        let memory = outstanding.memory();
        assert!(kept <= memory && memory <= 1_020_000, "{load:?}: {kept} of {memory} bytes");
        for flow in 0..load.0 {
            outstanding.remove(StreamId(4 * flow));
        }
        assert_eq!(outstanding.memory(), 0);
    }
}

#[test]
fn numbers_whose_payloads_went_in_capsules_count_too() {
    let in_capsule =
        |outstanding: &mut Outstanding, stream, number| outstanding.note_capsule(stream, number);
    let (outstanding, kept) = outstanding((10, 1000, 1300), in_capsule);
    let memory = outstanding.memory();
    assert!(kept <= memory && memory <= 1_020_000, "{kept} of {memory} bytes");
}

#[test]
fn deliveries_for_a_flow_that_is_gone_are_taken_and_forgotten() {
    #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
    let (mut queue, mut below) = (queue_of(1_000_000), Below::new(Instant::now()));
    below.room = 1_000_000;
    below.streams.insert(FIRST, Stream::new());
    queue.set_repair(FIRST, plan(false));
    for id in 0..1000_u32 {
        let data = &id.to_be_bytes();
        let payload = Payload { form: Form::Datagram, too_large: TooLarge::Drop, data };
        assert!(queue.push(below.now, FIRST, payload, 1200).is_ok());
        below.streams.get_mut(&FIRST).unwrap().sends.insert(id, 0);
    }
    queue.feed(below.now, &mut below);
    below.transmit(1000);
    queue.remove(FIRST);
    below.resolve(0, 1000, Delivery::Acked);
    queue.feed(below.now, &mut below);
    assert_eq!((below.reports.len(), queue.outstanding.is_idle()), (0, true));
    assert!(queue.memory() < 10_000, "{} bytes of memory", queue.memory());
}

#[test]
fn a_payload_that_was_sent_before_the_grant_is_repaired_in_a_capsule_without_a_number() {
    #[expect(clippy::disallowed_methods, reason = "the time does not matter")]
    let (mut queue, mut below) = (queue_of(1_000_000), Below::new(Instant::now()));
    let mut stream = Stream::new();
    (stream.room, stream.sends_max) = (10_000, 2);
    stream.sends.insert(1, 0);
    below.streams.insert(FIRST, stream);
    below.room = 10_000;
    queue.set_repair(FIRST, RepairPlan::unnumbered(1, TooLarge::Drop));
    let data = &[&1_u32.to_be_bytes()[..], &[0; 1000]].concat();
    let payload = Payload { form: Form::Datagram, too_large: TooLarge::Drop, data };
    assert!(queue.push(below.now, FIRST, payload, 1200).is_ok());
    queue.feed(below.now, &mut below);
    below.transmit(1);
    queue.set_repair(FIRST, plan(false));
    below.resolve(0, 1, Delivery::Lost);
    below.max_datagram_size = 500;
    queue.feed(below.now, &mut below);
    assert_eq!(below.streams[&FIRST].sends[&1], 2);
}

proptest::proptest! {
    #[test]
    fn any_use_of_a_queue_keeps_its_promises(input: Vec<[u8; 4]>) {
        model::run(&input.concat());
    }
}

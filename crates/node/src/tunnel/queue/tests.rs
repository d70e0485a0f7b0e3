use super::*;

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
    queue.push(Instant::now(), stream, Payload { form, too_large, data }, max)
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

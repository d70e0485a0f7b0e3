use super::*;

const FIRST: StreamId = StreamId(0);
const SECOND: StreamId = StreamId(4);

fn push(queue: &mut TunnelQueue, stream: StreamId, len: usize) -> Push {
    // Two bytes of overhead: quarter stream ID and context ID.
    queue.push(stream, (Form::Datagram, TooLarge::Drop), Bytes::from(vec![0; len - 2]), 1200)
}

#[test]
fn a_flow_alone_loses_what_comes_when_the_queue_is_full() {
    let mut queue = TunnelQueue::new(100);
    assert_eq!(push(&mut queue, FIRST, 60), Push::Queued);
    assert_eq!(push(&mut queue, FIRST, 41), Push::Full);
    assert_eq!(push(&mut queue, FIRST, 40), Push::Queued);
    assert_eq!(push(&mut queue, FIRST, 2), Push::Full);
    assert_eq!(queue.bytes, 100);
}

#[test]
fn a_flow_below_its_share_takes_from_the_longest() {
    let mut queue = TunnelQueue::new(1000);
    for _ in 0..10 {
        assert_eq!(push(&mut queue, FIRST, 100), Push::Queued);
    }
    for _ in 0..5 {
        assert_eq!(push(&mut queue, SECOND, 100), Push::Queued);
    }
    assert_eq!(queue.take_drops().queue_full, 5);
    assert_eq!(push(&mut queue, SECOND, 100), Push::Full);
    assert_eq!(queue.bytes, 1000);
}

#[test]
fn what_fits_no_packet_is_refused() {
    let mut queue = TunnelQueue::new(10_000);
    assert_eq!(push(&mut queue, FIRST, 1200), Push::Queued);
    assert_eq!(push(&mut queue, FIRST, 1201), Push::TooLarge);
    let long = Bytes::from(vec![0; 5000]);
    let capsule = (Form::Capsule, TooLarge::Drop);
    assert_eq!(queue.push(FIRST, capsule, long, 1200), Push::Queued);
}

#[test]
fn what_was_promised_to_fit_goes_in_a_capsule() {
    let mut queue = TunnelQueue::new(10_000);
    let form = (Form::Datagram, TooLarge::Capsule(1280));
    let mut push = |len: usize| queue.push(FIRST, form, Bytes::from(vec![0; len]), 1160);
    assert_eq!(push(1158), Push::Queued);
    assert_eq!(push(1280), Push::Queued);
    assert_eq!(push(1281), Push::TooLarge);
    let forms: Vec<_> = queue.flows[&FIRST].items.iter().map(|(form, _)| *form).collect();
    assert_eq!(forms, [Form::Datagram, Form::Capsule]);
}

#[test]
fn a_flow_that_goes_leaves_nothing() {
    let mut queue = TunnelQueue::new(1000);
    push(&mut queue, FIRST, 100);
    push(&mut queue, SECOND, 100);
    queue.remove(FIRST);
    assert_eq!((queue.bytes, queue.turns.len(), queue.flows.len()), (100, 1, 1));
}

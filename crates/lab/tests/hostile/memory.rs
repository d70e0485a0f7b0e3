//! Tests of the memory that an unknown peer can make a node keep. The tests measure all allocations
//! of the world, including those of the raw peer.

use std::time::Duration;

use noq_proto::Dir;
use tandem_lab::{Contents, FileSet, Seed};
use tandem_node::{Node, limits::Limits};
use tandem_units::ByteCount;

use crate::{
    bed::{Bed, Setup, fetching, origin, proxy},
    h3_bytes::{DATA, connect_udp, frame, get, headers, udp_datagram, varint},
    raw_peer::{Permits, RawPeer},
};

/// The increase of allocated bytes by an action.
fn kept(act: impl FnOnce()) -> i64 {
    allocation_counter::measure(act).bytes_current
}

/// Repeats an action a few times, so that bounded buffers reach their bound, and then measures the
/// average number of bytes that each further repetition keeps, rounded down.
fn kept_each<N: Node + 'static>(
    bed: &mut Bed<N>,
    times: i64,
    mut act: impl FnMut(&mut Bed<N>),
) -> i64 {
    for _ in 0..times {
        act(bed);
    }
    kept(|| (0..times).for_each(|_| act(bed))) / times
}

fn forget(peer: &mut RawPeer) {
    peer.streams.retain(|_, came| came.end.is_none());
    peer.stopped.clear();
    peer.datagrams.clear();
    peer.forget_sent();
}

#[test]
fn an_answered_request_leaves_nothing_behind() {
    let mut bed = origin();
    for (what, request) in [("a file", get("/file")), ("no file", get("/nothing"))] {
        let each = kept_each(&mut bed, 300, |bed| {
            let stream = bed.open_with(Dir::Bi, request.clone());
            bed.peer().finish(stream);
            bed.run();
            forget(bed.peer());
        });
        assert!(each < 30, "{what}: {each} bytes are kept");
    }
}

#[test]
fn a_flow_that_was_closed_leaves_nothing_behind() {
    let limits = Limits { flow_idle: Duration::from_secs(3600), ..Limits::default() };
    let mut bed = Setup { limits, ..Setup::default() }.proxy().with_control_stream();
    let each = kept_each(&mut bed, 300, |bed| {
        let flow = bed.open_flow();
        bed.peer().finish(flow);
        bed.run();
        forget(bed.peer());
    });
    assert!(each < 30, "{each} bytes are kept");
}

#[test]
fn a_request_that_was_refused_or_given_up_leaves_nothing_behind() {
    let mut bed = proxy();
    for request in [connect_udp("127.0.0.1", "7"), headers(&[("x", "y")]), get("/")[..9].to_vec()] {
        let each = kept_each(&mut bed, 300, |bed| {
            let stream = bed.open_with(Dir::Bi, request.clone());
            bed.peer().datagram(udp_datagram(stream, b"early"));
            bed.run();
            bed.peer().try_reset(stream, tandem_wire::Code::H3_REQUEST_CANCELLED);
            bed.run();
            forget(bed.peer());
        });
        assert!(each < 30, "{each} bytes are kept");
    }
}

#[test]
fn an_origin_closes_the_file_of_every_answer() {
    for (method, path, field) in [
        ("GET", "/file", None),
        ("GET", "/empty", None),
        ("GET", "/none", None),
        ("GET", "/file", Some(("if-none-match", "*"))),
        ("GET", "/file", Some(("range", "bytes=100-"))),
        ("HEAD", "/file", None),
        ("HEAD", "/empty", None),
    ] {
        let mut bed = Setup::default().origin().with_control_stream();
        let files = [("file", "hello"), ("empty", "")];
        let files = files.into_iter().fold(FileSet::new(), |files, (name, text)| {
            files.with(name, Contents::Literal(text.into()))
        });
        bed.world.set_files(bed.node, files);
        let mut lines = vec![
            (":method", method),
            (":scheme", "https"),
            (":authority", "peer.test"),
            (":path", path),
        ];
        lines.extend(field);
        let stream = bed.open_with(Dir::Bi, headers(&lines));
        bed.peer().finish(stream);
        bed.run();
        assert!(!bed.seen().streams.is_empty(), "{method} {path} has an answer");
        let node = bed.node;
        assert_eq!(bed.world.open_files(node), 0, "{method} {path} {field:?}");
    }
}

#[test]
fn readers_who_never_read_make_an_origin_read_ahead_a_little_only() {
    let permits = Permits { stream_window: 1000, ..Permits::default() };
    let mut bed = Setup { permits, ..Setup::default() }.origin().with_control_stream();
    let contents = Contents::Generated { len: ByteCount::new(1 << 40), seed: Seed(1) };
    bed.world.set_files(bed.node, FileSet::new().with("large", contents));
    bed.peer().reads = false;
    let bytes = kept(|| {
        while let Some(stream) = bed.peer().try_open(Dir::Bi) {
            bed.peer().send(stream, get("/large"));
            bed.peer().finish(stream);
        }
        bed.world.run_for(Duration::from_secs(2));
    });
    assert!(bed.seen().streams.len() > 1000);
    assert!(bytes < 30_000_000, "{bytes} bytes for a thousand readers");
}

#[test]
fn half_capsules_and_heads_are_kept_up_to_their_limits_only() {
    let limits = Limits::default();
    let mut bed = proxy();
    let flow = bed.open_flow();
    // The peer repeatedly sends the longest accepted capsule without its last byte.
    let cut = [varint(0), varint(limits.capsule as u64), vec![0; limits.capsule - 1]].concat();
    let bytes = kept(|| {
        bed.peer().send(flow, frame(DATA, &cut));
        let unknown = [varint(0x1234), varint(1 << 60)].concat();
        let other = bed.open_flow();
        bed.peer().send(other, frame(DATA, &unknown));
        for _ in 0..200 {
            bed.peer().send(other, frame(DATA, &vec![7; 50_000]));
            bed.run();
        }
    });
    assert!(bytes < 2_000_000, "{bytes} bytes are kept");
}

#[test]
fn datagrams_that_nobody_reads_are_not_kept() {
    let mut bed = fetching(1).with_control_stream();
    let bytes = kept(|| {
        for _ in 0..100 {
            for _ in 0..200 {
                bed.peer().datagram(udp_datagram(400, &[7; 500]));
            }
            bed.run();
        }
    });
    assert!(bytes < 1_000_000, "{bytes} bytes of 10 MB are kept");
}

//! Tests of random actions: no node panics or hangs, and one peer's actions harm no other peer.

use std::time::Duration;

use noq_proto::Dir;
use proptest::{collection::vec, prelude::*, sample::select};
use tandem_lab::World;
use tandem_node::Node;
use tandem_wire::Code;

use crate::{
    bed::{Bed, MS, Setup, fetch, fetching, tunnelling},
    h3_bytes::{
        Answer, MASQUE_SETTINGS, connect_udp, control_stream, datagram_capsule, frame, get,
        headers, settings, varint,
    },
};

/// One action of a peer. Streams are numbered in the order in which they were opened.
#[derive(Clone, Debug)]
enum Act {
    Open(Dir, Vec<u8>),
    Send(usize, Vec<u8>),
    Finish(usize),
    Reset(usize, u32),
    Stop(usize, u32),
    Datagram(Vec<u8>),
    Wait(u32),
}

/// Valid bytes, so that the random bytes around them are parsed.
fn meaningful() -> impl Strategy<Value = Vec<u8>> {
    let types = select(vec![0, 1, 2, 3, 4, 5, 7, 0xd, 0x21, 0x33, 0x3fff]);
    let known = vec![
        control_stream(&[]),
        settings(MASQUE_SETTINGS),
        get("/file"),
        connect_udp("10.0.0.3", "7"),
        connect_udp("echo.test", "7"),
        connect_udp("127.0.0.1", "7"),
        headers(&[(":status", "200"), ("content-length", "5")]),
        headers(&[(":status", "103")]),
        headers(&[("x", "y")]),
        frame(0, &datagram_capsule(b"payload")),
        varint(0),
        varint(1),
        varint(2),
        varint(3),
        vec![],
    ];
    prop_oneof![
        4 => select(known),
        2 => (types, vec(any::<u8>(), 0..40)).prop_map(|(frame_type, payload)| {
            frame(frame_type, &payload)
        }),
        1 => vec(any::<u8>(), 0..100),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let dir = prop_oneof![2 => Just(Dir::Bi), 1 => Just(Dir::Uni)];
    let bytes = || {
        let pieces = vec(meaningful(), 0..3).prop_map(|pieces| pieces.concat());
        (pieces, 0..=400_usize).prop_map(|(mut bytes, len)| {
            bytes.truncate(len);
            bytes
        })
    };
    let stream = || 0..6_usize;
    prop_oneof![
        4 => (dir, bytes()).prop_map(|(dir, bytes)| Act::Open(dir, bytes)),
        4 => (stream(), bytes()).prop_map(|(stream, bytes)| Act::Send(stream, bytes)),
        2 => stream().prop_map(Act::Finish),
        1 => (stream(), 0x100..0x112_u32).prop_map(|(stream, code)| Act::Reset(stream, code)),
        1 => (stream(), 0x100..0x112_u32).prop_map(|(stream, code)| Act::Stop(stream, code)),
        2 => vec(any::<u8>(), 0..20).prop_map(|bytes| {
            // Most datagrams are for the first streams.
            Act::Datagram(bytes.into_iter().map(|byte| byte % 3).collect())
        }),
        2 => (0..50_u32).prop_map(Act::Wait),
    ]
}

fn perform<N: Node + 'static>(bed: &mut Bed<N>, acts: &[Act], first: Vec<u64>) {
    let mut streams = first;
    for act in acts {
        if bed.seen().closed.is_some() {
            break;
        }
        let named = |streams: &[u64], stream: &usize| streams.get(*stream).copied();
        match act {
            Act::Open(dir, bytes) => {
                if let Some(stream) = bed.peer().try_open(*dir) {
                    bed.peer().send(stream, bytes.clone());
                    streams.push(stream);
                }
            }
            Act::Send(stream, bytes) => {
                let Some(stream) = named(&streams, stream) else { continue };
                bed.peer().send(stream, bytes.clone());
            }
            Act::Finish(stream) => {
                let Some(stream) = named(&streams, stream) else { continue };
                bed.peer().finish(stream);
            }
            Act::Reset(stream, code) => {
                let Some(stream) = named(&streams, stream) else { continue };
                bed.peer().try_reset(stream, Code((*code).into()));
            }
            Act::Stop(stream, code) => {
                let Some(stream) = named(&streams, stream) else { continue };
                bed.peer().try_stop(stream, Code((*code).into()));
            }
            Act::Datagram(bytes) => bed.peer().datagram(bytes.clone()),
            Act::Wait(millis) => bed.world.run_for(MS * *millis),
        }
    }
    bed.world.run_for(Duration::from_secs(20));
}

fn assert_serves_others<N: Node + 'static>(bed: &mut Bed<N>, request: Vec<u8>) {
    let peer = bed.add_peer(1);
    let is_connected = |world: &World| world.node(peer).is_connected();
    assert!(bed.world.run_until(Duration::from_secs(1), is_connected));
    let other = bed.world.node_mut(peer);
    let control = other.open(Dir::Uni);
    other.send(control, control_stream(&[]));
    let stream = other.open(Dir::Bi);
    other.send(stream, request);
    bed.run();
    let answer = bed.world.node(peer).streams.get(&stream).and_then(Answer::read);
    assert_eq!(answer.map(|answer| answer.status()), Some(200));
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_proxy_stands_whatever_its_client_does(acts in vec(act(), 1..20), proper: bool) {
        let mut bed = Setup::default().proxy();
        if proper {
            bed = bed.with_control_stream();
        }
        perform(&mut bed, &acts, Vec::new());
        assert_serves_others(&mut bed, connect_udp("10.0.0.3", "7"));
    }

    #[test]
    fn an_origin_stands_whatever_its_client_does(acts in vec(act(), 1..20), proper: bool) {
        let mut bed = Setup::default().origin();
        if proper {
            bed = bed.with_control_stream();
        }
        perform(&mut bed, &acts, Vec::new());
        assert_serves_others(&mut bed, get("/file"));
    }

    #[test]
    fn a_client_stands_whatever_its_server_does(
        acts in vec(act(), 1..20),
        proper: bool,
        in_tunnel: bool,
    ) {
        let mut bed = if in_tunnel {
            tunnelling(fetch("origin.test", 1))
        } else {
            fetching(2)
        };
        if proper {
            bed = bed.with_control_stream();
        }
        perform(&mut bed, &acts, vec![0]);
    }
}

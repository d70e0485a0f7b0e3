//! Tests of our client with proxies of others, which know less than ours or drop capsules.

use std::time::Duration;

use noq_proto::Dir;
use tandem_lab::{
    Contents, FileSet, LinkConfig, NameAnswer, Seed, World,
    endpoints::{SenderHost, Shot},
};
use tandem_node::{
    Client, ClientConfig, Event, Origin, OriginConfig,
    client::{FlowConfig, FlowId, ForwardConfig, HopConfig, Repair, Task, Template, TunnelMode},
    error::ClientError,
    limits::Limits,
    mode::{Agreement, Lesser, Mode},
    quic::{Mtu, Transport},
};
use tandem_units::ByteCount;

use crate::{
    bed::{Bed, MS, certificate, fetch, granted, tunnelling_in},
    h3_bytes::{DATA, control_stream, datagram_capsule, frame, headers, udp_datagram},
    relaying_peer::RelayingPeer,
};

const SECOND: Duration = Duration::from_secs(1);

fn agreements<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<Agreement> {
    let agreement = |event: &Event| match event {
        Event::HopUp { agreement, .. } => *agreement,
        Event::ModeChanged { agreement, .. } => Some(*agreement),
        _ => None,
    };
    events.filter_map(agreement).collect()
}

fn events(bed: &Bed<Client>) -> impl Iterator<Item = &Event> {
    bed.world.events(bed.node).iter().map(|(_, event)| event)
}

#[test]
fn the_client_says_what_each_grant_grants() {
    let repair = Repair::default();
    let (rmdt, tecc) = (TunnelMode::Rmdt(repair), TunnelMode::Tecc(repair));
    let (ours, reports) = (("tandem-repair", "1;context=1"), ("tandem-feedback", "1;context=3"));
    let lacks = |field| Some(Lesser::NoField(field));
    for (mode, grant, expected, lesser) in [
        (TunnelMode::Mdt, &[][..], Mode::Mdt, None),
        (TunnelMode::Mst, &[], Mode::Mst, None),
        (TunnelMode::Msgt(4), &[("tandem-group", "4")], Mode::Msgt, None),
        (TunnelMode::Msgt(4), &[], Mode::Mst, lacks("tandem-group")),
        (rmdt, &[ours], Mode::Rmdt, None),
        (rmdt, &[("dg-retrans", "?1")], Mode::Rmdt, Some(Lesser::WithoutOrder)),
        (rmdt, &[], Mode::Mdt, lacks("tandem-repair")),
        (tecc, &[ours, reports], Mode::Tecc, None),
        (tecc, &[ours], Mode::Rmdt, lacks("tandem-feedback")),
        (tecc, &[reports], Mode::Mdt, lacks("tandem-repair")),
    ] {
        let bed = granted(mode, grant);
        let agreement = Agreement { asked: mode.name(), granted: expected, lesser };
        assert_eq!(agreements(events(&bed)), [agreement], "{mode:?}, {grant:?}");

        let mut bed = tunnelling_in(mode, fetch("origin.test", 1)).with_control_stream();
        bed.world.node_mut(bed.node).require_mode();
        let mut lines = vec![(":status", "200")];
        lines.extend(grant);
        bed.peer().send(0, headers(&lines));
        bed.run();
        let refused = Err(ClientError::LesserMode { peer: "peer.test".to_owned(), agreement });
        bed.world.run_for(SECOND);
        assert_eq!(bed.ended(), lesser.map(|_| refused), "{mode:?}, {grant:?}");
    }
}

#[test]
fn the_client_says_once_that_a_later_flow_has_another_mode() {
    let rmdt = TunnelMode::Rmdt(Repair::default());
    let repairs = &[("tandem-repair", "1;context=1")][..];
    let repaired = Agreement { asked: Mode::Rmdt, granted: Mode::Rmdt, lesser: None };
    let lesser = Some(Lesser::NoField("tandem-repair"));
    let not_repaired = Agreement { asked: Mode::Rmdt, granted: Mode::Mdt, lesser };
    for (grants, expected) in [
        (vec![repairs, repairs], vec![]),
        (
            vec![repairs, &[], &[], repairs, repairs, &[]],
            vec![not_repaired, repaired, not_repaired],
        ),
        // The tunnel is up before its first flow is granted.
        (vec![&[], &[], repairs], vec![not_repaired, repaired]),
    ] {
        let mut bed = tunnelling_in(rmdt, Task::Forward(Vec::new())).with_control_stream();
        bed.run();
        for (id, grant) in (0..).zip(&grants) {
            let flow = FlowConfig::new("sink.test", 9);
            bed.world.node_mut(bed.node).open_flow(FlowId(id), flow).unwrap();
            bed.run();
            let mut lines = vec![(":status", "200")];
            lines.extend(*grant);
            bed.peer().send(4 * id, headers(&lines));
            bed.run();
        }
        assert_eq!(agreements(events(&bed)), expected, "{grants:?}");
    }
}

#[test]
fn a_tunnel_goes_on_with_datagrams_if_its_proxy_drops_capsules() {
    for mode in [TunnelMode::Mst, TunnelMode::Msgt(4)] {
        for requires_mode in [false, true] {
            let tls = certificate();
            let mut world = World::new(Seed(1));
            let hop = HopConfig {
                template: Template::default_for("peer.test").unwrap(),
                tls: tls.client(),
                ech: None,
                transport: Transport { mtu: Mtu::TUNNEL, ..Transport::default() },
                mode,
                token: None,
                concealed: None,
                others: Vec::new(),
            };
            let task = fetch("peer.test", 1);
            let limits = Limits::default();
            let config = ClientConfig { hops: vec![hop], task, limits, seed: Some(1) };
            let mut client = Client::new(config).unwrap();
            if requires_mode {
                client.require_mode();
            }
            let client = world.add_host("client", ["10.0.0.2"], client);
            let target = "10.0.0.9:443".parse().unwrap();
            let proxy = world.add_host("proxy", ["10.0.0.1"], RelayingPeer::new(&tls, target));
            let config = OriginConfig::new("0.0.0.0:443".parse().unwrap(), tls.server());
            let config = OriginConfig { seed: Some(2), ..config };
            let origin = world.add_host("origin", ["10.0.0.9"], Origin::new(config).unwrap());
            world.connect(client, proxy, LinkConfig { delay: 20 * MS, ..LinkConfig::default() });
            world.connect(proxy, origin, LinkConfig { delay: 50 * MS, ..LinkConfig::default() });
            let contents = Contents::Generated { len: ByteCount::new(500_000), seed: Seed(1) };
            world.set_files(origin, FileSet::new().with("file", contents));
            let answer = Ok(vec!["10.0.0.1".parse().unwrap()]);
            world.set_name("peer.test", NameAnswer::After(MS, answer));
            let has_asked = |world: &World| world.node(proxy).peer.streams.contains_key(&0);
            let is_connected = |world: &World| world.node(proxy).peer.is_connected();
            assert!(world.run_until(SECOND, is_connected));
            let peer = &mut world.node_mut(proxy).peer;
            let control = peer.open(Dir::Uni);
            peer.send(control, control_stream(&[]));
            assert!(world.run_until(SECOND, has_asked));
            world.node_mut(proxy).peer.send(0, headers(&[(":status", "200")]));

            let ended = |world: &World| matches!(world.events(client), [.., (_, Event::Closed(_))]);
            assert!(world.run_until(5 * SECOND, ended), "{mode:?}: {:?}", world.events(client));
            let seen = agreements(world.events(client).iter().map(|(_, event)| event));
            let asked = mode.name();
            let agreement =
                Agreement { asked, granted: Mode::Mdt, lesser: Some(Lesser::DropsCapsules) };
            if !requires_mode {
                assert_eq!(world.body(client).bytes(), 500_000, "{mode:?}");
                assert_eq!(seen.last(), Some(&agreement), "{mode:?}");
                assert_eq!(seen.len(), 2, "{mode:?}: told once");
            } else if mode == TunnelMode::Mst {
                let peer = "peer.test".to_owned();
                let refused = Event::Closed(Err(ClientError::LesserMode { peer, agreement }));
                let last = world.events(client).last().map(|(_, event)| format!("{event:?}"));
                assert_eq!(last, Some(format!("{refused:?}")));
            }
        }
    }
}

/// A client in mode mst that carries packets, one every 50 ms, through a proxy with this grant.
fn sending(grant: &[(&str, &str)]) -> Bed<Client> {
    let config =
        ForwardConfig::new("10.0.0.2:5000".parse().expect("an address"), "sink.test".to_owned(), 9);
    let task = Task::Forward(vec![config]);
    let mut bed = tunnelling_in(TunnelMode::Mst, task).with_control_stream();
    let shots = Shot::every(50 * MS, 200, 100);
    let program = SenderHost::new("10.0.0.2:5000".parse().expect("an address"), shots);
    bed.world.add_host("program", ["10.0.0.9"], program);
    bed.world.run_for(20 * MS);
    let mut lines = vec![(":status", "200")];
    lines.extend(grant);
    bed.peer().send(0, headers(&lines));
    bed
}

/// How many payloads came in capsules and in datagrams.
fn forms(bed: &Bed<Client>) -> (usize, usize) {
    // Every payload has a frame and a capsule of its own, because they are sent one at a time.
    let one = frame(DATA, &datagram_capsule(&[0; 100])).len();
    let head = bed.seen().streams.get(&0).map_or(0, |came| came.data.len());
    (head / one, bed.seen().datagrams.len())
}

#[test]
fn a_flow_that_only_sends_loses_nothing_and_repeats_little() {
    let mut bed = sending(&[]);
    bed.world.run_for(12 * SECOND);
    let (capsules, datagrams) = forms(&bed);
    assert!((200..206).contains(&capsules), "{capsules}");
    assert_eq!(datagrams, 6);
    assert_eq!(agreements(events(&bed)).len(), 0, "nothing changed");
}

#[test]
fn a_proxy_that_answers_in_capsules_is_trusted_also_if_it_is_slow() {
    let mut bed = sending(&[]);
    bed.world.run_for(2 * SECOND);
    bed.peer().send(0, frame(DATA, &datagram_capsule(b"an answer")));
    bed.world.run_for(SECOND);
    let (before, copies) = forms(&bed);
    bed.peer().datagram(udp_datagram(0, b"another"));
    bed.world.run_for(9 * SECOND);
    let (capsules, datagrams) = forms(&bed);
    assert_eq!(datagrams, copies);
    assert!(capsules > before + 100, "{capsules}");
    assert_eq!(agreements(events(&bed)).len(), 0, "nothing changed");
}

#[test]
fn a_proxy_of_ours_is_not_doubted() {
    let mut bed = sending(&[("tandem-promised-size", "1280")]);
    bed.world.run_for(12 * SECOND);
    let (capsules, datagrams) = forms(&bed);
    assert!((200..206).contains(&capsules), "{capsules}");
    assert_eq!(datagrams, 0);
}

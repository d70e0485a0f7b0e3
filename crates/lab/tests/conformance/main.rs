//! Tests of requirements of RFC 9297 and RFC 9298 that no other test covers, on the wire, in
//! virtual time. `docs/design/conformance.md` lists all requirements.

#[path = "../hostile/bed.rs"]
#[allow(dead_code, reason = "the other test needs more of it")]
mod bed;
#[path = "../hostile/h3_bytes.rs"]
#[allow(dead_code, reason = "the other test needs more of it")]
mod h3_bytes;
mod marker;
#[path = "../hostile/raw_peer.rs"]
#[allow(dead_code, reason = "the other test needs more of it")]
mod raw_peer;
#[path = "../hostile/target.rs"]
#[allow(dead_code, reason = "the other test needs more of it")]
mod target;

use bytes::Bytes;
use noq_proto::Dir;
use tandem_congestion::ControllerName;
use tandem_lab::{LinkConfig, Seed, TestCertificate, World};
use tandem_node::{
    Client, ClientConfig,
    client::{HopConfig, Task},
    limits::Limits,
    node::Ecn,
    quic::Transport,
};
use tandem_wire::{Code, Frame, FrameDecoder, RequestHead, Settings, StreamKind, Template};

use bed::{Bed, MS, fetch, fetching, origin, proxy, tunnelling};
use h3_bytes::{
    DATA, MASQUE_SETTINGS, connect_udp, connect_udp_lines, datagram_capsule, frame, headers,
    settings, udp_datagram, varint,
};
use marker::Marker;
use raw_peer::{Came, StreamEnd};

const TARGET: &str = "/.well-known/masque/udp/10.0.0.3/7/";
/// The first unidirectional streams of a client and of a server.
const CONTROL: [u64; 2] = [2, 3];

/// The SETTINGS at the beginning of a control stream.
fn settings_of(control_stream: &Came) -> Settings {
    let frames = control_stream.data.strip_prefix(&[0]).expect("the type of a control stream");
    let mut decoder = FrameDecoder::new(StreamKind::Control, 1000);
    decoder.push(Bytes::copy_from_slice(frames));
    let Ok(Some(Frame::Settings(settings))) = decoder.next() else { panic!("no SETTINGS") };
    settings
}

/// The request at the beginning of a stream.
fn request_of(came: &Came) -> RequestHead {
    let mut decoder = FrameDecoder::new(StreamKind::Request, 10_000);
    decoder.push(Bytes::copy_from_slice(&came.data));
    let Ok(Some(Frame::Headers(section))) = decoder.next() else { panic!("no HEADERS") };
    RequestHead::decode(section, 10_000).expect("a proper request")
}

fn tunnel() -> Task {
    fetch("origin.test", 1)
}

#[test]
fn every_node_announces_that_it_takes_datagrams() {
    // RFC 9297 §2.1.1: "It is RECOMMENDED that implementations that support receiving HTTP/3
    // Datagrams always send the SETTINGS_H3_DATAGRAM setting with a value of 1".
    let [client, server] = CONTROL;
    for (what, settings) in [
        ("proxy", settings_of(proxy().came(server))),
        ("origin", settings_of(origin().came(server))),
        ("client of a proxy", settings_of(tunnelling(tunnel()).with_control_stream().came(client))),
        ("client of an origin", settings_of(fetching(1).with_control_stream().came(client))),
    ] {
        assert!(settings.h3_datagram, "{what}: {settings:?}");
        // RFC 9220 §3: only a server sends this setting.
        assert_eq!(settings.enable_connect_protocol, !what.starts_with("client"), "{what}");
    }
}

#[test]
fn a_client_asks_and_sends_only_after_the_settings_of_its_proxy() {
    // RFC 9297 §2.1.1: "QUIC DATAGRAM frames MUST NOT be sent until the SETTINGS_H3_DATAGRAM setting
    // has been both sent and received with a value of 1."
    let mut bed = tunnelling(tunnel());
    bed.run();
    assert!(!bed.seen().streams.contains_key(&0));
    bed.open_with(Dir::Uni, [varint(0), settings(&[(0x08, 1)])].concat());
    bed.run();
    bed.peer().send(0, headers(&[(":status", "200")]));
    bed.run();
    assert!(bed.seen().datagrams.is_empty(), "the proxy does not accept datagrams");
    let in_capsule = bed.came(0).data.len();
    assert!(in_capsule > 1200, "{in_capsule} bytes: an Initial goes in a capsule");

    let mut bed = tunnelling(tunnel());
    bed.open_with(Dir::Uni, [varint(0), settings(MASQUE_SETTINGS)].concat());
    bed.run();
    bed.peer().send(0, headers(&[(":status", "200")]));
    bed.run();
    assert!(bed.seen().datagrams[0].starts_with(&udp_datagram(0, b"")));
}

#[test]
fn a_request_has_the_fields_of_the_rfc_and_no_content() {
    // RFC 9298 §3.4; RFC 9297 §3.2: "The Capsule Protocol MUST NOT be used with messages that contain
    // Content-Length, Content-Type, or Transfer-Encoding header fields." §3.4 has Capsule-Protocol.
    let bed = tunnelling(tunnel()).with_control_stream();
    let head = request_of(bed.came(0));
    assert_eq!(head.method, "CONNECT");
    assert_eq!(head.protocol.as_deref(), Some("connect-udp"));
    assert_eq!(head.scheme.as_deref(), Some("https"));
    assert_eq!(head.authority.as_deref(), Some("peer.test"));
    assert_eq!(head.path.as_deref(), Some("/.well-known/masque/udp/origin.test/443/"));
    assert_eq!(head.headers["capsule-protocol"], "?1");
    for name in ["content-length", "content-type", "transfer-encoding"] {
        assert!(!head.headers.contains_key(name), "{name}");
    }
}

#[test]
fn a_grant_says_capsule_protocol_and_a_refusal_does_not() {
    // RFC 9297 §3.2 and §3.4, RFC 9298 §3.5.
    let mut bed = proxy();
    let granted = bed.ask(connect_udp("10.0.0.3", "7"));
    assert_eq!((granted.status(), granted.field("capsule-protocol")), (200, "?1"));
    for name in ["content-length", "content-type", "transfer-encoding"] {
        assert_eq!(granted.field(name), "", "{name}");
    }
    for (host, port, status) in [
        ("127.0.0.1", "7", 403),
        ("10.0.0.3", "0", 400),
        ("nowhere.test", "7", 502),
        ("failing.test", "7", 502),
    ] {
        let refused = bed.ask(connect_udp(host, port));
        assert_eq!((refused.status(), refused.field("capsule-protocol")), (status, ""), "{host}");
    }
}

#[test]
fn marks_end_at_the_proxy_in_both_directions() {
    // RFC 9298 §6.2: "A UDP proxy MUST ignore ECN bits in the IP header of UDP packets received from
    // the target, and MUST set the ECN bits to Not-ECT on UDP packets it sends to the target."
    let mut bed = proxy();
    let marker = bed.world.add_host("marker", ["10.0.0.4"], Marker::new(Ecn::Ce));
    bed.world.connect(bed.node, marker, LinkConfig { delay: MS, ..LinkConfig::default() });
    let flow = bed.open_with(Dir::Bi, connect_udp("10.0.0.4", "7"));
    bed.run();
    bed.peer().datagram(udp_datagram(flow, b"datagram"));
    bed.run();
    bed.peer().send(flow, frame(DATA, &datagram_capsule(b"capsule")));
    bed.run();
    assert_eq!(bed.world.node(marker).marks, [None, None]);
    assert_eq!(bed.echoed(flow), [b"datagram"], "CE is no reason to drop");
    assert_eq!(bed.seen().closed, None);
}

#[test]
fn without_congestion_control_no_packet_signals_ecn() {
    // RFC 9298 §6: an endpoint that disables congestion control "MUST NOT signal ECN support".
    for (controller, mark) in [(ControllerName::Bbr1, Some(Ecn::Ect0)), (ControllerName::Off, None)]
    {
        let hop = HopConfig {
            transport: Transport { controller: controller.into(), ..Transport::default() },
            ..HopConfig::new(
                Template::default_for("10.0.0.4:7").expect("an authority"),
                TestCertificate::new(["10.0.0.4"]).client(),
            )
        };
        let limits = Limits::default();
        let config = ClientConfig { hops: vec![hop], task: tunnel(), limits, seed: Some(1) };
        let mut world = World::new(Seed(1));
        let marker = world.add_host("marker", ["10.0.0.4"], Marker::new(Ecn::Ce));
        let node = Client::new(config).expect("a configuration");
        let client = world.add_host("client", ["10.0.0.2"], node);
        world.connect(client, marker, LinkConfig { delay: MS, ..LinkConfig::default() });
        world.run_for(10 * MS);
        assert_eq!(world.node(marker).marks[0], mark, "{controller}");
    }
}

#[test]
fn a_request_with_content_is_malformed() {
    // RFC 9297 §3.2: "A receiver that observes a violation of these requirements MUST treat the HTTP
    // message as malformed."
    let mut bed = proxy();
    for field in [("content-length", "0"), ("content-length", "5"), ("content-type", "text/plain")]
    {
        let mut lines = connect_udp_lines(TARGET);
        lines.push(field);
        let stream = bed.open_with(Dir::Bi, headers(&lines));
        bed.run();
        let end = Some(StreamEnd::Reset(Code::H3_MESSAGE_ERROR));
        assert_eq!(bed.came(stream).end, end, "{field:?}");
    }
}

/// A client whose proxy answers with these bytes.
fn answered(answer: impl Into<Bytes>) -> Bed<Client> {
    let mut bed = tunnelling(tunnel()).with_control_stream();
    bed.peer().send(0, answer);
    bed.run();
    bed
}

#[test]
fn an_answer_with_content_grants_nothing() {
    // RFC 9297 §3.2, as above, and RFC 9298 §3.5: "If any of these requirements are not met, the
    // client MUST treat this proxying attempt as failed and abort the request."
    for lines in [
        &[(":status", "204")][..],
        &[(":status", "205")],
        &[(":status", "206")],
        &[(":status", "200"), ("content-length", "0")],
        &[(":status", "200"), ("content-type", "text/plain")],
    ] {
        let bed = answered(headers(lines));
        assert!(matches!(bed.ended(), Some(Err(_))), "{lines:?}: {:?}", bed.ended());
        assert!(bed.seen().datagrams.is_empty(), "{lines:?}");
    }
}

#[test]
fn a_client_aborts_a_flow_whose_payload_is_too_long() {
    // RFC 9298 §5: "An endpoint that receives an HTTP Datagram using Context ID zero whose UDP
    // Proxying Payload field is longer than 65527 MUST abort the corresponding stream."
    for (len, is_aborted) in [(65_527, false), (65_528, true)] {
        let capsules = datagram_capsule(&vec![7; len]);
        let bed = answered([headers(&[(":status", "200")]), frame(DATA, &capsules)].concat());
        assert_eq!(bed.ended().is_some(), is_aborted, "{len}: {:?}", bed.ended());
    }
}

#[test]
fn a_proxy_waits_for_no_second_packet_to_send_the_first() {
    // RFC 9298 §6: "A UDP proxy SHOULD NOT" queue packets in order to send them together.
    let mut bed = proxy();
    let flow = bed.open_with(Dir::Bi, connect_udp("10.0.0.3", "7"));
    bed.run();
    for in_capsule in [false, true] {
        bed.peer().datagrams.clear();
        let capsules_before = bed.came(flow).data.len();
        if in_capsule {
            bed.peer().send(flow, frame(DATA, &datagram_capsule(b"x")));
        } else {
            bed.peer().datagram(udp_datagram(flow, b"x"));
        }
        let before = bed.world.elapsed();
        let peer = bed.peer;
        let is_back = |world: &World| {
            let seen = world.node(peer);
            seen.datagrams.len() == 1 || seen.streams[&flow].data.len() > capsules_before
        };
        assert!(bed.world.run_until(10 * MS, is_back), "in a capsule: {in_capsule}");
        // There are four links of a millisecond each.
        let took = bed.world.elapsed().saturating_sub(before);
        assert_eq!(took, 4 * MS, "in a capsule: {in_capsule}");
    }
}

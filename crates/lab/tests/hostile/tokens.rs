//! Tests of clients that guess tokens, and of tokens that the operator removes.

use std::time::Duration;

use noq_proto::Dir;
use tandem_node::{
    Proxy,
    limits::Limits,
    proxy::{Access, NamedToken, Token},
    stats::Denied,
};
use tandem_wire::Code;

use crate::{
    bed::{Bed, Serving, Setup},
    h3_bytes::{Answer, connect_udp_lines, control_stream, headers},
    raw_peer::StreamEnd,
};

const PATH: &str = "/.well-known/masque/udp/10.0.0.3/7/";
const ALICE: &str = "0123456789abcdef";
const BOB: &str = "fedcba9876543210";

fn access(tokens: &[(&str, &str)]) -> Access {
    let tokens = tokens.iter().map(|(name, token)| {
        let token = Token::parse(token).expect("it is long enough");
        NamedToken::new(name, token).expect("it is a name")
    });
    Access::Tokens(tokens.collect())
}

/// A proxy with two tokens that looks at three wrong tokens at once.
fn bed(guess_interval: Duration) -> Bed<Proxy> {
    let limits =
        Limits { guesses: 3, guess_interval, guesses_per_connection: 6, ..Limits::default() };
    let access = access(&[("alice", ALICE), ("bob", BOB)]);
    Setup { limits, access, ..Setup::default() }.proxy().with_control_stream()
}

/// A request with this token, or without one.
fn request(token: Option<&str>) -> Vec<u8> {
    let value = token.map(|token| format!("Bearer {token}"));
    let mut lines = connect_udp_lines(PATH);
    lines.extend(value.as_deref().map(|value| ("proxy-authorization", value)));
    headers(&lines)
}

fn ask(bed: &mut Bed<Proxy>, token: Option<&str>) -> Answer {
    bed.ask(request(token))
}

#[test]
fn a_client_that_guesses_has_to_wait() {
    let mut bed = bed(Duration::from_secs(1));
    assert_eq!(ask(&mut bed, None).status(), 401, "a browser asks so first");
    for guess in ["0123456789abcde0", "0123456789abcde1", "0123456789abcde2"] {
        assert_eq!(ask(&mut bed, Some(guess)).status(), 401);
    }
    let answer = ask(&mut bed, Some(ALICE));
    assert_eq!((answer.status(), answer.field("retry-after")), (429, "1"), "it is not looked at");
    bed.world.run_for(Duration::from_secs(1));
    assert_eq!(ask(&mut bed, Some(ALICE)).status(), 200);
    assert_eq!(ask(&mut bed, Some("0123456789abcde3")).status(), 401);
    assert_eq!(ask(&mut bed, Some(BOB)).status(), 200, "a connection with a right token");
    let denied = Denied { no_token: 1, wrong_token: 4, expired: 0, ignored: 1 };
    assert_eq!(bed.stats().denied, denied);
}

#[test]
fn a_connection_that_guesses_on_is_closed() {
    let mut bed = bed(Duration::from_secs(3600));
    let neighbour = bed.add_peer(1);
    bed.run();
    for status in [401, 401, 401, 429, 429] {
        assert_eq!(ask(&mut bed, Some("0123456789abcdeX")).status(), status);
    }
    // All of these arrive together. None of them is looked at, and the right one opens no flow.
    for token in ["0123456789abcdeX", "0123456789abcdeX", ALICE] {
        bed.open_with(Dir::Bi, request(Some(token)));
    }
    bed.run();
    assert_eq!(bed.closed_with(), Some(Code::H3_EXCESSIVE_LOAD));
    let stats = bed.stats();
    assert_eq!((stats.denied.wrong_token, stats.flows, stats.broken.others), (3, 0, 1));
    let peer = bed.world.node_mut(neighbour);
    let control = peer.open(Dir::Uni);
    peer.send(control, control_stream(&[]));
    let stream = peer.open(Dir::Bi);
    peer.send(stream, request(Some(BOB)));
    bed.run();
    let came = bed.world.node(neighbour).streams.get(&stream).expect("it was opened");
    assert_eq!(Answer::read(came).map(|answer| answer.status()), Some(200), "another source");
}

#[test]
fn a_removed_token_ends_its_flows_and_no_others() {
    let mut bed = bed(Duration::from_secs(1));
    let [of_alice, of_bob] = [ALICE, BOB].map(|token| {
        let stream = bed.open_with(Dir::Bi, request(Some(token)));
        bed.run();
        assert_eq!(bed.answer(stream).status(), 200);
        stream
    });
    bed.world.node_mut(bed.node).set_access(access(&[("robert", BOB)]));
    bed.run();
    assert_eq!(bed.came(of_alice).end, Some(StreamEnd::Reset(Code::H3_REQUEST_CANCELLED)));
    assert_eq!(bed.came(of_bob).end, None);
    assert_eq!(bed.echo(of_bob, b"still there?"), vec![&b"still there?"[..]]);
    assert_eq!(ask(&mut bed, Some(ALICE)).status(), 401);
    assert_eq!(ask(&mut bed, Some(BOB)).status(), 200);
    let stats = bed.stats();
    assert_eq!((stats.flows_ended.revoked, stats.flows_open), (1, 2));
}

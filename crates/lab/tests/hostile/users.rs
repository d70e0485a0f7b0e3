//! Tests of users who use more than they may, and of JSON Web Tokens that nobody should accept.

use std::time::Duration;

use noq_proto::Dir;
use tandem_node::{
    Proxy,
    limits::Limits,
    proxy::{
        Access, Bound, JwtKeys, JwtRules, Known, NamedToken, TargetRules, Token, UserLimits,
        UserRules, UserUsage, Users,
    },
    stats::Stats,
};
use tandem_units::{ByteCount, Rate};
use tandem_wire::Code;

use crate::{
    bed::{Bed, Serving, Setup},
    h3_bytes::{Answer, connect_udp_lines, control_stream, headers, udp_datagram},
    raw_peer::StreamEnd,
};

const PATH: &str = "/.well-known/masque/udp/10.0.0.3/7/";
pub(crate) const ALICE: &str = "0123456789abcdef";
pub(crate) const BOB: &str = "fedcba9876543210";

/// When the tokens below are valid: 15 January 2027, 8:00 UTC.
const NOW: Duration = Duration::from_secs(1_800_000_000);

/// The public key that verifies the tokens, of which the first two were signed with its private key:
/// `{"sub":"alice","exp":1800000060}` and `{"sub":"alice","exp":1700000000}`.
const KEYS: &str = include_str!("users/keys.json");
const SIGNED: &str = include_str!("users/good.jwt");
const EXPIRED: &str = include_str!("users/expired.jwt");
const BY_ANOTHER: &str = include_str!("users/by_another_key.jwt");
const UNKNOWN_KEY: &str = include_str!("users/unknown_kid.jwt");
const ALG_NONE: &str = include_str!("users/alg_none.jwt");
const HS256: &str = include_str!("users/hs256_with_public_key.jwt");

pub(crate) fn tokens() -> Vec<NamedToken> {
    let named = |name, token| {
        let token = Token::parse(token).expect("it is long enough");
        NamedToken::new(name, token).expect("it is a name")
    };
    vec![named("alice", ALICE), named("bob", BOB)]
}

fn rules(limits: UserLimits) -> UserRules {
    UserRules { default: limits, ..UserRules::default() }
}

/// A proxy whose users have these limits, and its users.
fn limited(limits: UserLimits) -> (Bed<Proxy>, Users) {
    let users = Users::new(rules(limits));
    let access = Access::Tokens(tokens());
    let setup = Setup { access, users: users.clone(), ..Setup::default() };
    (setup.proxy().with_control_stream(), users)
}

fn request_to(path: &str, token: &str) -> Vec<u8> {
    let value = format!("Bearer {}", token.trim());
    let mut lines = connect_udp_lines(path);
    lines.push(("proxy-authorization", &value));
    headers(&lines)
}

fn request(token: &str) -> Vec<u8> {
    request_to(PATH, token)
}

fn usage(users: &Users, name: &str) -> UserUsage {
    users.usage().into_iter().find(|usage| usage.name == name).expect("it is known")
}

#[test]
fn a_user_has_as_many_flows_and_connections_as_it_may() {
    let limits =
        UserLimits { flows: Bound::At(2), connections: Bound::At(1), ..UserLimits::default() };
    let (mut bed, users) = limited(limits);
    let first = bed.open_with(Dir::Bi, request(ALICE));
    bed.run();
    assert_eq!(bed.answer(first).status(), 200);
    assert_eq!(bed.ask(request(ALICE)).status(), 200);
    let refused = bed.ask(request(ALICE));
    assert_eq!((refused.status(), refused.field("retry-after")), (429, "5"));
    let status = refused.field("proxy-status");
    assert!(status.contains("http_request_denied") && status.contains("2 flows"), "{status}");
    let neighbour = bed.add_peer(1);
    bed.run();
    let peer = bed.world.node_mut(neighbour);
    let control = peer.open(Dir::Uni);
    peer.send(control, control_stream(&[]));
    for (token, status) in [(ALICE, 429), (BOB, 200)] {
        let peer = bed.world.node_mut(neighbour);
        let stream = peer.open(Dir::Bi);
        peer.send(stream, request(token));
        bed.run();
        let came = bed.world.node(neighbour).streams.get(&stream).expect("it was opened");
        assert_eq!(Answer::read(came).map(|answer| answer.status()), Some(status), "{token}");
    }
    let alice = usage(&users, "alice");
    assert_eq!((alice.counters.flows, alice.counters.connections), (2, 1));
    let refused = alice.counters.refused;
    assert_eq!((refused.flows, refused.connections), (1, 1));
    bed.peer().finish(first);
    bed.run();
    assert_eq!(bed.ask(request(ALICE)).status(), 200, "one of the flows has ended");
    bed.world.run_for(Duration::from_secs(200));
    assert_eq!(usage(&users, "alice").counters.flows, 0, "idle flows have ended");
}

/// Opens a flow, which ends at once. Returns the status of its answer.
fn open_and_close(bed: &mut Bed<Proxy>, token: &str) -> u16 {
    let stream = bed.open_with(Dir::Bi, request(token));
    bed.run();
    let status = bed.answer(stream).status();
    bed.peer().finish(stream);
    bed.run();
    status
}

#[test]
fn a_user_opens_flows_no_faster_than_it_may() {
    let (flow_burst, flows_per_second) = (Bound::At(3), Bound::At(1));
    let limits = UserLimits { flow_burst, flows_per_second, ..UserLimits::default() };
    let (mut bed, users) = limited(limits);
    let count = |bed: &mut Bed<Proxy>, token, number| {
        let asked = (0..number).map(|_| bed.open_with(Dir::Bi, request(token)));
        let asked: Vec<_> = asked.collect();
        bed.run();
        asked.iter().filter(|stream| bed.answer(**stream).status() == 200).count()
    };
    assert_eq!(count(&mut bed, ALICE, 5), 3);
    assert_eq!(count(&mut bed, BOB, 2), 2, "others have their own");
    bed.world.run_for(Duration::from_secs(2));
    assert_eq!(count(&mut bed, ALICE, 5), 2);
    let refused = bed.ask(request(ALICE));
    assert_eq!((refused.status(), refused.field("retry-after")), (429, "5"));
    let status = refused.field("proxy-status");
    assert!(status.contains("http_request_denied") && status.contains("1 flows"), "{status}");
    let alice = usage(&users, "alice");
    assert_eq!((alice.counters.flows, alice.counters.refused.flow_rate), (5, 6));
}

#[test]
fn a_user_that_opens_and_closes_many_flows_does_not_fill_the_log() {
    const FLOWS: u32 = 800;
    let (mut bed, _) = limited(UserLimits::default());
    let asked: Vec<_> = (0..FLOWS).map(|_| bed.open_with(Dir::Bi, request(ALICE))).collect();
    bed.run();
    for stream in asked {
        bed.peer().finish(stream);
    }
    bed.run();
    let stats = |bed: &mut Bed<Proxy>| bed.world.node_mut(bed.node).stats();
    let Stats { flows, flows_open, unlogged_lines, .. } = stats(&mut bed);
    assert_eq!((flows, flows_open), (FLOWS.into(), 0));
    let lines = 2 * u64::from(FLOWS) - unlogged_lines;
    let burst = u64::from(Limits::LOG_BURST);
    assert!((burst..burst + 2 * u64::from(Limits::LOG_PER_SECOND)).contains(&lines), "{lines}");
    // After a while everything is logged again.
    bed.world.run_for(Duration::from_secs(2));
    assert_eq!(open_and_close(&mut bed, ALICE), 200);
    assert_eq!(stats(&mut bed).unlogged_lines, unlogged_lines);
}

#[test]
fn a_user_reaches_only_its_targets_whatever_a_name_leads_to() {
    let targets = TargetRules {
        prefixes: Some(vec!["10.0.0.3/32".parse().expect("a prefix")]),
        ports: Some("7".parse().expect("a port")),
        names: Some(vec!["*.test".to_owned()]),
    };
    let (mut bed, users) = limited(UserLimits { targets, ..UserLimits::default() });
    for (target, status, error) in [
        ("10.0.0.3/7", 200, ""),
        ("echo.test/7", 200, ""),
        ("10.0.0.3/8", 403, "http_request_denied"),
        ("10.0.0.4/7", 403, "http_request_denied"),
        ("echo.example/7", 403, "http_request_denied"),
        ("peer.test/7", 403, "http_request_denied"), // it leads to 10.0.0.1
        ("inside.test/7", 403, "destination_ip_prohibited"),
    ] {
        let answer = bed.ask(request_to(&format!("/.well-known/masque/udp/{target}/"), ALICE));
        assert_eq!(answer.status(), status, "{target}");
        let told = answer.field("proxy-status");
        assert!(told.contains(error), "{target}: {told}");
        // The user learns no address but those that it has named.
        assert!(
            status == 200 || !told.contains("10.0.0.1") && !told.contains("127."),
            "{target}: {told}"
        );
    }
    assert_eq!(usage(&users, "alice").counters.refused.target, 4);
}

#[test]
fn names_that_nobody_answers_count_until_their_end() {
    let limits = UserLimits { lookups: Bound::At(3), ..UserLimits::default() };
    let (mut bed, users) = limited(limits);
    for _ in 0..5 {
        let stream =
            bed.open_with(Dir::Bi, request_to("/.well-known/masque/udp/mute.test/7/", ALICE));
        bed.run();
        bed.peer().finish(stream); // the look-up goes on without its request
    }
    let alice = usage(&users, "alice");
    assert_eq!((alice.counters.lookups, alice.counters.refused.lookups), (3, 2));
}

#[test]
fn a_month_that_is_used_up_ends_a_flow_in_the_middle() {
    let month_bytes = Bound::At(ByteCount::new(3000));
    let (mut bed, users) = limited(UserLimits { month_bytes, ..UserLimits::default() });
    let stream = bed.open_with(Dir::Bi, request(ALICE));
    bed.run();
    for round in 0..3 {
        bed.echo(stream, &[round; 1000]);
    }
    assert_eq!(bed.came(stream).end, Some(StreamEnd::Reset(Code::H3_REQUEST_CANCELLED)));
    let refused = bed.ask(request(ALICE));
    assert_eq!((refused.status(), refused.field("retry-after")), (403, ""));
    assert!(refused.field("proxy-status").contains("this month"));
    let alice = usage(&users, "alice");
    assert!((3000..5000).contains(&alice.month_bytes.total()), "{alice:?}");
    users.set_rules(UserRules::default());
    assert_eq!(bed.ask(request(ALICE)).status(), 200, "the operator has given more");
}

#[test]
fn what_comes_faster_than_the_users_rate_is_dropped_and_counted() {
    let rate = Bound::At(Rate::from_mbps(1));
    let (mut bed, users) = limited(UserLimits { rate_to_target: rate, ..UserLimits::default() });
    let stream = bed.open_with(Dir::Bi, request(ALICE));
    bed.run();
    for _ in 0..10 {
        for _ in 0..40 {
            bed.peer().datagram(udp_datagram(stream, &[1; 1000]));
        }
        bed.run(); // 200 ms, in which 25 of the 40 may pass
    }
    let passed = bed.at_target().len() as u64;
    let dropped = usage(&users, "alice").counters.over_rate_datagrams.to_target;
    assert_eq!(passed + dropped, 400);
    // 250 kB in two seconds, and 64 kB at first.
    assert!((280..=320).contains(&passed), "{passed}");
    users.set_rules(UserRules::default());
    bed.run();
    assert_eq!(bed.echo(stream, b"fast").len(), 1, "new limits hold for open flows");
}

/// A proxy that accepts JSON Web Tokens, and knows what time it is.
fn signed() -> (Bed<Proxy>, Users) {
    let keys = JwtKeys::parse(KEYS, JwtRules::default()).expect("it is a set of keys");
    let users = Users::default();
    let known = Known { tokens: tokens(), keys: Some(keys.into()), ..Known::default() };
    let access = Access::Known(known);
    let setup = Setup { access, users: users.clone(), ..Setup::default() };
    let bed = setup.proxy().with_control_stream();
    users.set_time(bed.world.now(), NOW);
    (bed, users)
}

#[test]
fn only_what_the_issuer_has_signed_opens_a_flow_and_only_until_it_expires() {
    let (mut bed, users) = signed();
    let stream = bed.open_with(Dir::Bi, request(SIGNED));
    bed.run();
    assert_eq!(bed.answer(stream).status(), 200);
    assert_eq!(usage(&users, "alice").counters.flows, 1);
    let huge = "x".repeat(9000);
    for (what, token) in [
        ("signed by another key", BY_ANOTHER),
        ("alg: none", ALG_NONE),
        ("HS256 with the public key", HS256),
        ("an unknown key ID", UNKNOWN_KEY),
        ("huge", &huge),
        ("cut", &SIGNED[..SIGNED.len() - 9]),
    ] {
        let answer = bed.ask(request(token));
        assert_eq!(answer.status(), 401, "{what}");
        let challenges = answer.fields("www-authenticate");
        assert!(!challenges.iter().any(|it| it.contains("error")), "{what}");
    }
    let expired = bed.ask(request(EXPIRED));
    assert_eq!(expired.status(), 401);
    let challenges = expired.fields("www-authenticate");
    assert!(challenges.iter().any(|it| it.contains("invalid_token")));
    assert_eq!(bed.ask(request(BOB)).status(), 200, "tokens of the file are accepted too");
    let denied = bed.stats().denied;
    assert_eq!((denied.wrong_token, denied.expired), (6, 1));
    for _ in 0..10 {
        bed.world.run_for(Duration::from_secs(10));
        bed.peer().datagram(udp_datagram(stream, b"still here"));
    }
    bed.run();
    assert_eq!(bed.came(stream).end, Some(StreamEnd::Reset(Code::H3_REQUEST_CANCELLED)));
    assert_eq!(usage(&users, "alice").counters.flows, 0);
}

#[test]
fn a_proxy_that_does_not_know_the_time_accepts_no_signed_token() {
    let keys = JwtKeys::parse(KEYS, JwtRules::default()).expect("it is a set of keys");
    let access = Access::Known(Known { keys: Some(keys.into()), ..Known::default() });
    let mut bed = Setup { access, ..Setup::default() }.proxy().with_control_stream();
    assert_eq!(bed.ask(request(SIGNED)).status(), 401);
}

#[test]
fn a_key_that_is_removed_ends_what_its_tokens_opened() {
    let (mut bed, _) = signed();
    let stream = bed.open_with(Dir::Bi, request(SIGNED));
    bed.run();
    assert_eq!(bed.answer(stream).status(), 200);
    bed.world.node_mut(bed.node).set_access(Access::Tokens(tokens()));
    bed.run();
    assert_eq!(bed.came(stream).end, Some(StreamEnd::Reset(Code::H3_REQUEST_CANCELLED)));
}

//! Tests of users with passwords, and of clients that guess them.

use std::time::Duration;

use noq_proto::Dir;
use tandem_node::{
    Proxy,
    limits::Limits,
    password::{NamedPassword, PasswordHash},
    proxy::{Access, Known, NamedToken, Token},
};

use crate::{
    bed::{Bed, Serving, Setup},
    h3_bytes::{connect_udp_lines, headers},
};

const PATH: &str = "/.well-known/masque/udp/10.0.0.3/7/";

/// "correct horse" as alice's password. The bytes of `alice:correct horse` in base64, and others, are below.
const RIGHT: &str = "Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==";
const WRONG: &str = "Basic YWxpY2U6d3JvbmcgaG9yc2U=";
const NOBODY: &str = "Basic bWFsbG9yeTpjb3JyZWN0IGhvcnNl";
const TOKEN: &str = "Basic Ym9iOjAxMjM0NTY3ODlhYmNkZWY=";

fn access() -> Access {
    let hash = PasswordHash::of("correct horse", [7; 16]).expect("it is long enough");
    let token = Token::parse("0123456789abcdef").expect("it is long enough");
    Access::Known(Known {
        tokens: vec![NamedToken::new("bob", token).expect("it is a name")],
        passwords: [NamedPassword::new("alice", hash).expect("it is a name")].into(),
        ..Known::default()
    })
}

fn bed() -> Bed<Proxy> {
    let limits =
        Limits { guesses: 3, guess_interval: Duration::from_secs(3600), ..Limits::default() };
    Setup { limits, access: access(), ..Setup::default() }.proxy().with_control_stream()
}

fn request(credentials: &str) -> Vec<u8> {
    let mut lines = connect_udp_lines(PATH);
    lines.push(("authorization", credentials));
    headers(&lines)
}

#[test]
fn a_right_password_opens_flows_and_a_wrong_one_is_a_guess() {
    let mut bed = bed();
    for (credentials, status) in
        [(WRONG, 401), (RIGHT, 200), (TOKEN, 200), (NOBODY, 401), (RIGHT, 200)]
    {
        assert_eq!(bed.ask(request(credentials)).status(), status, "{credentials}");
    }
    assert_eq!(bed.stats().denied.wrong_token, 2);
}

#[test]
fn who_guesses_passwords_has_to_wait_like_who_guesses_tokens() {
    let mut bed = bed();
    for status in [401, 401, 401, 429, 429] {
        assert_eq!(bed.ask(request(WRONG)).status(), status);
    }
    assert_eq!(bed.ask(request(RIGHT)).status(), 429, "nobody looks at it");
}

#[test]
fn requests_that_come_together_wait_for_one_check_and_then_get_their_own_answers() {
    let mut bed = bed();
    let streams: Vec<_> = [RIGHT, WRONG, RIGHT, TOKEN, RIGHT]
        .into_iter()
        .map(|credentials| bed.open_with(Dir::Bi, request(credentials)))
        .collect();
    bed.run();
    let statuses: Vec<_> = streams.iter().map(|stream| bed.answer(*stream).status()).collect();
    assert_eq!(statuses, [200, 401, 200, 200, 200]);
}

#[test]
fn a_connection_has_few_requests_that_wait() {
    let mut bed = bed();
    let streams: Vec<_> = (0..40).map(|_| bed.open_with(Dir::Bi, request(RIGHT))).collect();
    bed.run();
    let statuses: Vec<_> = streams.iter().map(|stream| bed.answer(*stream).status()).collect();
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!(count(200) + count(429), 40, "{statuses:?}");
    assert!(count(200) >= 32, "{statuses:?}");
}

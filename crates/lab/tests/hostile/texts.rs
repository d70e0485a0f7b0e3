//! Tests of texts that strangers choose and people read: in the errors of a client, and in the answers of a proxy.

#![expect(clippy::indexing_slicing, reason = "a wrong index fails the test")]

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use rustls::{Side, crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256, quic::Version};
use tandem_lab::World;
use tandem_node::{
    Client, Input, Node, Output, StrangerText,
    error::ClientError,
    node::{SocketId, SocketKind, Transmit},
};
use tandem_wire::{CAPSULE_TYPE_PROXY_STATUS, Code};

use crate::{
    bed::{Bed, Serving, fetch, fetching, proxy, tunnelling},
    h3_bytes::{DATA, capsule, connect_udp, frame, headers},
};

/// Texts with which a terminal, a log or a reader could be misled.
const HOSTILE: [&str; 11] = [
    "bye\n2026-01-01 INFO a line that nobody has written",
    "bye\r\x1b[2K\x1b[1A",
    "\x1b]0;owned\x07\x1b[2J",
    "\u{9b}31mred\u{85}",
    "\u{202e}txt.exe\u{202c}",
    "\u{2066}a\u{2069}\u{200f}",
    "pay\u{200b}pal\u{ad}.example\u{feff}",
    "a\u{2028}b\u{2029}c",
    "e\u{301}\u{489}\u{fe0f}",
    "\u{e0041}\u{f8ff}\u{378}",
    "\0\x08\x7f",
];

/// Checks that a line can be shown in a terminal, and that it is no longer than an error with one text of a stranger.
#[track_caller]
fn assert_harmless(line: &str, what: &str) {
    let escapes = HOSTILE.join("");
    let raw = line.chars().find(|&c| c.is_control() || (!c.is_ascii() && escapes.contains(c)));
    assert_eq!(raw, None, "{what:?}: {line:?}");
    assert!(line.chars().count() < StrangerText::SHOWN_MAX + 150, "{what:?}: {line}");
}

/// All hostile texts, and a long one.
fn texts() -> impl Iterator<Item = String> {
    HOSTILE.into_iter().map(str::to_owned).chain([" long\u{202e}".repeat(100)])
}

fn error(bed: &Bed<Client>) -> ClientError {
    bed.ended().expect("the client has ended").expect_err("it has failed")
}

#[test]
fn the_reason_of_a_close_is_one_harmless_line() {
    for text in texts() {
        for is_tunnel in [false, true] {
            let bed = || if is_tunnel { tunnelling(fetch("origin.test", 1)) } else { fetching(1) };
            let mut bed = bed().with_control_stream();
            let now = bed.world.now();
            bed.peer().close_because(now, Code::H3_NO_ERROR, &text);
            bed.run();
            let mut said: Vec<_> = bed.world.events(bed.node).iter().collect();
            let said = format!("{:?}", said.pop());
            let lost = bed.ended().map(|ended| ended.expect_err("it has failed").to_string());
            let line = lost.unwrap_or(said);
            assert!(line.contains("peer.test"), "{line}");
            assert_harmless(&line, &text);
        }
    }
}

/// Closes a connection before its handshake, as somebody can who has seen the first packet on its way: the keys of
/// Initial packets follow from the connection ID in it (RFC 9001 §5.2).
struct Forger {
    has_socket: bool,
    code: u16,
    reason: String,
    to_send: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Forger {
    /// An Initial packet with a `CONNECTION_CLOSE` frame (RFC 9000 §17.2.2 and §19.19) for the client that sent
    /// `initial`.
    fn close(&self, initial: &[u8]) -> Vec<u8> {
        let id = |at: usize| &initial[at + 1..at + 1 + usize::from(initial[at])];
        let (to_server, to_client) = (id(5), id(6 + usize::from(initial[5])));
        let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(rustls::Tls13CipherSuite::quic_suite);
        let keys = suite.expect("a suite of QUIC").keys(to_server, Side::Server, Version::V1);
        let [high, low] = self.code.to_be_bytes();
        let reason = &self.reason.as_bytes()[..self.reason.len().min(1000)];
        let [long, short] = u16::try_from(reason.len()).expect("it is short").to_be_bytes();
        let mut payload = vec![0x1c, 0x40 | high, low, 0, 0x40 | long, short];
        payload.extend_from_slice(reason);
        payload.resize(1100, 0);
        let mut header =
            vec![0xc0, 0, 0, 0, 1, u8::try_from(to_client.len()).expect("it is short")];
        header.extend_from_slice(to_client);
        header.extend_from_slice(b"\x06forger\0"); // its connection ID, and no token
        let [high, low] = u16::try_from(1 + payload.len() + 16).expect("it is short").to_be_bytes();
        header.extend_from_slice(&[0x40 | high, low, 0]); // the length, and the packet number
        let tag = keys.local.packet.encrypt_in_place(0, &header, &mut payload).expect("encrypted");
        payload.extend_from_slice(tag.as_ref());
        let (first, rest) = header.split_first_mut().expect("a header");
        let number = rest.len() - 1;
        // RFC 9001 §5.4.2: the sample begins four bytes after the packet number.
        let sample = &payload[3..19];
        keys.local.header.encrypt_in_place(sample, first, &mut rest[number..]).expect("protected");
        [header, payload].concat()
    }
}

impl Node for Forger {
    fn handle(&mut self, _now: std::time::Instant, input: Input) {
        if let Input::Datagram(received) = input {
            let packet = self.close(&received.payload);
            self.to_send.push_back((received.remote, packet));
        }
    }

    fn poll(&mut self, _now: std::time::Instant, buf: &mut Vec<u8>) -> Output {
        let socket = SocketId(0);
        if !std::mem::replace(&mut self.has_socket, true) {
            let kind = SocketKind::Listen(([0, 0, 0, 0], 443).into());
            return Output::OpenSocket { socket, kind };
        }
        let Some((destination, packet)) = self.to_send.pop_front() else {
            return Output::Wait(None);
        };
        buf.extend_from_slice(&packet);
        let size = packet.len();
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
        Output::Transmit { socket, transmit }
    }
}

#[test]
fn a_forged_close_before_the_handshake_is_one_harmless_line() {
    for text in texts() {
        // PROTOCOL_VIOLATION, and the alert of TLS for an unknown CA.
        for code in [0x0a, 0x130] {
            let forger =
                Forger { has_socket: false, code, reason: text.clone(), to_send: VecDeque::new() };
            let mut world = World::new(tandem_lab::Seed(1));
            let address = vec!["10.0.0.1".parse().expect("an address")];
            let forger = world.add_host("forger", ["10.0.0.1"], forger);
            let client = crate::bed::client_node(Vec::new(), fetch("peer.test", 1));
            let client = world.add_host("client", ["10.0.0.2"], client);
            world.connect(forger, client, tandem_lab::LinkConfig::default());
            world.set_name("peer.test", tandem_lab::NameAnswer::After(Duration::ZERO, Ok(address)));
            world.run_for(Duration::from_secs(1));
            let said = world.events(client).iter().map(|(_, event)| format!("{event:?}"));
            let said: Vec<_> = said.collect();
            let last = said.last().expect("the client has ended");
            let ended = world.events(client).iter().find_map(|(_, event)| match event {
                tandem_node::Event::Closed(Err(error)) => Some(error.to_string()),
                _ => None,
            });
            let line = ended.unwrap_or_else(|| panic!("the close was not taken: {last}"));
            let is_told =
                line.contains("the connection to peer.test") || line.contains("the peer says");
            assert!(is_told, "{line}");
            assert_harmless(&line, &text);
        }
    }
}

#[test]
fn the_reasons_of_a_proxy_are_harmless_lines() {
    for text in texts() {
        let details = format!("p;error=dns_error;details=\"{text}\"");
        // HTTP allows no control characters in fields, so that this is a refusal or a violation.
        let mut bed = tunnelling(fetch("origin.test", 1)).with_control_stream();
        bed.peer().send(0, headers(&[(":status", "502"), ("proxy-status", &details)]));
        bed.peer().finish(0);
        bed.run();
        assert_harmless(&error(&bed).to_string(), &text);
        for value in [&details, &text] {
            let mut bed = tunnelling(fetch("origin.test", 1)).with_control_stream();
            bed.peer().send(0, headers(&[(":status", "200"), ("capsule-protocol", "?1")]));
            bed.run();
            let value = &value.as_bytes()[..value.len().min(1000)];
            let capsule = capsule(CAPSULE_TYPE_PROXY_STATUS.get(), value);
            bed.peer().send(0, frame(DATA, &capsule));
            bed.run();
            assert_harmless(&error(&bed).to_string(), &text);
        }
    }
}

#[test]
fn the_place_to_which_an_origin_redirects_is_a_harmless_line() {
    for text in texts() {
        let mut bed = fetching(1).with_control_stream();
        bed.peer().send(0, headers(&[(":status", "302"), ("location", &format!("/{text}"))]));
        bed.peer().finish(0);
        bed.run();
        assert_harmless(&error(&bed).to_string(), &text);
    }
}

#[test]
fn a_refusal_does_not_say_to_which_address_a_name_leads() {
    let mut bed = proxy();
    for (host, error) in [
        ("inside.test", "destination_ip_prohibited"),
        ("127.0.0.1", "destination_ip_prohibited"),
        ("nowhere.test", "dns_error"),
        ("failing.test", "dns_error"),
    ] {
        let answer = bed.ask(connect_udp(host, "7"));
        let status = answer.field("proxy-status");
        assert!(status.contains(error), "{host}: {status}");
        assert!(!status.contains("127.0.0.1"), "{host}: {status}");
    }
    bed.assert_serves("refusals");
}

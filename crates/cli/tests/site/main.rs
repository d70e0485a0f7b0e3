//! A proxy that is a web site: what strangers and users get of it. Strangers must see no difference to an origin.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod document;
mod gateway;
mod hostile;
mod place;
mod prober;
mod probes;
#[path = "../support/scripted.rs"]
mod scripted;
#[path = "../support/mod.rs"]
mod support;
mod tcp;
mod upstream;
mod users;

use std::net::SocketAddr;

use quinn::Endpoint;

use crate::{
    place::{SECRET, TOKEN, ca, runtime, scene, servers, write_secret},
    prober::{Probe, Seen, probe},
    support::{Scene, Server},
};

/// Sends a request.
fn ask(scene: &Scene, server: SocketAddr, request: Vec<u8>) -> Seen {
    send(scene, server, (request, true))
}

/// Sends a request that does not end, so that a tunnel stays open until the prober waits no longer.
fn ask_and_wait(scene: &Scene, server: SocketAddr, request: Vec<u8>) -> Seen {
    send(scene, server, (request, false))
}

fn send(scene: &Scene, server: SocketAddr, request: (Vec<u8>, bool)) -> Seen {
    let ca = ca(scene);
    let sent = Probe { requests: vec![request], ..Probe::default() };
    runtime().block_on(async {
        let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        probe(&endpoint, &ca, server, &sent).await
    })
}

/// The names of the probes whose answers differ, and the answers.
fn differences(
    scene: &Scene,
    (origin, proxy): (&Server, &Server),
    probes: &[Probe],
    compared: impl Fn(Seen) -> Seen,
) -> (usize, Vec<String>) {
    let ca = ca(scene);
    let mut different = Vec::new();
    runtime().block_on(async {
        let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        for sent in probes {
            let (expected, seen) = tokio::join!(
                probe(&endpoint, &ca, origin.address, sent),
                probe(&endpoint, &ca, proxy.address, sent)
            );
            let (expected, seen) = (compared(expected), compared(seen));
            if seen != expected {
                different.push(format!(
                    "{}:\n  {}\n  {}",
                    sent.name,
                    shown(&expected),
                    shown(&seen)
                ));
            }
        }
    });
    (probes.len(), different)
}

fn shown(seen: &Seen) -> String {
    let streams: Vec<_> =
        seen.streams.iter().map(|(data, end)| (String::from_utf8_lossy(data), end)).collect();
    let Seen { closed, control, has_token, alpn, .. } = seen;
    let shown = format!("{closed:?} {has_token} {alpn:?} {control:?} {streams:?}");
    shown.chars().take(400).collect()
}

#[test]
fn the_prober_sees_what_a_proxy_without_a_site_tells() {
    let scene = scene();
    let (origin, _) = servers(&scene, "root");
    let common = "--listen 127.0.0.1:0 --cert dev/cert.pem --key dev/key.pem";
    let proxy = scene.serve(&format!("proxy {common} --token-file tokens"));
    let (probes, different) =
        differences(&scene, (&origin, &proxy), &probes::all(SECRET), |seen| seen);
    assert!(different.len() > probes / 2, "{} of {probes}", different.len());
}

#[test]
fn no_probe_tells_a_proxy_from_an_origin() {
    let scene = scene();
    let (origin, proxies) = servers(&scene, "root");
    for (access, proxy) in &proxies {
        let mut probes = probes::all(SECRET);
        if *access != "a secret path" {
            probes.extend(probes::of_the_document(SECRET)); // otherwise the path is right enough
        }
        let (probes, different) = differences(&scene, (&origin, proxy), &probes, |seen| seen);
        assert!(probes >= 40);
        assert!(
            different.is_empty(),
            "with {access}, {} of {probes}:\n{}",
            different.len(),
            different.join("\n")
        );
    }
}

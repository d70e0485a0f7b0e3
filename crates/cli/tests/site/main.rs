//! A proxy that is a web site: what strangers and users get of it. Strangers must see no difference to an origin.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod hostile;
mod prober;
mod probes;
#[path = "../support/scripted.rs"]
mod scripted;
#[path = "../support/mod.rs"]
mod support;
mod tcp;
mod times;
mod upstream;
mod users;

use std::{
    fs,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicU16, Ordering},
};

use quinn::Endpoint;
use tokio::runtime::{Builder, Runtime};

use crate::{
    prober::{Probe, Seen, probe},
    support::{Scene, Server},
};

/// The token of the only user.
const TOKEN: &str = "0123456789abcdef0123";

/// The secret path of sites that have one.
const SECRET: &str = "bm90aGluZyB0byBzZWUgaGVyZQ";

fn write_secret(scene: &Scene, name: &str, text: &str) {
    let path = scene.write(name, text);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A folder with a site, tokens, a secret path, and a certificate that all servers have.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.write("root/index.html", "<h1>A garden</h1>\n");
    scene.write("root/folder/index.html", "<h1>A shed</h1>\n");
    scene.write("root/folder/page.txt", "Tools.\n");
    scene.write("root/empty", "");
    scene.write_noise("root/large", 300_000);
    write_secret(&scene, "tokens", &format!("alice {TOKEN}\n"));
    write_secret(&scene, "path", &format!("{SECRET}\n"));
    scene.run("generate certificate dev").succeeds();
    scene
}

/// An address of which UDP and TCP are free. The system gives ports above 32767 to clients, so that none of them takes
/// it in the meantime.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 10_000).unwrap();
    loop {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

/// An origin, and proxies that are the same site. Both serve TCP too.
fn servers(scene: &Scene, site: &str) -> (Server, Vec<(&'static str, Server)>) {
    let common = || format!("--listen {} --cert dev/cert.pem --key dev/key.pem", free_address());
    let origin = scene.serve(&format!("origin {} --root {site} --http1", common()));
    let proxy = |access: &str| {
        let common = common();
        scene.serve(&format!("proxy {common} --site {site} --allow-target 127.0.0.0/8 {access}"))
    };
    let proxies = vec![
        ("tokens", proxy("--token-file tokens")),
        ("tokens and a secret path", proxy("--token-file tokens --secret-path path")),
        ("a secret path", proxy("--secret-path path")),
    ];
    (origin, proxies)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn ca(scene: &Scene) -> Vec<u8> {
    let pem = fs::read(scene.path("dev/ca.pem")).unwrap();
    rustls::pki_types::pem::PemObject::from_pem_slice(&pem)
        .map(|it: rustls::pki_types::CertificateDer<'_>| it.to_vec())
        .unwrap()
}

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
    compared: impl Fn(Seen) -> Seen,
) -> (usize, Vec<String>) {
    let ca = ca(scene);
    let probes = probes::all(SECRET);
    let mut different = Vec::new();
    runtime().block_on(async {
        let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        for sent in &probes {
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
    let (probes, different) = differences(&scene, (&origin, &proxy), |seen| seen);
    assert!(different.len() > probes / 2, "{} of {probes}", different.len());
}

#[test]
fn no_probe_tells_a_proxy_from_an_origin() {
    let scene = scene();
    let (origin, proxies) = servers(&scene, "root");
    for (access, proxy) in &proxies {
        let (probes, different) = differences(&scene, (&origin, proxy), |seen| seen);
        assert!(probes >= 40);
        assert!(
            different.is_empty(),
            "with {access}, {} of {probes}:\n{}",
            different.len(),
            different.join("\n")
        );
    }
}

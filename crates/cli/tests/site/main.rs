//! A proxy that is a web site: what strangers and users get of it. Strangers must see no difference to an origin.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod prober;
mod probes;
#[path = "../support/mod.rs"]
mod support;

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
};

use quinn::Endpoint;
use tokio::runtime::{Builder, Runtime};

use crate::{
    prober::{Probe, Seen, probe},
    support::{Scene, Server, comes_back, echo},
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

/// An origin, and proxies that are the same site.
fn servers(scene: &Scene, site: &str) -> (Server, Vec<(&'static str, Server)>) {
    let common = "--listen 127.0.0.1:0 --cert dev/cert.pem --key dev/key.pem";
    let origin = scene.serve(&format!("origin {common} --root {site}"));
    let proxy = |access: &str| {
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

fn ask(scene: &Scene, server: SocketAddr, sent: &Probe) -> Seen {
    let ca = ca(scene);
    runtime().block_on(async {
        let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        probe(&endpoint, &ca, server, sent).await
    })
}

/// The names of the probes whose answers differ, and the answers.
fn differences(scene: &Scene, origin: &Server, proxy: &Server) -> (usize, Vec<String>) {
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
            if seen != expected {
                different.push(format!("{}:\n  {}\n  {}", sent.name, shown(&expected), shown(&seen)));
            }
        }
    });
    (probes.len(), different)
}

fn shown(seen: &Seen) -> String {
    let streams: Vec<_> = seen.streams.iter().map(|(data, end)| (String::from_utf8_lossy(data), end)).collect();
    let Seen { closed, control, tokens, alpn, .. } = seen;
    let mut shown = format!("{closed:?} {tokens} {alpn:?} {control:?} {streams:?}");
    shown.truncate(shown.floor_char_boundary(400));
    shown
}

#[test]
fn no_probe_tells_a_proxy_from_an_origin() {
    let scene = scene();
    let (origin, proxies) = servers(&scene, "root");
    for (access, proxy) in &proxies {
        let (probes, different) = differences(&scene, &origin, proxy);
        assert!(probes >= 40);
        assert!(different.is_empty(), "with {access}, {} of {probes}:\n{}", different.len(), different.join("\n"));
    }
}

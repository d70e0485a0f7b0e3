//! An origin, and proxies that are the same site.

use std::{
    fs,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt,
    sync::atomic::{AtomicU16, Ordering},
};

use tokio::runtime::{Builder, Runtime};

use crate::support::{Scene, Server};

/// The token of the only user.
pub(crate) const TOKEN: &str = "0123456789abcdef0123";

/// The secret path of sites that have one.
pub(crate) const SECRET: &str = "bm90aGluZyB0byBzZWUgaGVyZQ";

pub(crate) fn write_secret(scene: &Scene, name: &str, text: &str) {
    let path = scene.write(name, text);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A folder with a site, tokens, a secret path, and a certificate that all servers have.
pub(crate) fn scene() -> Scene {
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
pub(crate) fn servers(scene: &Scene, site: &str) -> (Server, Vec<(&'static str, Server)>) {
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

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

pub(crate) fn ca(scene: &Scene) -> Vec<u8> {
    let pem = fs::read(scene.path("dev/ca.pem")).unwrap();
    rustls::pki_types::pem::PemObject::from_pem_slice(&pem)
        .map(|it: rustls::pki_types::CertificateDer<'_>| it.to_vec())
        .unwrap()
}

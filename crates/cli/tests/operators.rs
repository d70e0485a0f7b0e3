//! Tests of what operators need: certificates and secrets that are checked and reloaded, and a log
//! that tells who used which flow.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{fs, net::UdpSocket, os::unix::fs::symlink};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};

use crate::support::{Scene, comes_back, echo};

const ALICE: &str = "0123456789abcdef";
const BOB: &str = "fedcba9876543210";

/// Writes `cert.pem` and `key.pem` for 127.0.0.1, and the CA that signed the certificate. The
/// certificate ends in this year.
fn write_certificate(scene: &Scene, ca_file: &str, end: i32) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    scene.write(ca_file, ca.self_signed(&ca_key).unwrap().pem());
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    leaf.not_before = date_time_ymd(2020, 1, 1);
    leaf.not_after = date_time_ymd(end, 1, 1);
    let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    scene.write("cert.pem", leaf.pem());
    scene.write("key.pem", key.serialize_pem());
}

fn write_tokens(scene: &Scene, lines: &str) {
    let path = scene.write("tokens", lines);
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn faults_of_certificates_and_keys_are_told_at_the_start() {
    let scene = Scene::new();
    scene.write("root/f", "");
    write_certificate(&scene, "ca.pem", 2021);
    let line = "origin --listen 127.0.0.1:0 --root root --cert cert.pem --key key.pem";
    let said = scene.serve(line).said.clone();
    for words in [
        "certificate for 127.0.0.1; valid until 2021-01-01 00:00 UTC\n",
        "warning: the certificate in cert.pem expired on 2021-01-01 00:00 UTC; every client refuses",
        "can read the private key in key.pem; chmod 600 key.pem\n",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    #[cfg(unix)]
    for (mode, is_warned) in [(0o600, false), (0o640, true), (0o604, true)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(scene.path("key.pem"), mode).unwrap();
        assert_eq!(scene.serve(line).said.contains("chmod 600 key.pem"), is_warned);
    }
    let other_key = KeyPair::generate().unwrap().serialize_pem();
    scene.write("key.pem", other_key);
    scene.run(line).fails(2, &["cert.pem", "does not work with key.pem"]);
}

#[test]
fn a_renewed_certificate_is_for_new_connections_and_old_flows_go_on() {
    let scene = Scene::new();
    scene.write("root/f", "carried");
    let origin = scene.origin();
    write_certificate(&scene, "old.pem", 2040);
    let proxy = scene
        .serve("proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --cert cert.pem --key key.pem");
    let via = format!("--via https://{}", proxy.address);
    let client = scene.serve(&format!("client {via} --ca old.pem --udp 127.0.0.1:0={}", echo()));
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(comes_back(&program, &client));
    let opened = proxy.says("flow opened connection=");
    let (connection, _) = opened.split_once(" flow=").unwrap();
    let (_, connection) = connection.rsplit_once(' ').unwrap();
    let get = |ca: &str| {
        let origin = origin.address;
        scene.run(&format!("get https://{origin}/f {via} --ca {ca} --ca origin.pem -o f"))
    };
    get("old.pem").succeeds();

    write_certificate(&scene, "new.pem", 2041);
    proxy.signal(Signal::HUP);
    assert!(proxy.says("valid until").ends_with("2041-01-01 00:00 UTC"));
    proxy.says("reloaded: certificate, key");
    get("new.pem").succeeds();
    get("old.pem").fails(1, &["no trusted CA has signed"]);
    assert!(comes_back(&program, &client), "the old flow ended");

    scene.write("key.pem", KeyPair::generate().unwrap().serialize_pem());
    proxy.signal(Signal::HUP);
    proxy.says("error: cert.pem: does not work with key.pem");
    proxy.says("the old certificate, key, CA, tokens, keys and limits stay in use");
    get("new.pem").succeeds();
    assert!(comes_back(&program, &client), "the old flow ended");
    let (status, log) = proxy.stop();
    assert!(status.success());
    let opened =
        log.lines().filter(|line| line.contains(&format!("flow opened {connection} "))).count();
    assert_eq!(opened, 0, "it was opened before, and never again:\n{log}");
}

#[test]
fn a_certificate_that_changes_on_the_disk_is_used_without_a_signal() {
    let scene = Scene::new();
    scene.write("root/f", "carried");
    let origin = scene.origin();
    write_certificate(&scene, "old.pem", 2040);
    // As certbot keeps them: the files that the proxy knows are symbolic links.
    for file in ["cert.pem", "key.pem"] {
        fs::rename(scene.path(file), scene.path(&format!("1-{file}"))).unwrap();
        symlink(format!("1-{file}"), scene.path(file)).unwrap();
    }
    let proxy = scene
        .serve("proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --cert cert.pem --key key.pem");
    let via = format!("--via https://{}", proxy.address);
    let client = scene.serve(&format!("client {via} --ca old.pem --udp 127.0.0.1:0={}", echo()));
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(comes_back(&program, &client));
    let get = |ca: &str| {
        let origin = origin.address;
        scene.run(&format!("get https://{origin}/f {via} --ca {ca} --ca origin.pem -o f"))
    };

    // The half of a renewal is refused by name, and the old pair stays in use.
    let other = Scene::new();
    write_certificate(&other, "new.pem", 2041);
    let replace = |file: &str| {
        fs::copy(other.path(file), scene.path(&format!("2-{file}"))).unwrap();
        symlink(format!("2-{file}"), scene.path("link")).unwrap();
        fs::rename(scene.path("link"), scene.path(file)).unwrap();
    };
    replace("cert.pem");
    proxy.says("error: cert.pem: does not work with key.pem");
    proxy.says("not renewed");
    get("old.pem").succeeds();

    replace("key.pem");
    assert!(proxy.says("valid until").ends_with("2041-01-01 00:00 UTC"));
    proxy.says("renewed");
    fs::copy(other.path("new.pem"), scene.path("new.pem")).unwrap();
    get("new.pem").succeeds();
    get("old.pem").fails(1, &["no trusted CA has signed"]);
    assert!(comes_back(&program, &client), "the old flow ended");

    // A file that is written in place is cut off for a while.
    let whole = fs::read(scene.path("cert.pem")).unwrap();
    scene.write("cert.pem", &whole[..whole.len() / 2]);
    proxy.says("error: cert.pem: ");
    get("new.pem").succeeds();
    scene.write("cert.pem", whole);
    proxy.says("renewed");
    let (status, log) = proxy.stop();
    assert!(status.success());
    assert!(!log.contains("error"), "{log}");
}

#[test]
fn the_log_tells_who_used_a_flow_and_a_removed_token_ends_it() {
    let scene = Scene::new();
    scene.write("root/f", "carried");
    let origin = scene.origin();
    write_tokens(&scene, &format!("alice {ALICE}\n"));
    scene.write("alice", ALICE);
    scene.write("bob", BOB);
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --token-file tokens --log-clients \
         --log-flows targets",
    );
    let target = echo();
    let via = format!("--via https://{} --insecure", proxy.address);
    let client =
        scene.serve(&format!("client {via} --token-file alice --udp 127.0.0.1:0={target}"));
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(comes_back(&program, &client));
    let opened = proxy.says("connection opened connection=");
    let (connection, _) = opened.split_once(" client=127.0.0.1:").unwrap();
    let (_, connection) = connection.rsplit_once(' ').unwrap();
    let opened = proxy.says(&format!("flow opened {connection} flow="));
    assert!(opened.contains(" user=alice client=127.0.0.1:"), "{opened}");
    assert!(opened.ends_with(&format!(" destination={target}")), "{opened}");

    let get = format!("get https://{}/f {via} --token-file bob -o f", origin.address);
    scene.run(&get).fails(1, &["401"]);
    let warning = proxy.says("a client sent a wrong token");
    assert!(warning.contains("WARN") && warning.contains("client=127.0.0.1:"), "{warning}");
    assert!(!warning.contains(BOB), "{warning}");

    scene.write("tokens", "# a comment\nshort\n");
    proxy.signal(Signal::HUP);
    proxy.says("error: tokens:2: ");
    proxy.says("not reloaded");
    assert!(comes_back(&program, &client), "a bad file removes no token");

    write_tokens(&scene, &format!("# bob has no name here\n{BOB}\n"));
    proxy.signal(Signal::HUP);
    let closed = proxy.says(&format!("flow closed {connection} flow="));
    assert!(closed.contains("user=alice") && closed.contains("token removed"), "{closed}");
    proxy.says("reloaded: tokens; the development certificate stays");
    scene.run(&get).succeeds();
    proxy.says("user=token-2 ");
}

#[test]
fn a_client_without_a_token_is_called_after_its_certificate() {
    let scene = Scene::new();
    scene.write("root/f", "carried");
    let origin = scene.origin();
    write_certificate(&scene, "clients.pem", 2040);
    let der = CertificateDer::from_pem_file(scene.path("cert.pem")).unwrap();
    let fingerprint = format!("{:x}", Sha256::digest(&der));
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --client-ca clients.pem \
         --write-ca proxy.pem",
    );
    scene
        .run(&format!(
            "get https://{}/f --via https://{} --ca origin.pem --ca proxy.pem \
             --client-cert cert.pem --client-key key.pem -o f",
            origin.address, proxy.address
        ))
        .succeeds();
    let opened = proxy.says("flow opened");
    assert!(opened.contains(&format!(" user=cert-{}", &fingerprint[..16])), "{opened}");
}

#[test]
fn an_operator_decides_whether_the_log_has_addresses() {
    let scene = Scene::new();
    scene.write("root/f", "carried");
    let origin = scene.origin();
    let proxy = scene.proxy("proxy.pem");
    let via = format!("--via https://{} --ca proxy.pem", proxy.address);
    let get = format!("get https://{}/f {via} --ca origin.pem -o f", origin.address);
    scene.run(&get).succeeds();
    proxy.signal(Signal::HUP);
    proxy.says("nothing to reload");
    let (_, log) = proxy.stop();
    assert!(!log.contains("client="), "{log}");
}

#[test]
fn a_generated_certificate_is_complete_when_the_command_returns_and_is_never_overwritten() {
    let scene = Scene::new();
    scene.write("root/f", "carried");
    let line = "generate certificate tls --name proxy.example,192.0.2.1 --name 2001:db8::1";
    let said = scene.run(line).succeeds();
    let names = "localhost, 127.0.0.1, ::1, proxy.example, 192.0.2.1, 2001:db8::1";
    assert!(said.starts_with(&format!("certificate for {names}; valid until ")), "{said}");
    #[cfg(unix)]
    for (file, expected) in [("tls/key.pem", 0o600), ("tls/cert.pem", 0o644), ("tls/ca.pem", 0o644)]
    {
        let mode = fs::metadata(scene.path(file)).unwrap().permissions();
        let mode = std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777;
        assert_eq!(mode & !expected, 0, "{file} has {mode:o}");
    }

    // Both servers and both runs of them share one CA.
    let tls = "--listen 127.0.0.1:0 --cert tls/cert.pem --key tls/key.pem";
    for _ in 0..2 {
        let origin = scene.serve(&format!("origin {tls} --root root"));
        let proxy = scene.serve(&format!("proxy {tls} --allow-target 127.0.0.1"));
        assert!(!proxy.said.contains("warning"), "{}", proxy.said);
        let (origin, proxy) = (origin.address, proxy.address);
        scene
            .run(&format!("get https://{origin}/f --via https://{proxy} --ca tls/ca.pem -o f"))
            .succeeds();
    }

    let files = ["ca.pem", "cert.pem", "key.pem"];
    let read = || files.map(|file| fs::read(scene.path(&format!("tls/{file}"))).unwrap());
    let before = read();
    scene.run(line).fails(2, &["tls/ca.pem exists already", "another folder"]);
    assert_eq!(read(), before);
    for file in files {
        let folder = file.replace(".pem", "");
        scene.write(&format!("{folder}/{file}"), "mine");
        scene.run(&format!("generate certificate {folder}")).fails(2, &[file, "exists already"]);
        assert_eq!(fs::read_dir(scene.path(&folder)).unwrap().count(), 1);
    }
    scene.run("generate certificate other --name a..b").fails(2, &["a..b", "host name"]);
    assert!(!scene.path("other").exists());
}

//! Users of a proxy and their limits, with several threads and real sockets.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{fs, io::ErrorKind, net::UdpSocket, time::Duration};

use rustix::process::Signal;
use support::{Scene, Server, echo, eventually};

const TOKENS: &str = "alice 0123456789abcdef\nbob fedcba9876543210\n";

fn proxy(scene: &Scene, more: &str) -> Server {
    scene.write("tokens", TOKENS);
    scene.write("alice", "0123456789abcdef\n");
    scene.serve(&format!(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca proxy.pem --token-file tokens \
         --threads 2 --users-file users.toml {more}"
    ))
}

/// A client of alice with a flow to the target, and the program that uses it.
fn client(scene: &Scene, proxy: &Server, target: std::net::SocketAddr) -> (Server, UdpSocket) {
    let client = scene.serve(&format!(
        "client --via https://{} --ca proxy.pem --token-file alice --udp 127.0.0.1:0={target}",
        proxy.address,
    ));
    client.says("tunnel up");
    let program = program(&client);
    (client, program)
}

/// A program that uses the flow of a client.
fn program(client: &Server) -> UdpSocket {
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    program.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    program.connect(client.address).unwrap();
    program
}

/// Whether a packet comes back.
fn echoes(program: &UdpSocket, payload: &[u8]) -> bool {
    program.send(payload).unwrap();
    let mut buffer = [0; 2000];
    match program.recv(&mut buffer) {
        Ok(_) => true,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn limits_hold_over_all_threads_and_change_while_flows_are_open() {
    let scene = Scene::new();
    scene.write("users.toml", "[default]\nflows = 5\n");
    let (target, proxy) = (echo(), proxy(&scene, ""));
    // Each client opens the flow of its first program when it starts, and waits until it is granted.
    let clients: Vec<_> = (0..4).map(|_| client(&scene, &proxy, target)).collect();
    let second = |(client, _): &(Server, UdpSocket)| program(client);
    let mut programs: Vec<_> = clients.iter().map(second).collect();
    let open = |programs: &[UdpSocket]| {
        let first = clients.iter().map(|(_, program)| program);
        first.chain(programs).filter(|program| echoes(program, b"anybody?")).count()
    };
    eventually("five flows", || open(&programs) == 5);
    assert_eq!(open(&programs), 5, "no thread opens more");
    scene.write("users.toml", "[default]\nflows = 8\nflow = 9\n");
    proxy.signal(Signal::HUP);
    let error = proxy.says("error: ");
    assert!(error.contains("users.toml:3") && error.contains("unknown field `flow`"), "{error}");
    assert_eq!(open(&programs), 5, "a bad file changes nothing");
    scene.write("users.toml", "[default]\nflows = 8\n");
    proxy.signal(Signal::HUP);
    proxy.says("limits of users");
    // A client remembers for a while that the flow of a program was refused.
    for (old, (client, _)) in programs.iter_mut().zip(&clients) {
        if !echoes(old, b"anybody?") {
            *old = program(client);
        }
    }
    eventually("eight flows", || open(&programs) == 8);
}

#[test]
fn what_is_used_is_kept_and_ends_flows_also_after_a_restart() {
    let scene = Scene::new();
    scene.write("users.toml", "[user.alice]\nmonth-bytes = \"1MB\"\n");
    let target = echo();
    let first = proxy(&scene, "--usage-store usage.db");
    let (used, program) = client(&scene, &first, target);
    eventually("a flow", || echoes(&program, &[1; 1000]));
    for _ in 0..300 {
        echoes(&program, &[1; 1000]);
    }
    drop(used);
    let (status, log) = first.stop();
    assert!(status.success(), "{log}");
    let shown = scene.run("users --store usage.db --json").succeeds();
    assert!(
        shown.contains("\"user\":\"alice\"") && shown.contains("\"limit_bytes\":1000000"),
        "{shown}"
    );
    let second = proxy(&scene, "--usage-store usage.db");
    let shown = scene.run("users --store usage.db").succeeds();
    assert!(shown.contains("| alice") && shown.contains("1 MB"), "{shown}");
    let (_client, program) = client(&scene, &second, target);
    eventually("a flow", || echoes(&program, &[1; 1000]));
    let passed = (0..600).take_while(|_| echoes(&program, &[1; 1000])).count();
    assert!(passed < 300, "600 kB were used before, and {passed} kB twice now");
    second.says("bytes of this month are used up");
}

#[test]
fn a_store_that_cannot_be_used_is_named_and_the_proxy_serves() {
    let scene = Scene::new();
    scene.write("users.toml", "");
    scene.write("usage.db", "no database".repeat(100));
    let proxy = proxy(&scene, "--usage-store usage.db");
    let warning = ["usage.db", "not a database", "serves without it"];
    let said =
        if proxy.said.contains("usage.db") { proxy.said.clone() } else { proxy.says("usage.db") };
    assert!(warning.iter().all(|word| said.contains(word)), "{said}");
    let (_client, program) = client(&scene, &proxy, echo());
    eventually("a flow", || echoes(&program, b"served"));
    assert_eq!(fs::read(scene.path("usage.db")).unwrap(), "no database".repeat(100).as_bytes());
    scene.run("users --store usage.db").fails(1, &["usage.db", "not a database"]);
}

#[test]
fn a_proxy_that_requires_its_store_does_not_start_without_it() {
    let scene = Scene::new();
    scene.write("tokens", TOKENS);
    scene.write("users.toml", "");
    let line = "proxy --listen 127.0.0.1:0 --token-file tokens --usage-store usage.db \
                --require-usage-store";
    for (damaged, reason) in
        [("no database".repeat(100), "not a database"), ("x".to_owned(), "version 0")]
    {
        scene.write("usage.db", &damaged);
        scene.run(line).fails(1, &["usage.db", reason]);
        assert_eq!(fs::read(scene.path("usage.db")).unwrap(), damaged.as_bytes());
    }
    fs::remove_file(scene.path("usage.db")).unwrap();
    let proxy = proxy(&scene, "--usage-store usage.db --require-usage-store");
    // Another process has it.
    scene.run(line).fails(1, &["another process writes to it"]);
    let (status, log) = proxy.stop();
    assert!(status.success(), "{log}");
    scene.run("users --store usage.db").succeeds();
    let alone = "proxy --listen 127.0.0.1:0 --check --require-usage-store";
    scene.run(alone).fails(2, &["require-usage-store needs usage-store"]);
}

#[test]
fn keys_without_an_issuer_and_an_audience_are_warned_of() {
    let scene = Scene::new();
    scene.write("keys.json", include_str!("../../lab/tests/hostile/users/keys.json"));
    for (setting, is_warned) in
        [("", true), ("--jwt-issuer me", false), ("--jwt-audience proxy", false)]
    {
        let line = format!("proxy --listen 127.0.0.1:0 --jwks keys.json {setting}");
        let proxy = Server::start(scene.command(line.split_whitespace()), &line);
        let warning = "without --jwt-issuer and --jwt-audience";
        assert_eq!(proxy.said.contains(warning), is_warned, "{}", proxy.said);
    }
}

#[test]
fn check_reads_the_files_of_users() {
    let scene = Scene::new();
    scene.write("tokens", TOKENS);
    let check = "proxy --listen 127.0.0.1:0 --check --users-file users.toml --jwks keys.json";
    scene.write("users.toml", "[user.alice]\ngroup = \"staff\"\n");
    scene.write("keys.json", "{\"keys\":[");
    scene.run(check).fails(2, &["keys.json", "no JWK Set"]);
    scene.write("keys.json", include_str!("../../lab/tests/hostile/users/keys.json"));
    scene.run(check).fails(2, &["users.toml:2", "no [group.staff]"]);
    scene.write("users.toml", "[user.alice]\nrate-to-client = \"50Mbit/s\"\n");
    let shown = scene.run(check).succeeds();
    assert!(shown.contains("users-file = \"users.toml\"") && shown.contains("jwks"), "{shown}");
    let alone = "proxy --listen 127.0.0.1:0 --check --jwt-issuer me";
    scene.run(alone).fails(2, &["jwt-issuer needs jwks"]);
}

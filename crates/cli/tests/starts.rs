//! Clients that are started before their servers, and clients that are refused.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    process::Stdio,
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::support::{Scene, Server, sha256};

/// A port of loopback that nothing uses at the moment.
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_download_that_is_started_before_its_servers_succeeds() {
    let scene = Scene::new();
    let file = scene.write_noise("root/file", 100_000);
    let (origin, proxy) = (free_port(), free_port());
    let get = format!(
        "get https://127.0.0.1:{origin}/file --via https://127.0.0.1:{proxy} --ca origin.pem \
         --ca proxy.pem --retry 20s -o out"
    );
    let mut command = scene.command(get.split_whitespace());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pause = Duration::from_millis(300);
    thread::sleep(pause);
    let serve = |line: String| scene.serve(&line);
    let proxy = serve(format!(
        "proxy --listen 127.0.0.1:{proxy} --allow-target 127.0.0.0/8 --write-ca proxy.pem"
    ));
    thread::sleep(pause);
    let origin =
        serve(format!("origin --listen 127.0.0.1:{origin} --root root --write-ca origin.pem"));
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("origin.pem") && said.contains("trying again"), "{said}");
    assert_eq!(sha256(&scene.path("out")), sha256(&file));
    drop((proxy, origin));
}

#[test]
fn without_time_to_retry_a_missing_server_ends_a_client_at_once() {
    let scene = Scene::new();
    let port = free_port();
    for line in [
        format!("get https://127.0.0.1:{port}/ --insecure -o out"),
        format!("get https://127.0.0.1:{port}/ --insecure -o out --retry 0"),
        format!("get https://127.0.0.1:1/ --via https://127.0.0.1:{port} --insecure -o out"),
        format!("client --via https://127.0.0.1:{port} --udp 127.0.0.1:0=a:1 --insecure --retry 0"),
        format!(
            "client --via https://127.0.0.1:{port} --udp 127.0.0.1:0=a:1 --insecure --retry 1s"
        ),
    ] {
        scene.run(&line).fails(1, &["no program listens at", "check host and port"]);
    }
}

#[test]
fn a_client_waits_for_its_proxy() {
    let scene = Scene::new();
    let port = free_port();
    let line =
        format!("client --via https://127.0.0.1:{port} --udp 127.0.0.1:0=127.0.0.1:9 --insecure");
    let mut command = scene.command(line.split_whitespace());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    let proxy = scene.serve(&format!("proxy --listen 127.0.0.1:{port} --allow-target 127.0.0.0/8"));
    proxy.says("flow opened");
    let id = i32::try_from(child.id()).unwrap();
    thread::sleep(Duration::from_millis(300));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(id).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let warnings = said.lines().filter(|line| line.contains("no program listens at")).count();
    assert_eq!(warnings, 1, "{said}");
    assert!(said.contains("tunnel up") && said.contains("listening on"), "{said}");
}

#[test]
fn a_client_that_has_no_right_to_use_a_proxy_says_so_at_once() {
    let scene = Scene::new();
    scene.write("right", "0123456789abcdef\n");
    scene.write("wrong", "fedcba9876543210\n");
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --token-file right --write-ca ca.pem",
    );
    let client = |token: &str, target: &str| {
        format!(
            "client --via https://{} --ca ca.pem --token-file {token} --udp 127.0.0.1:0={target}",
            proxy.address
        )
    };
    scene.run(&client("wrong", "127.0.0.1:9")).fails(1, &["status 401", "--token-file"]);
    scene.run(&client("right", "10.0.0.1:9")).fails(1, &["status 403", "--allow-target"]);
    scene
        .run(&client("right", "no.invalid:9"))
        .fails(1, &["status 502", "check the name of the target"]);
    scene
        .run(&client("right", "127.0.0.1:9").replace("ca.pem", "/etc/hostname"))
        .fails(2, &["/etc/hostname"]);
    let server: Server = scene.serve(&client("right", "127.0.0.1:9"));
    server.says("tunnel up");
    // Without a target, it is the right to use the proxy that is checked.
    let proxy_port = |token| client(token, "").replace("--udp 127.0.0.1:0=", "--proxy 127.0.0.1:0");
    let tcp_port = |token| client(token, "127.0.0.1:9").replace("--udp", "--tcp");
    for line in [proxy_port("wrong"), tcp_port("wrong")] {
        let run = scene.run(&line);
        run.fails(1, &["status 401", "a valid token is required", "--token-file"]);
        assert!(!run.stderr().contains("tunnel up"), "{}", run.stderr());
    }
    for line in [proxy_port("right"), tcp_port("right")] {
        scene.serve(&line).says("tunnel up");
    }
}

#[test]
fn a_token_that_is_removed_later_is_told_in_the_log() {
    let scene = Scene::new();
    scene.write("tokens", "alice 0123456789abcdef\n");
    scene.write("token", "0123456789abcdef\n");
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --token-file tokens --write-ca ca.pem",
    );
    let client = scene.serve(&format!(
        "client --via https://{} --ca ca.pem --token-file token --proxy 127.0.0.1:0",
        proxy.address
    ));
    client.says("tunnel up");
    scene.write("tokens", "bob fedcba9876543210\n");
    proxy.signal(rustix::process::Signal::HUP);
    proxy.says("reloaded");
    let mut program = TcpStream::connect(client.address).unwrap();
    program.write_all(b"CONNECT 127.0.0.1:9 HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n").unwrap();
    let mut answer = String::new();
    program.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden"), "{answer}");
    assert!(answer.contains("a valid token is required"), "{answer}");
    let line = client.says("a valid token is required");
    assert!(line.contains("WARN") && line.contains("--token-file"), "{line}");
}

#[test]
fn a_program_that_comes_before_the_proxy_waits() {
    let scene = Scene::new();
    let port = free_port();
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = target.local_addr().unwrap();
    let client = scene
        .serve(&format!("client --via https://127.0.0.1:{port} --tcp 127.0.0.1:0={to} --insecure"));
    let mut program = TcpStream::connect(client.address).unwrap();
    client.says("no program listens at");
    let proxy = scene.serve(&format!("proxy --listen 127.0.0.1:{port} --allow-target 127.0.0.0/8"));
    target.accept().unwrap().0.write_all(b"welcome").unwrap();
    let mut welcome = String::new();
    program.read_to_string(&mut welcome).unwrap();
    assert_eq!(welcome, "welcome");
    drop(proxy);
}

#[test]
fn a_client_says_which_packets_do_not_fit_and_carries_them_if_it_may() {
    let scene = Scene::new();
    let proxy = scene.proxy("proxy.pem");
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let to = target.local_addr().unwrap();
    for (oversize, arrive, dropped) in [("auto", &[5000, 3000, 1][..], 0), ("drop", &[1], 2)] {
        let client = scene.serve(&format!(
            "client --udp 127.0.0.1:0={to} --via https://{} --ca proxy.pem --oversize {oversize} --json",
            proxy.address
        ));
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buffer = vec![0; 9000];
        for len in [5000, 3000, 1] {
            program.send_to(&vec![7; len], client.address).unwrap();
            if arrive.contains(&len) {
                assert_eq!(target.recv(&mut buffer).unwrap(), len, "{oversize}");
            }
        }
        let counters: Value = serde_json::from_str(&client.stop_and_read()).unwrap();
        assert_eq!(counters["dropped_too_large"], dropped, "{oversize}: {counters}");
        assert_eq!(counters["to_target_packets"], arrive.len(), "{oversize}: {counters}");
    }
}

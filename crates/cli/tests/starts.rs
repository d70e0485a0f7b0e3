//! Clients that are started before their servers, and clients that are refused.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{net::UdpSocket, process::Stdio, thread, time::Duration};

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
    scene.run(&client("wrong", "127.0.0.1:9")).fails(1, &["status 407", "--token-file"]);
    scene.run(&client("right", "10.0.0.1:9")).fails(1, &["status 403", "--allow-target"]);
    scene.run(&client("right", "no.invalid:9")).fails(1, &["status 502", "check its name"]);
    scene
        .run(&client("right", "127.0.0.1:9").replace("ca.pem", "/etc/hostname"))
        .fails(2, &["/etc/hostname"]);
    let server: Server = scene.serve(&client("right", "127.0.0.1:9"));
    assert!(server.said.contains("tunnel up"), "{}", server.said);
}

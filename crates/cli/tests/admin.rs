//! What operators see of a running proxy and origin, and users of a running client.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    path::Path,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Scene, comes_back, echo, eventually};

/// The status and the body of a page.
fn get(admin: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {admin}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The value of each metric, with its labels in the name.
fn scrape(admin: SocketAddr) -> BTreeMap<String, f64> {
    let (status, text) = get(admin, "/metrics");
    assert_eq!(status, 200);
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.map(|line| line.rsplit_once(' ').unwrap());
    samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// Checks that the documentation names each key under this heading.
fn assert_is_documented(heading: &str, now: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/commands.md");
    let document = fs::read_to_string(path).unwrap();
    let (_, section) = document.split_once(&format!("### {heading}\n")).unwrap();
    let section = section.split("\n#").next().unwrap();
    for (key, value) in now.as_object().unwrap() {
        let row = section.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("{key} is not documented"));
        let inner = value.as_object().filter(|_| !["dropped", "refused"].contains(&key.as_str()));
        for key in inner.into_iter().flat_map(|inner| inner.keys()) {
            assert!(row.contains(&format!("`{key}`")), "{key} is not in {row}");
        }
        let first = value.as_array().and_then(|all| all.first());
        for inner in first.and_then(Value::as_object).into_iter().flat_map(|first| first.keys()) {
            assert!(
                section.contains(&format!("`{key}.{inner}`")),
                "{key}.{inner} is not documented"
            );
        }
    }
}

#[test]
fn metrics_and_pages_follow_the_traffic() {
    let scene = Scene::new();
    scene.write_noise("root/f", 500_000);
    let origin = scene.serve("origin --listen 127.0.0.1:0 --root root --admin 127.0.0.1:0");
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --admin 127.0.0.1:0 --threads 2",
    );
    let admin = proxy.admin();
    eventually("the proxy is ready", || get(admin, "/readyz").0 == 200);
    assert_eq!(get(admin, "/healthz"), (200, "ok\n".to_owned()));
    scene.run(&format!("top {admin} --ready")).succeeds();
    let before = scrape(admin);
    assert!(before["tandem_udp_bytes_total{direction=\"to_client\"}"] < 1.0);
    let line = format!(
        "get https://{}/f --via https://{} --insecure --mode rmdt -o f",
        origin.address, proxy.address
    );
    scene.run(&line).succeeds();
    eventually("the download is counted", || {
        let now = scrape(admin);
        let has_grown = |name: &str, by: f64| now[name] >= before[name] + by;
        has_grown("tandem_udp_bytes_total{direction=\"to_client\"}", 500_000.0)
            && has_grown("tandem_udp_bytes_total{direction=\"to_target\"}", 1000.0)
            && has_grown("tandem_flows_total", 1.0)
            && has_grown("tandem_connections_total", 1.0)
            && has_grown("tandem_quic_packets_sent_total", 400.0)
            && has_grown("tandem_socket_bytes_total{direction=\"sent\"}", 500_000.0)
    });
    eventually("the origin counts it too", || {
        scrape(origin.admin())["tandem_file_bytes_total"] >= 500_000.0
    });
    let now = scene.run(&format!("top {admin} --json")).succeeds();
    let now: Value = serde_json::from_str(&now).unwrap();
    assert_eq!((&now["role"], &now["flows"]["udp_total"]), (&"proxy".into(), &1.into()));
    assert!(now["history"]["to_client_mbps"].as_array().unwrap().len() > 1);
    assert_is_documented("`tandem top --json`", &now);
    let (status, page) = get(admin, "/");
    assert!(status == 200 && page.contains("Tandem proxy") && page.len() < 50_000);
    assert_eq!(get(admin, "/other").0, 404);
}

#[test]
fn a_client_shows_its_tunnel_and_its_flows() {
    let scene = Scene::new();
    let proxy = scene.proxy("ca.pem");
    let target = echo();
    let line = format!(
        "client --via https://{} --ca ca.pem --udp 127.0.0.1:0={target} --admin 127.0.0.1:0",
        proxy.address
    );
    let client = scene.serve(&line);
    let admin = client.admin();
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(comes_back(&program, &client));
    eventually("the client is ready", || get(admin, "/readyz").0 == 200);
    scene.run(&format!("top {admin} --ready")).succeeds();
    let now = || -> Value {
        let json = scene.run(&format!("top {admin} --json")).succeeds();
        serde_json::from_str(&json).unwrap()
    };
    eventually("the payload is counted", || now()["open_flows"][0]["to_client_bytes"] == 4);
    let now = now();
    assert_eq!((&now["role"], &now["state"]), (&"client".into(), &"up".into()));
    assert_eq!(now["open_flows"][0]["target"], target.to_string());
    assert_eq!(now["hops"][0]["proxy"], proxy.address.to_string());
    assert!(now["hops"][0]["received_bytes"].as_u64() > Some(1000));
    assert_is_documented("`tandem top --json` of a client", &now);
    let samples = scrape(admin);
    assert!(samples["tandem_client_udp_bytes_total{direction=\"to_client\"}"] >= 4.0);
    assert!(!get(admin, "/metrics").1.contains(&target.to_string()), "metrics name no targets");
    assert_eq!(get(admin, "/other").0, 404);
    drop(proxy);
    let (status, log) = client.stop();
    assert!(status.success(), "{log}");
}

#[test]
fn a_client_without_a_tunnel_says_why() {
    let scene = Scene::new();
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let line =
        format!("client --via https://{closed} --insecure --proxy 127.0.0.1:0 --admin unix:a");
    let client = scene.serve(&line);
    client.says("trying again");
    let ready = || scene.run("top unix:a --ready");
    eventually("the cause is known", || ready().stderr().contains("no program listens"));
    ready().fails(1, &["no tunnel at present", "no program listens", "connection refused"]);
}

#[test]
fn a_proxy_that_drains_says_so_and_lets_open_flows_go_on() {
    let scene = Scene::new();
    scene.write("root/f", "carried");
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --admin 127.0.0.1:0 --drain 60s",
    );
    let target = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let line = format!(
        "client --via https://{} --insecure --udp 127.0.0.1:0={}",
        proxy.address,
        target.local_addr().unwrap()
    );
    let client = scene.serve(&line);
    let program = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    program.send_to(b"ping", client.address).unwrap();
    target.recv_from(&mut [0; 10]).unwrap();
    let admin = proxy.admin();
    proxy.signal(Signal::TERM);
    eventually("the proxy drains", || get(admin, "/readyz") == (503, "draining\n".to_owned()));
    assert_eq!(get(admin, "/healthz").0, 200);
    scene.run(&format!("top {admin} --ready")).fails(1, &["takes no new connections", "drains"]);
}

#[test]
fn only_this_machine_is_served() {
    let scene = Scene::new();
    let line = "proxy --listen 127.0.0.1:0 --admin";
    scene.run(&format!("{line} 0.0.0.0:9433")).fails(2, &["other machines", "ssh -L", "unix:PATH"]);
    let socket = scene.path("admin").display().to_string();
    let proxy = scene.serve(&format!("{line} unix:{socket}"));
    scene.run(&format!("top unix:{socket} --json")).succeeds();
    scene.run(&format!("{line} unix:{socket}")).fails(1, &["--admin", "another program listens"]);
    drop(proxy);
    scene.run("top unix:nowhere --json").fails(1, &["cannot connect", "--admin unix:nowhere"]);
}

use std::time::Instant;

use tandem_node::{
    client::{FlowKind, FlowPhase, FlowStatus, HopStatus},
    stats::{ConnectionStats, Stats, TcpStats},
};
use tandem_units::ByteCount;

use tandem_node::StrangerText;

use super::*;

fn hop(sent_bytes: u64) -> HopStatus {
    HopStatus {
        authority: "proxy.example".to_owned(),
        is_up: true,
        handshake: Some(Duration::from_millis(40)),
        agreement: None,
        connection: ConnectionStats {
            smoothed_rtt: Duration::from_millis(20),
            sent_packets: 200,
            lost_packets: 3,
            ..ConnectionStats::default()
        },
        sent_bytes,
        received_bytes: 7,
        tunnel: Stats::default(),
        queued: ByteCount::new(1000),
    }
}

fn status(sent_bytes: u64, target: &str, now: Instant) -> ClientStatus {
    let flow = FlowStatus {
        kind: FlowKind::Tcp,
        target: target.to_owned(),
        phase: FlowPhase::Open,
        to_target_bytes: 10,
        to_client_bytes: 20,
        began: Some(now),
        last: None,
    };
    let tcp = TcpStats { to_client_bytes: 5_000, opened: 2, ..TcpStats::default() };
    let stats = Stats { to_client_bytes: 1_000, tcp, ..Stats::default() };
    ClientStatus {
        stats,
        hops: vec![hop(sent_bytes)],
        end_to_end: None,
        flows: vec![flow],
        flows_open: 1,
    }
}

fn shared(seen: Seen) -> Shared {
    Arc::new(Mutex::new(Arc::new(seen)))
}

fn body(path: &str, seen: Seen) -> (u16, String) {
    let answer = answer_for(path, &shared(seen));
    (answer.status().as_u16(), String::from_utf8(answer.body().to_vec()).unwrap())
}

#[test]
fn a_client_shows_its_tunnels_and_flows() {
    let now = tandem_net::clock::now();
    let mut board = Board::new();
    assert_eq!(body("/readyz", board.see(&ClientStatus::default())).0, 503);
    board.note_up();
    board.update(&status(1_000, "git.example:22", now));
    let seen = board.update(&status(10, "git.example:22", now)); // of a new connection
    assert_eq!(body("/readyz", seen.clone()), (200, "ready\n".to_owned()));
    let (_, json) = body("/api/now", seen.clone());
    let read: ClientNow = serde_json::from_str(&json).unwrap();
    assert_eq!((read.state, read.carried.to_client_bytes), (ClientState::Up, 6_000));
    assert_eq!((read.history.rtt_s.len(), read.hops[0].lost_ratio), (2, 0.015));
    assert!(read.hops[0].sent_mbps > 0.0);
    assert_eq!((&*read.open_flows[0].target, &*read.open_flows[0].kind), ("git.example:22", "tcp"));
    let (_, text) = body("/metrics", seen);
    for line in [
        "tandem_client_up 1\n",
        "tandem_client_rtt_seconds{hop=\"1\"} 0.02\n",
        "tandem_client_packets_lost_total{hop=\"1\"} 3\n",
        "tandem_client_tcp_bytes_total{direction=\"to_client\"} 5000\n",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    assert!(!text.contains("git.example"), "metrics do not name targets");
}

#[test]
fn a_client_without_a_tunnel_says_why() {
    let mut board = Board::new();
    let error = |peer: &str| ClientError::NoAnswer {
        peer: peer.to_owned(),
        timeout: Duration::from_secs(12),
    };
    board.note_lost(&error("p"), Duration::from_secs(60));
    let seen = board.see(&ClientStatus::default());
    assert_eq!((seen.now.state, seen.now.lost), (ClientState::Away, 0), "it was never up");
    assert_eq!(seen.now.error.as_deref(), Some("p does not answer within 12s"));
    assert!(seen.now.retry_in_s > Some(50.0));
    assert_eq!(body("/readyz", seen), (503, "trying again\n".to_owned()));
    board.note_up();
    board.note_lost(&error(&"x".repeat(1_000)), Duration::ZERO);
    board.note_lost(&error("q"), Duration::ZERO);
    board.note_up();
    let now = board.see(&ClientStatus::default()).now;
    assert_eq!((now.state, now.lost, now.retry_in_s), (ClientState::Up, 1, None));
}

#[test]
fn what_programs_and_proxies_have_named_can_be_shown() {
    let mut board = Board::new();
    let hostile = format!("\u{1b}[2J{}", "\u{202e}".repeat(1_000));
    let error = ClientError::ConnectionLost { peer: "p".into(), reason: (&*hostile).into() };
    board.note_lost(&error, Duration::ZERO);
    let now = board.see(&status(0, &hostile, tandem_net::clock::now())).now;
    for text in [now.error.unwrap(), now.open_flows[0].target.clone()] {
        assert!(text.chars().count() <= StrangerText::SHOWN_MAX && !text.contains('\u{1b}'));
        assert_eq!(StrangerText::new(&text).to_string(), text, "escaped once");
    }
}

#[test]
fn the_listener_ends_with_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let address: AdminAddr = format!("unix:{}/admin", dir.path().display()).parse().unwrap();
    let mut admin = ClientAdmin::start(&address).unwrap();
    admin.note_up();
    admin.note(&ClientStatus::default());
    let error = ClientAdmin::start(&address).unwrap_err().to_string();
    assert!(error.contains("--admin") && error.contains("another program"), "{error}");
    let get = |path| {
        let runtime = runtime().unwrap();
        runtime.block_on(tandem_net::admin::get(&address.0, path))
    };
    assert_eq!(&get("/readyz").unwrap()[..], b"ready\n");
    drop(admin);
    assert!(get("/readyz").is_err() && !dir.path().join("admin").exists());
}

#[test]
fn the_documented_metrics_are_those_of_the_program() {
    let mut board = Board::new();
    let seen = board.update(&status(0, "t", tandem_net::clock::now()));
    let rows =
        metrics::rows(&seen).into_iter().filter(|[name, ..]| name.starts_with("tandem_client_"));
    let expected: Vec<_> = rows
        .map(|[name, kind, label, help]| format!("| `{name}` | {kind} | {label} | {help} |"))
        .collect();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/guide/monitoring.md")).unwrap();
    let documented: Vec<_> =
        text.lines().filter(|line| line.starts_with("| `tandem_client_")).collect();
    assert_eq!(documented, expected, "the table should be:\n{}", expected.join("\n"));
}

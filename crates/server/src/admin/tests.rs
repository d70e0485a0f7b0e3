use std::{collections::BTreeSet, fs, path::Path};

use tandem_node::{
    ConnectionStats,
    status::{ConnectionStatus, TunnelStatus},
};
use tandem_units::ByteCount;

use super::*;

const RUNNING: OfProcess =
    OfProcess { is_draining: false, stuck_threads: 0, lost_log_lines: 0, cut_qlogs: 0 };
const DRAINING: OfProcess =
    OfProcess { is_draining: true, stuck_threads: 2, lost_log_lines: 3, cut_qlogs: 4 };
const SECOND: Duration = Duration::from_secs(1);

fn admin(role: RoleName, threads: u8) -> Admin {
    let address = "127.0.0.1:0".parse().unwrap();
    let users = (role == RoleName::Proxy).then(Users::default);
    let behind =
        Behind { users: users.as_ref(), upstream: (role == RoleName::Origin).then(Arc::default) };
    Admin::new(Some(&address), role, threads, &Limits::default(), behind).unwrap()
}

fn tunnel(connection: u64, bytes: u64) -> ConnectionStatus {
    ConnectionStatus {
        connection,
        stats: ConnectionStats { smoothed_rtt: SECOND / 50, ..ConnectionStats::default() },
        to_client_bytes: bytes,
        from_client_bytes: 0,
        tunnel: Some(TunnelStatus {
            user: Some("<script>alice".to_owned()),
            client: None,
            udp_flows: 2,
            tcp_flows: 1,
            queued: ByteCount::new(1000),
        }),
    }
}

fn status(connections: u64) -> Status {
    Status {
        stats: Stats { connections_open: connections, flows: 7, ..Stats::default() },
        takes_connections: true,
        queued: ByteCount::new(5000),
        rtts: (1..=connections).map(|it| SECOND / 1000 * u32::try_from(it).unwrap()).collect(),
        busiest: (0..connections.min(BUSIEST as u64)).map(|id| tunnel(id, 1000 * id)).collect(),
    }
}

fn body(answer: &Answer) -> String {
    String::from_utf8(answer.body().to_vec()).unwrap()
}

#[test]
fn the_states_of_all_threads_become_one() {
    let admin = admin(RoleName::Proxy, 2);
    let board = Board::new(&admin.facts);
    assert_eq!(admin.answer("/readyz", &board, RUNNING).status(), 503, "no thread has run yet");
    admin.note(0, status(100), &DriverStats::default());
    admin.note(1, status(50), &DriverStats::default());
    board.update(&admin.seen(), RUNNING);
    board.update(&admin.seen(), RUNNING); // with nothing new
    let now = board.now(&admin.seen(), RUNNING);
    assert_eq!((now.connections.open, now.queue.bytes, now.flows.udp_total), (150, 10_000, 14));
    assert_eq!(now.tunnels.len(), BUSIEST);
    assert_eq!((now.tunnels[0].connection, now.tunnels[1].connection), (19, 19));
    let rtt = now.rtt.unwrap();
    assert_eq!((rtt.median_s, rtt.max_s), (0.038, 0.1));
    let text = body(&admin.answer("/metrics", &board, RUNNING));
    for line in [
        "tandem_connections_open 150\n",
        "tandem_flows_total 14\n",
        "tandem_rtt_seconds_count 150\n",
        "# TYPE tandem_udp_bytes_total counter\n",
        "tandem_udp_bytes_total{direction=\"to_client\"} 0\n",
        "tandem_memory_bound_bytes 1073741824\n",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    assert_eq!(admin.answer("/readyz", &board, RUNNING).status(), 200);
    let draining = admin.answer("/readyz", &board, DRAINING);
    assert_eq!((draining.status().as_u16(), body(&draining).as_str()), (503, "draining\n"));
    assert_eq!(admin.answer("/healthz", &board, DRAINING).status(), 200);
    admin.note(1, Status { takes_connections: false, ..status(50) }, &DriverStats::default());
    assert_eq!(body(&admin.answer("/readyz", &board, RUNNING)), "short of memory\n");
    let now: Now =
        serde_json::from_str(&body(&admin.answer("/api/now", &board, DRAINING))).unwrap();
    assert!(now.is_draining && !now.is_ready && now.stuck_threads == 2);
    assert_eq!((now.lost_log_lines, now.cut_qlogs), (3, 4));
}

#[test]
fn the_page_is_small_and_runs_nothing_that_a_user_has_named() {
    let admin = admin(RoleName::Proxy, 1);
    let board = Board::new(&admin.facts);
    admin.note(0, status(10_000), &DriverStats::default());
    for _ in 0..400 {
        board.update(&admin.seen(), RUNNING);
    }
    let page = admin.answer("/", &board, RUNNING);
    let text = body(&page);
    assert!(text.len() < 50_000, "{} bytes", text.len());
    assert!(text.contains("&lt;script&gt;alice") && !text.contains("<script>alice"));
    assert!(text.contains("<noscript>") && text.contains("prefers-color-scheme: dark"));
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!text.contains(outside), "{outside} in the page");
    }
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let live = body(&admin.answer("/live", &board, RUNNING));
    assert!(live.starts_with("<main>") && text.contains("10\u{202f}000"), "{live}");
}

fn document(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap()
}

/// The rows of the metrics of a role.
fn rows(role: RoleName) -> Vec<[String; 4]> {
    let admin = admin(role, 1);
    admin.note(0, Status::default(), &DriverStats::default());
    metrics::table(
        &admin.facts,
        &admin.seen()[0],
        (role == RoleName::Origin).then(PathTotals::default),
    )
}

#[test]
fn the_documented_metrics_are_those_of_the_program() {
    let (proxy, origin) = (rows(RoleName::Proxy), rows(RoleName::Origin));
    let mut expected = Vec::new();
    for row in proxy.iter().chain(origin.iter().filter(|row| !proxy.contains(row))) {
        let [name, kind, label, help] = row;
        let is_of = |rows: &[[String; 4]]| rows.iter().any(|it| it[0] == *name);
        let server = match (is_of(&proxy), is_of(&origin)) {
            (true, true) => "both",
            (true, false) => "proxy",
            _ => "origin",
        };
        expected.push(format!("| `{name}` | {kind} | {label} | {server} | {help} |"));
    }
    let text = document("docs/guide/monitoring.md");
    let is_metric = |line: &&str| {
        let is_of_server = line.starts_with("| `tandem_") && !line.starts_with("| `tandem_client_");
        is_of_server || line.starts_with("| `process_")
    };
    let documented: Vec<_> = text.lines().filter(is_metric).collect();
    assert_eq!(documented, expected, "the table should be:\n{}", expected.join("\n"));
}

#[test]
fn the_dashboard_names_only_metrics_that_exist() {
    let rows = [rows(RoleName::Proxy), rows(RoleName::Origin)].concat();
    let mut names: BTreeSet<String> = rows.into_iter().map(|[name, ..]| name).collect();
    names.extend(["bucket", "sum", "count"].map(|part| format!("tandem_rtt_seconds_{part}")));
    let text = document("deploy/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(queries.len() >= 15, "only {} queries", queries.len());
    for query in queries {
        let words = query.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let used = words.filter(|word| word.starts_with("tandem_") || word.starts_with("process_"));
        let used: Vec<_> = used.collect();
        assert!(!used.is_empty(), "{query}");
        for name in used {
            assert!(names.contains(name), "{name} in {query} does not exist");
        }
    }
}

//! What users measure before they ask somebody else.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "support/scripted.rs"]
mod scripted;
mod support;

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, path::Path};

use serde_json::Value;

use crate::{
    scripted::{Answer, Scripted},
    support::{Scene, Server},
};

const TOKEN: &str = "0123456789abcdef0123";

/// A proxy with one user, who may reach loopback, and the file with its token.
fn proxy(scene: &Scene) -> Server {
    for (file, text) in
        [("tokens", format!("alice {TOKEN}")), ("token", TOKEN.into()), ("bad", TOKEN.repeat(2))]
    {
        let file = scene.write(file, text);
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --token-file tokens --write-ca ca.pem",
    )
}

/// Checks that the documentation names exactly these keys, those of proxies with a point between.
fn assert_is_documented(command: &str, object: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/commands.md");
    let document = fs::read_to_string(path).unwrap();
    let section = document.split(&format!("\n### `{command}`\n")).nth(1).unwrap();
    let section = section.split("\n#").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = cells.map(|line| line.split(" | ").next().unwrap());
    let documented =
        cells.flat_map(|cell| cell.split('`').step_by(2)).filter(|key| !key.is_empty());
    let mut documented: Vec<_> = documented.map(str::to_owned).collect();
    let mut printed = Vec::new();
    for (key, value) in object.as_object().unwrap() {
        printed.push(key.clone());
        let first = value.as_array().and_then(|all| all.first()).unwrap_or(value);
        let inner = first.as_object().into_iter().flatten();
        printed.extend(inner.map(|(inner, _)| format!("{key}.{inner}")));
    }
    documented.sort();
    printed.sort();
    assert_eq!(printed, documented);
}

#[test]
fn a_ping_says_whether_and_when_the_proxy_and_a_target_answer() {
    let scene = Scene::new();
    let proxy = proxy(&scene);
    let via = format!("--via https://{} --ca ca.pem", proxy.address);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();

    let said = scene.run(&format!("ping {via} --token-file token -c 2 -i 10ms")).succeeds();
    for words in ["connected after", "1: ", "2: ", "2 requests, 2 answered, 0 failed", "(QUIC)"] {
        assert!(said.contains(words), "no {words:?} in\n{said}");
    }
    assert!(
        said.lines().all(|line| line.chars().count() <= 100) && !said.contains(TOKEN),
        "{said}"
    );

    let line = format!("ping {via} --token-file token -c 3 -i 10ms {target} --json");
    let result: Value = serde_json::from_str(&scene.run(&line).succeeds()).unwrap();
    assert_eq!(result["target"], target.to_string());
    assert_eq!((&result["answered"], &result["failed"]), (&3.into(), &0.into()));
    assert!(result["min_ms"].as_f64() <= result["mean_ms"].as_f64());
    assert!(result["proxies"][0]["handshake_ms"].as_f64() > Some(0.0));
    assert_is_documented("tandem ping --json", &result);
    // No byte was sent on the connections.
    for _ in 0..3 {
        let (mut program, _) = listener.accept().unwrap();
        let read = std::io::read_to_string(&mut program);
        assert!(read.map_or(true, |text| text.is_empty()));
    }
}

#[test]
fn a_ping_that_fails_says_why_and_what_to_do() {
    let scene = Scene::new();
    let proxy = proxy(&scene);
    let via = format!("--via https://{} --ca ca.pem", proxy.address);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (line, code, words) in [
        (format!("{via} --token-file bad"), 1, &["valid token", "--token-file"][..]),
        (via.clone(), 1, &["valid token", "--token-file"]),
        (format!("{via} --token-file token {closed}"), 1, &["connection_refused", "host and port"]),
        (format!("{via} --token-file token 10.0.0.1:80"), 1, &["10.0.0.1:80", "--allow-target"]),
        (format!("--via https://{closed} --insecure"), 1, &["no program listens", "host and port"]),
        (format!("{via} -c 0"), 2, &["--count", "1 to 100000"]),
        (format!("{via} nonsense"), 2, &["nonsense", "HOST:PORT"]),
        (String::new(), 2, &["--via <URL>"]),
    ] {
        let run = scene.run(&format!("ping -i 10ms --json {line}"));
        run.fails(code, &[]);
        for word in words {
            assert!(run.stderr().contains(word), "{line}: no {word:?} in {}", run.stderr());
        }
        assert!(!run.stderr().contains(TOKEN));
    }
}

#[test]
fn a_speed_test_measures_both_directions_through_a_tunnel() {
    let scene = Scene::new();
    let proxy = proxy(&scene);
    scene.write("root/page", "a page");
    let origin = "origin --listen 127.0.0.1:0 --root root --write-ca ca2.pem";
    let (origin, without) = (scene.serve(&format!("{origin} --speedtest")), scene.serve(origin));
    let through = format!("--via https://{} --token-file token --insecure -t 500ms", proxy.address);
    let line = format!("speedtest https://{} {through} --json", origin.address);
    let result: Value = serde_json::from_str(&scene.run(&line).succeeds()).unwrap();
    assert_is_documented("tandem speedtest --json", &result);
    assert_eq!(result["hops"], 1);
    for direction in ["download", "upload"] {
        let measured = &result[direction];
        assert!(measured["goodput_mbps"].as_f64() > Some(0.0), "{direction}: {measured}");
        assert!(measured["rtt_loaded_ms"].as_f64() > Some(0.0), "{direction}: {measured}");
        assert!(measured["sent_packets"].as_u64() > Some(0), "{direction}: {measured}");
    }

    let direct = "--insecure -t 500ms --only download";
    let said =
        scene.run(&format!("speedtest https://{}/page {direct}", without.address)).succeeds();
    assert!(said.contains("without a tunnel") && said.contains("(6 B in "), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");

    let has_none = scene.run(&format!("speedtest https://{} --insecure", without.address));
    has_none.fails(1, &["/.well-known/tandem-speedtest: status 404", "--speedtest"]);
    let refuses = format!("speedtest https://{}/page --insecure --only upload", without.address);
    scene.run(&refuses).fails(1, &["status 405", "--speedtest"]);
    let guesses =
        format!("speedtest https://{} {through}", origin.address).replace("token ", "bad ");
    scene.run(&guesses).fails(1, &["valid token", "--token-file"]);
}

#[test]
fn wrong_flags_say_what_is_allowed() {
    let scene = Scene::new();
    for (line, words) in [
        ("ping --via https://p -i 1ms", &["--interval", "10ms"][..]),
        ("ping --via https://p -W 2h", &["--wait", "10ms to 1min"]),
        ("speedtest", &["<URL>"]),
        ("speedtest http://o", &["https URL"]),
        ("speedtest https://o -t 0", &["--time", "500ms to 1min"]),
        ("speedtest https://o --only both", &["both", "download, upload"]),
        ("speedtest https://o --mode rmdt", &["rmdt", "needs via"]),
        ("client --via https://p --proxy 127.0.0.1:0 --admin 0.0.0.0:1", &["--admin", "loopback"]),
    ] {
        let run = scene.run(line);
        assert_eq!(run.code(), Some(2), "{line}");
        for word in words {
            assert!(run.stderr().contains(word), "{line}: no {word:?} in {}", run.stderr());
        }
    }
}

#[test]
fn a_proxy_of_another_make_is_asked_with_plain_connect() {
    let scene = Scene::new();
    let proxy = Scripted::start(|request| match request.authority.as_deref() {
        Some("right.invalid:0") => Answer::new(502).cut(),
        Some("up.example:22") => Answer::new(200).cut(),
        Some("silent.example:22") => Answer::only_interim(),
        _ => Answer::new(407).field("proxy-status", "p; error=http_request_denied").cut(),
    });
    let ping = |rest: &str| {
        scene.run(&format!("ping --via https://{} --insecure -c 2 -i 10ms {rest}", proxy.address))
    };
    for (rest, words) in [("", "2: 127.0.0.1"), ("up.example:22", "2: up.example:22 accepted")] {
        let said = ping(rest).succeeds();
        assert!(said.contains(words) && said.contains("2 requests, 2 answered"), "{said}");
    }
    let requests = proxy.seen();
    assert!(requests.len() == 4 && requests.iter().all(|request| request.protocol.is_none()));
    ping("down.example:22 --json").fails(1, &["down.example:22", "status 407", "--token-file"]);
    ping("silent.example:22 --json -W 50ms").fails(1, &["does not answer within 50ms"]);
}

//! A client of which only the proxy is named: `tandem up`, `status`, `route` and `down`, with real sockets.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use sha2::{Digest, Sha256};
use support::{Scene, Server, eventually};

const TOKEN: &str = "0123456789abcdef";

/// A proxy with a token, whose CA is in proxy.pem.
fn proxy(scene: &Scene, more: &str) -> Server {
    scene.write("tokens", format!("alice {TOKEN}\n"));
    scene.serve(&format!(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca proxy.pem --token-file tokens {more}"
    ))
}

/// The program with a home in the scene, where nothing is set up at first.
fn command(scene: &Scene, line: &str) -> Command {
    let mut command = scene.command(line.split_whitespace());
    command.env("HOME", scene.path("home"));
    command
}

/// Runs the program with this standard input.
fn run(scene: &Scene, line: &str, input: &str) -> Output {
    finish(command(scene, line), input)
}

fn finish(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that fails before it reads has closed its end.
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap_or_default();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Checks that the program fails with these words, does not show the token, and writes nothing.
#[track_caller]
fn fails(scene: &Scene, (line, input): (&str, &str), code: i32, words: &[&str]) {
    let output = run(scene, line, input);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}\n{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{line}: no {word:?} in {stderr}");
    }
    assert!(!stderr.contains(TOKEN) && !stderr.contains("wrong-token"), "{stderr}");
    assert!(!scene.path("home/.config").exists(), "{line} has written something");
}

/// A server that answers each request of HTTP with its name.
fn site(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // A client may go away at any time.
            if stream.read(&mut [0; 4096]).is_ok() {
                let len = name.len();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{name}"
                )
                .unwrap_or_default();
            }
        }
    });
    address
}

/// What a program gets from a target by SOCKS5: the answer, or the reply that refuses the connection.
fn fetch(client: SocketAddr, target: &str) -> Result<String, u8> {
    let (host, port) = target.rsplit_once(':').unwrap();
    let mut stream = TcpStream::connect(client).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    let mut request = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    request.extend(host.as_bytes());
    request.extend(port.parse::<u16>().unwrap().to_be_bytes());
    stream.write_all(&request).unwrap();
    let mut reply = [0; 6];
    stream.read_exact(&mut reply).unwrap();
    if reply[3] != 0 {
        return Err(reply[3]);
    }
    let len = if reply[5] == 4 { 18 } else { 6 };
    stream.read_exact(&mut vec![0; len]).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    Ok(answer.rsplit("\r\n\r\n").next().unwrap().to_owned())
}

/// The mode of a file, without its type.
fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_proxy_is_named_and_programs_reach_what_they_want() {
    let scene = Scene::new();
    let proxy = proxy(&scene, "");
    let line = format!("up {} --ca proxy.pem --listen 127.0.0.1:0 --foreground", proxy.address);
    let mut up = command(&scene, &line);
    let input = scene.write("input", format!("{TOKEN}\n"));
    up.stdin(fs::File::open(input).unwrap());
    let client = Server::start(up, &line);
    assert!(client.said.contains("accepts this client"), "{}", client.said);
    client.says("tunnel up");

    // The target is this machine itself, which is reached without the tunnel.
    let site = site("the page");
    assert_eq!(fetch(client.address, &site.to_string()), Ok("the page".to_owned()));
    let local = format!("localhost:{}", site.port());
    assert_eq!(fetch(client.address, &local), Ok("the page".to_owned()));
    // The proxy is asked for all others, and does not reach documentation addresses.
    assert_eq!(fetch(client.address, "192.0.2.1:80"), Err(2));
    client.says("destination_ip_prohibited");

    let current = scene.path("home/.config/tandem/current");
    for file in ["token", "up.json", "client.toml", "pvd.json", "ca.pem"] {
        assert_eq!(mode(&current.join(file)), 0o600, "{file}");
    }
    assert_eq!(mode(&current), 0o700);
    let config = fs::read_to_string(current.join("client.toml")).unwrap();
    assert!(!config.contains(TOKEN), "{config}");

    eventually("the state is known", || run(&scene, "status", "").status.success());
    let status = text(&run(&scene, "status", "").stdout);
    let process = client.process().to_string();
    for words in [&proxy.address.to_string(), &process, "tunnel   up"] {
        assert!(status.contains(words), "no {words:?} in {status}");
    }
    let json = text(&run(&scene, "status --json", "").stdout);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["client"]["state"], "up");
    assert!(!json.to_string().contains(TOKEN));

    // Nothing is asked and nothing changes while it runs.
    let again = run(&scene, "up --foreground", "");
    assert!(text(&again.stdout).contains("up already"), "{}", text(&again.stderr));
    let other = run(&scene, "up proxy.invalid", "");
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("--replace"), "{}", text(&other.stderr));

    let down = run(&scene, "down", "");
    assert!(text(&down.stdout).contains("has ended"), "{}", text(&down.stdout));
    let mut client = client;
    assert!(client.ends().success());
    assert_eq!(run(&scene, "status", "").status.code(), Some(1));
    assert!(text(&run(&scene, "down", "").stdout).contains("no client runs"));

    // It starts again without a question, since the token is kept.
    let client = Server::start(command(&scene, "up --foreground"), "up --foreground");
    client.says("tunnel up");
    drop(client.stop());
    assert!(run(&scene, "down --forget", "").status.success());
    assert!(!current.exists() && scene.path("home/.config/tandem/rules").exists());
}

#[test]
fn what_cannot_be_used_is_told_and_nothing_is_written() {
    let scene = Scene::new();
    let proxy = proxy(&scene, "");
    let proxy = proxy.address;
    scene.write("empty", "");
    let with_ca = format!("up {proxy} --ca proxy.pem --foreground");
    let fails = |line: &str, input: &str, code: i32, words: &[&str]| {
        fails(&scene, (line, input), code, words);
    };
    fails("up", "", 2, &["nothing is set up", "tandem up proxy.example"]);
    fails(&with_ca, "wrong-token-wrong-token\n", 1, &["does not accept this token", "nothing was"]);
    fails(&with_ca, "", 1, &["asks for a token"]);
    fails(&with_ca, "short\n", 2, &["no token", "16 to 8192"]);
    fails(&format!("up {proxy}"), TOKEN, 1, &["UnknownIssuer", "--ca FILE, or a link"]);
    let link = |rest: &str| format!("up tandem://{rest}");
    fails(&link(&format!("alice:{TOKEN}@")), "", 2, &["no host: is the link cut?"]);
    fails(&link(&format!("alice:{TOKEN}@{proxy}?sha256=abcd")), "", 2, &["sha256 has 4"]);
    fails(&link(&format!("alice:{TOKEN}@{proxy}?sha=1")), "", 2, &["unknown key"]);
    fails(&link(&format!("alice:wrong-token-wrong-token@{proxy}")), "", 1, &["UnknownIssuer"]);
    let other = "0".repeat(64);
    let pinned = link(&format!("alice:{TOKEN}@{proxy}?sha256={other}"));
    fails(&pinned, "", 1, &["TLS with", "failed", "ask the operator", "new link"]);
    fails("up http://proxy.example", "", 2, &["is no proxy", "https URL"]);
    fails("up 127.0.0.1:1", TOKEN, 1, &["no program listens", "HTTP/3", "no proxy"]);
    // A server that speaks HTTP/3, and is no proxy.
    let origin = scene.origin();
    let no_proxy = format!("up {} --ca origin.pem --foreground", origin.address);
    let words = ["answers like a web server (status 501)", "not like a proxy", "secret path"];
    fails(&no_proxy, "", 1, &words);
    fails(&no_proxy, "wrong-token-wrong-token\n", 1, &words);
    fails("up -", "tandem://alice\n", 1, &["resolve alice"]);
    fails(&format!("{with_ca} --listen 0.0.0.0:0"), TOKEN, 2, &["--proxy-password-file"]);
    let mut homeless = scene.command(["up", "proxy.example"]);
    homeless.env("HOME", "relative");
    let output = finish(homeless, "");
    assert!(text(&output.stderr).contains("HOME"), "{}", text(&output.stderr));
}

#[test]
fn documents_of_a_server_that_cannot_be_used_are_told() {
    let scene = Scene::new();
    let document = |members: &str| {
        let begin =
            "{\"identifier\":\"127.0.0.1\",\"expires\":\"2099-01-01T00:00:00Z\",\"prefixes\":[]";
        format!("{begin}{members}}}")
    };
    scene.write("root/.well-known/pvd", document(""));
    let origin = scene.origin();
    let line = format!("up {} --ca origin.pem --foreground", origin.address);
    let fails = |document: &str, words: &[&str]| {
        scene.write("root/.well-known/pvd", document);
        fails(&scene, (&line, TOKEN), 1, words);
    };
    fails(&"a".repeat(70_000), &["more than 65536 bytes", "--no-pvd"]);
    fails("<html>", &["not JSON"]);
    fails(&document("").replace("127.0.0.1", "127.0.0.2"), &["about 127.0.0.2, not about"]);
    fails(&document("").replace("127.0.0.1", "\\u001b[2J"), &["about \\u{1b}[2J, not"]);
    fails(&document("").replace("2099", "2019"), &["expired at 2019-01-01"]);
    fs::remove_file(scene.path("root/.well-known/pvd")).unwrap();
    fs::create_dir(scene.path("root/.well-known/pvd")).unwrap();
    self::fails(
        &scene,
        (&line, TOKEN),
        1,
        &["redirects the request", "such redirects are not followed"],
    );
}

/// The fingerprint of the only certificate in a PEM file, as the program prints fingerprints.
fn fingerprint(pem: &PathBuf) -> String {
    let pem = fs::read(pem).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    format!("{:x}", Sha256::digest(&pem.contents))
}

#[test]
fn a_link_names_a_proxy_without_a_domain() {
    let scene = Scene::new();
    scene.run("generate certificate dev --name elsewhere.example").succeeds();
    scene.write("tokens", format!("alice {TOKEN}\n"));
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --cert dev/cert.pem --key dev/key.pem --token-file tokens",
    );
    let fingerprint = fingerprint(&scene.path("dev/cert.pem"));
    let link = format!("tandem://alice:{TOKEN}@{}?sha256={fingerprint}", proxy.address);
    let up_line = "up - --listen 127.0.0.1:0 --foreground";
    let mut up = command(&scene, up_line);
    let input = scene.write("input", format!("{link}\n"));
    up.stdin(fs::File::open(input).unwrap());
    let client = Server::start(up, up_line);
    client.says("tunnel up");
    assert!(!client.said.contains(TOKEN), "{}", client.said);
    let config = scene.path("home/.config/tandem/current/client.toml");
    let config = fs::read_to_string(config).unwrap();
    assert!(config.contains(&format!("proxy-sha256 = \"{fingerprint}\"")), "{config}");
}

#[test]
fn the_rules_of_the_user_come_before_those_of_the_proxy() {
    let scene = Scene::new();
    let begin = r#"{"proxies":[{"protocol":"connect-udp","identifier":"a","proxy":"#;
    let rules = r#""proxy-match":[{"domains":["*.inside.example"],"proxies":["a"]},
        {"subnets":["127.0.0.0/8","10.0.0.0/8"],"proxies":["a"]},{"acme_key":[],"proxies":[]}]}"#;
    // The document names its proxy by the port that it has, which is known only afterwards.
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let template =
        format!("https://{free}/.well-known/masque/udp/{{target_host}}/{{target_port}}/");
    let tcp = format!(r#"{{"protocol":"https-connect","identifier":"a","proxy":"{free}"}}"#);
    scene.write("pvd.json", format!("{begin}\"{template}\"}},{tcp}],{rules}"));
    scene.write("tokens", format!("alice {TOKEN}\n"));
    let proxy = scene.serve(&format!(
        "proxy --listen {free} --write-ca proxy.pem --token-file tokens --pvd pvd.json"
    ));
    let line = format!("up {} --ca proxy.pem --listen 127.0.0.1:0 --foreground", proxy.address);
    let mut up = command(&scene, &line);
    let input = scene.write("input", format!("{TOKEN}\n"));
    up.stdin(fs::File::open(input).unwrap());
    let client = Server::start(up, &line);
    assert!(client.said.contains("rules for what goes through it"), "{}", client.said);
    assert!(client.said.contains("acme_key is not known"), "{}", client.said);
    drop(client.stop());

    let rules = "refuse=www.inside.example\nproxy=10.9.0.0/16:22\n";
    scene.write("home/.config/tandem/rules", rules);
    for (target, words) in [
        ("a.inside.example", "goes through the tunnel: rule proxy=*.inside.example of the proxy"),
        ("www.inside.example:80", "is refused: your rule refuse=www.inside.example"),
        ("elsewhere.example", "goes directly: rule direct=* of the proxy's configuration document"),
        ("10.1.1.1", "goes directly: it is in the network of this machine"),
        ("10.9.1.1:22", "goes through the tunnel: your rule proxy=10.9.0.0/16:22"),
        ("127.0.0.1", "goes directly: it is this machine itself"),
        ("[::1]:80", "goes directly: it is this machine itself"),
    ] {
        let output = run(&scene, &format!("route {target}"), "");
        let stdout = text(&output.stdout);
        assert!(stdout.contains(words), "{target}: {stdout}{}", text(&output.stderr));
    }
    let json = text(&run(&scene, "route www.inside.example --json", "").stdout);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["udp"]["action"], &json["udp"]["by"]), (&"refuse".into(), &"own".into()));
    assert_eq!(run(&scene, "route", "").status.code(), Some(2));
    scene.write("home/.config/tandem/rules", "nonsense\n");
    let broken = run(&scene, "route a.example", "");
    assert_eq!(broken.status.code(), Some(2));
    assert!(text(&broken.stderr).contains("rules:1: "), "{}", text(&broken.stderr));
}

/// A stand-in for the systemd of a user, which starts and ends what the unit says and notes what it is asked.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> "$HOME/asked"
case "$*" in
    *restart*)
        line=$(sed -n 's/^ExecStart=//p' "$HOME/.config/systemd/user/tandem-up.service")
        sh -c "exec $line" > "$HOME/log" 2>&1 &
        echo $! > "$HOME/pid" ;;
    *disable*) kill "$(cat "$HOME/pid")" ;;
    *is-active*) kill -0 "$(cat "$HOME/pid")" ;;
esac
"#;

#[test]
fn a_systemd_of_the_user_runs_the_client() {
    let scene = Scene::new();
    let proxy = proxy(&scene, "");
    let systemctl = scene.write("bin/systemctl", SYSTEMCTL);
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(scene.path("home")).unwrap();
    fs::create_dir_all(scene.path("run")).unwrap();
    let with_systemd = |line: &str, input: &str| {
        let mut command = command(&scene, line);
        command.env("PATH", format!("{}:/usr/bin:/bin", scene.path("bin").display()));
        command.env("XDG_RUNTIME_DIR", scene.path("run"));
        finish(command, input)
    };
    let up = format!("up {} --ca proxy.pem --listen 127.0.0.1:0", proxy.address);
    let output = with_systemd(&up, &format!("{TOKEN}\n"));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("is up, as tandem-up.service"), "{stdout}{}", text(&output.stderr));
    eventually("the tunnel is up", || with_systemd("status", "").status.success());
    let status = text(&with_systemd("status", "").stdout);
    assert!(status.contains("a unit of systemd"), "{status}");
    // A second time changes nothing, and the client is the same process.
    let pid = || fs::read_to_string(scene.path("home/pid")).unwrap();
    let before = pid();
    assert!(with_systemd(&up, "").status.success());
    assert_eq!(pid(), before);
    let down = with_systemd("down", "");
    assert!(text(&down.stdout).contains("is stopped"), "{}", text(&down.stderr));
    assert!(!scene.path("home/.config/systemd/user/tandem-up.service").exists());
    eventually("the client has ended", || !with_systemd("status", "").status.success());
    let asked = fs::read_to_string(scene.path("home/asked")).unwrap();
    for command in ["daemon-reload", "enable tandem-up.service", "disable --now"] {
        assert!(asked.contains(command), "no {command:?} in {asked}");
    }
}

#[test]
fn a_proxy_tells_what_it_takes_unless_it_must_not() {
    let scene = Scene::new();
    for (more, found) in [
        ("", true),
        ("--no-pvd", false),
        ("--template https://p.example/secret/{target_host}/{target_port}", false),
    ] {
        let proxy = proxy(&scene, more);
        let url = format!("https://{}/.well-known/pvd", proxy.address);
        let get = scene.run(&format!("get {url} --ca proxy.pem -o -"));
        if found {
            let document: serde_json::Value = serde_json::from_str(&get.succeeds()).unwrap();
            assert_eq!(document["identifier"], "127.0.0.1");
            assert_eq!(document["prefixes"], serde_json::json!([]));
            assert_eq!(document["proxies"][0]["protocol"], "connect-udp");
        } else {
            get.fails(1, &["status 404"]);
        }
    }
    scene.write("pvd.json", "{\"proxies\": 7}");
    let line = "proxy --listen 127.0.0.1:0 --check --pvd pvd.json";
    scene.run(line).fails(2, &["pvd.json: it has no proxies that is a list"]);
}

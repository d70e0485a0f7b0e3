//! Tests of TCP connections through tunnels, as users of the program have them.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod support;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::{Output, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Scene, Server, eventually};

/// A time after which a test fails rather than hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A target that sends everything back, and a FIN after the FIN that comes.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut to = stream.try_clone().unwrap();
                // A connection that is reset is no failure of the target.
                if std::io::copy(&mut stream, &mut to).is_ok()
                    && to.shutdown(Shutdown::Write).is_ok()
                {}
            });
        }
    });
    address
}

/// An address at which nothing listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends bytes and a FIN, and returns what comes back until the FIN.
fn exchange(stream: &mut TcpStream, data: &[u8]) -> Vec<u8> {
    let mut to = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            to.write_all(data).unwrap();
            to.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        received
    })
}

fn comes_back(to: SocketAddr) -> bool {
    exchange(&mut connect(to), b"ping") == b"ping"
}

/// The way to a proxy that reaches loopback.
fn via(proxy: &Server) -> String {
    format!("--via https://{} --ca proxy.pem", proxy.address)
}

/// Writes a file that only its owner can read.
fn write_secret(scene: &Scene, name: &str, text: &str) {
    let path = scene.write(name, text);
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn a_forwarded_connection_carries_all_bytes_and_both_ends() {
    let scene = Scene::new();
    let proxy = scene.proxy("proxy.pem");
    let target = echo();
    let line = format!("client {} --tcp 127.0.0.1:0={target} --json", via(&proxy));
    let client = scene.serve(&line);
    let data = fs::read(scene.write_noise("noise", 1_000_000)).unwrap();
    assert!(exchange(&mut connect(client.address), &data) == data, "bytes were lost or changed");
    assert!(comes_back(client.address), "the next connection has its own flow");
    let counted: Value = serde_json::from_str(&client.stop_and_read()).unwrap();
    for (key, count) in [
        ("tcp_opened", 2),
        ("tcp_finished", 2),
        ("tcp_failed", 0),
        ("tcp_aborted", 0),
        ("tcp_to_target_bytes", 1_000_004),
        ("tcp_to_client_bytes", 1_000_004),
        ("flows", 0),
    ] {
        assert_eq!(counted[key], count, "{key} in {counted}");
    }
}

#[test]
fn a_target_that_refuses_is_named() {
    let scene = Scene::new();
    let proxy = scene.proxy("proxy.pem");
    let target = nobody();
    let client = scene.serve(&format!("client {} --tcp 127.0.0.1:0={target}", via(&proxy)));
    let mut stream = connect(client.address);
    let end = stream.read(&mut [0; 1]);
    assert!(matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{end:?}");
    let said = client.says("connection_refused");
    for words in [&*target.to_string(), "WARN", "check host and port of the target"] {
        assert!(said.contains(words), "{said}");
    }
    let (status, said) = client.stop();
    assert!(status.success() && said.contains("carried 0 TCP connections"), "{said}");
    assert!(said.contains("1 others could not be opened"), "{said}");
}

/// Asks a local proxy for a target in the way of SOCKS5, with a user if there is one. Returns the reply
/// of the authentication, if it fails, or that of the request.
fn socks(stream: &mut TcpStream, login: Option<(&str, &str)>, target: SocketAddr) -> u8 {
    let read = |stream: &mut TcpStream, len: usize| {
        let mut reply = vec![0; len];
        stream.read_exact(&mut reply).map(|()| reply)
    };
    stream.write_all(&[5, 1, if login.is_some() { 2 } else { 0 }]).unwrap();
    let method = read(stream, 2).unwrap();
    if method[1] == 0xff {
        return 0xff;
    }
    if let Some((user, password)) = login {
        let length = |text: &str| vec![u8::try_from(text.len()).unwrap()];
        let parts = [vec![1], length(user), user.into(), length(password), password.into()];
        stream.write_all(&parts.concat()).unwrap();
        match read(stream, 2).unwrap()[1] {
            0 => {}
            refused => return refused,
        }
    }
    let SocketAddr::V4(target) = target else { panic!("{target} is not of IPv4") };
    let head = [&[5, 1, 0, 1][..], &target.ip().octets(), &target.port().to_be_bytes()];
    stream.write_all(&head.concat()).unwrap();
    read(stream, 10).unwrap()[1]
}

#[test]
fn one_port_speaks_socks_and_http() {
    let scene = Scene::new();
    let proxy = scene.proxy("proxy.pem");
    let (target, nobody) = (echo(), nobody());
    let client = scene.serve(&format!("client {} --proxy 127.0.0.1:0", via(&proxy)));
    let mut stream = connect(client.address);
    assert_eq!(socks(&mut stream, None, target), 0);
    assert_eq!(exchange(&mut stream, b"ping"), b"ping");
    assert_eq!(socks(&mut connect(client.address), None, nobody), 5, "connection refused");

    let ask = |line: String| {
        let mut stream = connect(client.address);
        stream.write_all(line.as_bytes()).unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        (String::from_utf8(head).unwrap(), stream)
    };
    let (head, mut stream) = ask(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(exchange(&mut stream, b"ping"), b"ping");
    let (head, _) = ask(format!("CONNECT {nobody} HTTP/1.1\r\nHost: {nobody}\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    let said = client.says("connection_refused");
    for words in [&*nobody.to_string(), "WARN", "check host and port of the target"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_proxy_with_a_password_asks_for_it() {
    let scene = Scene::new();
    let proxy = scene.proxy("proxy.pem");
    let target = echo();
    write_secret(&scene, "password", "alice:correct horse\n");
    let line =
        format!("client {} --proxy 0.0.0.0:0 --proxy-password-file password --json", via(&proxy));
    let client = scene.serve(&line);
    assert!(
        client.said.contains("warning: 0.0.0.0:0 is not a loopback address"),
        "{}",
        client.said
    );
    let address = SocketAddr::from(([127, 0, 0, 1], client.address.port()));
    let right = Some(("alice", "correct horse"));
    let mut stream = connect(address);
    assert_eq!(socks(&mut stream, right, target), 0);
    assert_eq!(exchange(&mut stream, b"ping"), b"ping");
    assert_eq!(socks(&mut connect(address), None, target), 0xff);
    assert_ne!(socks(&mut connect(address), Some(("alice", "wrong")), target), 0);
    let counted: Value = serde_json::from_str(&client.stop_and_read()).unwrap();
    assert_eq!(counted["tcp_programs_refused"], 2, "{counted}");
}

/// Runs a client whose standard input is this text.
fn with_input(scene: &Scene, line: &str, input: &[u8]) -> Output {
    let mut command = scene.command(line.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    thread::scope(|scope| {
        // The client may end before it has read everything.
        scope.spawn(move || if stdin.write_all(input).is_ok() {});
        child.wait_with_output().unwrap()
    })
}

#[test]
fn standard_input_and_output_are_one_connection() {
    let scene = Scene::new();
    let proxy = scene.proxy("proxy.pem");
    let data = fs::read(scene.write_noise("noise", 300_000)).unwrap();
    let line = |target| format!("client {} --stdio {target}", via(&proxy));
    let output = with_input(&scene, &line(echo()), &data);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(output.stdout == data, "{} bytes came", output.stdout.len());
    assert_eq!(said, "", "it says nothing if all goes well");

    let nobody = nobody();
    let output = with_input(&scene, &line(nobody), &data);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
    assert!(said.starts_with("error: ") && said.contains(&nobody.to_string()), "{said}");
}

#[test]
fn standard_input_gives_up_at_once_if_there_is_no_proxy() {
    let scene = Scene::new();
    let line = format!("client --via https://{} --insecure --stdio a.example:1", nobody());
    let output = with_input(&scene, &line, b"");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: no program listens at"), "{said}");
}

#[test]
fn a_proxy_opens_the_ports_that_it_may() {
    let scene = Scene::new();
    let target = echo();
    let start = |ports: &str| {
        scene.serve(&format!(
            "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --write-ca proxy.pem --tcp-ports {ports}"
        ))
    };
    let run = |proxy: &Server| {
        let line = format!("client {} --stdio {target}", via(proxy));
        with_input(&scene, &line, b"ping")
    };
    let output = run(&start(&target.port().to_string()));
    assert_eq!(output.stdout, b"ping");
    for ports in ["none", "1-24"] {
        let output = run(&start(ports));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let reason = format!("opens no TCP connections to port {}", target.port());
        assert!(said.contains(&reason) && said.contains("--tcp-ports"), "{said}");
    }
}

#[test]
fn a_pair_needs_two_lines_and_trusts_nobody_else() {
    let scene = Scene::new();
    let target = echo();
    let line = format!("serve --dest {target} --listen 127.0.0.1:0");
    scene.run(&format!("{line} --check")).succeeds();
    assert!(!scene.path("tandem-pair").exists(), "a check makes no files");
    scene
        .run("connect --dest 127.0.0.1:1 --listen 127.0.0.1:0")
        .fails(2, &["cannot read tandem-pair/client.pem", "tandem serve", "--pair FILE"]);

    let server = scene.serve(&line);
    assert!(server.said.contains("copy tandem-pair/client.pem to the other machine"));
    let advised = server.said.lines().find_map(|line| line.strip_prefix("  tandem ")).unwrap();
    assert!(advised.ends_with(&format!("{} --pair client.pem", target.port())), "{advised}");
    let connect_line = |server: &Server, pair: &str| {
        format!("connect --dest {} --listen 127.0.0.1:0{pair}", server.address)
    };
    let client = scene.serve(&connect_line(&server, ""));
    assert!(comes_back(client.address));
    let (status, said) = client.stop();
    assert!(status.success() && said.contains("carried 1 TCP connections"), "{said}");

    // A second start has the same files, and the copy on the other machine stays valid.
    fs::copy(scene.path("tandem-pair/client.pem"), scene.path("client.pem")).unwrap();
    drop(server);
    let server = scene.serve(&line);
    let client = scene.serve(&connect_line(&server, " --pair client.pem"));
    assert!(comes_back(client.address));

    // The file of another pair does not help.
    let other = scene.serve(&format!("{line} --pair other"));
    let mut command = scene.command(connect_line(&other, "").split_whitespace());
    let mut wrong = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let ended = (0..200).any(|_| {
        thread::sleep(TIMEOUT / 200);
        wrong.try_wait().unwrap().is_some()
    });
    wrong.kill().unwrap(); // it may have ended before, which is no error
    assert!(ended, "it trusts another server");
    let output = wrong.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("this is not the server of the pair: check --dest"), "{said}");
}

#[test]
fn a_pair_carries_its_service_only_and_a_removed_token_ends_it() {
    let scene = Scene::new();
    let (target, other) = (echo(), echo());
    let server = scene.serve(&format!("serve --dest {target} --listen 127.0.0.1:0"));
    let through = |target: SocketAddr| {
        let line = format!(
            "client --via https://{} --insecure --token-file tandem-pair/tokens --stdio {target}",
            server.address
        );
        with_input(&scene, &line, b"ping")
    };
    assert_eq!(through(target).stdout, b"ping");
    let refused = through(other);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.stdout.is_empty() && said.contains("one fixed service"), "{said}");

    write_secret(&scene, "tandem-pair/tokens", "another-token-for-tests\n");
    server.signal(Signal::HUP);
    server.says("reloaded: certificate, key, tokens");
    let line = format!("connect --dest {} --listen 127.0.0.1:0", server.address);
    let client = scene.serve(&line);
    let mut stream = connect(client.address);
    assert!(!matches!(stream.read(&mut [0; 1]), Ok(1)));
    let said = client.says("a valid token is required");
    assert!(
        said.contains("refused a tunnel to its service") && said.contains("client.pem"),
        "{said}"
    );
}

#[test]
fn a_pair_works_with_a_certificate_and_tokens_of_ones_own() {
    let scene = Scene::new();
    let target = echo();
    scene.run("generate certificate dev").succeeds();
    write_secret(&scene, "tokens", "alice 0123456789abcdef\n");
    write_secret(&scene, "token", "0123456789abcdef\n");
    let server = scene.serve(&format!(
        "serve --dest {target} --listen 127.0.0.1:0 --cert dev/cert.pem --key dev/key.pem \
         --token-file tokens"
    ));
    assert!(!server.said.contains("client.pem") && !scene.path("tandem-pair").exists());
    let line = |ca: &str| {
        format!("connect --dest {} --listen 127.0.0.1:0 --token-file token{ca}", server.address)
    };
    let client = scene.serve(&line(" --ca dev/ca.pem"));
    assert!(comes_back(client.address));
    eventually("the log names the client", || server.says("user=").contains("user=alice"));
}

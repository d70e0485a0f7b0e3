//! What users get of a proxy that is a site, beside strangers.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
};

use rustix::process::Signal;
use tandem_wire::{Frame, FrameDecoder, ResponseHead, StreamKind};

use crate::{
    SECRET, TOKEN, ask, ask_and_wait,
    prober::Seen,
    probes::{connect, extended, headers},
    scene,
    scripted::{Answer, Scripted},
    servers,
    support::{comes_back, echo},
    write_secret,
};

/// The status of the first answer.
fn status(seen: &Seen) -> u16 {
    let (data, end) = &seen.streams[0];
    let mut decoder = FrameDecoder::new(StreamKind::Request, 65_536);
    decoder.push(data.clone().into());
    let Some(Frame::Headers(section)) = decoder.next().unwrap() else { panic!("{data:?} {end}") };
    ResponseHead::decode(section, 65_536).unwrap().status.as_u16()
}

/// A target that sends everything back.
fn tcp_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut to = stream.try_clone().unwrap();
            // A connection that is reset is no failure of the target.
            if std::io::copy(&mut stream, &mut to).is_ok() && to.shutdown(Shutdown::Write).is_ok() {
            }
        }
    });
    address
}

#[test]
fn users_have_their_tunnels_below_the_secret_path_and_with_tokens() {
    let scene = scene();
    let (_origin, proxies) = servers(&scene, "root");
    let (udp, tcp) = (echo(), tcp_echo());
    for ((access, proxy), (path, token)) in proxies.iter().zip([
        (String::new(), "--token-file tokens"),
        (format!("/{SECRET}"), "--token-file tokens"),
        (format!("/{SECRET}/"), ""),
    ]) {
        let via = format!("--via https://{}{path} --ca dev/ca.pem {token}", proxy.address);
        let client = scene.serve(&format!("client {via} --udp 127.0.0.1:0={udp}"));
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(comes_back(&program, &client), "UDP with {access}");
        let client = scene.serve(&format!("client {via} --tcp 127.0.0.1:0={tcp}"));
        let mut program = TcpStream::connect(client.address).unwrap();
        program.write_all(b"ping").unwrap();
        program.shutdown(Shutdown::Write).unwrap();
        let mut came = Vec::new();
        program.read_to_end(&mut came).unwrap();
        assert_eq!(came, b"ping", "TCP with {access}");
        let line = format!("get {via} https://{}/ -o -", proxy.address);
        assert!(scene.run(&line).succeeds().contains("A garden"), "the site through the tunnel");
    }
}

#[test]
fn who_has_no_right_is_told_what_may_be_wrong() {
    let scene = scene();
    scene.write("wrong", "fedcba9876543210fedc\n");
    let (_origin, proxies) = servers(&scene, "root");
    let proxy = &proxies[1].1;
    for (path, token) in [
        (format!("/{SECRET}"), "--token-file wrong"),
        (format!("/{SECRET}"), ""),
        (format!("/{SECRET}x"), "--token-file tokens"),
        (String::new(), "--token-file tokens"),
    ] {
        let via = format!("--via https://{}{path} --ca dev/ca.pem {token}", proxy.address);
        for command in
            [format!("ping {via} --count 1"), format!("get {via} https://{}/ -o -", proxy.address)]
        {
            let run = scene.run(&command);
            assert_eq!(run.code(), Some(1), "{command}: {}", run.stderr());
            let said = run.stderr();
            assert!(
                said.contains("URI template") && said.contains("web site"),
                "{command}: {said}"
            );
        }
    }
}

#[test]
fn a_key_shows_who_a_user_is_and_only_on_its_own_connection() {
    let scene = scene();
    let alice = scene.run("generate concealed-key alice alice.key").succeeds();
    let mallory = scene.run("generate concealed-key mallory mallory.key").succeeds();
    assert!(alice.starts_with("alice ") && mallory != alice);
    scene.write("keys", &alice);
    // Another key with her name.
    let other = fs::read_to_string(scene.path("mallory.key")).unwrap();
    write_secret(&scene, "forged.key", &other.replace("mallory", "alice"));
    let udp = echo();
    let common = "--cert dev/cert.pem --key dev/key.pem --allow-target 127.0.0.0/8 --http1=false";
    let access = "--concealed-keys keys --site root";
    let proxy = scene.serve(&format!("proxy --listen 127.0.0.1:0 {common} {access}"));
    let via = format!("--via https://{} --ca dev/ca.pem", proxy.address);
    let client =
        scene.serve(&format!("client {via} --concealed-key alice.key --udp 127.0.0.1:0={udp}"));
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(comes_back(&program, &client));
    for key in ["mallory.key", "forged.key"] {
        let run = scene.run(&format!("ping {via} --concealed-key {key} --count 1"));
        assert_eq!(run.code(), Some(1), "{key}: {}", run.stderr());
    }
    // What another server has got from her is of no use here.
    let thief = Scripted::start(|_| Answer::new(404));
    let via_thief = format!("--via https://{} --insecure --concealed-key alice.key", thief.address);
    scene.run(&format!("ping {via_thief} --count 1"));
    let stolen = thief.seen().iter().find_map(|head| {
        let mut values = head.headers.values().filter_map(|value| value.to_str().ok());
        values.find(|value| value.starts_with("Concealed ")).map(str::to_owned)
    });
    let path = "/.well-known/masque/tcp/right.invalid/1/";
    let authority = proxy.address.to_string();
    let lines = [
        (":method", "CONNECT"),
        (":protocol", "connect-tcp"),
        (":scheme", "https"),
        (":authority", &authority),
        (":path", path),
        ("authorization", &stolen.unwrap()),
    ];
    assert_eq!(status(&ask(&scene, proxy.address, headers(&lines))), 501);
    // A reload takes the right away.
    scene.write("keys", &mallory);
    proxy.signal(Signal::HUP);
    proxy.says("reloaded: certificate, key, keys of users");
    scene.run(&format!("ping {via} --concealed-key mallory.key --count 1")).succeeds();
    assert_eq!(
        scene.run(&format!("ping {via} --concealed-key alice.key --count 1")).code(),
        Some(1)
    );
}

#[test]
fn connect_needs_credentials_whatever_the_path() {
    let scene = scene();
    let (_origin, proxies) = servers(&scene, "root");
    let target = tcp_echo().to_string();
    let right = format!("Bearer {TOKEN}");
    let status = |server: SocketAddr, lines: &[(&str, &str)]| {
        status(&ask_and_wait(&scene, server, headers(lines)))
    };
    let path = format!("/.well-known/masque/tcp/{}/", target.replace(':', "/"));
    let secret = format!("/{SECRET}{path}");
    for (index, (plain, at_root, below)) in
        [(200, 200, 501), (200, 501, 200), (405, 501, 200)].into_iter().enumerate()
    {
        let (access, proxy) = &proxies[index];
        let with = |mut lines: Vec<(&'static str, String)>| {
            let name = if lines.len() == 2 { "proxy-authorization" } else { "authorization" };
            lines.push((name, right.clone()));
            let lines: Vec<_> = lines.iter().map(|(name, value)| (*name, &**value)).collect();
            status(proxy.address, &lines)
        };
        let own = |lines: Vec<(&str, &str)>| {
            let names = [":method", ":protocol", ":scheme", ":authority", ":path"];
            let name = |name: &str| *names.iter().find(|it| **it == name).unwrap();
            lines.iter().map(|(it, value)| (name(it), (*value).to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(with(own(connect(&target))), plain, "CONNECT with {access}");
        assert_eq!(with(own(extended("connect-tcp", &path))), at_root, "at the root with {access}");
        assert_eq!(
            with(own(extended("connect-tcp", &secret))),
            below,
            "below the path with {access}"
        );
    }
}

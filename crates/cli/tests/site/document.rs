//! The configuration document (PvD) of a proxy that is a site: who knows the path and has the right finds it, and
//! `tandem up` too. That others get what an origin gives is a matter of the probes.

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tandem_wire::{Frame, FrameDecoder, ResponseHead, StreamKind};

use crate::{
    ask,
    place::{SECRET, TOKEN, scene, servers, write_secret},
    probes::headers,
    support::{Scene, Server},
};

/// The status and the body of an answer.
fn get(
    scene: &Scene,
    server: SocketAddr,
    (method, path): (&str, &str),
    credentials: &str,
) -> (u16, Vec<u8>) {
    let authority = server.to_string();
    let mut lines = vec![
        (":method", method),
        (":scheme", "https"),
        (":authority", &authority),
        (":path", path),
    ];
    if !credentials.is_empty() {
        lines.push(("authorization", credentials));
    }
    let seen = ask(scene, server, headers(&lines));
    let (data, _) = &seen.streams[0];
    let mut decoder = FrameDecoder::new(StreamKind::Request, 1 << 20);
    decoder.push(data.clone().into());
    let (mut status, mut body) = (0, Vec::new());
    while let Ok(Some(frame)) = decoder.next() {
        match frame {
            Frame::Headers(section) => {
                status = ResponseHead::decode(section, 65_536).unwrap().status.as_u16();
            }
            Frame::Data(data) => body.extend_from_slice(&data),
            _ => {}
        }
    }
    (status, body)
}

#[test]
fn users_find_the_document_where_the_templates_are() {
    let scene = scene();
    let (_origin, proxies) = servers(&scene, "root");
    let right = format!("Bearer {TOKEN}");
    let at_root = "/.well-known/pvd";
    let below = format!("/{SECRET}{at_root}");
    for ((access, proxy), (path, other, token, before)) in proxies.iter().zip([
        (at_root, &*below, &*right, String::new()),
        (&*below, at_root, &*right, format!("/{SECRET}")),
        (&*below, at_root, "", format!("/{SECRET}")),
    ]) {
        let proxy = proxy.address;
        let (status, body) = get(&scene, proxy, ("GET", path), token);
        assert_eq!(status, 200, "with {access}");
        let document: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(document["identifier"], "127.0.0.1");
        for (index, name) in [(0, "udp"), (1, "tcp")] {
            let rest = format!(".well-known/masque/{name}/{{target_host}}/{{target_port}}/");
            let template = format!("https://{proxy}{before}/{rest}");
            assert_eq!(document["proxies"][index]["proxy"], template, "with {access}");
        }
        let head = get(&scene, proxy, ("HEAD", path), token);
        assert_eq!(head, (200, Vec::new()), "with {access}");
        assert_eq!(get(&scene, proxy, ("GET", other), &right).0, 404, "with {access}");
    }
}

/// Sets a client up with this line and this input, in a home of its own.
fn up(scene: &Scene, home: &str, line: &str, input: &str) -> Server {
    let line = format!("up {line} --ca dev/ca.pem --listen 127.0.0.1:0 --foreground");
    let mut command = scene.command(line.split_whitespace());
    command.env("HOME", scene.path(home));
    let input = scene.write("input", input);
    command.stdin(Stdio::from(fs::File::open(input).unwrap()));
    Server::start(command, &line)
}

#[test]
fn one_line_sets_a_client_up_below_the_secret_path() {
    let scene = scene();
    let (_origin, proxies) = servers(&scene, "root");
    let token = format!("{TOKEN}\n");
    for (index, (path, link, input)) in [
        (String::new(), format!("alice:{TOKEN}@"), ""),
        (format!("/{SECRET}"), format!("alice:{TOKEN}@"), ""),
        (format!("/{SECRET}"), String::new(), &*token),
        (format!("/{SECRET}"), String::new(), ""),
    ]
    .into_iter()
    .enumerate()
    {
        let address = proxies[index.saturating_sub(usize::from(index > 1))].1.address;
        let scheme = if link.is_empty() { "https" } else { "tandem" };
        let home = format!("home{index}");
        let client = up(&scene, &home, &format!("{scheme}://{link}{address}{path}"), input);
        assert!(client.said.contains("accepts this client"), "{index}: {}", client.said);
        let asked = client.said.contains("answers like a web server (status 501)");
        assert_eq!(asked, !input.is_empty(), "{index}: {}", client.said);
        client.says("tunnel up");
        let current = scene.path(&home).join(".config/tandem/current");
        let document = fs::read(current.join("pvd.json")).unwrap();
        let document: Value = serde_json::from_slice(&document).unwrap();
        let config = fs::read_to_string(current.join("client.toml")).unwrap();
        assert!(config.contains(document["proxies"][0]["proxy"].as_str().unwrap()), "{config}");
    }
}

#[test]
fn a_document_of_the_operator_is_served_to_users_and_none_if_there_is_none() {
    let scene = scene();
    scene.write("pvd.json", "{\"proxies\":[],\"proxy-match\":[],\"x\":1}");
    let path = format!("/{SECRET}/.well-known/pvd");
    let common =
        "--listen 127.0.0.1:0 --cert dev/cert.pem --key dev/key.pem --site root --http1=false";
    let right = format!("Bearer {TOKEN}");
    let proxy = |more: &str| {
        let access = "--token-file tokens --secret-path path";
        scene.serve(&format!("proxy {common} {access} {more}"))
    };
    let with = proxy("--pvd pvd.json");
    let (status, body) = get(&scene, with.address, ("GET", &path), &right);
    assert_eq!(status, 200);
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["x"], json!(1));
    assert_eq!(get(&scene, with.address, ("GET", &path), "Bearer fedcba9876543210fedcba").0, 404);
    let without = proxy("--no-pvd");
    assert_eq!(get(&scene, without.address, ("GET", &path), &right).0, 404);
}

#[test]
fn passwords_are_checked_for_the_document_too() {
    let scene = scene();
    write_secret(&scene, "tokens", &password_line(scene.command(["generate", "password", "bob"])));
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --cert dev/cert.pem --key dev/key.pem --site root --http1=false --token-file tokens \
         --secret-path path",
    );
    let path = format!("/{SECRET}/.well-known/pvd");
    for (pair, status) in [("Ym9iOmNvcnJlY3QgaG9yc2U=", 200), ("Ym9iOndyb25nIGhvcnNl", 404)] {
        let shown = get(&scene, proxy.address, ("GET", &path), &format!("Basic {pair}"));
        assert_eq!(shown.0, status);
    }
}

/// The line of a token file for a password that is given on the standard input: "correct horse".
fn password_line(mut command: Command) -> String {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"correct horse\n").unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

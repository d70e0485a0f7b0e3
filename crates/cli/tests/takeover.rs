//! Tests of changes to a running server: another process takes over its address, and no download breaks.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod support;

use std::{
    fs,
    io::Read,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

use crate::support::{Scene, Server, eventually, sha256, tandem};

/// Copies the program. A process of its own does that, because a program that another test starts meanwhile would have
/// the open file for a moment, in which the kernel does not start the copy ("text file busy").
fn copy_program(to: &Path) {
    assert!(Command::new("cp").env_clear().arg(tandem()).arg(to).status().unwrap().success());
}

/// A server whose program is a file that can be replaced.
fn serve_from_file(scene: &Scene, line: &str) -> Server {
    let program = scene.path("tandem");
    copy_program(&program);
    let mut command = scene.other_program(&program);
    command.args(line.split_whitespace());
    Server::start(command, line)
}

/// Waits until another process has the new connections and the admin listener. The lines of the two processes may come
/// in either order.
fn hands_over(server: &Server) {
    const SAID: &str = "gets new connections from now on";
    let before = server.says_before("admin listener at");
    if !before.iter().any(|line| line.contains(SAID)) {
        server.says(SAID);
    }
}

/// Puts another file in the place of the program, as packages do.
fn replace_program(scene: &Scene) {
    copy_program(&scene.path("new"));
    fs::rename(scene.path("new"), scene.path("tandem")).unwrap();
}

/// The process that has taken over from a server. It is killed by its ID when this is dropped.
struct Successor(Pid);

impl Successor {
    /// Lets another process take over.
    fn of(server: &Server) -> Self {
        server.signal(Signal::USR2);
        Self::at(&server.says(", to take over"))
    }

    /// The process that this line names.
    fn at(line: &str) -> Self {
        let process = line.split(' ').nth(1).unwrap().parse().unwrap();
        Self(Pid::from_raw(process).unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).unwrap();
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        kill_process(self.0, Signal::KILL).ok();
    }
}

/// The size of a download that is still on its way while its reader has read only the first part: a client takes less
/// than 28 MB ahead.
const LONG: usize = 36_000_000;

/// Reads the first part of what a command prints, the rest once it is told to, and returns the hash of all. The
/// command must succeed.
fn read_in_parts(mut command: Command, rest: &AtomicBool) -> String {
    const FIRST: usize = 1_000_000;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut from = child.stdout.take().unwrap();
    let (mut hash, mut buffer, mut read) = (Sha256::new(), vec![0; 65_536], 0);
    loop {
        let len = from.read(&mut buffer).unwrap();
        if len == 0 {
            break;
        }
        hash.update(&buffer[..len]);
        read += len;
        if (read - len..read).contains(&FIRST) {
            // Not for ever, so that a test that fails ends.
            for _ in 0..6000 {
                if rest.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    format!("{:x}", hash.finalize())
}

fn generate_certificate(scene: &Scene) {
    scene.run("generate certificate next").succeeds();
    fs::create_dir_all(scene.path("tls")).unwrap();
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        fs::rename(scene.path("next").join(file), scene.path("tls").join(file)).unwrap();
    }
    fs::remove_dir(scene.path("next")).unwrap();
}

/// Gives a proxy another certificate, another token and other limits.
fn change_files(scene: &Scene, proxy: &Server) {
    generate_certificate(scene);
    proxy.says("renewed: ");
    write_secret(&scene.path("tokens"), "alice 0123456789abcdef\nbob fedcba9876543210\n");
    scene.write("users.toml", "[user.bob]\nmonth-bytes = \"1GB\"\n");
    proxy.signal(Signal::HUP);
    proxy.says("reloaded: ");
}

fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

/// Checks that the proxy has counted at least this number of downloads for each of these users.
fn assert_used(scene: &Scene, downloads: [(&str, usize); 2]) {
    let usage = scene.run("users --store usage.db --json").succeeds();
    let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
    let users = usage["users"].as_array().unwrap();
    for (user, downloads) in downloads {
        let user = users.iter().find(|it| it["user"] == user).unwrap();
        let carried = user["to_client_bytes"].as_u64().unwrap();
        assert!(carried > downloads as u64 * 6_000_000, "{usage}");
    }
}

#[test]
fn downloads_go_on_while_certificate_tokens_limits_and_program_change() {
    // The modes with datagrams, each with what carries these.
    const DOWNLOADS: [&str; 4] = [
        "--mode mdt --transport quic",
        "--mode mdt --transport sealed",
        "--mode rmdt --transport sealed",
        "--mode tecc --transport sealed",
    ];
    let scene = Scene::new();
    let file = scene.write_noise("root/f", LONG);
    let expected = sha256(&file);
    let origin = scene.origin();
    generate_certificate(&scene);
    fs::copy(scene.path("tls/ca.pem"), scene.path("old-ca.pem")).unwrap();
    write_secret(&scene.path("tokens"), "alice 0123456789abcdef\n");
    scene.write("alice", "0123456789abcdef");
    scene.write("bob", "fedcba9876543210");
    scene.write("users.toml", "");
    let mut proxy = serve_from_file(
        &scene,
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --cert tls/cert.pem --key tls/key.pem \
         --token-file tokens --users-file users.toml --usage-store usage.db --threads 2 \
         --transport sealed --admin unix:admin",
    );
    let get = |user: &str, ca: &str, to: &str| {
        format!(
            "get https://{}/f --via https://{} --token-file {user} --ca {ca} --ca origin.pem -o {to}",
            origin.address, proxy.address
        )
    };
    let rest = &AtomicBool::new(false);
    let _second = thread::scope(|scope| {
        let line = get("alice", "old-ca.pem", "-");
        let downloads = DOWNLOADS.map(|mode| {
            let command = scene.command(line.split_whitespace().chain(mode.split_whitespace()));
            scope.spawn(|| read_in_parts(command, rest))
        });
        for _ in DOWNLOADS {
            proxy.says("flow opened");
        }
        let connections = || scene.run("top unix:admin --json").succeeds();
        let are_sealed = || connections().matches(r#""transport":"sealed""#).count() == 3;
        eventually("three sealed transports", are_sealed);
        change_files(&scene, &proxy);
        replace_program(&scene);
        let successor = Successor::of(&proxy);
        hands_over(&proxy);
        // The new process has the same address, the new files and the store.
        scene.run(&get("bob", "tls/ca.pem", "bob.out")).succeeds();
        assert!(proxy.says("flow opened").contains("user=bob"));
        assert_eq!(sha256(&scene.path("bob.out")), expected);
        proxy.signal(Signal::USR2);
        proxy.says("error: no other process takes over: process");
        // It is taken over from when it is alone.
        successor.signal(Signal::USR2);
        proxy.says("another process is started to take over when it has ended");
        rest.store(true, Ordering::Relaxed);
        for download in downloads {
            assert_eq!(download.join().unwrap(), expected);
        }
        successor
    });
    // The old process has told what its downloads have used, and ends by itself.
    assert!(proxy.ends().success());
    let log = proxy.says_before("has ended; this one has taken over");
    let opened = log.iter().filter(|line| line.contains("flow opened")).count();
    assert_eq!(opened, 0, "a client has opened its flow again: {log:?}");
    let last = Successor::at(&proxy.says(", to take over"));
    proxy.says("has ended; this one has taken over");
    last.signal(Signal::TERM);
    eventually("the end of the last process", || {
        rustix::process::test_kill_process(last.0).is_err()
    });
    assert_used(&scene, [("alice", DOWNLOADS.len()), ("bob", 1)]);
}

#[test]
fn a_reload_of_the_new_process_reaches_the_old_one() {
    let scene = Scene::new();
    scene.write_noise("root/f", 20_000_000);
    let origin = scene.origin();
    write_secret(&scene.path("tokens"), "alice 0123456789abcdef\nbob fedcba9876543210\n");
    scene.write("alice", "0123456789abcdef");
    let proxy = serve_from_file(
        &scene,
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --write-ca proxy.pem --token-file tokens",
    );
    let line = format!(
        "get https://{}/f --via https://{} --token-file alice --ca proxy.pem --ca origin.pem -o -",
        origin.address, proxy.address
    );
    let mut download = scene.command(line.split_whitespace());
    // Nobody reads what it prints, so that it does not end by itself.
    let mut download = download.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    proxy.says("flow opened");
    let successor = Successor::of(&proxy);
    proxy.says("gets new connections from now on");
    write_secret(&scene.path("tokens"), "bob fedcba9876543210\n");
    successor.signal(Signal::HUP);
    proxy.says("token removed");
    let mut rest = download.stdout.take().unwrap();
    assert!(std::io::copy(&mut rest, &mut std::io::sink()).unwrap() < 20_000_000);
    assert!(!download.wait().unwrap().success());
    write_secret(&scene.path("tokens"), "bob");
    successor.signal(Signal::HUP);
    let old = format!("process {}: not reloaded: ", proxy.process());
    proxy.says(&old);
}

#[test]
fn the_old_process_serves_again_when_the_new_one_dies() {
    let scene = Scene::new();
    let file = scene.write_noise("root/f", LONG);
    let small = scene.write_noise("root/small", 10_000);
    let origin = scene.origin();
    generate_certificate(&scene);
    write_secret(&scene.path("tokens"), "alice 0123456789abcdef\n");
    scene.write("alice", "0123456789abcdef");
    let mut proxy = serve_from_file(
        &scene,
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --cert tls/cert.pem --key tls/key.pem \
         --token-file tokens --usage-store usage.db --threads 4 --admin unix:admin",
    );
    let get = |file: &str, to: &str| {
        format!(
            "get https://{}/{file} --via https://{} --token-file alice --ca tls/ca.pem --ca origin.pem -o {to}",
            origin.address, proxy.address
        )
    };
    let rest = &AtomicBool::new(false);
    thread::scope(|scope| {
        // One of the nodes is busy, and the others are not.
        let command = scene.command(get("f", "-").split_whitespace());
        let download = scope.spawn(|| read_in_parts(command, rest));
        proxy.says("flow opened");
        let successor = Successor::of(&proxy);
        hands_over(&proxy);
        scene.run(&get("small", "out")).succeeds();
        successor.signal(Signal::KILL);
        proxy.says("this process gets new connections again");
        proxy.says("admin listener at");
        for _ in 0..8 {
            scene.run(&get("small", "out")).succeeds();
            assert_eq!(sha256(&scene.path("out")), sha256(&small));
        }
        rest.store(true, Ordering::Relaxed);
        assert_eq!(download.join().unwrap(), sha256(&file));
    });
    let _next = Successor::of(&proxy);
    proxy.says("gets new connections from now on");
    assert!(proxy.ends().success());
}

#[test]
fn the_old_process_serves_again_when_the_new_one_hangs() {
    let scene = Scene::new();
    scene.write_noise("root/f", 20_000_000);
    let small = scene.write_noise("root/small", 10_000);
    let origin = scene.origin();
    generate_certificate(&scene);
    let proxy = serve_from_file(
        &scene,
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --cert tls/cert.pem --key tls/key.pem --threads 2",
    );
    let get = |file: &str, to: &str| {
        format!(
            "get https://{}/{file} --via https://{} --ca tls/ca.pem --ca origin.pem -o {to}",
            origin.address, proxy.address
        )
    };
    let mut download = scene.command(get("f", "-").split_whitespace());
    // Nobody reads what it prints, so that it does not end by itself.
    let mut download = download.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    proxy.says("flow opened");
    let successor = Successor::of(&proxy);
    proxy.says("gets new connections from now on");
    scene.run(&get("small", "out")).succeeds();
    successor.signal(Signal::STOP);
    assert!(proxy.says("has done nothing for").contains("this process gets new connections again"));
    for _ in 0..4 {
        scene.run(&get("small", "out")).succeeds();
        assert_eq!(sha256(&scene.path("out")), sha256(&small));
    }
    assert!(rustix::process::test_kill_process(successor.0).is_err(), "it was killed");
    drop(download.stdout.take());
    download.wait().unwrap();
    let _next = Successor::of(&proxy);
    proxy.says("gets new connections from now on");
}

#[test]
fn a_process_that_cannot_take_over_changes_nothing() {
    let scene = Scene::new();
    let file = scene.write_noise("root/f", 10_000);
    let origin = scene.origin();
    let settings =
        "listen = \"127.0.0.1:0\"\nallow-target = \"127.0.0.1\"\nwrite-ca = \"proxy.pem\"\n";
    scene.write("proxy.toml", settings);
    let proxy = serve_from_file(&scene, "proxy --config proxy.toml");
    let get = || {
        let (origin, proxy) = (origin.address, proxy.address);
        let line = "--ca proxy.pem --ca origin.pem -o out";
        scene.run(&format!("get https://{origin}/f --via https://{proxy} {line}")).succeeds();
        assert_eq!(sha256(&scene.path("out")), sha256(&file));
    };
    for (change, reason) in [
        ("no-such-setting = 1", "no-such-setting"),
        ("listen = \"127.0.0.2:0\"", "the address to listen on is 127.0.0.2:0 and was 127.0.0.1:"),
    ] {
        let key = change.split(' ').next().unwrap();
        let others = settings.lines().filter(|line| !line.starts_with(key));
        let text: Vec<_> = others.chain([change]).collect();
        scene.write("proxy.toml", text.join("\n"));
        proxy.signal(Signal::USR2);
        assert!(proxy.says("error: ").contains(reason), "{change}");
        assert!(
            proxy.says("was not ready to take over").ends_with("this process goes on"),
            "{change}"
        );
        get();
    }
    fs::remove_file(scene.path("tandem")).unwrap();
    proxy.signal(Signal::USR2);
    assert!(proxy.says("error: no other process takes over: ").contains("does not start"));
    get();
    scene.write("proxy.toml", settings);
    replace_program(&scene);
    let _successor = Successor::of(&proxy);
    proxy.says("gets new connections from now on");
}

#[test]
fn systemd_is_told_of_the_start_and_of_the_new_main_process() {
    let scene = Scene::new();
    scene.write("root/f", "");
    let socket = UnixDatagram::bind(scene.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let told = || {
        let mut buffer = [0; 200];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).trim().to_owned()
    };
    let line = "origin --listen 127.0.0.1:0 --root root";
    let mut command = scene.command(line.split_whitespace());
    command.env("NOTIFY_SOCKET", scene.path("notify"));
    let mut origin = Server::start(command, line);
    assert_eq!(told(), "READY=1");
    let successor = Successor::of(&origin);
    assert_eq!(told(), format!("MAINPID={}", successor.0.as_raw_nonzero()));
    assert!(origin.ends().success(), "it has no connections");
    // What has taken over can itself be taken over from.
    origin.says("has ended; this one has taken over");
    successor.signal(Signal::USR2);
    let next = Successor::at(&origin.says(", to take over"));
    assert_eq!(told(), format!("MAINPID={}", next.0.as_raw_nonzero()));
    origin.says("has ended; this one has taken over");
}

#[test]
fn systemd_is_told_that_the_process_with_the_new_connections_works() {
    let scene = Scene::new();
    scene.write("root/f", "");
    let socket = UnixDatagram::bind(scene.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let told = || {
        let mut buffer = [0; 200];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).trim().to_owned()
    };
    let line = "origin --listen 127.0.0.1:0 --root root";
    let mut command = scene.command(line.split_whitespace());
    command.env("NOTIFY_SOCKET", scene.path("notify")).env("WATCHDOG_USEC", "2000000");
    let mut origin = Server::start(command, line);
    assert_eq!(told(), "READY=1");
    assert_eq!(told(), "WATCHDOG=1");
    let successor = Successor::of(&origin);
    let main = format!("MAINPID={}", successor.0.as_raw_nonzero());
    eventually("the new main process", || told() == main);
    assert!(origin.ends().success());
    assert_eq!(told(), "WATCHDOG=1", "the new process");
    successor.signal(Signal::STOP);
    socket.set_nonblocking(true).unwrap();
    // What was sent before is read.
    while socket.recv(&mut [0; 200]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    assert!(socket.recv(&mut [0; 200]).is_err(), "a process that hangs says that it works");
}

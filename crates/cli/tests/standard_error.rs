//! Servers and clients whose standard error is full, has no reader, or has a reader that does not read. They serve as
//! if it were fine, and count the lines that are lost.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{PipeReader, Read, Write, pipe},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::unix::net::UnixStream,
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use support::{Scene, Server, echo, eventually};

/// What is wrong with standard error.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Each write fails, as on a full disk.
    Full,
    /// The other end of the pipe is closed.
    Gone,
    /// Nobody reads, so that a write does not return when the pipe is full.
    Stalled,
}

const FAULTS: [Fault; 3] = [Fault::Full, Fault::Gone, Fault::Stalled];

/// A program whose standard error has a fault. It logs every packet.
struct Faulty {
    child: Child,
    address: SocketAddr,
    /// The other end of a pipe that nobody reads.
    reader: Option<PipeReader>,
}

impl Faulty {
    fn start(scene: &Scene, fault: Fault, line: &str) -> Self {
        let (reader, stderr) = match fault {
            Fault::Full => {
                (None, Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap()))
            }
            Fault::Gone => (None, Stdio::from(pipe().unwrap().1)),
            Fault::Stalled => {
                let (reader, writer) = pipe().unwrap();
                (Some(reader), Stdio::from(writer))
            }
        };
        let mut command = scene.command(line.split_whitespace());
        command.env("RUST_LOG", "trace");
        let child = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0)); // From now on it is killed on drop.
        let mut faulty = Self { child, address: unknown, reader };
        eventually("a socket on loopback", || match listening(faulty.child.id()) {
            Some(address) => {
                faulty.address = address;
                true
            }
            None => false,
        });
        faulty
    }

    /// Ends it as an operator would, and checks that it ends well.
    #[track_caller]
    fn stop(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it has ended by itself");
        let id = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::TERM).unwrap();
        eventually("the end", || self.child.try_wait().unwrap().is_some());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        // It may have ended before.
        if self.child.kill().is_ok() && self.child.wait().is_ok() {}
    }
}

/// The UDP socket of a process that is open on loopback to anybody. Standard error, which would tell it, is not read.
fn listening(process: u32) -> Option<SocketAddr> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let open = open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let open: BTreeSet<_> = open.map(|link| link.to_string_lossy().into_owned()).collect();
    let table = fs::read_to_string(format!("/proc/{process}/net/udp")).ok()?;
    table.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, local, remote, _, _, _, _, _, _, inode, ..] = words.as_slice() else { return None };
        let (address, port) = local.split_once(':')?;
        let is_ours = open.contains(&format!("socket:[{inode}]"));
        let is_local = u32::from_str_radix(address, 16).ok()? == u32::from_ne_bytes([127, 0, 0, 1]);
        let port = u16::from_str_radix(port, 16).ok()?;
        (is_ours && is_local && *remote == "00000000:0000")
            .then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    })
}

/// The lines of the log that a server has lost.
fn lost_lines(scene: &Scene) -> u64 {
    metric(scene, "tandem_log_lines_lost_total")
}

/// A metric of a server without labels.
fn metric(scene: &Scene, name: &str) -> u64 {
    let mut stream = UnixStream::connect(scene.path("admin")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let mut lines = answer.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
}

/// Fetches a file until lines were lost, and then once more. Each time it arrives whole.
fn fetch_until_lines_are_lost(scene: &Scene, fault: Fault, line: &str) {
    let mut is_last = false;
    for _ in 0..50 {
        scene.run(line).succeeds();
        if is_last {
            return;
        }
        is_last = lost_lines(scene) > 0;
    }
    panic!("{fault:?}: no line was lost");
}

#[test]
fn a_proxy_serves_and_counts_lost_lines_when_nobody_takes_its_log() {
    for fault in FAULTS {
        let scene = Scene::new();
        scene.write_noise("root/f", 1_000_000);
        let origin = scene.origin();
        let line = "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca proxy.pem \
                    --admin unix:admin --threads 1";
        let proxy = Faulty::start(&scene, fault, line);
        let get = format!(
            "get https://{}/f --ca origin.pem --via https://{} --ca proxy.pem -o out --quiet",
            origin.address, proxy.address
        );
        fetch_until_lines_are_lost(&scene, fault, &get);
        proxy.stop();
    }
}

#[test]
fn an_origin_serves_and_counts_lost_lines_when_nobody_takes_its_log() {
    for fault in FAULTS {
        let scene = Scene::new();
        scene.write_noise("root/f", 1_000_000);
        let line = "origin --listen 127.0.0.1:0 --root root --write-ca origin.pem --admin unix:admin \
                    --threads 1";
        let origin = Faulty::start(&scene, fault, line);
        let get = format!("get https://{}/f --ca origin.pem -o out --quiet", origin.address);
        fetch_until_lines_are_lost(&scene, fault, &get);
        origin.stop();
    }
}

/// A file system without room, as a limit on the size of files makes it.
#[test]
fn a_proxy_serves_and_counts_when_the_disk_has_no_room_for_its_qlogs() {
    let scene = Scene::new();
    scene.write_noise("root/f", 1_000_000);
    fs::create_dir(scene.path("qlog")).unwrap();
    let origin = scene.origin();
    let line = "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca proxy.pem --admin unix:admin \
                --qlog-dir qlog";
    let tandem = scene.command([""]).get_program().to_owned();
    let mut command = scene.other_program("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]).arg(tandem);
    command.args(line.split_whitespace());
    let proxy = Server::start(command, line);
    let get = format!(
        "get https://{}/f --ca origin.pem --via https://{} --ca proxy.pem -o out --quiet",
        origin.address, proxy.address
    );
    for _ in 0..2 {
        scene.run(&get).succeeds();
    }
    eventually("a qlog that is cut", || metric(&scene, "tandem_qlogs_cut_total") > 0);
    proxy.says("a qlog file ends before its connection");
    assert!(proxy.stop().0.success());
}

#[test]
fn a_client_carries_packets_when_nobody_takes_its_log() {
    let scene = Scene::new();
    let (target, proxy) = (echo(), scene.proxy("proxy.pem"));
    for fault in FAULTS {
        let line = format!(
            "client --via https://{} --ca proxy.pem --udp 127.0.0.1:0={target}",
            proxy.address
        );
        let client = Faulty::start(&scene, fault, &line);
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        program.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let comes_back = || {
            (0..10).any(|_| {
                program.send_to(&[0; 500], client.address).unwrap();
                program.recv_from(&mut [0; 600]).is_ok()
            })
        };
        // The lines of so many packets fill a pipe several times.
        for number in 0..1000 {
            assert!(comes_back(), "{fault:?}: packet {number}");
        }
        client.stop();
    }
}

#[test]
fn what_was_lost_is_said_when_somebody_reads_again() {
    let scene = Scene::new();
    scene.write_noise("root/f", 1_000_000);
    let line = "origin --listen 127.0.0.1:0 --root root --write-ca origin.pem --admin unix:admin";
    let mut origin = Faulty::start(&scene, Fault::Stalled, line);
    let get = format!("get https://{}/f --ca origin.pem -o out --quiet", origin.address);
    fetch_until_lines_are_lost(&scene, Fault::Stalled, &get);
    let mut reader = origin.reader.take().unwrap();
    let reads = std::thread::spawn(move || {
        let mut log = String::new();
        reader.read_to_string(&mut log).unwrap();
        log
    });
    origin.stop();
    let log = reads.join().unwrap();
    let lost = log.lines().find(|line| line.ends_with("lines of the log were lost"));
    assert!(lost.is_some_and(|line| line.starts_with("warning: ")), "{lost:?}");
}

#[test]
fn a_command_that_cannot_write_its_result_says_so_and_does_not_panic() {
    let scene = Scene::new();
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let errors = scene.path("errors");
    for (stdout, code, says) in [
        (full(), 1, "error: cannot write to standard output: "),
        (Stdio::from(pipe().unwrap().1), 0, ""),
    ] {
        let mut command = scene.command(["generate", "fleet"]);
        command.stdout(stdout).stderr(File::create(&errors).unwrap());
        assert_eq!(command.status().unwrap().code(), Some(code));
        let said = fs::read_to_string(&errors).unwrap();
        assert!(said.starts_with(says) && !said.contains("panicked"), "{said}");
    }
    let line = "get https://127.0.0.1:1/ -o out --timeout 1s -vv";
    let status = scene.command(line.split_whitespace()).stderr(full()).status();
    assert_eq!(status.unwrap().code(), Some(1));
}

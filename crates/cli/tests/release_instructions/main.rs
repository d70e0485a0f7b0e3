//! Tests how many instructions the release program executes for each UDP payload that it carries over real sockets.
//!
//! ```text
//! cargo test --workspace --test release_instructions                      # compares with bounds.csv
//! cargo test --workspace --test release_instructions -- --write           # writes new bounds
//! cargo test --workspace --test release_instructions -- --program /FILE   # counts this program, with symbols
//! cargo test --workspace --test release_instructions -- --build           # only builds the program
//! ```
//!
//! It needs valgrind, and root for the priority below. The program that it builds is that of the profile `release`,
//! without what is optional, which takes half as long to build and changes nothing on the path of packets.
//!
//! A client and a proxy run under valgrind's callgrind and carry payloads from a local program to a target and back, in
//! bursts and one at a time. Start and handshake are not counted, and neither are encryption, the C library and the
//! allocator: see `callgrind`.
//!
//! **What makes the counts steady.** How many packets a process finds when it wakes decides what a packet costs. So all
//! processes share one CPU and have a real-time priority, with which each runs until it waits, whatever else the
//! machine does. A burst leaves with one system call, the next one leaves when all of it has arrived, and between the
//! two each process finishes what it does. The windows are large from the beginning: valgrind makes the round trip a
//! hundred times as long, so that pacing would divide the bursts, which it does not do in a release. In that order of
//! things, the median of several counts varies by about 1 %.

#[path = "../../../lab/tests/instructions/bounds.rs"]
mod bounds;
#[path = "../../../lab/tests/instructions/callgrind.rs"]
mod callgrind;
#[path = "../support/mod.rs"]
mod support;

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use bounds::{Bounds, Count, clean};
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use support::Server;
use tandem_net::clock;

/// The length of a UDP payload in bytes.
const PAYLOAD_LEN: u16 = 1200;

/// The measured cases: the direction, the payloads in a burst, and the bursts of one count.
const CASES: [(Direction, u16, u16); 4] = [
    (Direction::Up, 16, 40),
    (Direction::Up, 1, 150),
    (Direction::Down, 16, 40),
    (Direction::Down, 1, 150),
];

/// The number of counts of a case, of which the median is taken.
const COUNTS: usize = 3;

/// By how many hundredths a count may exceed its bound.
const GROWTH: u64 = 3;

/// The time after which a payload counts as lost.
const TIMEOUT: Duration = Duration::from_secs(10);

const NODES: [&str; 2] = ["client", "proxy"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From the local program to the target.
    Up,
    Down,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (program, writes) = match arguments[..] {
        ["carry", program] => {
            carry(Path::new(program));
            return ExitCode::SUCCESS;
        }
        ["--build"] => {
            build();
            return ExitCode::SUCCESS;
        }
        [] => (build(), false),
        ["--write"] => (build(), true),
        ["--program", program] => (program.into(), false),
        ["--program", program, "--write"] => (program.into(), true),
        _ => panic!("unknown arguments: {arguments:?}"),
    };
    let counts = count(&program);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/release_instructions/bounds.csv");
    let bounds = Bounds { file: &file, fields: "direction,burst,node", growth: GROWTH };
    if writes {
        bounds.write(&counts);
        return ExitCode::SUCCESS;
    }
    if bounds.hold(&counts) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds the program, in a folder of its own.
fn build() -> PathBuf {
    let builds = support::tandem().ancestors().nth(2).expect("the folder of all builds");
    let target = builds.join("release-instructions");
    let status = clean(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--locked", "--no-default-features"])
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env("CARGO_INCREMENTAL", "0")
        .status();
    assert!(status.expect("cargo is installed").success(), "the program cannot be built");
    target.join("release/tandem")
}

fn count(program: &Path) -> Vec<Count> {
    let status = clean("chrt")
        .args(["--fifo", "1"])
        .arg(std::env::current_exe().expect("a program"))
        .arg("carry")
        .arg(program)
        .status();
    assert!(
        status.expect("chrt is installed (Debian: util-linux)").success(),
        "no counts; a real-time priority needs root"
    );
    let mut counts = Vec::new();
    for (number, (direction, burst, bursts)) in CASES.into_iter().enumerate() {
        let direction = if direction == Direction::Up { "up" } else { "down" };
        for node in NODES {
            let mut sums: Vec<_> = (1..=COUNTS)
                .map(|count| {
                    let name = format!("{}.{}", profile(node).display(), number * COUNTS + count);
                    let profile = fs::read_to_string(name).expect("callgrind has written it");
                    callgrind::instructions(&profile) / u64::from(burst * bursts)
                })
                .collect();
            sums.sort_unstable();
            let name = format!("{direction},{burst},{node}");
            let instructions = sums.into_iter().nth(COUNTS / 2).expect("a median");
            counts.push(Count { name, instructions });
        }
    }
    counts
}

/// Where callgrind writes the profiles of a node. It appends their numbers.
fn profile(node: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("release-instructions-{node}"))
}

/// Carries all payloads through one tunnel. After each count, callgrind writes a profile of each node.
fn carry(program: &Path) {
    stay_on_one_cpu();
    let tunnel = Tunnel::start(program);
    for (direction, burst, bursts) in CASES {
        tunnel.carry(direction, burst, bursts);
        tunnel.tell_callgrind("zero");
        for _ in 0..COUNTS {
            tunnel.carry(direction, burst, bursts);
            tunnel.tell_callgrind("dump");
        }
    }
}

/// Keeps this process and those that it starts on one CPU, so that only one of them runs at a time.
fn stay_on_one_cpu() {
    let allowed = sched_getaffinity(None).expect("Linux tells");
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu)).expect("a CPU");
    let mut one = CpuSet::new();
    one.set(last);
    sched_setaffinity(None, &one).expect("the CPU is allowed");
}

/// A tunnel whose ends run under callgrind, between a local program and a target.
struct Tunnel {
    nodes: [Server; 2],
    local: UdpSocket,
    target: UdpSocket,
    /// The proxy's socket for the target.
    source: SocketAddr,
}

impl Tunnel {
    fn start(program: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let bind = || UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let (local, target) = (bind(), bind());
        let start = |node: &str, settings: &str| {
            let help = clean(program).args([node, "--help"]).output().expect("a program");
            let has_pause = String::from_utf8_lossy(&help.stdout).contains("--pause");
            let pause = if has_pause { "--pause off" } else { "" };
            let line = format!("{node} {settings} --initial-window 200 {pause}");
            let mut command = clean("valgrind");
            command
                .env_remove("HOME")
                .current_dir(&folder)
                .args(["--tool=callgrind", "--quiet"])
                .arg(format!("--callgrind-out-file={}", profile(node).display()))
                .arg(program)
                .args(line.split_whitespace());
            Server::start(command, &line)
        };
        let proxy = start(
            "proxy",
            "--listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca ca.pem --threads 1",
        );
        let to = target.local_addr().expect("an address");
        let via = proxy.address;
        let client =
            start("client", &format!("--via https://{via} --ca ca.pem --udp 127.0.0.1:0={to}"));
        local.connect(client.address).expect("loopback");
        for socket in [&local, &target] {
            socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        }
        local.send(b"first").expect("the client listens");
        let (_, source) = target.recv_from(&mut [0; 10]).expect("the first packet arrives");
        Self { nodes: [client, proxy], local, target, source }
    }

    /// Sends bursts, each when all of the one before has arrived.
    fn carry(&self, direction: Direction, burst: u16, bursts: u16) {
        let payloads = vec![0; usize::from(PAYLOAD_LEN) * usize::from(burst)];
        let (sender, receiver) = match direction {
            Direction::Up => (&self.local, &self.target),
            Direction::Down => (&self.target, &self.local),
        };
        setsockopt(sender, UdpGsoSegment, &i32::from(PAYLOAD_LEN)).expect("Linux divides bursts");
        for _ in 0..bursts {
            let begin = clock::now();
            let sent = match direction {
                Direction::Up => sender.send(&payloads),
                Direction::Down => sender.send_to(&payloads, self.source),
            };
            assert_eq!(sent.expect("loopback"), payloads.len());
            for _ in 0..burst {
                let len = receiver.recv(&mut [0; 2000]).expect("all payloads arrive");
                assert_eq!(len, usize::from(PAYLOAD_LEN));
            }
            // What follows a burst, such as acknowledgements, is not mixed with the next one. Linux stops processes for
            // 50 ms that have a real-time priority and do not pause for a second.
            thread::sleep(begin.elapsed() / 8);
        }
    }

    fn tell_callgrind(&self, what: &str) {
        for node in &self.nodes {
            let output = clean("vgdb").arg(format!("--pid={}", node.process())).arg(what).output();
            let output = output.expect("vgdb is a part of valgrind");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

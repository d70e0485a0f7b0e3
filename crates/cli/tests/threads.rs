//! Servers with several threads at one address.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Scene, Server, comes_back, echo, eventually, sha256};

/// A NAT that forgets its binding after this many packets of the client, so that the server sees another port.
const PACKETS_PER_BINDING: usize = 40;

struct Nat {
    address: SocketAddr,
    rebound: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Nat {
    fn before(server: SocketAddr) -> Self {
        let inside = socket();
        let address = inside.local_addr().unwrap();
        let (rebound, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, is_over) = (Arc::clone(&rebound), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            let (mut outside, mut client, mut packets) = (socket(), None, 0);
            let mut buffer = vec![0; 65_536];
            while !is_over.load(Relaxed) {
                let mut is_idle = true;
                while let Ok((len, from)) = inside.recv_from(&mut buffer) {
                    is_idle = false;
                    if client.replace(from) != Some(from) {
                        (outside, packets) = (socket(), 0); // another client
                    }
                    packets += 1;
                    if packets % PACKETS_PER_BINDING == 0 {
                        outside = socket();
                        counter.fetch_add(1, Relaxed);
                    }
                    outside.send_to(&buffer[..len], server).unwrap();
                }
                while let Ok(len) = outside.recv(&mut buffer) {
                    is_idle = false;
                    // A client that has ended may refuse it.
                    drop(inside.send_to(&buffer[..len], client.unwrap()));
                }
                if is_idle {
                    thread::sleep(Duration::from_micros(200));
                }
            }
        });
        Self { address, rebound, ends, thread: Some(thread) }
    }

    /// Ends it. Returns how often the server saw another port of the same client.
    fn end(mut self) -> usize {
        self.ends.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.rebound.load(Relaxed)
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

#[test]
fn clients_that_change_their_address_stay_with_their_thread() {
    let scene = Scene::new();
    let file = scene.write_noise("root/file", 2_000_000);
    let origin =
        scene.serve("origin --listen 127.0.0.1:0 --root root --write-ca origin.pem --threads 3");
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca proxy.pem --threads 3",
    );
    let nat = Nat::before(proxy.address);
    for mode in ["mdt", "forward", "uack", "mst", "msgt", "rmdt", "tecc"] {
        for _ in 0..2 {
            let line = format!(
                "get https://{}/file --via https://{} --ca origin.pem --ca proxy.pem --mode {mode} -o out",
                origin.address, nat.address
            );
            scene.run(&line).succeeds();
            assert_eq!(sha256(&scene.path("out")), sha256(&file), "{line}");
            fs::remove_file(scene.path("out")).unwrap();
        }
    }
    let rebound = nat.end();
    assert!(rebound >= 14, "the clients' addresses changed {rebound} times only");
    let (status, log) = proxy.stop();
    assert!(status.success(), "{log}");
    let threads = threads_of_flows(&log, 3);
    assert_eq!(threads.len(), 14, "no flow was opened again: {log}");
    assert!(BTreeSet::from_iter(threads).len() > 1, "one thread has served all: {log}");
    let (status, log) = origin.stop();
    assert!(status.success(), "{log}");
}

/// Clients, each with a program and a flow. With four threads, the kernel gives them all to one thread once
/// in four million runs.
const CLIENTS: usize = 12;

fn clients(scene: &Scene, proxy: SocketAddr, ca: &str) -> Vec<(Server, UdpSocket)> {
    let target = echo();
    let line = format!("client --via https://{proxy} --ca {ca} --udp 127.0.0.1:0={target} -v");
    let program = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = || {
        let client = scene.serve(&line);
        client.says("tunnel up");
        client
    };
    (0..CLIENTS).map(|_| (client(), program())).collect()
}

fn all_come_back(clients: &[(Server, UdpSocket)]) -> bool {
    clients.iter().all(|(client, program)| comes_back(program, client))
}

/// The thread of each flow that a server with this many threads has opened. Each thread numbers its connections in
/// steps of their number, from its own index.
fn threads_of_flows(log: &str, threads: u64) -> Vec<u64> {
    let opened = log.lines().filter_map(|line| line.split_once("flow opened connection="));
    let connection = |rest: &str| rest.split(' ').next().unwrap().parse::<u64>().unwrap();
    opened.map(|(_, rest)| connection(rest) % threads).collect()
}

/// Ends the server.
#[track_caller]
fn assert_several_of_four_threads_served(server: Server) {
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    let threads = BTreeSet::from_iter(threads_of_flows(&log, 4));
    assert!(threads.len() > 1, "one thread has served all: {log}");
}

#[test]
fn statistics_and_a_drain_are_those_of_all_threads() {
    let scene = Scene::new();
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --write-ca proxy.pem --threads 4 \
         --admin 127.0.0.1:0 --drain 1h",
    );
    let clients = clients(&scene, proxy.address, "proxy.pem");
    assert!(all_come_back(&clients));
    let now = || -> Value {
        let said = scene.run(&format!("top {} --json", proxy.admin())).succeeds();
        serde_json::from_str(&said).unwrap()
    };
    eventually("all flows are counted", || now()["flows"]["udp_total"] == CLIENTS);
    let counted = now();
    assert_eq!(counted["threads"], 4);
    assert_eq!(counted["connections"]["open"], CLIENTS);
    assert_eq!(counted["tunnels"].as_array().unwrap().len(), CLIENTS);
    proxy.signal(Signal::TERM);
    eventually("the proxy drains", || now()["is_draining"] == true);
    assert!(all_come_back(&clients), "the flows of all threads go on");
    assert_eq!(now()["flows"]["udp_total"], CLIENTS, "and none was opened again");
    drop(clients);
    assert_several_of_four_threads_served(proxy);
}

#[test]
fn any_thread_of_a_new_process_resets_the_connections_of_the_last_one() {
    let scene = Scene::new();
    scene.run("generate certificate dev").succeeds();
    let serve = |address: SocketAddr| {
        scene.serve(&format!(
            "proxy --listen {address} --allow-target 127.0.0.1 --cert dev/cert.pem --key dev/key.pem \
             --threads 4"
        ))
    };
    let proxy = serve("127.0.0.1:0".parse().unwrap());
    let address = proxy.address;
    let clients = clients(&scene, address, "dev/ca.pem");
    assert!(all_come_back(&clients));
    drop(proxy); // which kills it
    let proxy = serve(address);
    for (client, program) in &clients {
        program.send_to(b"whose answer is a reset", client.address).unwrap();
    }
    assert!(all_come_back(&clients));
    // The others have sent something while no process listened.
    let is_reset = |(client, _): &&(Server, UdpSocket)| {
        client.says_before("tunnel up").iter().any(|line| line.contains("reset by peer"))
    };
    let resets = clients.iter().filter(is_reset).count();
    assert!(resets > CLIENTS / 2, "{resets} resets");
    assert_several_of_four_threads_served(proxy);
}

#[test]
fn a_second_signal_ends_all_threads_at_once() {
    let scene = Scene::new();
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let proxy = scene.serve(
        "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.1 --write-ca proxy.pem --threads 4 \
         --drain 1h",
    );
    let client = scene.serve(&format!(
        "client --via https://{} --ca proxy.pem --udp 127.0.0.1:0={}",
        proxy.address,
        target.local_addr().unwrap()
    ));
    let program = socket();
    program.send_to(b"opens a flow", client.address).unwrap();
    target.recv(&mut [0; 20]).unwrap();
    proxy.signal(Signal::TERM);
    // The open flow goes on while the proxy drains.
    thread::sleep(Duration::from_millis(300));
    program.send_to(b"goes on", client.address).unwrap();
    assert_eq!(target.recv(&mut [0; 20]).unwrap(), 7);
    let (status, log) = proxy.stop();
    assert!(status.success(), "{log}");
}

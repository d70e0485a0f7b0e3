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

use crate::support::{Scene, sha256};

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
    // Each thread numbers its connections in steps of 3, from its own index.
    let opened = log.lines().filter_map(|line| line.split_once("flow opened connection="));
    let threads: Vec<u64> = opened
        .map(|(_, rest)| rest.split(' ').next().unwrap().parse::<u64>().unwrap() % 3)
        .collect();
    assert_eq!(threads.len(), 14, "no flow was opened again: {log}");
    assert!(BTreeSet::from_iter(threads).len() > 1, "one thread has served all: {log}");
    let (status, log) = origin.stop();
    assert!(status.success(), "{log}");
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

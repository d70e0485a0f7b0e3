//! An attacker who sees the packets of a connection and sends forged ones, but cannot hold any back.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

mod support;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};

use crate::support::{Scene, Server, eventually, sha256};

/// The length of each packet of a batch. The kernel joins packets of one length.
const LEN: usize = 60;

/// How many of a client's packets the attacker makes use of.
const SEEN_MAX: usize = 400;

/// Stands on the path between a client and a server.
struct Observer {
    address: SocketAddr,
    sent: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    fn before(server: SocketAddr, threads: u8) -> Self {
        let inside = socket();
        let address = inside.local_addr().unwrap();
        let (sent, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, is_over) = (Arc::clone(&sent), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            let (outside, attacker) = (socket(), socket());
            setsockopt(&attacker, UdpGsoSegment, &i32::try_from(LEN).unwrap()).unwrap();
            let (mut client, mut buffer) = (None, vec![0; 65_536]);
            while !is_over.load(Relaxed) {
                let mut is_idle = true;
                while let Ok((len, from)) = inside.recv_from(&mut buffer) {
                    is_idle = false;
                    client = Some(from);
                    outside.send_to(&buffer[..len], server).unwrap();
                    if buffer[0] & 0x80 == 0 && counter.load(Relaxed) < SEEN_MAX {
                        counter.fetch_add(1, Relaxed);
                        for thread in 0..threads {
                            attacker.send_to(&batch(&buffer[1..9], thread), server).unwrap();
                        }
                    }
                }
                while let Ok(len) = outside.recv(&mut buffer) {
                    is_idle = false;
                    // A client that has ended may refuse it.
                    drop(inside.send_to(&buffer[..len], client.unwrap()));
                }
                while let Ok(len) = attacker.recv(&mut buffer) {
                    is_idle = false;
                    // A stateless reset ends with its token. Behind other bytes, it is one from the server's address.
                    let mut forged = vec![0x55; 40];
                    forged.extend(&buffer[len - 16..len]);
                    drop(inside.send_to(&forged, client.unwrap()));
                }
                if is_idle {
                    thread::sleep(Duration::from_micros(200));
                }
            }
        });
        Self { address, sent, ends, thread: Some(thread) }
    }

    /// Ends it. Returns how many batches it has sent to each thread.
    fn end(mut self) -> usize {
        self.ends.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.sent.load(Relaxed)
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Two packets that reach a server as one message: a Handshake packet for a thread, and a packet with a connection ID
/// that was seen.
fn batch(seen: &[u8], thread: u8) -> Vec<u8> {
    let mut batch = vec![0xe3, 0, 0, 0, 1, 8, thread, 7, 7, 7, 7, 7, 7, 7];
    batch.resize(LEN, 7);
    batch.push(0x40);
    batch.extend(seen);
    batch.resize(2 * LEN, 9);
    batch
}

#[test]
fn packets_that_reach_the_wrong_thread_end_no_connection() {
    let scene = Scene::new();
    scene.run("generate certificate dev").succeeds();
    let file = scene.write_noise("root/file", 6_000_000);
    let own = "--listen 127.0.0.1:0 --cert dev/cert.pem --key dev/key.pem --threads 2 --admin 127.0.0.1:0";
    let origin = scene.serve(&format!("origin --root root {own}"));
    let proxy = scene.serve(&format!("proxy --allow-target 127.0.0.0/8 {own}"));
    let mut tried = 0;
    for attempt in 0..4 {
        let before_origin = Observer::before(origin.address, 2);
        let before_proxy = Observer::before(proxy.address, 2);
        let line = format!(
            "get https://{}/file --via https://{} --ca dev/ca.pem -o out{attempt}",
            before_origin.address, before_proxy.address
        );
        scene.run(&line).succeeds();
        assert_eq!(sha256(&scene.path(&format!("out{attempt}"))), sha256(&file));
        tried += before_origin.end() + before_proxy.end();
    }
    assert!(tried > 400, "the attacker has seen {tried} packets only");
    eventually("all flows are counted", || metric(&proxy, "tandem_flows_total") >= Some(4));
    assert_eq!(metric(&proxy, "tandem_flows_total"), Some(4), "no tunnel was built again");
    for server in [origin, proxy] {
        // Without them, no packet has reached the wrong thread.
        let handed = metric(&server, "tandem_socket_datagrams_handed_over_total").unwrap();
        assert!(handed > 100, "{handed} packets were joined with those of another thread");
        server.stop();
    }
}

/// A value of the metrics of a server. `None`: it has not looked at its nodes yet.
fn metric(server: &Server, name: &str) -> Option<u64> {
    let mut admin = TcpStream::connect(server.admin()).unwrap();
    admin
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    admin.read_to_string(&mut answer).unwrap();
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

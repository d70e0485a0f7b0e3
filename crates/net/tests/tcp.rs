//! Tests of TCP connections with real sockets on loopback. No test asserts a duration.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod script;

use std::{
    collections::BTreeMap,
    env,
    fs::File,
    future::pending,
    io::{self, ErrorKind, Read, Seek, Write},
    iter,
    net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use socket2::SockRef;
use tandem_net::{Application, DriverOptions, DriverStats};
use tandem_node::{
    node::{Input, Node, Output},
    tcp::{ListenerId, TcpAddresses, TcpId, TcpInput, TcpOutput},
};

use self::script::{LOOPBACK, Wants, block_on, run, script};

const LISTENER: ListenerId = ListenerId(0);
const TCP: TcpId = TcpId(1);

impl Wants {
    fn tcp(&mut self, output: TcpOutput) {
        self.push(Output::Tcp(output));
    }

    fn listen(&mut self, address: SocketAddr) {
        self.tcp(TcpOutput::Listen { listener: LISTENER, address });
    }

    fn accept(&mut self, tcp: TcpId) {
        self.tcp(TcpOutput::Accept { listener: LISTENER, tcp });
    }

    fn connect(&mut self, tcp: TcpId, peer: SocketAddr) {
        self.tcp(TcpOutput::Connect { tcp, peer, user: None });
    }

    fn read(&mut self, tcp: TcpId, max: usize) {
        self.tcp(TcpOutput::Read { tcp, max });
    }

    fn write(&mut self, tcp: TcpId, data: impl Into<Bytes>) {
        self.tcp(TcpOutput::Write { tcp, data: data.into() });
    }
}

/// A node that gets only inputs about TCP.
fn tcp_node(
    start: impl FnOnce(&mut Wants),
    mut on_input: impl FnMut(TcpInput, &mut Wants),
) -> impl Node {
    script(start, move |_now, input, wants: &mut Wants| match input {
        Input::Tcp(input) => on_input(input, wants),
        other => panic!("{other:?}"),
    })
}

/// A node that connects to `peer` and then behaves as the closure says.
fn connecting(peer: SocketAddr, on_input: impl FnMut(TcpInput, &mut Wants)) -> impl Node {
    tcp_node(move |wants| wants.connect(TCP, peer), on_input)
}

/// A peer that accepts one connection in a thread of its own.
fn peer<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        serve(stream)
    });
    (address, thread)
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251).to_le_bytes()[0]).collect()
}

fn read_all(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).map(|_| all)
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn bytes_are_echoed_until_the_peer_ends_and_the_end_is_answered() {
    const BYTES: usize = 3_000_000;
    let mut client = None;
    let (mut read, mut written) = (0, 0);
    let node = tcp_node(
        |wants| wants.listen(LOOPBACK),
        |input, wants| match input {
            TcpInput::Listening { result, .. } => {
                let address = result.unwrap();
                wants.accept(TCP);
                client = Some(thread::spawn(move || {
                    let stream = TcpStream::connect(address).unwrap();
                    let mut writer = stream.try_clone().unwrap();
                    let sending = thread::spawn(move || {
                        writer.write_all(&pattern(BYTES)).unwrap();
                        writer.shutdown(Shutdown::Write).unwrap();
                    });
                    let echoed = read_all(&stream).unwrap();
                    sending.join().unwrap();
                    (stream.local_addr().unwrap(), echoed)
                }));
            }
            TcpInput::Opened { tcp, result } => {
                let addresses = result.unwrap();
                assert!(addresses.peer.ip().is_loopback());
                wants.read(tcp, 65_536);
            }
            TcpInput::Read { tcp, data } if data.is_empty() => {
                assert_eq!(read, BYTES);
                wants.tcp(TcpOutput::Finish(tcp));
                wants.tcp(TcpOutput::Close(tcp));
                wants.close();
            }
            TcpInput::Read { tcp, data } => {
                assert!(data.len() <= 65_536);
                read += data.len();
                wants.write(tcp, data);
                wants.read(tcp, 65_536);
            }
            TcpInput::Written { bytes, .. } => {
                written += bytes;
                assert!(written <= read);
            }
            TcpInput::Failed { .. } | TcpInput::UdpPorts { .. } => panic!("{input:?}"),
        },
    );
    let stats = block_on(run(node));
    let (_, echoed) = client.unwrap().join().unwrap();
    assert!(echoed == pattern(BYTES), "{} bytes came back", echoed.len());
    assert_eq!((stats.tcp_opened, stats.tcp_failed, stats.tcp_closes_cut), (1, 0, 0));
    let bytes = BYTES as u64;
    assert_eq!((stats.tcp_bytes_read, stats.tcp_bytes_written), (bytes, bytes));
}

#[test]
fn the_node_reads_on_after_it_has_ended_its_own_direction() {
    let (address, thread) = peer(|mut stream| {
        let greeting = read_all(&stream).unwrap(); // until the node's FIN
        stream.write_all(b"answer").unwrap();
        greeting
    });
    let mut answer = Vec::new();
    let node = connecting(address, |input, wants| match input {
        TcpInput::Opened { tcp, result } => {
            assert_eq!(result, Ok(address.into()));
            wants.write(tcp, "question");
            wants.tcp(TcpOutput::Finish(tcp));
            wants.write(tcp, "too late");
            wants.read(tcp, 4);
        }
        TcpInput::Read { data, .. } if data.is_empty() => wants.close(),
        TcpInput::Read { tcp, data } => {
            answer.extend_from_slice(&data);
            wants.read(tcp, 4);
        }
        TcpInput::Written { bytes, .. } => assert_eq!(bytes, 8),
        other => panic!("{other:?}"),
    });
    block_on(run(node));
    assert_eq!((thread.join().unwrap(), answer), (b"question".to_vec(), b"answer".to_vec()));
}

#[test]
fn a_reset_by_the_peer_ends_a_read_after_what_arrived_before() {
    let (address, thread) = peer(|mut stream| {
        stream.write_all(b"last words").unwrap();
        stream.read_exact(&mut [0]).unwrap(); // the node has them
        reset(stream);
    });
    let mut end = None;
    let node = connecting(address, |input, wants| match input {
        TcpInput::Opened { tcp, .. } => wants.read(tcp, 100),
        TcpInput::Read { tcp, data } => {
            assert_eq!(data, "last words");
            wants.write(tcp, "!");
            wants.read(tcp, 100);
        }
        TcpInput::Written { .. } => {}
        TcpInput::Failed { tcp, error } => {
            end = Some((tcp, error));
            wants.close();
        }
        TcpInput::Listening { .. } | TcpInput::UdpPorts { .. } => panic!("{input:?}"),
    });
    let stats = block_on(run(node));
    thread.join().unwrap();
    assert_eq!(end, Some((TCP, ErrorKind::ConnectionReset)));
    assert_eq!(stats.tcp_failed, 1);
}

#[test]
fn the_answer_of_a_peer_that_does_not_read_on_is_not_lost() {
    // A web server may answer before it has read the whole request, and then close the connection,
    // which resets it.
    let (address, thread) = peer(|mut stream| {
        stream.read_exact(&mut [0; 1000]).unwrap();
        stream.write_all(b"413 Content Too Large").unwrap();
    });
    let mut answer = Vec::new();
    let node = script(
        |wants| wants.connect(TCP, address),
        |now, input, wants: &mut Wants| match input {
            Input::Tcp(TcpInput::Opened { .. } | TcpInput::Written { .. }) => {
                wants.write(TCP, pattern(100_000));
                wants.deadline = Some(now + Duration::from_millis(100));
            }
            // Nothing can be written any more.
            Input::Timeout => {
                wants.read(TCP, 7);
                wants.deadline = None;
            }
            Input::Tcp(TcpInput::Read { data, .. }) => {
                answer.extend_from_slice(&data);
                wants.read(TCP, 7);
            }
            Input::Tcp(TcpInput::Failed { .. }) => wants.close(),
            other => panic!("{other:?}"),
        },
    );
    let stats = block_on(run(node));
    thread.join().unwrap();
    assert_eq!(answer, b"413 Content Too Large");
    assert_eq!(stats.tcp_failed, 1);
}

#[test]
fn a_reset_by_the_node_discards_what_waits_and_resets_the_peer() {
    let (go, wait) = mpsc::channel();
    let (address, thread) = peer(move |stream| {
        wait.recv().unwrap();
        read_all(&stream).map_err(|error| error.kind())
    });
    let node = connecting(address, |input, wants| match input {
        TcpInput::Opened { tcp, .. } => wants.write(tcp, vec![7; 50_000_000]),
        TcpInput::Written { tcp, bytes } => {
            assert!(bytes < 50_000_000, "the operating system has taken everything");
            wants.tcp(TcpOutput::Reset(tcp));
            wants.read(tcp, 1); // the name is no longer known
            wants.close();
            go.send(()).unwrap();
        }
        other => panic!("{other:?}"),
    });
    block_on(run(node));
    assert_eq!(thread.join().unwrap(), Err(ErrorKind::ConnectionReset));
}

#[test]
fn connections_that_the_node_leaves_open_are_reset_when_it_ends() {
    let (address, thread) = peer(|stream| read_all(&stream).map_err(|error| error.kind()));
    let node = connecting(address, |input, wants| match input {
        TcpInput::Opened { tcp, .. } => wants.write(tcp, "half of a"),
        TcpInput::Written { .. } => wants.close(),
        other => panic!("{other:?}"),
    });
    block_on(run(node));
    assert_eq!(thread.join().unwrap(), Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_refused_connection_is_told_with_its_cause() {
    let closed = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let mut answers = Vec::new();
    let node = connecting(closed, |input, wants| match input {
        TcpInput::Opened { tcp, result } => {
            answers.push(result.map_err(|error| error.kind));
            wants.write(tcp, "the connection is forgotten");
            wants.close();
        }
        other => panic!("{other:?}"),
    });
    let stats = block_on(run(node));
    assert_eq!(answers, [Err(ErrorKind::ConnectionRefused)]);
    assert_eq!((stats.tcp_refused, stats.tcp_opened, stats.tcp_bytes_written), (1, 0, 0));
}

#[test]
fn a_connection_that_the_node_stops_opening_is_never_told() {
    let closed = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let other = TcpId(2);
    let node = tcp_node(
        |wants| {
            wants.listen(LOOPBACK);
            for stop in [TcpOutput::Close, TcpOutput::Reset] {
                wants.connect(TCP, closed);
                wants.tcp(stop(TCP));
                wants.accept(TCP);
                wants.tcp(stop(TCP));
            }
            wants.connect(other, closed);
        },
        |input, wants| match input {
            TcpInput::Listening { result, .. } => assert!(result.is_ok()),
            TcpInput::Opened { tcp, .. } => {
                assert_eq!(tcp, other);
                wants.close();
            }
            other => panic!("{other:?}"),
        },
    );
    assert_eq!(block_on(run(node)).tcp_refused, 1);
}

#[test]
fn a_taken_address_is_told_with_its_cause() {
    let holder = TcpListener::bind(LOOPBACK).unwrap();
    let address = holder.local_addr().unwrap();
    let mut answers = Vec::new();
    let node = tcp_node(
        |wants| wants.listen(address),
        |input, wants| match input {
            TcpInput::Listening { listener, result } => {
                let result = result.map_err(|error| error.kind);
                answers.push((listener, result));
                wants.close();
            }
            other => panic!("{other:?}"),
        },
    );
    block_on(run(node));
    assert_eq!(answers, [(LISTENER, Err(ErrorKind::AddrInUse))]);
}

#[test]
fn connections_are_accepted_one_by_one_in_their_order() {
    const CLIENTS: usize = 20;
    let mut clients = Vec::new();
    let mut accepted = Vec::new();
    let node = tcp_node(
        |wants| wants.listen(LOOPBACK),
        |input, wants| match input {
            TcpInput::Listening { result, .. } => {
                let connect = |_| TcpStream::connect(result.unwrap()).unwrap();
                clients.extend((0..CLIENTS).map(connect));
                wants.accept(TcpId(0));
            }
            TcpInput::Opened { tcp, result } => {
                assert_eq!(tcp.0, accepted.len() as u64, "there is no answer without a request");
                accepted.push(result.unwrap().peer);
                if accepted.len() == CLIENTS {
                    wants.close();
                } else {
                    wants.accept(TcpId(tcp.0 + 1));
                }
            }
            other => panic!("{other:?}"),
        },
    );
    assert_eq!(block_on(run(node)).tcp_opened, CLIENTS as u64);
    let addresses = clients.iter().map(|client| client.local_addr().unwrap());
    assert_eq!(addresses.collect::<Vec<_>>(), accepted);
}

#[test]
fn the_wildcard_of_ipv6_accepts_ipv4_too() {
    let mut client = None;
    let mut seen = None;
    let node = tcp_node(
        |wants| {
            wants.listen((Ipv6Addr::UNSPECIFIED, 0).into());
            wants.accept(TCP);
        },
        |input, wants| match input {
            TcpInput::Listening { result: Ok(local), .. } => {
                let address = SocketAddr::new(LOOPBACK.ip(), local.port());
                client = Some(TcpStream::connect(address).unwrap());
            }
            TcpInput::Listening { .. } => wants.close(), // there is no IPv6 on this machine
            TcpInput::Opened { result, .. } => {
                seen = Some(result.unwrap().peer);
                wants.close();
            }
            other => panic!("{other:?}"),
        },
    );
    block_on(run(node));
    assert_eq!(seen, client.map(|client| client.local_addr().unwrap()), "it is not IPv4-mapped");
}

#[test]
fn a_peer_that_does_not_read_stops_only_its_own_connection() {
    const PIECE: usize = 100_000;
    const PIECES: usize = 400;
    const ROUNDS: usize = 500;
    let (slow, other) = (TcpId(1), TcpId(2));
    let (go, wait) = mpsc::channel();
    let (slow_address, slow_thread) = peer(move |stream| {
        wait.recv().unwrap();
        read_all(&stream).unwrap().len()
    });
    let (other_address, other_thread) = peer(|mut stream| {
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() > 0 {
            stream.write_all(&byte).unwrap();
        }
    });
    let (mut written, mut rounds) = (0, 0);
    let node = tcp_node(
        |wants| {
            wants.connect(slow, slow_address);
            wants.connect(other, other_address);
        },
        |input, wants| match input {
            TcpInput::Opened { tcp, .. } if tcp == slow => {
                let data = Bytes::from(pattern(PIECE));
                (0..PIECES).for_each(|_| wants.write(tcp, data.clone()));
                wants.tcp(TcpOutput::Finish(tcp));
            }
            TcpInput::Written { tcp, bytes } if tcp == slow => {
                written += bytes;
                assert!(rounds == ROUNDS || written < PIECE * PIECES, "who has read that?");
                if written == PIECE * PIECES {
                    wants.tcp(TcpOutput::Close(slow));
                    wants.tcp(TcpOutput::Close(other));
                    wants.close();
                }
            }
            TcpInput::Opened { tcp, .. } => {
                wants.write(tcp, "?");
                wants.read(tcp, 10);
            }
            TcpInput::Read { tcp, .. } => {
                rounds += 1;
                if rounds == ROUNDS {
                    go.send(()).unwrap();
                } else {
                    wants.write(tcp, "?");
                    wants.read(tcp, 10);
                }
            }
            TcpInput::Written { bytes, .. } => assert_eq!(bytes, 1),
            other => panic!("{other:?}"),
        },
    );
    block_on(run(node));
    assert_eq!(slow_thread.join().unwrap(), PIECE * PIECES);
    other_thread.join().unwrap();
}

#[test]
fn many_small_writes_need_few_system_calls_and_are_told_as_sums() {
    const PIECE: usize = 1300;
    const PIECES: usize = 640;
    let (address, thread) = peer(|stream| read_all(&stream).unwrap());
    let all = Bytes::from(pattern(PIECE * PIECES));
    let (mut written, mut sums) = (0, 0);
    let node = connecting(address, |input, wants| match input {
        TcpInput::Opened { tcp, .. } => {
            for at in (0..all.len()).step_by(PIECE) {
                wants.write(tcp, all.slice(at..at + PIECE));
            }
        }
        TcpInput::Written { tcp, bytes } => {
            sums += 1;
            written += bytes;
            if written == all.len() {
                wants.tcp(TcpOutput::Close(tcp));
                wants.close();
            }
        }
        other => panic!("{other:?}"),
    });
    let stats = block_on(run(node));
    assert!(thread.join().unwrap() == all, "other bytes arrived");
    // Ten calls would be enough, if the operating system took 64 pieces each time.
    let calls = stats.tcp_write_calls;
    assert!((10..=40).contains(&calls), "{calls} calls");
    assert!(sums <= calls, "{sums} sums for {calls} calls");
}

#[test]
fn a_large_read_is_given_in_parts_and_others_are_served_between() {
    let (address, thread) = peer(|mut stream| stream.write_all(&pattern(5_000_000)).unwrap());
    let mut all = Vec::new();
    let node = connecting(address, |input, wants| match input {
        TcpInput::Opened { tcp, .. } => wants.read(tcp, usize::MAX),
        TcpInput::Read { data, .. } if data.is_empty() => wants.close(),
        TcpInput::Read { tcp, data } => {
            assert!(data.len() <= 256 * 1024, "{} bytes at once", data.len());
            all.extend_from_slice(&data);
            wants.read(tcp, usize::MAX);
        }
        other => panic!("{other:?}"),
    });
    block_on(run(node));
    thread.join().unwrap();
    assert!(all == pattern(5_000_000), "{} bytes arrived", all.len());
}

#[test]
fn a_closed_connection_is_written_to_its_end() {
    const BYTES: usize = 20_000_000; // far more than the operating system takes at once
    let (go, wait) = mpsc::channel();
    let (address, thread) = peer(move |stream| {
        wait.recv().unwrap();
        read_all(&stream).unwrap()
    });
    let node = connecting(address, |input, wants| match input {
        TcpInput::Opened { tcp, .. } => {
            wants.write(tcp, vec![7; BYTES]);
            wants.tcp(TcpOutput::Close(tcp));
            wants.close();
            go.send(()).unwrap();
        }
        other => panic!("{other:?}"),
    });
    let stats = block_on(run(node));
    assert!(thread.join().unwrap() == vec![7; BYTES]);
    assert_eq!(stats.tcp_closes_cut, 0);
}

#[test]
fn bytes_that_the_node_never_reads_do_not_cost_the_peer_the_last_ones() {
    let (address, thread) = peer(|mut stream| {
        stream.write_all(&pattern(100_000)).unwrap();
        read_all(&stream).map_err(|error| error.kind())
    });
    let node = script(
        |wants| wants.connect(TCP, address),
        |now, input, wants: &mut Wants| match input {
            Input::Tcp(TcpInput::Opened { tcp, .. }) => wants.read(tcp, 1),
            Input::Tcp(TcpInput::Read { tcp, .. }) => {
                wants.write(tcp, "403 Forbidden");
                wants.tcp(TcpOutput::Close(tcp));
                wants.deadline = Some(now + Duration::from_millis(100));
            }
            Input::Timeout => wants.close(),
            other => panic!("{other:?}"),
        },
    );
    block_on(run(node));
    assert_eq!(thread.join().unwrap(), Ok(b"403 Forbidden".to_vec()));
}

#[test]
fn five_hundred_connections_are_served_at_once() {
    const CONNECTIONS: u64 = 500;
    const ROUNDS: u64 = 5;
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let echo = thread::spawn(move || {
        let accept = |_| listener.accept().unwrap().0;
        let mut streams: Vec<_> = (0..CONNECTIONS).map(accept).collect();
        for _ in 0..ROUNDS {
            for stream in &mut streams {
                let mut name = [0; 8];
                stream.read_exact(&mut name).unwrap();
                stream.write_all(&name).unwrap();
            }
        }
    });
    let mut rounds = BTreeMap::<TcpId, u64>::new();
    let node = tcp_node(
        |wants| (0..CONNECTIONS).for_each(|id| wants.connect(TcpId(id), address)),
        |input, wants| match input {
            TcpInput::Opened { tcp, result } => {
                result.unwrap();
                wants.write(tcp, tcp.0.to_be_bytes().to_vec());
                wants.read(tcp, 1000);
            }
            TcpInput::Read { tcp, data } => {
                assert_eq!(data[..], tcp.0.to_be_bytes());
                *rounds.entry(tcp).or_default() += 1;
                if rounds[&tcp] < ROUNDS {
                    wants.write(tcp, data);
                    wants.read(tcp, 1000);
                } else if rounds.values().sum::<u64>() == CONNECTIONS * ROUNDS {
                    wants.close();
                }
            }
            TcpInput::Written { bytes, .. } => assert_eq!(bytes, 8),
            other => panic!("{other:?}"),
        },
    );
    let stats = block_on(run(node));
    echo.join().unwrap();
    assert_eq!(stats.tcp_opened, CONNECTIONS);
}

/// The variable that tells a test of this file that it runs in a process of its own, which another test
/// has started.
const CHILD: &str = "TANDEM_TEST_CHILD";

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Runs a test of this file in a process of its own.
fn child(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--quiet"]).env_clear().env(CHILD, "yes");
    command
}

#[test]
fn a_process_without_descriptors_accepts_later_and_does_not_spin() {
    if is_child() {
        return run_without_descriptors();
    }
    let name = "a_process_without_descriptors_accepts_later_and_does_not_spin";
    let output = child(name).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("accepted at last"), "{text}");
}

/// Takes all descriptors until two calls of `accept` have failed.
struct Hoarder {
    held: Vec<File>,
    is_done: bool,
}

impl<N> Application<N> for Hoarder {
    fn tick(&mut self, _now: Instant, _node: &mut N, driver: &DriverStats) {
        if driver.tcp_accepts_failed >= 2 {
            self.held.clear();
            self.is_done = true;
        } else if self.held.is_empty() && !self.is_done {
            self.held.extend(iter::from_fn(|| File::open("/dev/null").ok()));
        }
    }
}

fn run_without_descriptors() {
    let limit = rustix::process::Rlimit { current: Some(100), maximum: Some(100) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut client = None;
    let mut refused = None;
    let node = script(
        |wants| wants.listen(LOOPBACK),
        |now, input, wants: &mut Wants| match input {
            Input::Tcp(TcpInput::Listening { result, .. }) => {
                client = Some(TcpStream::connect(result.unwrap()).unwrap());
                wants.deadline = Some(now + Duration::from_millis(100)); // a tick takes the rest
            }
            Input::Timeout => {
                wants.deadline = None;
                wants.connect(TcpId(2), client.as_ref().unwrap().local_addr().unwrap());
                wants.accept(TCP);
            }
            Input::Tcp(TcpInput::Opened { tcp: TCP, result }) => {
                let local = Some(Ipv4Addr::LOCALHOST.into());
                let peer = client.as_ref().unwrap().local_addr().unwrap();
                assert_eq!(result, Ok(TcpAddresses { peer, local }));
                wants.close();
            }
            Input::Tcp(TcpInput::Opened { result, .. }) => {
                refused = Some(result.map_err(|error| error.kind));
            }
            other => panic!("{other:?}"),
        },
    );
    let mut app = Hoarder { held: Vec::new(), is_done: false };
    let tick = Some(Duration::from_millis(5));
    let options = DriverOptions { tick, ..DriverOptions::default() };
    let failed =
        block_on(tandem_net::run(node, &mut app, options, pending())).stats.tcp_accepts_failed;
    assert_eq!(failed, 2, "each failure is followed by a pause");
    assert_eq!(refused, Some(Err(ErrorKind::QuotaExceeded)));
    println!("accepted at last");
}

/// What the child writes first, after what the test harness writes.
const BEGIN: &[u8] = b"-- the child's output --";

/// Copies the standard input to the standard output. `finish` on a line of its own ends the output,
/// but not the process.
fn run_with_stdio() {
    let node = tcp_node(
        |wants| wants.tcp(TcpOutput::OpenStdio(TCP)),
        |input, wants| match input {
            TcpInput::Opened { tcp, result } => {
                assert!(result.unwrap().peer.ip().is_unspecified());
                wants.write(tcp, BEGIN);
                wants.read(tcp, 65_536);
            }
            TcpInput::Read { tcp, data } if data.is_empty() => {
                wants.tcp(TcpOutput::Close(tcp));
                wants.close();
            }
            TcpInput::Read { tcp, data } => {
                if data == "finish\n" {
                    wants.tcp(TcpOutput::Finish(tcp));
                } else {
                    wants.write(tcp, data);
                }
                wants.read(tcp, 65_536);
            }
            TcpInput::Written { .. } => {}
            other => panic!("{other:?}"),
        },
    );
    block_on(run(node));
}

/// A process that runs [`run_with_stdio`].
fn copier() -> Command {
    child("standard_input_from_a_file_is_copied_to_the_last_byte")
}

/// Returns what the child's node wrote.
fn after_begin(output: &[u8]) -> &[u8] {
    let at = output.windows(BEGIN.len()).position(|part| part == BEGIN);
    output.get(at.expect("the child has begun") + BEGIN.len()..).unwrap_or_default()
}

#[test]
fn standard_input_from_a_file_is_copied_to_the_last_byte() {
    if is_child() {
        return run_with_stdio();
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(3_000_000)).unwrap();
    file.rewind().unwrap();
    let output = copier().stdin(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(after_begin(&output.stdout) == pattern(3_000_000));
}

#[test]
fn standard_output_ends_before_standard_input_over_pipes_and_over_one_socket() {
    let ends = |mut read: Box<dyn Read>, mut write: Box<dyn Write>, mut child: Child| {
        write.write_all(b"some words").unwrap();
        let mut output = vec![0; 1];
        while !output.ends_with(b"some words") {
            let mut byte = [0];
            read.read_exact(&mut byte).unwrap();
            output.extend(byte);
        }
        write.write_all(b"finish\n").unwrap();
        read.read_to_end(&mut output).unwrap(); // the process continues
        assert_eq!(after_begin(&output), b"some words");
        assert!(child.try_wait().unwrap().is_none(), "the process waits for its input's end");
        write.write_all(b"nobody reads this").unwrap();
        drop(write);
        drop(read);
        assert!(child.wait().unwrap().success());
    };
    let (in_, out) = (Stdio::piped, Stdio::piped);
    let mut piped = copier().stdin(in_()).stdout(out()).spawn().unwrap();
    let (write, read) = (piped.stdin.take().unwrap(), piped.stdout.take().unwrap());
    ends(Box::new(read), Box::new(write), piped);

    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap(); // as a parent may do
    let input = Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
    let output = Stdio::from(OwnedFd::from(theirs));
    let socket = copier().stdin(input).stdout(output).spawn().unwrap();
    ends(Box::new(ours.try_clone().unwrap()), Box::new(ours), socket);
}

#[test]
fn the_process_waits_for_a_slow_reader_of_its_output() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(1_000_000)).unwrap();
    file.rewind().unwrap();
    let mut process = copier().stdin(file).stdout(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_millis(500)); // the node has ended by now
    let mut output = Vec::new();
    process.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    assert!(process.wait().unwrap().success());
    assert!(after_begin(&output) == pattern(1_000_000));
}

#[cfg(target_os = "linux")]
#[test]
fn the_udp_ports_of_a_programs_user_are_found() {
    let udp = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    let port = udp.local_addr().unwrap().port();
    let mut program = None;
    let found = std::cell::RefCell::new(None);
    let node = tcp_node(
        |wants| wants.listen(LOOPBACK),
        |input, wants| match input {
            TcpInput::Listening { result, .. } => {
                wants.accept(TCP);
                program = Some(TcpStream::connect(result.unwrap()).unwrap());
            }
            TcpInput::Opened { tcp, .. } => wants.tcp(TcpOutput::FindUdpPorts(tcp)),
            TcpInput::UdpPorts { tcp: TCP, result } => {
                found.replace(Some(result.unwrap()));
                wants.tcp(TcpOutput::FindUdpPorts(TcpId(99)));
            }
            TcpInput::UdpPorts { result, .. } => {
                assert_eq!(result, Err(ErrorKind::NotConnected));
                wants.close();
            }
            other => panic!("{other:?}"),
        },
    );
    block_on(run(node));
    let ports = found.into_inner().unwrap();
    assert!(ports.binary_search(&port).is_ok(), "{port} in {ports:?}");
    drop(udp);
}

//! Tests of the driver with real sockets on loopback. No test asserts a duration.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod script;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_net::{
    Application, DriveError, DriverOptions, DriverStats, Files, Resolver, SocketOptions, clock,
    site::SiteContent,
};
use tandem_node::node::{
    Ecn, Event, FileError, FileId, Input, Node, Output, QueryId, Received, SocketId, SocketKind,
    Transmit,
};
use tokio::sync::oneshot;

use self::script::{LOOPBACK, Script, Wants, block_on, run, script};

const SOCKET: SocketId = SocketId(0);

impl Wants {
    fn open(&mut self, socket: SocketId, kind: SocketKind) {
        self.push(Output::OpenSocket { socket, kind });
    }

    fn transmit(&mut self, socket: SocketId, transmit: Transmit, bytes: Vec<u8>) {
        assert_eq!(bytes.len(), transmit.size);
        self.outputs.push_back((Output::Transmit { socket, transmit }, bytes));
    }

    fn send(&mut self, socket: SocketId, destination: SocketAddr, bytes: &[u8]) {
        let size = bytes.len();
        let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
        self.transmit(socket, transmit, bytes.to_vec());
    }

    fn echo(&mut self, received: &Received) {
        let transmit = Transmit {
            destination: received.remote,
            src_ip: received.local_ip,
            ecn: received.ecn,
            size: received.payload.len(),
            segment_size: None,
        };
        self.transmit(received.socket, transmit, received.payload.to_vec());
    }
}

/// Creates an echo server that ends after a number of datagrams. The channel carries its address.
fn echo_server(
    listen: SocketAddr,
    datagrams: usize,
    address: oneshot::Sender<SocketAddr>,
) -> impl Node {
    let (mut address, mut echoed) = (Some(address), 0);
    script(
        |wants| wants.open(SOCKET, SocketKind::Listen(listen)),
        move |_now, input, wants| match input {
            Input::SocketOpened { result, .. } => {
                address.take().unwrap().send(result.unwrap()).unwrap();
            }
            Input::Datagram(received) => {
                wants.echo(&received);
                echoed += 1;
                if echoed == datagrams {
                    wants.close();
                }
            }
            other => panic!("{other:?}"),
        },
    )
}

#[test]
fn a_datagram_is_echoed_with_its_mark() {
    let (sender, address) = oneshot::channel();
    block_on(async {
        let client = async {
            let server = address.await.unwrap();
            let mut got = None;
            let node = script(
                |wants| wants.open(SOCKET, SocketKind::ForPeer(server)),
                |_now, input, wants: &mut Wants| match input {
                    Input::SocketOpened { socket, .. } => {
                        let transmit = Transmit {
                            destination: server,
                            src_ip: None,
                            ecn: Some(Ecn::Ect1),
                            size: 4,
                            segment_size: None,
                        };
                        wants.transmit(socket, transmit, b"ping".to_vec());
                    }
                    Input::Datagram(received) => {
                        got = Some(received);
                        wants.close();
                    }
                    other => panic!("{other:?}"),
                },
            );
            run(node).await;
            let got = got.unwrap();
            assert_eq!(
                (&got.payload[..], got.remote, got.ecn),
                (&b"ping"[..], server, Some(Ecn::Ect1))
            );
            assert_eq!(got.local_ip, Some(Ipv4Addr::LOCALHOST.into()));
        };
        let (stats, ()) = tokio::join!(run(echo_server(LOOPBACK, 1, sender)), client);
        assert_eq!((stats.datagrams_received, stats.bytes_received), (1, 4));
        assert_eq!((stats.datagrams_sent, stats.bytes_sent), (1, 4));
    });
}

#[test]
fn a_socket_on_the_ipv6_wildcard_serves_ipv4_too() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        eprintln!("skipped: no IPv6 on this machine");
        return;
    }
    let (sender, address) = oneshot::channel();
    let (seen_sender, seen) = oneshot::channel();
    let mut address_sender = Some(sender);
    let mut seen_sender = Some(seen_sender);
    let server = script(
        |wants| {
            wants.open(SOCKET, SocketKind::Listen((Ipv6Addr::UNSPECIFIED, 0).into()));
        },
        move |_now, input, wants: &mut Wants| match input {
            Input::SocketOpened { result, .. } => {
                address_sender.take().unwrap().send(result.unwrap()).unwrap();
            }
            Input::Datagram(received) => {
                wants.echo(&received); // the source is the address at which it arrived
                wants.close();
                let seen = (received.remote.ip(), received.local_ip);
                seen_sender.take().unwrap().send(seen).unwrap();
            }
            other => panic!("{other:?}"),
        },
    );
    block_on(async {
        let client = async {
            let server = SocketAddr::new(LOOPBACK.ip(), address.await.unwrap().port());
            let socket = tokio::net::UdpSocket::bind(LOOPBACK).await.unwrap();
            socket.connect(server).await.unwrap(); // it receives from this address only
            socket.send(b"four").await.unwrap();
            let mut buffer = [0; 16];
            assert_eq!(socket.recv(&mut buffer).await.unwrap(), 4);
        };
        tokio::join!(run(server), client);
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(seen.await.unwrap(), (loopback, Some(loopback)), "they are not IPv4-mapped");
    });
}

/// Sends the datagrams of `start` to a node that counts them. Returns both sides' statistics and
/// the sizes of the datagrams.
fn one_way(
    socket: SocketOptions,
    datagrams: usize,
    start: impl FnOnce(&mut Wants, SocketId, SocketAddr),
) -> (DriverStats, DriverStats, Vec<usize>) {
    let (sender, address) = oneshot::channel();
    let mut address_sender = Some(sender);
    let mut sizes = Vec::new();
    let counter = script(
        |wants| wants.open(SOCKET, SocketKind::Listen(LOOPBACK)),
        |_now, input, wants: &mut Wants| match input {
            Input::SocketOpened { result, .. } => {
                address_sender.take().unwrap().send(result.unwrap()).unwrap();
            }
            Input::Datagram(received) => {
                let first = received.payload.first().copied().unwrap_or_default();
                assert!(received.payload.iter().all(|byte| *byte == first), "datagrams are mixed");
                sizes.push(received.payload.len());
                if sizes.len() == datagrams {
                    wants.close();
                }
            }
            other => panic!("{other:?}"),
        },
    );
    let (sent, received) = block_on(async {
        let source = async {
            let to = address.await.unwrap();
            let mut start = Some(start);
            let node = script(
                |wants| wants.open(SOCKET, SocketKind::ForPeer(to)),
                |_now, input, wants: &mut Wants| match input {
                    Input::SocketOpened { socket, .. } => {
                        start.take().unwrap()(wants, socket, to);
                        wants.close();
                    }
                    other => panic!("{other:?}"),
                },
            );
            let options = DriverOptions { socket, ..DriverOptions::default() };
            tandem_net::run(node, &mut (), options, std::future::pending()).await.stats
        };
        tokio::join!(source, run(counter))
    });
    (sent, received, sizes)
}

/// Sends 100 datagrams of 1200 bytes and one of 7 bytes, each filled with its number, in one
/// transmit, which is more than one system call can carry.
fn send_101_segments(wants: &mut Wants, socket: SocketId, destination: SocketAddr) {
    let mut bytes: Vec<u8> = (0..100).flat_map(|number| [number; 1200]).collect();
    bytes.extend([100; 7]);
    let size = bytes.len();
    let segment_size = Some(1200);
    let transmit = Transmit { destination, src_ip: None, ecn: None, size, segment_size };
    wants.transmit(socket, transmit, bytes);
}

fn sizes_of_101_segments() -> Vec<usize> {
    let mut sizes = vec![1200; 100];
    sizes.push(7);
    sizes
}

#[test]
fn segments_arrive_with_their_sizes() {
    let (sent, received, sizes) = one_way(SocketOptions::default(), 101, send_101_segments);
    assert_eq!(sizes, sizes_of_101_segments());
    assert_eq!((sent.datagrams_sent, sent.bytes_sent), (101, 120_007));
    assert_eq!((received.datagrams_received, received.bytes_received), (101, 120_007));
    if cfg!(target_os = "linux") {
        assert_eq!(sent.send_calls, 2, "54 segments of 1200 bytes fit in one call");
        assert_eq!(received.receive_messages, 2);
        assert_eq!(received.receive_message_datagrams_max, 54);
    }
}

#[test]
fn segments_are_sent_one_by_one_without_segmentation_offload() {
    let options = SocketOptions { gso_segments_max: 1, ..SocketOptions::default() };
    let (sent, _, sizes) = one_way(options, 101, send_101_segments);
    assert_eq!(sizes, sizes_of_101_segments());
    assert_eq!((sent.datagrams_sent, sent.send_calls), (101, 101));
}

#[test]
fn single_datagrams_of_one_size_are_joined_into_few_calls() {
    let (sent, _, sizes) = one_way(SocketOptions::default(), 103, |wants, socket, to| {
        for number in 0..100 {
            wants.send(socket, to, &[number; 1000]);
        }
        wants.send(socket, to, &[]);
        wants.send(socket, to, &[100; 1472]); // this could be an MTU probe
        wants.send(socket, to, &[101; 900]);
    });
    let mut expected = vec![1000; 100];
    expected.extend([0, 1472, 900]);
    assert_eq!(sizes, expected, "all arrive in order, and so does the empty one");
    assert_eq!((sent.datagrams_sent, sent.bytes_sent), (103, 102_372));
    if cfg!(target_os = "linux") {
        assert_eq!(sent.send_calls, 5, "two calls carry 64 and 36, and three carry one each");
    }
}

#[test]
fn alternating_datagrams_of_two_sockets_are_joined_per_socket() {
    let peers = [0, 1].map(|_| UdpSocket::bind(LOOPBACK).unwrap());
    let addresses = peers.each_ref().map(|peer| peer.local_addr().unwrap());
    let mut opened = 0;
    let node = script(
        |wants| {
            for (id, address) in (0..).zip(addresses) {
                wants.open(SocketId(id), SocketKind::Connected(address));
            }
        },
        |_now, input, wants: &mut Wants| {
            assert!(matches!(input, Input::SocketOpened { result: Ok(_), .. }), "{input:?}");
            opened += 1;
            if opened == 2 {
                for number in 0..20 {
                    for (id, address) in (0..).zip(addresses) {
                        wants.send(SocketId(id), address, &[number; 500]);
                    }
                }
                wants.push(Output::CloseSocket(SocketId(0))); // its batch is sent first
                wants.send(SocketId(0), addresses[0], b"late");
                wants.close();
            }
        },
    );
    let stats = block_on(run(node));
    assert_eq!((stats.datagrams_sent, stats.dropped_no_socket), (40, 1));
    if cfg!(target_os = "linux") {
        assert_eq!(stats.send_calls, 2);
    }
    for peer in peers {
        let mut buffer = [0; 600];
        for number in 0..20 {
            assert_eq!(peer.recv(&mut buffer).unwrap(), 500);
            assert_eq!(buffer[0], number);
        }
    }
}

#[test]
fn only_datagrams_that_are_too_large_are_dropped() {
    let (sent, _, sizes) = one_way(SocketOptions::default(), 2, |wants, socket, to| {
        wants.send(socket, to, &[1; 6]);
        wants.send(socket, to, &vec![0; 65_508]); // this is one byte more than an IPv4 packet can hold
        wants.send(socket, to, &[2; 5]);
    });
    assert_eq!(sizes, [6, 5]);
    assert_eq!((sent.dropped_too_large, sent.dropped_send_error), (1, 0));
}

#[test]
fn a_refusing_peer_fails_a_connected_socket_once() {
    let closed = UdpSocket::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let mut failures = Vec::new();
    let node = script(
        |wants| wants.open(SOCKET, SocketKind::Connected(closed)),
        |now, input, wants: &mut Wants| match input {
            Input::SocketOpened { socket, result } => {
                assert!(result.unwrap().ip().is_loopback());
                wants.send(socket, closed, b"anybody?");
            }
            Input::SocketFailed { socket, error } => {
                failures.push(error);
                wants.send(socket, closed, b"really?");
                wants.deadline = Some(now + Duration::from_millis(50));
            }
            Input::Timeout => wants.close(),
            other => panic!("{other:?}"),
        },
    );
    let stats = block_on(run(node));
    assert_eq!(failures, [io::ErrorKind::ConnectionRefused]);
    assert_eq!((stats.sockets_failed, stats.sockets_opened), (1, 1));
}

#[test]
fn a_refusing_peer_does_not_fail_a_shared_socket() {
    let closed = UdpSocket::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let node = script(
        |wants| wants.open(SOCKET, SocketKind::ForPeer(closed)),
        |now, input, wants: &mut Wants| match input {
            Input::SocketOpened { socket, .. } => {
                wants.send(socket, closed, b"anybody?");
                wants.send(socket, closed, b"nobody?");
                wants.deadline = Some(now + Duration::from_millis(50));
            }
            Input::Timeout => wants.close(),
            other => panic!("{other:?}"),
        },
    );
    assert_eq!(block_on(run(node)).datagrams_sent, 2);
}

#[test]
fn the_node_learns_that_a_socket_cannot_be_opened() {
    let holder = UdpSocket::bind(LOOPBACK).unwrap();
    let taken = holder.local_addr().unwrap();
    let mut answer = None;
    let node = script(
        |wants| wants.open(SOCKET, SocketKind::Listen(taken)),
        |_now, input, wants: &mut Wants| {
            let Input::SocketOpened { result, .. } = input else { panic!("{input:?}") };
            answer = Some(result.map_err(|error| error.kind));
            wants.close();
        },
    );
    let stats = block_on(run(node));
    assert_eq!(answer, Some(Err(io::ErrorKind::AddrInUse)));
    assert_eq!(stats.sockets_refused, 1);
    drop(holder);
}

#[test]
fn two_hundred_sockets_are_served_at_once_and_closed() {
    const SOCKETS: u64 = 200;
    const ROUNDS: u64 = 5;
    let open_files = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let (sender, address) = oneshot::channel();
    block_on(async {
        let client = async {
            let server = address.await.unwrap();
            let mut echoes = BTreeMap::<SocketId, u64>::new();
            let node = script(
                |wants| {
                    (0..SOCKETS)
                        .for_each(|id| wants.open(SocketId(id), SocketKind::Connected(server)));
                },
                |_now, input, wants: &mut Wants| match input {
                    Input::SocketOpened { socket, result } => {
                        result.unwrap();
                        wants.send(socket, server, &socket.0.to_be_bytes());
                    }
                    Input::Datagram(received) => {
                        assert_eq!(received.payload[..], received.socket.0.to_be_bytes());
                        let rounds = echoes.entry(received.socket).or_default();
                        *rounds += 1;
                        if *rounds < ROUNDS {
                            wants.echo(&received);
                        } else {
                            wants.push(Output::CloseSocket(received.socket));
                        }
                        if echoes.values().sum::<u64>() == SOCKETS * ROUNDS {
                            wants.close();
                        }
                    }
                    other => panic!("{other:?}"),
                },
            );
            let before = open_files();
            run(node).await;
            assert!(open_files() <= before + 50, "sockets stay open");
        };
        let datagrams = usize::try_from(SOCKETS * ROUNDS).unwrap();
        tokio::join!(run(echo_server(LOOPBACK, datagrams, sender)), client);
    });
}

#[test]
fn names_and_files_are_answered() {
    let folder = tempfile::TempDir::new().unwrap();
    fs::write(folder.path().join("file"), "0123456789").unwrap();
    let (file, missing) = (FileId(1), FileId(2));
    let mut answers = Vec::new();
    let node = script(
        |wants| {
            wants.push(Output::Resolve { query: QueryId(1), host: "inner.test".into() });
            wants.push(Output::Resolve { query: QueryId(2), host: "other.test".into() });
            wants.push(Output::OpenFile { file, path: vec!["file".into()] });
            wants.push(Output::OpenFile { file: missing, path: vec!["none".into()] });
            let closed = FileId(3);
            wants.push(Output::OpenFile { file: closed, path: vec!["file".into()] });
            wants.push(Output::CloseFile(closed)); // it is closed before the answer, so there is none
        },
        |_now, input, wants: &mut Wants| {
            answers.push(match input {
                Input::Resolved { query, result, .. } => format!("{query:?} {result:?}"),
                Input::FileOpened { file, result } => {
                    if let Ok(meta) = result {
                        assert_eq!(meta.len, 10);
                        wants.push(Output::ReadFile { file, offset: 2, len: 6 });
                    }
                    format!("{file:?} {:?}", result.map(|meta| meta.len))
                }
                Input::FileChunk { file, result } => {
                    wants.push(Output::CloseFile(file));
                    format!("{file:?} {result:?}")
                }
                other => panic!("{other:?}"),
            });
            if answers.len() == 5 {
                wants.close();
            }
        },
    );
    let options = DriverOptions {
        site: Some(SiteContent::Folder(Files::below(folder.path()).unwrap())),
        resolver: Some(Resolver::from_parts(&[], "127.0.0.5 inner.test")),
        ..DriverOptions::default()
    };
    block_on(tandem_net::run(node, &mut (), options, std::future::pending())).result.unwrap();
    answers.sort();
    assert_eq!(
        answers,
        [
            "FileId(1) Ok(10)",
            "FileId(1) Ok(b\"234567\")",
            "FileId(2) Err(NotFound)",
            "QueryId(1) Ok([127.0.0.5])",
            "QueryId(2) Err(Unreachable)",
        ]
    );
}

#[test]
fn without_a_folder_there_are_no_files() {
    let mut answer = None;
    let node = script(
        |wants| wants.push(Output::OpenFile { file: FileId(1), path: vec!["file".into()] }),
        |_now, input, wants: &mut Wants| {
            let Input::FileOpened { result, .. } = input else { panic!("{input:?}") };
            answer = Some(result);
            wants.close();
        },
    );
    block_on(run(node));
    assert_eq!(answer, Some(Err(FileError::NotFound)));
}

#[test]
fn a_deadline_is_reported_when_it_has_passed() {
    let start = clock::now();
    let deadlines: Vec<_> =
        [0, 3, 3, 20].iter().map(|millis| start + Duration::from_millis(*millis)).collect();
    let mut waiting = deadlines.iter().copied();
    let first = waiting.next();
    let mut passed = Vec::new();
    let node = script(
        |wants| wants.deadline = first,
        |now, input, wants: &mut Wants| {
            assert!(matches!(input, Input::Timeout), "{input:?}");
            assert!(now >= wants.deadline.unwrap(), "too early");
            passed.push(wants.deadline.unwrap());
            wants.deadline = waiting.next();
            if wants.deadline.is_none() {
                wants.close();
            }
        },
    );
    let stats = block_on(run(node));
    assert_eq!(passed, deadlines);
    assert_eq!(stats.timeouts, 4);
}

#[test]
fn deadlines_are_reported_while_datagrams_keep_arriving() {
    let node = script(
        |wants| wants.open(SOCKET, SocketKind::Listen(LOOPBACK)),
        |now, input, wants: &mut Wants| match input {
            Input::SocketOpened { socket, result } => {
                let own = result.unwrap();
                wants.send(socket, own, b"to myself");
                wants.deadline = Some(now + Duration::from_millis(5));
            }
            // The number of datagrams doubles with each round trip.
            Input::Datagram(received) => (0..2).for_each(|_| wants.echo(&received)),
            Input::Timeout => wants.close(),
            other => panic!("{other:?}"),
        },
    );
    assert_eq!(block_on(run(node)).timeouts, 1);
}

#[test]
fn a_driver_can_be_a_separate_task() {
    fn is_send<T: Send>(future: T) -> T {
        future
    }
    let node = script(Wants::close, |_now, _input, _wants: &mut Wants| {});
    block_on(async {
        let shutdown = std::future::pending();
        let driver =
            async { tandem_net::run(node, &mut (), DriverOptions::default(), shutdown).await };
        tokio::spawn(is_send(driver)).await.unwrap().result.unwrap();
    });
}

/// An application that notes all events, and cannot write more than `room` bytes.
#[derive(Default)]
struct Notes {
    events: Vec<String>,
    body: Vec<(u64, Bytes)>,
    room: usize,
    ticks: Arc<AtomicUsize>,
}

impl<N> Application<N> for Notes {
    fn event(&mut self, event: Event) {
        self.events.push(format!("{event:?}"));
    }

    fn body(&mut self, offset: u64, data: Bytes) -> io::Result<()> {
        self.room = self.room.checked_sub(data.len()).ok_or(io::ErrorKind::StorageFull)?;
        self.body.push((offset, data));
        Ok(())
    }

    fn tick(&mut self, _now: Instant, _node: &mut N, driver: &DriverStats) {
        assert!(driver.wakes > 0);
        self.ticks.fetch_add(1, Ordering::Relaxed);
    }
}

/// Creates a node that has two parts of a body, and ends at [`Input::Shutdown`].
fn fetching_node(on_credit: impl FnMut(u64)) -> impl Node {
    let mut on_credit = on_credit;
    script(
        |wants| {
            for offset in [0, 5] {
                let data = Bytes::from_static(b"12345");
                wants.push(Output::BodyChunk { offset, data });
            }
        },
        move |_now, input, wants: &mut Wants| match input {
            Input::BodyCredit { bytes } => on_credit(bytes),
            Input::Shutdown => wants.close(),
            other => panic!("{other:?}"),
        },
    )
}

#[test]
fn shutdown_is_given_once_and_bodies_are_credited() {
    let mut app = Notes { room: 100, ..Notes::default() };
    let credit = Cell::new(0);
    let node = fetching_node(|bytes| credit.set(credit.get() + bytes));
    let shutdown = async { tokio::time::sleep(Duration::from_millis(5)).await };
    let finished = block_on(tandem_net::run(node, &mut app, DriverOptions::default(), shutdown));
    finished.result.unwrap();
    assert_eq!(credit.get(), 10);
    assert_eq!(app.body.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 5]);
    assert_eq!(app.events, ["Closed(Ok(()))"]);
}

#[test]
fn a_body_that_cannot_be_written_ends_the_node() {
    let mut app = Notes { room: 5, ..Notes::default() };
    let credit = Cell::new(0);
    let node = fetching_node(|bytes| credit.set(credit.get() + bytes));
    let finished =
        tandem_net::run(node, &mut app, DriverOptions::default(), std::future::pending());
    let finished = block_on(finished);
    let Err(DriveError::Body(error)) = finished.result else { panic!("{:?}", finished.result) };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(credit.get(), 5, "there is no credit for data that was not written");
}

#[test]
fn a_node_that_does_not_end_is_abandoned() {
    let node = script(|_wants| {}, |_now, _input, _wants: &mut Wants| {});
    let options = DriverOptions { grace: Duration::from_millis(5), ..DriverOptions::default() };
    let finished = block_on(tandem_net::run(node, &mut (), options, std::future::ready(())));
    assert!(matches!(finished.result, Err(DriveError::GraceExpired(_))), "{:?}", finished.result);
}

#[test]
fn the_application_is_called_at_every_tick() {
    let mut app = Notes::default();
    let ticks = Arc::clone(&app.ticks);
    let node = script(
        |_wants| {},
        |_now, input, wants: &mut Wants| {
            assert!(matches!(input, Input::Shutdown), "{input:?}");
            wants.close();
        },
    );
    let three_ticks = async move {
        while ticks.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let tick = Some(Duration::from_millis(2));
    let options = DriverOptions { tick, ..DriverOptions::default() };
    block_on(tandem_net::run(node, &mut app, options, three_ticks)).result.unwrap();
    assert!(app.ticks.load(Ordering::Relaxed) >= 3);
}

/// An application that ends its node when it gets a message.
struct Changing(oneshot::Receiver<()>);

impl<F> Application<Script<F>> for Changing {
    fn poll_change(&mut self, context: &mut Context<'_>, node: &mut Script<F>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(|_| node.wants.close())
    }
}

#[test]
fn the_application_can_change_a_node_that_waits() {
    let (sender, receiver) = oneshot::channel();
    let mut app = Changing(receiver);
    let node = script(|_wants| {}, |_now, input, _wants: &mut Wants| panic!("{input:?}"));
    let running = tandem_net::run(node, &mut app, DriverOptions::default(), std::future::pending());
    let message = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        sender.send(()).unwrap();
    };
    let (finished, ()) = block_on(async { tokio::join!(running, message) });
    finished.result.unwrap();
}

//! Tests of what happens at certain times. They tell the driver's part the time, and do not wait.

use std::{
    future::poll_fn,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    task::Poll,
};

use socket2::SockRef;
use tokio::time::timeout;

use super::{closing::TCP_CLOSING_MAX, *};

const TCP: TcpId = TcpId(1);

#[derive(Default)]
struct Host {
    tcp: Tcp,
    stats: DriverStats,
    inputs: Vec<String>,
}

impl Host {
    fn perform(&mut self, outputs: impl IntoIterator<Item = TcpOutput>) {
        for output in outputs {
            self.tcp.perform(output, &mut self.stats);
        }
        self.tcp.flush(&mut self.stats);
    }

    /// Serves until nothing happens any more.
    async fn settle(&mut self) {
        loop {
            let ready = poll_fn(|context| {
                self.tcp.poll_ready(context);
                if self.tcp.has_work() { Poll::Ready(()) } else { Poll::Pending }
            });
            if timeout(Duration::from_millis(50), ready).await.is_err() {
                return;
            }
            self.tcp
                .serve(usize::MAX, &mut self.stats, |input| self.inputs.push(format!("{input:?}")));
            tokio::task::yield_now().await;
        }
    }

    /// Opens a connection. Returns the peer's end.
    async fn connect_for(&mut self, user: Option<u64>, tcp: TcpId) -> TcpStream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = listener.local_addr().unwrap();
        self.perform([TcpOutput::Connect { tcp, peer, user }]);
        let stream = listener.accept().unwrap().0;
        self.settle().await;
        assert!(self.inputs.pop().unwrap().starts_with("Opened"));
        stream
    }

    async fn connect(&mut self, tcp: TcpId) -> TcpStream {
        self.connect_for(None, tcp).await
    }

    /// Lets two checks pass.
    async fn check_twice(&mut self) {
        for _ in 0..2 {
            self.settle().await;
            self.inputs.retain(|input| !input.starts_with("Written"));
            if let Some(deadline) = self.tcp.deadline() {
                self.tcp.on_time(deadline, &mut self.stats);
            }
        }
        self.settle().await;
    }
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future);
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn a_reset_is_found_while_the_node_neither_reads_nor_writes() {
    block_on(async {
        let mut host = Host::default();
        let stream = host.connect(TCP).await;
        host.check_twice().await;
        assert_eq!(host.inputs, [""; 0]);
        reset(stream);
        host.check_twice().await;
        assert_eq!(host.inputs, ["Failed { tcp: TcpId(1), error: ConnectionReset }"]);
        host.check_twice().await;
        assert_eq!(host.tcp.deadline(), None, "nothing is left to look at");
    });
}

#[test]
fn users_are_read_in_turns_however_many_connections_they_have() {
    block_on(async {
        let mut host = Host::default();
        let mut streams = Vec::new();
        for (id, user) in [(1, Some(7)), (2, Some(7)), (3, Some(7)), (4, Some(8)), (5, None)] {
            let mut stream = host.connect_for(user, TcpId(id)).await;
            stream.write_all(&[0; 10_000]).unwrap();
            streams.push(stream);
        }
        host.settle().await; // until the bytes are seen
        let read = |id| TcpOutput::Read { tcp: TcpId(id), max: 100 };
        host.perform((1..=5).map(read));
        let mut order = Vec::new();
        while order.len() < 12 {
            let mut got = None;
            host.tcp.serve(1, &mut host.stats, |input| {
                let TcpInput::Read { tcp, .. } = input else { panic!("{input:?}") };
                assert_eq!(got.replace(tcp.0), None, "more than one was read");
            });
            order.extend(got);
            host.perform(got.map(read));
        }
        assert_eq!(order, [1, 4, 5, 2, 4, 5, 3, 4, 5, 1, 4, 5]);
    });
}

#[test]
fn a_node_is_told_at_once_of_many_bytes_and_later_of_few() {
    block_on(async {
        for (len, is_work) in [(100, false), (WRITTEN_MUCH, true)] {
            let mut host = Host::default();
            let _stream = host.connect(TCP).await;
            host.perform([TcpOutput::Write { tcp: TCP, data: vec![7; len].into() }]);
            assert_eq!(host.tcp.has_work(), is_work, "{len} bytes");
            host.tcp.serve(1, &mut host.stats, |input| host.inputs.push(format!("{input:?}")));
            assert_eq!(host.inputs, [format!("Written {{ tcp: TcpId(1), bytes: {len} }}")]);
            assert!(!host.tcp.has_work());
        }
    });
}

#[test]
fn there_are_no_checks_while_the_node_reads() {
    block_on(async {
        let mut host = Host::default();
        let stream = host.connect(TCP).await;
        host.perform([TcpOutput::Read { tcp: TCP, max: 100 }]);
        host.check_twice().await;
        assert_eq!(host.tcp.deadline(), None);
        drop(stream);
        host.settle().await;
        assert_eq!(host.inputs, ["Read { tcp: TcpId(1), data: b\"\" }"]);
    });
}

#[test]
fn a_closed_connection_is_reset_if_its_peer_takes_no_bytes() {
    block_on(async {
        let mut host = Host::default();
        let mut stream = host.connect(TCP).await;
        let data = Bytes::from(vec![7; 30_000_000]);
        host.perform([TcpOutput::Write { tcp: TCP, data }, TcpOutput::Close(TCP)]);
        host.check_twice().await;
        assert_eq!((host.tcp.connections.len(), host.stats.tcp_closes_cut), (0, 1));
        let end = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert_eq!(end, Err(io::ErrorKind::ConnectionReset), "the peer must not take it for all");
        assert_eq!(host.inputs, [""; 0], "the node does not know the connection any more");
    });
}

#[test]
fn a_closed_connection_ends_even_if_its_peer_never_closes_it() {
    block_on(async {
        let mut host = Host::default();
        let mut stream = host.connect(TCP).await;
        let data = Bytes::from_static(b"last words");
        host.perform([TcpOutput::Write { tcp: TCP, data }, TcpOutput::Close(TCP)]);
        host.settle().await;
        assert_eq!(host.tcp.connections.len(), 1, "what the peer sends is awaited for a while");
        host.check_twice().await;
        assert_eq!((host.tcp.connections.len(), host.stats.tcp_closes_cut), (0, 0));
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"last words");
    });
}

#[test]
fn a_bounded_number_of_connections_ends_in_the_background() {
    block_on(async {
        let mut host = Host::default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = listener.local_addr().unwrap();
        let mut streams = Vec::new();
        for id in 0..TCP_CLOSING_MAX as u64 + 2 {
            host.perform([TcpOutput::Connect { tcp: TcpId(id), peer, user: None }]);
            streams.push(listener.accept().unwrap().0);
        }
        host.settle().await;
        let data = Bytes::from(vec![7; 10_000_000]);
        for id in 0..streams.len() as u64 {
            let write = TcpOutput::Write { tcp: TcpId(id), data: data.clone() };
            host.perform([write, TcpOutput::Close(TcpId(id))]);
        }
        assert_eq!(
            (host.tcp.connections.len(), host.tcp.closing.len()),
            (TCP_CLOSING_MAX, TCP_CLOSING_MAX)
        );
        assert_eq!(host.stats.tcp_closes_cut, 2);
        let ends = streams.iter_mut().take(3).map(|stream| {
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap_err().kind()
        });
        let reset = io::ErrorKind::ConnectionReset;
        let ends: Vec<_> = ends.collect();
        assert_eq!(ends.get(..2), Some(&[reset, reset][..]), "the oldest are reset");
        assert_ne!(ends.get(2), Some(&reset), "the next one waits");
    });
}

#[test]
fn the_host_without_room_is_told_from_a_peer_that_cannot_be_reached() {
    let (four, six) = ("192.0.2.1:1".parse().unwrap(), "[2001:db8::1]:1".parse().unwrap());
    for (code, peer, expected) in [
        (libc::EMFILE, four, io::ErrorKind::QuotaExceeded),
        (libc::EADDRNOTAVAIL, four, io::ErrorKind::QuotaExceeded),
        (libc::EADDRNOTAVAIL, six, io::ErrorKind::AddrNotAvailable),
        (libc::EHOSTUNREACH, four, io::ErrorKind::HostUnreachable),
        (libc::ETIMEDOUT, six, io::ErrorKind::TimedOut),
    ] {
        let error = io::Error::from_raw_os_error(code);
        assert_eq!(connect_error(&error, peer).kind, expected, "{error}, {peer}");
    }
}

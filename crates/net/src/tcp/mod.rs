//! TCP connections of a node, and standard input and output as a connection.
//!
//! Each connection has a waker of its own, which adds the connection's name to a list (see `ready`),
//! so that a wake-up costs the same with ten connections and with ten thousand.
//!
//! - *Reading.* The node asks for each read. All connections read to one buffer (see `scratch`), so
//!   that an idle one has none: it takes about 1 kB with what tokio keeps.
//! - *Writing.* What the node writes is collected for each connection, and is written with one system
//!   call for many pieces whenever the driver sends its datagrams. The node is told the sum of the
//!   bytes that the operating system took, at once if they are many, or else with the next input. The rest waits until
//!   the socket is writable. Its amount is the node's decision.
//! - *Failures.* A connection that was reset fails at the next read or write, after everything that
//!   arrived before was read. If the node does neither, a check every few seconds finds the failure.
//! - *The end.* A connection that the node closes ends in the background; see `closing`.

mod closing;
mod connection;
mod listener;
mod scratch;
mod stdio;
mod stream;

use std::{
    collections::{BTreeMap, VecDeque},
    io, mem,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_node::{
    OsError,
    rounds::{Party, Rounds},
    seldom::Seldom,
    tcp::{ListenerId, TcpAddresses, TcpId, TcpInput, TcpOutput},
};
use tracing::{debug, warn};

pub use self::closing::TCP_CLOSING_MAX;
use self::{
    connection::{Connection, ConnectionStage, Wrote},
    listener::Listener,
    scratch::Scratch,
    stdio::{AllWritten, Stdio},
    stream::Stream,
};
use crate::{
    clock,
    ready::ReadyList,
    socket::{os_error, out_of_room},
    stats::DriverStats,
};

/// The largest number of bytes of one read, whatever the node asks for.
const READ_BYTES_MAX: usize = 256 * 1024;

/// With fewer bytes that were written, the driver waits for something else before it tells the node, which saves a
/// round of work for each small answer. This is less than what a node gives a connection before it waits for room.
const WRITTEN_MUCH: usize = 64 * 1024;

/// The pause after a failed `accept`. The usual cause is that the process has no descriptor left,
/// and the connection that waits would cause the same error again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The interval of the check for connections that have failed, and for closed ones whose peer takes
/// no bytes. There is no check while no connection needs it.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// All TCP connections of a driver.
#[derive(Default)]
pub(crate) struct Tcp {
    listeners: BTreeMap<ListenerId, Listener>,
    connections: BTreeMap<TcpId, Connection>,
    ready_list: Arc<ReadyList<WakerKey>>,
    /// What has become ready since the last round.
    ready: VecDeque<WakerKey>,
    /// What the driver looks at, in this order.
    turns: Rounds<WakerKey>,
    /// The connections with something to write that was not tried yet.
    unsent: Vec<TcpId>,
    /// The connections of which the node is told next how much was written.
    written: Vec<TcpId>,
    /// Whether one of them has written so much that the node is told before anything else happens.
    has_written_much: bool,
    /// What the node is told next.
    answers: Vec<TcpInput>,
    scratch: Scratch,
    /// The connections that end in the background. The first one was closed first.
    closing: Vec<TcpId>,
    /// Says when everything was written to the standard output; `None` if it was not opened.
    stdout: Option<AllWritten>,
    next_check: Option<Instant>,
    next_accept: Option<Instant>,
    /// Limits the warnings about connections that the host has no room for.
    refused: Seldom,
}

/// What has a waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakerKey {
    Listener(ListenerId),
    Connection(TcpId),
}

impl Tcp {
    /// Performs an output. What is written waits until [`Self::flush`].
    pub(crate) fn perform(&mut self, output: TcpOutput, stats: &mut DriverStats) {
        match output {
            TcpOutput::Listen { listener, address } => self.listen(listener, address, stats),
            TcpOutput::Accept { listener, tcp } => {
                if let Some(entry) = self.listeners.get_mut(&listener) {
                    entry.wanted = Some(tcp);
                    self.ready.push_back(WakerKey::Listener(listener));
                }
            }
            TcpOutput::OpenStdio(tcp) => {
                let opened = Stdio::open().map(|(stdio, all_written)| {
                    self.stdout = Some(all_written);
                    Stream::Stdio(stdio)
                });
                self.begin(tcp, (Ipv4Addr::UNSPECIFIED, 0).into(), opened, stats);
            }
            TcpOutput::Connect { tcp, peer, user } => {
                self.begin(tcp, peer, Stream::connect(peer), stats);
                if let Some(entry) = self.connections.get_mut(&tcp) {
                    entry.user = user;
                }
            }
            TcpOutput::Read { tcp, max } => self.read(tcp, max),
            TcpOutput::Write { tcp, data } => self.output(tcp, |entry| entry.push(data)),
            TcpOutput::Finish(tcp) => self.output(tcp, Connection::finish),
            TcpOutput::Close(tcp) => self.close(tcp, stats),
            TcpOutput::Reset(tcp) => self.reset(tcp),
            TcpOutput::FindUdpPorts(_) => {} // `requests` handles it
        }
    }

    /// The addresses of the other end and of this end of a connection.
    pub(crate) fn ends(&self, tcp: TcpId) -> io::Result<(SocketAddr, SocketAddr)> {
        self.connections.get(&tcp).ok_or(io::ErrorKind::NotConnected)?.stream.ends()
    }

    /// Writes what was collected, in the order of the connections' first pieces.
    pub(crate) fn flush(&mut self, stats: &mut DriverStats) {
        let mut unsent = mem::take(&mut self.unsent);
        for tcp in unsent.drain(..) {
            if let Some(entry) = self.connections.get_mut(&tcp) {
                entry.is_unsent = false;
                self.write(tcp, stats);
            }
        }
        self.unsent = unsent; // this keeps its allocation
    }

    /// Notes which connections are ready. The next one wakes the task of `context`.
    pub(crate) fn poll_ready(&mut self, context: &Context<'_>) {
        self.ready_list.take_into(&mut self.ready, context);
    }

    /// Whether a connection or a listening socket waits for its turn.
    fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.turns.is_empty()
    }

    /// Returns whether [`Self::serve`] has something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.has_ready() || self.has_written_much || !self.answers.is_empty()
    }

    /// Returns when [`Self::on_time`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.next_check, self.next_accept].into_iter().flatten().min()
    }

    /// Does what is due at this time.
    pub(crate) fn on_time(&mut self, now: Instant, stats: &mut DriverStats) {
        if self.next_accept.is_some_and(|next| next <= now) {
            self.next_accept = None;
            let waiting = self.listeners.iter().filter(|(_, entry)| entry.wanted.is_some());
            self.ready.extend(waiting.map(|(listener, _)| WakerKey::Listener(*listener)));
        }
        if self.next_check.is_some_and(|next| next <= now) {
            self.next_check = None;
            self.check(stats);
        }
    }

    /// Accepts, reads and writes where this is possible, and tells the node. Users take turns, and each turn is one
    /// read, so that none delays the others. Once `most` bytes are read, the rest waits for the next call.
    pub(crate) fn serve(
        &mut self,
        most: usize,
        stats: &mut DriverStats,
        mut tell: impl FnMut(TcpInput),
    ) {
        for name in self.ready.drain(..) {
            let user = match name {
                WakerKey::Listener(_) => None,
                WakerKey::Connection(tcp) => {
                    self.connections.get(&tcp).and_then(|entry| entry.user)
                }
            };
            self.turns.push_back(user.map_or(Party::Alone(name), Party::User), name);
        }
        let mut bytes = 0;
        while bytes < most
            && let Some(name) = self.turns.pop_front()
        {
            match name {
                WakerKey::Listener(listener) => self.accept(listener, stats),
                WakerKey::Connection(tcp) => {
                    if let Some(data) = self.serve_connection(tcp, stats) {
                        bytes += data.len();
                        tell(TcpInput::Read { tcp, data });
                    }
                }
            }
        }
        self.has_written_much = false;
        for tcp in self.written.drain(..) {
            if let Some(entry) = self.connections.get_mut(&tcp)
                && entry.written > 0
                && !entry.is_closing()
            {
                tell(TcpInput::Written { tcp, bytes: mem::take(&mut entry.written) });
            }
        }
        self.answers.drain(..).for_each(tell);
    }

    fn listen(&mut self, listener: ListenerId, address: SocketAddr, stats: &mut DriverStats) {
        let waker = self.ready_list.waker(WakerKey::Listener(listener));
        let result = Listener::open(address, waker).map(|(entry, local)| {
            debug!(%local, "TCP socket listens");
            self.listeners.insert(listener, entry);
            local
        });
        let result = result.map_err(|error| {
            stats.tcp_refused += 1;
            debug!(%error, %address, "a TCP socket cannot listen");
            os_error(&error)
        });
        self.answers.push(TcpInput::Listening { listener, result });
    }

    fn accept(&mut self, listener: ListenerId, stats: &mut DriverStats) {
        let Some(entry) = self.listeners.get_mut(&listener) else { return };
        let Some(tcp) = entry.wanted else { return };
        match entry.poll_accept() {
            Poll::Pending => {}
            Poll::Ready(Ok((stream, peer))) => {
                entry.wanted = None;
                let local = stream.local_addr().ok().map(|local| local.ip().to_canonical());
                self.insert(tcp, Stream::from_tcp(stream), ConnectionStage::Open);
                self.opened(tcp, TcpAddresses { peer, local }, stats);
            }
            // The peer gave up before the node took the connection.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {
                self.ready.push_back(WakerKey::Listener(listener));
            }
            Poll::Ready(Err(error)) => {
                stats.tcp_accepts_failed += 1;
                let now = clock::now();
                self.next_accept.get_or_insert(now + ACCEPT_PAUSE);
                if let Some(left_out) = self.refused.due(now) {
                    warn!(%error, left_out, "a TCP connection cannot be accepted");
                }
            }
        }
    }

    /// Begins to open a connection.
    fn begin(
        &mut self,
        tcp: TcpId,
        peer: SocketAddr,
        stream: io::Result<Stream>,
        stats: &mut DriverStats,
    ) {
        match stream {
            Ok(stream) => {
                self.insert(tcp, stream, ConnectionStage::Opening { peer });
                self.ready.push_back(WakerKey::Connection(tcp)); // the first look arms the waker
            }
            Err(error) => self.refuse(tcp, peer, &error, stats),
        }
    }

    fn insert(&mut self, tcp: TcpId, stream: Stream, stage: ConnectionStage) {
        let waker = self.ready_list.waker(WakerKey::Connection(tcp));
        self.connections.insert(tcp, Connection::new(stream, stage, waker));
    }

    fn opened(&mut self, tcp: TcpId, addresses: TcpAddresses, stats: &mut DriverStats) {
        stats.tcp_opened += 1;
        debug!(?tcp, peer = %addresses.peer, "TCP connection opened");
        self.answers.push(TcpInput::Opened { tcp, result: Ok(addresses) });
        self.check_later();
    }

    fn refuse(&mut self, tcp: TcpId, peer: SocketAddr, error: &io::Error, stats: &mut DriverStats) {
        stats.tcp_refused += 1;
        let refusal = connect_error(error, peer);
        if refusal.kind != io::ErrorKind::QuotaExceeded {
            debug!(%error, ?tcp, %peer, "a TCP connection cannot be opened");
        } else if let Some(left_out) = self.refused.due(clock::now()) {
            warn!(%error, left_out, "the host has no room for a TCP connection");
        }
        self.answers.push(TcpInput::Opened { tcp, result: Err(refusal) });
    }

    fn read(&mut self, tcp: TcpId, max: usize) {
        let Some(entry) = self.connections.get_mut(&tcp) else { return };
        entry.read_max = Some(max.clamp(1, READ_BYTES_MAX));
        if entry.is_readable() {
            self.ready.push_back(WakerKey::Connection(tcp));
        }
    }

    /// Changes what a connection has to send. The change is carried out with the next flush.
    fn output(&mut self, tcp: TcpId, change: impl FnOnce(&mut Connection)) {
        let Some(entry) = self.connections.get_mut(&tcp) else { return };
        change(entry);
        if !mem::replace(&mut entry.is_unsent, true) {
            self.unsent.push(tcp);
        }
    }

    /// Does what a connection waits for. Returns what was read for the node.
    fn serve_connection(&mut self, tcp: TcpId, stats: &mut DriverStats) -> Option<Bytes> {
        let entry = self.connections.get_mut(&tcp)?;
        if let ConnectionStage::Opening { peer } = entry.stage {
            match entry.poll_connected() {
                Poll::Pending => return None,
                Poll::Ready(Ok(())) => {
                    entry.stage = ConnectionStage::Open;
                    self.opened(tcp, peer.into(), stats);
                }
                Poll::Ready(Err(error)) => {
                    self.connections.remove(&tcp);
                    self.refuse(tcp, peer, &error, stats);
                    return None;
                }
            }
        }
        let data = self.try_read(tcp, stats);
        if self.connections.get(&tcp).is_some_and(Connection::has_output) {
            self.write(tcp, stats);
        }
        data
    }

    fn try_read(&mut self, tcp: TcpId, stats: &mut DriverStats) -> Option<Bytes> {
        let entry = self.connections.get_mut(&tcp)?;
        let max = entry.read_max?;
        match entry.poll_read(self.scratch.with_room(max), max) {
            Poll::Pending => return None,
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {
                self.ready.push_back(WakerKey::Connection(tcp));
                return None;
            }
            Poll::Ready(Err(error)) => {
                let kind = entry.broken.unwrap_or(error.kind());
                self.fail(tcp, kind, stats);
                return None;
            }
            Poll::Ready(Ok(0)) => {
                if let Some(kind) = entry.broken {
                    self.fail(tcp, kind, stats);
                    return None;
                }
                entry.is_at_end = true;
            }
            Poll::Ready(Ok(count)) => {
                stats.tcp_read_calls += 1;
                stats.tcp_bytes_read += count as u64;
            }
        }
        entry.read_max = None;
        if entry.is_closing() {
            self.discard(tcp);
            return None;
        }
        self.check_later();
        Some(self.scratch.take())
    }

    fn write(&mut self, tcp: TcpId, stats: &mut DriverStats) {
        let Some(entry) = self.connections.get_mut(&tcp) else { return };
        if matches!(entry.stage, ConnectionStage::Opening { .. }) {
            return;
        }
        let was_told = entry.written == 0;
        match entry.write(stats) {
            Ok(Wrote::Enough) => {}
            Ok(Wrote::More) => self.ready.push_back(WakerKey::Connection(tcp)),
            Err(error) => return self.set_broken(tcp, error.kind(), stats),
        }
        if was_told && entry.written > 0 {
            self.written.push(tcp);
        }
        self.has_written_much |= entry.written >= WRITTEN_MUCH;
        self.forget_if_done(tcp);
    }

    /// Handles the failure of a connection's sending direction. What has arrived before can still be
    /// read, as the answer of a server that does not read the whole request.
    fn set_broken(&mut self, tcp: TcpId, error: io::ErrorKind, stats: &mut DriverStats) {
        let Some(entry) = self.connections.get_mut(&tcp) else { return };
        if entry.broken.is_none() && entry.stream.has_unread() {
            entry.set_broken(error);
        } else if entry.broken.is_none() {
            self.fail(tcp, error, stats);
        }
    }

    fn fail(&mut self, tcp: TcpId, error: io::ErrorKind, stats: &mut DriverStats) {
        let Some(entry) = self.connections.remove(&tcp) else { return };
        if entry.is_closing() {
            self.closing.retain(|closing| *closing != tcp);
            return;
        }
        stats.tcp_failed += 1;
        debug!(?tcp, ?error, "TCP connection failed");
        self.answers.push(TcpInput::Failed { tcp, error });
    }

    /// Looks at all connections some time later.
    fn check_later(&mut self) {
        if self.next_check.is_none() {
            self.next_check = Some(clock::now() + CHECK_INTERVAL);
        }
    }
}

/// Returns an error that occurred while a connection was opened.
fn connect_error(error: &io::Error, peer: SocketAddr) -> OsError {
    match error.raw_os_error() {
        // With IPv4 this says that no port is free. With IPv6 it may also say that the host has no
        // address, and another address of the peer may be reachable.
        Some(libc::EADDRNOTAVAIL) if peer.is_ipv4() => out_of_room(error),
        _ => os_error(error),
    }
}

#[cfg(test)]
mod tests;

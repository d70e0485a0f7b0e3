//! The loop between a node and the operating system.
//!
//! One task, no channel: drain what the node wants done, then wait until a socket is readable, an
//! answer has come or the deadline has passed, and feed that.
//!
//! A deadline is exact to some 0.1 ms on Linux, see `alarm`; elsewhere it is rounded up to the next
//! millisecond. A datagram that arrives is told at once and with the exact time in any case.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    io, mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_node::node::{Event, Input, Node, Output, SocketId, SocketKind, Transmit};
use tokio::{
    task,
    time::{Interval, MissedTickBehavior, interval_at},
};
use tracing::{debug, warn};

use crate::{
    alarm::Alarm,
    clock,
    files::Files,
    ready::{Readiness, ReadyList, ReadySignal},
    requests::Requests,
    resolver::Resolver,
    send_batch::SendBatch,
    socket::{Drained, ReceiveBuffers, SocketOptions, UdpSocket},
    stats::DriverStats,
};

/// Outputs performed before everything that waits to be joined with more is sent, and the clock is
/// read anew: bounds how long a datagram may wait for others, to some 0.3 ms.
const OUTPUTS_PER_FLUSH: usize = 256;

/// Outputs performed before inputs are looked for again although the node has more to say.
const OUTPUTS_PER_DRAIN: usize = 64 * OUTPUTS_PER_FLUSH;

/// Send buffers kept for reuse; more than one only if several sockets send in one drain.
const SPARE_BUFFERS_MAX: usize = 32;

/// What the embedding program does with what a node tells. Everything has a default: `()` ignores it.
pub trait Application<N> {
    /// Something happened. After [`Event::Closed`] nothing more comes.
    fn event(&mut self, event: Event) {
        drop(event);
    }

    /// A part of the body that the node fetches. It is safe when this returns: the node then asks the
    /// peer for more. The driver does nothing else meanwhile, so this may wait for a disk, but not for
    /// a user. An error ends the node and is returned as [`DriveError::Body`].
    fn body(&mut self, offset: u64, data: Bytes) -> io::Result<()> {
        drop((offset, data));
        Ok(())
    }

    /// Called every [`DriverOptions::tick`], for progress bars and metrics. The node is lent mutably
    /// because that is how it tells what it counts.
    fn tick(&mut self, now: Instant, node: &mut N, driver: &DriverStats) {
        let _ = (now, node, driver);
    }
}

impl<N> Application<N> for () {}

/// How a driver is to run.
#[derive(Clone)]
pub struct DriverOptions {
    /// How sockets are opened.
    pub socket: SocketOptions,
    /// Resolves host names; `None`: as the system is configured, read when first needed.
    pub resolver: Option<Resolver>,
    /// The folder that the node may read; `None`: every file is "not found".
    pub files: Option<Files>,
    /// How often [`Application::tick`] is called; `None`: never.
    pub tick: Option<Duration>,
    /// How long a node may take to say goodbye, from the time that it is told to end.
    pub grace: Duration,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            socket: SocketOptions::default(),
            resolver: None,
            files: None,
            tick: None,
            // Three probe timeouts of a connection with 200 ms RTT (RFC 9000 §10.2), and some.
            grace: Duration::from_secs(3),
        }
    }
}

/// What is left when a node has ended.
#[derive(Debug)]
pub struct Finished<N> {
    /// The node, for its statistics.
    pub node: N,
    /// What the driver did.
    pub stats: DriverStats,
    /// Whether the node came to its own end. What that end was is in [`Event::Closed`].
    pub result: Result<(), DriveError>,
}

/// Why a node did not come to its own end.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The application could not take over a part of the body.
    #[error("the body cannot be written: {0}")]
    Body(#[source] io::Error),
    /// The node was told to end and did not within [`DriverOptions::grace`].
    #[error("the node did not end within {0:?}")]
    GraceExpired(Duration),
}

/// Runs a node until it has ended ([`Event::Closed`]), or until it should have.
///
/// When `shutdown` completes, the node is told once to end; pass [`std::future::pending`] if nobody
/// will. Needs a tokio runtime with I/O and time.
pub async fn run<N: Node, A: Application<N>>(
    node: N,
    app: &mut A,
    options: DriverOptions,
    shutdown: impl Future<Output = ()>,
) -> Finished<N> {
    let mut driver = Driver::new(node, app, options);
    let mut shutdown = Some(pin!(shutdown));
    loop {
        let next = driver.drain().await;
        if driver.is_over() {
            return driver.finish();
        }
        driver.wait(next, &mut shutdown).await;
    }
}

struct Driver<'a, N, A> {
    node: N,
    app: &'a mut A,
    socket_options: SocketOptions,
    grace: Duration,
    stats: DriverStats,

    sockets: BTreeMap<SocketId, Slot>,
    ready_list: Arc<ReadyList>,
    /// Sockets to receive from in this round.
    readable: Vec<SocketId>,
    receive_buffers: ReceiveBuffers,

    /// The node writes each transmit here.
    poll_buffer: Vec<u8>,
    /// Sockets with a batch to be sent.
    unsent: Vec<SocketId>,
    spare_buffers: Vec<Vec<u8>>,

    requests: Requests,
    /// Answers to be fed in this round.
    inputs: Vec<Input>,
    alarm: Alarm,
    tick: Option<Interval>,
    end: End,
}

/// One open socket.
struct Slot {
    socket: UdpSocket,
    signal: ReadySignal,
    batch: Option<SendBatch>,
}

/// How far the end is.
#[derive(Default)]
struct End {
    is_closed: bool,
    /// Set when the node was told to end.
    grace_ends: Option<Instant>,
    has_grace_expired: bool,
    body_error: Option<io::Error>,
}

/// How to go on after a drain.
struct Next {
    /// The node's deadline; `None` also if it has more to say.
    deadline: Option<Instant>,
    /// Otherwise something to feed is there, or the node has more to say: look around only.
    may_sleep: bool,
}

/// What ended a wait, besides sockets and answers, which stand in the driver.
#[derive(Default)]
struct Woken {
    shutdown: bool,
    tick: bool,
}

impl<'a, N: Node, A: Application<N>> Driver<'a, N, A> {
    fn new(node: N, app: &'a mut A, options: DriverOptions) -> Self {
        let tick = options.tick.map(|period| {
            let mut tick = interval_at(tokio::time::Instant::now() + period, period);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            tick
        });
        Self {
            node,
            app,
            socket_options: options.socket,
            grace: options.grace,
            stats: DriverStats::default(),
            sockets: BTreeMap::new(),
            ready_list: Arc::default(),
            readable: Vec::new(),
            receive_buffers: ReceiveBuffers::new(),
            poll_buffer: Vec::new(),
            unsent: Vec::new(),
            spare_buffers: Vec::new(),
            requests: Requests::new(options.resolver, options.files),
            inputs: Vec::new(),
            alarm: Alarm::new(),
            tick,
            end: End::default(),
        }
    }

    /// Performs what the node wants done, until it wants to wait.
    async fn drain(&mut self) -> Next {
        let mut now = clock::now();
        for count in 1..=OUTPUTS_PER_DRAIN {
            match self.node.poll(now, &mut self.poll_buffer) {
                Output::Wait(deadline) => {
                    self.flush().await;
                    let may_sleep = self.inputs.is_empty() && self.readable.is_empty();
                    return Next { deadline, may_sleep };
                }
                output => self.perform(output).await,
            }
            if self.end.is_closed {
                break;
            }
            if count % OUTPUTS_PER_FLUSH == 0 {
                self.flush().await;
                now = clock::now();
            }
        }
        self.flush().await;
        Next { deadline: None, may_sleep: false }
    }

    async fn perform(&mut self, output: Output) {
        match output {
            Output::Transmit { socket, transmit } => self.transmit(socket, transmit).await,
            Output::OpenSocket { socket, kind } => self.open_socket(socket, kind),
            Output::CloseSocket(id) => {
                self.send(id).await;
                self.sockets.remove(&id);
                // The node has forgotten it, and need not hear that it failed.
                self.inputs.retain(
                    |input| !matches!(input, Input::SocketFailed { socket, .. } if *socket == id),
                );
            }
            Output::Resolve { query, host } => self.requests.resolve(query, host),
            Output::OpenFile { file, path } => self.requests.open_file(file, path),
            Output::ReadFile { file, offset, len } => self.requests.read_file(file, offset, len),
            Output::CloseFile(file) => self.requests.close_file(file),
            Output::BodyChunk { offset, data } => self.body(offset, data),
            Output::Event(event) => {
                self.end.is_closed |= matches!(event, Event::Closed(_));
                self.app.event(event);
            }
            Output::Wait(_) => {} // ends the drain
        }
    }

    /// Joins the poll buffer to what waits to be sent from this socket, or sends that and keeps this.
    async fn transmit(&mut self, id: SocketId, transmit: Transmit) {
        let Some(slot) = self.sockets.get_mut(&id) else {
            let datagrams = transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size));
            self.stats.dropped_no_socket += datagrams as u64;
            return;
        };
        if let Some(batch) = &mut slot.batch {
            if batch.append(&transmit, &self.poll_buffer) {
                return;
            }
            self.send(id).await;
        } else {
            self.unsent.push(id);
        }
        let buffer = self.spare_buffers.pop().unwrap_or_default();
        let bytes = mem::replace(&mut self.poll_buffer, buffer);
        if let Some(slot) = self.sockets.get_mut(&id) {
            slot.batch = Some(SendBatch::new(transmit, bytes));
        }
    }

    /// Sends everything that was joined, in the order in which the sockets were first named.
    async fn flush(&mut self) {
        let mut unsent = mem::take(&mut self.unsent);
        for id in unsent.drain(..) {
            self.send(id).await;
        }
        self.unsent = unsent; // keeps its allocation
    }

    async fn send(&mut self, id: SocketId) {
        let Some(slot) = self.sockets.get_mut(&id) else { return };
        let Some(batch) = slot.batch.take() else { return };
        let (transmit, bytes) = batch.into_parts();
        if let Some(error) = slot.socket.send(&transmit, &bytes, &mut self.stats).await {
            self.stats.sockets_failed += 1;
            self.inputs.push(Input::SocketFailed { socket: id, error });
        }
        if self.spare_buffers.len() < SPARE_BUFFERS_MAX {
            self.spare_buffers.push(bytes);
        }
    }

    fn open_socket(&mut self, id: SocketId, kind: SocketKind) {
        let result = UdpSocket::open(id, kind, self.socket_options);
        let result = match result {
            Ok(socket) => {
                let local = socket.local_addr();
                let signal = ReadySignal::new(&socket, &self.ready_list);
                self.sockets.insert(id, Slot { socket, signal, batch: None });
                self.readable.push(id); // receives nothing yet, but that arms its signal
                self.stats.sockets_opened += 1;
                debug!(?kind, %local, "socket opened");
                Ok(local)
            }
            Err(error) => {
                self.stats.sockets_refused += 1;
                match kind {
                    // The node ends with it, and says so.
                    SocketKind::Listen(_) => debug!(%error, ?kind, "socket cannot be opened"),
                    SocketKind::ForPeer(_) | SocketKind::Connected(_) => {
                        warn!(%error, ?kind, "socket cannot be opened");
                    }
                }
                Err(error.kind())
            }
        };
        self.inputs.push(Input::SocketOpened { socket: id, result });
    }

    fn body(&mut self, offset: u64, data: Bytes) {
        if self.end.body_error.is_some() {
            return; // no credit, no more
        }
        let bytes = data.len() as u64;
        match self.app.body(offset, data) {
            Ok(()) => self.inputs.push(Input::BodyCredit { bytes }),
            Err(error) => {
                self.end.body_error = Some(error);
                self.shut_down();
            }
        }
    }

    /// Tells the node to end; it is told once.
    fn shut_down(&mut self) {
        if self.end.grace_ends.is_none() {
            self.end.grace_ends = Some(clock::now() + self.grace);
            self.inputs.push(Input::Shutdown);
        }
    }

    fn is_over(&self) -> bool {
        self.end.is_closed || self.end.has_grace_expired
    }

    fn finish(self) -> Finished<N> {
        let result = match self.end.body_error {
            Some(error) => Err(DriveError::Body(error)),
            None if self.end.is_closed => Ok(()),
            None => Err(DriveError::GraceExpired(self.grace)),
        };
        Finished { node: self.node, stats: self.stats, result }
    }

    /// Waits, then feeds everything that has come.
    async fn wait<S: Future<Output = ()>>(
        &mut self,
        next: Next,
        shutdown: &mut Option<Pin<&mut S>>,
    ) {
        let Next { deadline, may_sleep } = next;
        if !may_sleep {
            task::yield_now().await; // or the runtime would not look at other sockets
        }
        let grace_ends = self.end.grace_ends;
        self.alarm.set([deadline, grace_ends].into_iter().flatten().min());
        let woken = poll_fn(|context| self.poll_woken(context, shutdown, may_sleep)).await;
        self.stats.wakes += u64::from(may_sleep);

        self.receive();
        if woken.shutdown {
            debug!("the node is told to end");
            self.shut_down();
        }
        let now = clock::now();
        for input in self.inputs.drain(..) {
            self.node.handle(now, input);
        }
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.stats.timeouts += 1;
            self.node.handle(now, Input::Timeout);
        }
        if woken.tick {
            self.app.tick(now, &mut self.node, &self.stats);
        }
        self.end.has_grace_expired = grace_ends.is_some_and(|grace_ends| grace_ends <= now);
    }

    fn poll_woken<S: Future<Output = ()>>(
        &mut self,
        context: &mut Context<'_>,
        shutdown: &mut Option<Pin<&mut S>>,
        may_sleep: bool,
    ) -> Poll<Woken> {
        self.ready_list.take_into(&mut self.readable, context);
        self.requests.poll_answers(context, &mut self.inputs);
        let mut woken = Woken::default();
        if let Some(future) = shutdown
            && future.as_mut().poll(context).is_ready()
        {
            woken.shutdown = true;
            *shutdown = None;
        }
        if let Some(tick) = &mut self.tick {
            woken.tick = tick.poll_tick(context).is_ready();
        }
        let has_rung = self.alarm.poll(context).is_ready();
        let has_input = !self.readable.is_empty() || !self.inputs.is_empty();
        if !may_sleep || has_input || has_rung || woken.shutdown || woken.tick {
            Poll::Ready(woken)
        } else {
            Poll::Pending
        }
    }

    /// Receives one batch from each readable socket and feeds it. One batch, not all there is: no
    /// socket can keep the others waiting, and the node answers before more is heaped on it.
    fn receive(&mut self) {
        let mut readable = mem::take(&mut self.readable);
        for id in readable.drain(..) {
            let Some(slot) = self.sockets.get_mut(&id) else { continue };
            let mut now = None;
            let node = &mut self.node;
            let drained =
                slot.socket.recv_batch(&mut self.receive_buffers, &mut self.stats, |received| {
                    let now = *now.get_or_insert_with(clock::now); // after the system call
                    node.handle(now, Input::Datagram(received));
                });
            if let Drained::Failed(error) = drained {
                self.stats.sockets_failed += 1;
                self.inputs.push(Input::SocketFailed { socket: id, error });
            }
            if drained != Drained::Empty || slot.signal.arm() == Readiness::Now {
                self.readable.push(id);
            }
        }
        if self.readable.is_empty() {
            self.readable = readable; // keeps its allocation
        }
    }
}

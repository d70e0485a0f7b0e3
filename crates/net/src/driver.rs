//! The event loop between a node and the operating system.
//!
//! The driver is one task and has no channels. It performs all outputs of the node, then waits
//! until a socket is readable, an answer has arrived or the deadline has passed, and gives these
//! inputs to the node.
//!
//! A deadline is accurate to some 0.1 ms on Linux (see `alarm`); elsewhere it is rounded up to the
//! next millisecond. A datagram that arrives is given to the node at once, with its exact time, on
//! all systems.

mod receive;
mod sockets;

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    io, mem,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_node::{
    node::{Event, Input, Node, Output, SocketId, Transmit},
    seldom::Seldom,
    tcp::TcpOutput,
};
use tokio::{
    task,
    time::{Interval, MissedTickBehavior, interval_at},
};
use tracing::debug;

use self::sockets::{Lane, OpenSocket};
use crate::{
    alarm::Alarm,
    clock,
    listeners::{Desk, Listener},
    load_gauge::{LoadGauge, Wait},
    memory_gauge::MemoryGauge,
    network_watch::NetworkWatch,
    pause::{Pause, Pauses},
    ready::ReadyList,
    requests::Requests,
    resolver::Resolver,
    send_batch::SendBatch,
    site::{Exchanges, SiteContent},
    socket::{ReceiveBuffers, SocketOptions},
    stats::DriverStats,
    tcp::Tcp,
    too_big::TooBig,
};

/// The number of outputs after which the driver sends all batches and reads the clock again. It
/// bounds the time for which a datagram waits in a batch to some 0.3 ms.
const OUTPUTS_PER_FLUSH: usize = 256;

/// The number of outputs after which the driver looks for inputs, even if the node has more
/// outputs.
const OUTPUTS_PER_DRAIN: usize = 64 * OUTPUTS_PER_FLUSH;

/// The number of datagrams after which the driver lets the node answer before it receives from further
/// sockets. What waits in the kernel is lost only when a socket's buffer is full, but what the node has
/// waits in a tunnel's queue, which many sockets together would fill within one round.
const RECEIVED_PER_ROUND: u64 = 128;

/// The number of bytes after which no further TCP connection is read before the driver looks for datagrams. Reading
/// them takes some 0.05 ms, and sending them 0.4 ms. In that time the acknowledgements of as many bytes arrive: 190
/// packets bring 95 of them. With much more, more would arrive in each round than it takes from the socket, which is at
/// most 32 messages, and they would wait in the kernel for longer and longer.
const TCP_BYTES_PER_ROUND: usize = 256 * 1024;

/// The number of send buffers that are kept for reuse. More than one is needed only if several
/// sockets send in one drain.
const SPARE_BUFFERS_MAX: usize = 32;

/// The embedding program, which receives a node's events and data. Every method has a default that
/// does nothing; `()` is an application that ignores everything.
pub trait Application<N> {
    /// An event of the node. [`Event::Closed`] is the last one.
    fn event(&mut self, event: Event) {
        drop(event);
    }

    /// A part of the body that the node fetches; `offset` is its position in bytes. When this
    /// method returns, the application has taken over the data, and the node extends the peer's
    /// flow control limit. The driver does nothing else in the meantime, so the method may wait for
    /// a disk, but not for a user.
    ///
    /// # Errors
    ///
    /// An error ends the node; [`run`] returns it as [`DriveError::Body`].
    fn body(&mut self, offset: u64, data: Bytes) -> io::Result<()> {
        drop((offset, data));
        Ok(())
    }

    /// Lets the application change the running node, for example when a signal asks it to read its
    /// certificates again. The driver polls this whenever it waits. The application returns
    /// [`Poll::Ready`] after it has changed the node, which is then asked for outputs, and returns
    /// [`Poll::Pending`] if it has nothing to do; then it must wake the task of the context later, as
    /// a future does. The driver does nothing else in the meantime.
    fn poll_change(&mut self, context: &mut Context<'_>, node: &mut N) -> Poll<()> {
        let _ = (context, node);
        Poll::Pending
    }

    /// The driver calls this every [`DriverOptions::tick`], for progress bars and metrics. The
    /// reference to the node is mutable because reading the node's statistics needs that.
    fn tick(&mut self, now: Instant, node: &mut N, driver: &DriverStats) {
        let _ = (now, node, driver);
    }
}

impl<N> Application<N> for () {}

/// The options of a driver.
#[derive(Clone)]
pub struct DriverOptions {
    /// The options of sockets.
    pub socket: SocketOptions,
    /// The socket that the node gets when it asks for one that listens. `None`: the driver opens one.
    pub listener: Option<Listener>,
    /// The resolver of host names; `None` uses the system's configuration, which is read for the
    /// first query.
    pub resolver: Option<Resolver>,
    /// The folder that the node may read, or the server behind its site; with `None` every file is "not found", and no
    /// server can be reached.
    pub site: Option<SiteContent>,
    /// Measures the memory that the process uses, in bytes. The node gets the result as
    /// [`Input::MemoryInUse`] at most each 20 ms. With `None` the node does not limit the memory of
    /// the whole process.
    pub memory_in_use: Option<fn() -> u64>,
    /// Whether packets that come fast and evenly may gather before the node gets them. In a pause the whole thread
    /// sleeps, also other tasks of its runtime.
    pub pause: Pause,
    /// The interval of calls of [`Application::tick`]; with `None` it is never called.
    pub tick: Option<Duration>,
    /// The time that a node may take to close its connections after [`Input::Shutdown`].
    pub grace: Duration,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            socket: SocketOptions::default(),
            listener: None,
            resolver: None,
            site: None,
            memory_in_use: None,
            pause: Pause::default(),
            tick: None,
            // This is more than three probe timeouts of a connection with an RTT of 200 ms (RFC
            // 9000 §10.2).
            grace: Duration::from_secs(3),
        }
    }
}

/// The result of [`run`].
#[derive(Debug)]
pub struct Finished<N> {
    /// The node, for its statistics.
    pub node: N,
    /// The counters of the driver.
    pub stats: DriverStats,
    /// Whether the node ended by itself. [`Event::Closed`] has carried the node's own result.
    pub result: Result<(), DriveError>,
}

/// The reason why a node did not end by itself.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The application could not take over a part of the body.
    #[error("the body cannot be written: {0}")]
    Body(#[source] io::Error),
    /// The node did not end within [`DriverOptions::grace`] after [`Input::Shutdown`].
    #[error("the node did not end within {0:?}")]
    GraceExpired(Duration),
}

/// Runs a node until it has ended ([`Event::Closed`]), or until [`DriverOptions::grace`] has
/// expired.
///
/// When `shutdown` completes, the node gets [`Input::Shutdown`]. Pass [`std::future::pending`] if
/// the node ends only by itself. The caller must be in a tokio runtime with I/O and time enabled.
pub fn run<N: Node, A: Application<N>>(
    node: N,
    app: &mut A,
    options: DriverOptions,
    shutdown: impl Future<Output = ()>,
) -> impl Future<Output = Finished<N>> {
    // The node and the driver are large for a future of the caller.
    Box::pin(async move {
        let mut driver = Driver::new(node, app, options);
        let mut shutdown = Some(pin!(shutdown));
        loop {
            let next = driver.drain();
            if driver.is_over() {
                return driver.finish(shutdown).await;
            }
            driver.wait(next, &mut shutdown).await;
        }
    })
}

struct Driver<'a, N, A> {
    node: N,
    app: &'a mut A,
    socket_options: SocketOptions,
    listener: Option<Listener>,
    grace: Duration,
    stats: DriverStats,
    /// Limits the warnings about sockets that cannot be opened.
    refused: Seldom,

    sockets: BTreeMap<SocketId, OpenSocket>,
    ready_list: Arc<ReadyList<Lane>>,
    /// The sockets from which the driver receives in this round.
    readable: Vec<Lane>,
    receive_buffers: ReceiveBuffers,
    /// The listening socket, if other threads have sockets at its address.
    shared: Option<(SocketId, Desk)>,

    /// The buffer to which the node writes each transmit.
    poll_buffer: Vec<u8>,
    /// The sockets with a batch that is not sent yet.
    unsent: Vec<SocketId>,
    spare_buffers: Vec<Vec<u8>>,

    tcp: Tcp,
    requests: Requests,
    exchanges: Exchanges,
    /// Notices changes of the host's networks. `None`: the node has not asked for it, or the system does not tell.
    network: Option<NetworkWatch>,
    too_big: TooBig,
    /// The answers that the node gets in this round.
    inputs: Vec<Input>,
    alarm: Alarm,
    memory: MemoryGauge,
    load: LoadGauge,
    pauses: Pauses,
    tick: Option<Interval>,
    end: NodeEnd,
}

/// The progress of the node's end.
#[derive(Default)]
struct NodeEnd {
    is_closed: bool,
    /// The end of the grace period, once the node has got [`Input::Shutdown`].
    grace_ends: Option<Instant>,
    has_grace_expired: bool,
    body_error: Option<io::Error>,
}

/// The wait that follows a drain.
struct WaitFor {
    /// The node's deadline; `None` if it has none, or if it has more outputs.
    deadline: Option<Instant>,
    /// Whether the driver may wait for an event. It may only poll if there are inputs already or
    /// the node has more outputs.
    may_sleep: bool,
}

/// The causes that ended a wait, except sockets and answers, which the driver itself holds.
#[derive(Default)]
struct Woken {
    shutdown: bool,
    tick: bool,
    change: bool,
}

impl<'a, N: Node, A: Application<N>> Driver<'a, N, A> {
    fn new(node: N, app: &'a mut A, options: DriverOptions) -> Self {
        let tick = options.tick.map(|period| {
            let mut tick = interval_at(tokio::time::Instant::now() + period, period);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            tick
        });
        let (files, upstream) = match options.site {
            Some(SiteContent::Folder(files)) => (Some(files), None),
            Some(SiteContent::Upstream(upstream)) => (None, Some(*upstream)),
            None => (None, None),
        };
        let is_shared = options.listener.as_ref().is_some_and(|it| it.steering().nodes() > 1);
        Self {
            node,
            app,
            socket_options: options.socket,
            listener: options.listener,
            grace: options.grace,
            stats: DriverStats::default(),
            refused: Seldom::default(),
            sockets: BTreeMap::new(),
            ready_list: Arc::default(),
            readable: Vec::new(),
            receive_buffers: ReceiveBuffers::new(),
            shared: None,
            poll_buffer: Vec::new(),
            unsent: Vec::new(),
            spare_buffers: Vec::new(),
            tcp: Tcp::default(),
            requests: Requests::new(options.resolver, files),
            exchanges: Exchanges::new(upstream),
            network: None,
            too_big: TooBig::default(),
            inputs: Vec::new(),
            alarm: Alarm::new(),
            memory: MemoryGauge::new(options.memory_in_use, is_shared),
            load: LoadGauge::new(clock::now()),
            pauses: Pauses::new(options.pause, clock::now()),
            tick,
            end: NodeEnd::default(),
        }
    }

    /// Performs the node's outputs until the node waits.
    fn drain(&mut self) -> WaitFor {
        let mut now = clock::now();
        for count in 1..=OUTPUTS_PER_DRAIN {
            match self.node.poll(now, &mut self.poll_buffer) {
                Output::Wait(deadline) => {
                    self.flush();
                    return WaitFor { deadline, may_sleep: !self.has_input() };
                }
                output => self.perform(output),
            }
            if self.end.is_closed {
                break;
            }
            if count % OUTPUTS_PER_FLUSH == 0 {
                self.flush();
                now = clock::now();
            }
        }
        self.flush();
        WaitFor { deadline: None, may_sleep: false }
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Transmit { socket, transmit } => self.transmit(socket, transmit),
            Output::OpenSocket { socket, kind } => self.open_socket(socket, kind),
            Output::CloseSocket(id) => {
                self.send(id);
                self.sockets.remove(&id);
            }
            Output::PacketTooBig { socket, peer, local_ip, len, fits } => {
                let Some(slot) = self.sockets.get(&socket) else { return };
                let local = slot.socket.local_addr();
                let local = SocketAddr::new(local_ip.unwrap_or(local.ip()), local.port());
                self.stats.too_big_sent += u64::from(self.too_big.tell(peer, local, (len, fits)));
            }
            Output::WatchNetwork => self.network = NetworkWatch::new(),
            Output::Resolve { query, host } => self.requests.resolve(query, host),
            Output::ResolveService { query, host, port } => {
                self.requests.resolve_service(query, host, port);
            }
            Output::CheckPassword { check, password } => {
                self.requests.check_password(check, password);
            }
            Output::OpenFile { file, path } => self.requests.open_file(file, path),
            Output::ReadFile { file, offset, len } => self.requests.read_file(file, offset, len),
            Output::CloseFile(file) => self.requests.close_file(file),
            Output::Upstream(output) => self.exchanges.perform(output),
            Output::BodyChunk { offset, data } => self.body(offset, data),
            Output::Event(event) => {
                self.end.is_closed |= matches!(event, Event::Closed(_));
                self.app.event(event);
            }
            Output::Tcp(TcpOutput::FindUdpPorts(tcp)) => {
                self.requests.find_udp_ports(tcp, self.tcp.ends(tcp));
            }
            Output::Tcp(output) => self.tcp.perform(output, &mut self.stats),
            Output::Wait(_) => {} // `drain` handles it
        }
    }

    /// Appends the poll buffer to the batch of this socket. If that is not possible, the batch is
    /// sent, and the poll buffer begins a new one.
    fn transmit(&mut self, id: SocketId, transmit: Transmit) {
        let Some(slot) = self.sockets.get_mut(&id) else {
            let datagrams = transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size));
            self.stats.dropped_no_socket += datagrams as u64;
            return;
        };
        if let Some(batch) = &mut slot.batch {
            if batch.append(&transmit, &self.poll_buffer) {
                return;
            }
            self.send(id);
        } else {
            self.unsent.push(id);
        }
        let buffer = self.spare_buffers.pop().unwrap_or_default();
        let bytes = mem::replace(&mut self.poll_buffer, buffer);
        if let Some(slot) = self.sockets.get_mut(&id) {
            slot.batch = Some(SendBatch::new(transmit, bytes));
        }
    }

    /// Sends all batches, in the order in which they were begun, and then writes to TCP connections.
    fn flush(&mut self) {
        let mut unsent = mem::take(&mut self.unsent);
        for id in unsent.drain(..) {
            self.send(id);
        }
        self.unsent = unsent; // this keeps its allocation
        self.tcp.flush(&mut self.stats);
    }

    fn send(&mut self, id: SocketId) {
        let Some(slot) = self.sockets.get_mut(&id) else { return };
        let Some(batch) = slot.batch.take() else { return };
        let (transmit, bytes) = batch.into_parts();
        if let Some(error) = slot.socket.send(&transmit, &bytes, &mut self.stats) {
            self.stats.sockets_failed += 1;
            self.inputs.push(Input::SocketFailed { socket: id, error });
        }
        if self.spare_buffers.len() < SPARE_BUFFERS_MAX {
            self.spare_buffers.push(bytes);
        }
    }

    fn body(&mut self, offset: u64, data: Bytes) {
        if self.end.body_error.is_some() {
            return; // the data cannot be written, so the node gets no credit for it
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

    /// Gives the node [`Input::Shutdown`], at most once.
    fn shut_down(&mut self) {
        if self.end.grace_ends.is_none() {
            self.end.grace_ends = Some(clock::now() + self.grace);
            self.inputs.push(Input::Shutdown);
        }
    }

    fn is_over(&self) -> bool {
        self.end.is_closed || self.end.has_grace_expired
    }

    async fn finish(mut self, shutdown: Option<impl Future<Output = ()>>) -> Finished<N> {
        self.tcp.finish(shutdown, &mut self.stats).await;
        let result = match self.end.body_error {
            Some(error) => Err(DriveError::Body(error)),
            None if self.end.is_closed => Ok(()),
            None => Err(DriveError::GraceExpired(self.grace)),
        };
        Finished { node: self.node, stats: self.stats, result }
    }

    /// Waits, then gives the node all inputs that have arrived.
    async fn wait<S: Future<Output = ()>>(
        &mut self,
        next: WaitFor,
        shutdown: &mut Option<Pin<&mut S>>,
    ) {
        let (WaitFor { deadline, may_sleep }, from) = (next, clock::now());
        let looks = may_sleep && self.load.must_look(from);
        let may_sleep = may_sleep && !looks;
        if !may_sleep {
            task::yield_now().await; // otherwise the runtime would not poll other sockets
        }
        let grace_ends = self.end.grace_ends;
        let deadlines = [deadline, grace_ends, self.tcp.deadline(), self.memory.deadline()];
        let deadline_of_all = deadlines.into_iter().flatten().min();
        if self.node.take_urgent() {
            self.pauses.on_urgent(from);
        }
        let pause = may_sleep.then(|| self.pauses.before_wait(from, deadline_of_all)).flatten();
        if let Some(pause) = pause {
            self.pauses.sleep(pause);
            self.stats.pauses += 1;
        }
        self.alarm.set(deadline_of_all);
        let woken = poll_fn(|context| self.poll_woken(context, shutdown, may_sleep)).await;
        self.stats.wakes += u64::from(may_sleep);

        let wait = Wait::of((looks, may_sleep), self.has_input());
        if let Some(load) = self.load.on_wait(wait, from, clock::now()) {
            self.node.handle(clock::now(), Input::Load(load));
        }
        self.receive();
        if woken.shutdown {
            debug!("the node is asked to end");
            self.shut_down();
        }
        let now = clock::now();
        self.tcp.on_time(now, &mut self.stats);
        let node = &mut self.node;
        self.tcp.serve(TCP_BYTES_PER_ROUND, &mut self.stats, |input| {
            node.handle(now, Input::Tcp(input));
        });
        self.inputs.extend(self.memory.measure(now).map(Input::MemoryInUse));
        for input in self.inputs.drain(..) {
            if let Input::SocketFailed { socket, .. } = &input
                && !self.sockets.contains_key(socket)
            {
                continue; // the node has closed the socket since, and no longer knows it
            }
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

    fn has_input(&self) -> bool {
        !self.readable.is_empty() || self.tcp.has_work() || !self.inputs.is_empty()
    }

    fn poll_woken<S: Future<Output = ()>>(
        &mut self,
        context: &mut Context<'_>,
        shutdown: &mut Option<Pin<&mut S>>,
        may_sleep: bool,
    ) -> Poll<Woken> {
        self.ready_list.take_into(&mut self.readable, context);
        self.tcp.poll_ready(context);
        self.requests.poll_answers(context, &mut self.inputs);
        self.exchanges.poll_told(context, &mut self.inputs);
        if self.network.as_ref().is_some_and(|network| network.poll(context)) {
            self.inputs.push(Input::NetworkChanged);
        }
        let has_handed = self.shared.as_ref().is_some_and(|(_, desk)| desk.poll(context));
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
        woken.change = self.app.poll_change(context, &mut self.node).is_ready();
        let has_rung = self.alarm.poll(context).is_ready();
        let has_input = has_handed || self.has_input();
        let is_asked = woken.shutdown || woken.tick || woken.change;
        if !may_sleep || has_input || has_rung || is_asked {
            Poll::Ready(woken)
        } else {
            Poll::Pending
        }
    }
}

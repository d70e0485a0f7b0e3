//! Runs the nodes of a server, each in a thread of its own, until an order ends them.

use std::{
    future::{Future, pending},
    net::SocketAddr,
    panic::resume_unwind,
    sync::atomic::Ordering,
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use tandem_net::{Application, DriverOptions, DriverStats, driver, site::Upstream};
use tandem_node::{
    error::ClientError,
    limits::Limits,
    node::{Event, Node},
};
use tokio::sync::{mpsc, watch};

use super::{
    changes::Changes,
    gate,
    obey::{self, obey},
    orders::Orders,
    pulse::{Pulse, Watch},
};
use crate::{
    admin::{Admin, OfProcess},
    error::ServeError,
    process::{SystemError, after_grace, log, qlog, runtime},
    role::{Change, Role},
    takeover::Address,
    tls::Stamps,
};

/// What the outside sees of the nodes.
pub(super) struct Seen<'a, L, S> {
    /// Gets the index of a node and the node, at each tick of the options and at the end.
    pub(super) look: &'a L,
    /// Gets the address when the first node listens.
    pub(super) on_listening: &'a S,
    /// Serves operators.
    pub(super) admin: Option<&'a Admin>,
    /// The server behind the site, which is checked again and again.
    pub(super) upstream: Option<&'a Upstream>,
}

/// The time that a server has for its end after a signal.
pub(super) fn grace(limits: &Limits) -> Duration {
    limits.drain + limits.goodbye + Duration::from_secs(1)
}

/// Nodes, each with the options of its driver.
pub(super) type Nodes<N> = Vec<(N, DriverOptions)>;

/// Runs the nodes of a server until its orders end them. `changes` reads the server's files again, and those of its
/// certificate when they have changed since the look `read`.
pub(super) fn run<R: Role>(
    nodes: Nodes<R::Node>,
    mut address: Address,
    (changes, read): (&Changes<'_, R>, Stamps),
    seen: &Seen<'_, impl Fn(usize, &mut R::Node, &DriverStats) + Sync, impl Fn(SocketAddr) + Sync>,
    orders: impl FnOnce() -> Result<Orders, ServeError>,
) -> Result<(), ServeError> {
    let &Seen { look, on_listening, admin, upstream } = seen;
    log::use_own_thread()?;
    let runtime = runtime()?;
    let mut orders = runtime.block_on(async { orders() })?;
    let mut listener = None;
    if !address.waits_for_predecessor() {
        listener = runtime.block_on(async { admin.map(Admin::listen).transpose() })?;
        changes.begin(None)?;
    }
    let end = watch::Sender::new(ServerEnd::No);
    let (running, all_ended) = mpsc::channel::<()>(1);
    let (up, all_up) = mpsc::channel::<()>(nodes.len().max(1));
    let mut watch = Watch::default();
    let result = thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut change_nodes = Vec::new();
        for (index, (node, options)) in nodes.into_iter().enumerate() {
            // An operator does not send more signals than a thread can follow.
            let (sender, changes_of_node) = mpsc::unbounded_channel();
            change_nodes.push(sender);
            let look = move |node: &mut R::Node, driver: &DriverStats| look(index, node, driver);
            let pulse = watch.add();
            let up = up.clone();
            let server = ServingNode {
                on_listening: (index == 0).then_some(on_listening),
                result: Ok(()),
                changes: changes_of_node,
                look,
                pulse,
                up,
            };
            let (end, running) = (EndsAll(end.clone()), running.clone());
            let run = move || {
                let result = server.run(node, options, &end.0);
                drop((running, end));
                result
            };
            threads.push(start(scope, index, run));
        }
        drop((running, up));
        let stuck = watch.counter();
        let of_process = || OfProcess {
            is_draining: *end.borrow() != ServerEnd::No,
            stuck_threads: stuck.load(Ordering::Relaxed),
            lost_log_lines: log::lost(),
            cut_qlogs: qlog::cut(),
        };
        let (gate, admin_gate) = gate::new(listener);
        let watching = admin_gate.watch(admin, of_process);
        let checking = check(upstream);
        let watching_neighbours = address.watch_neighbours();
        let nodes = obey::Nodes { changes: change_nodes, busy: None, end: &end, all_ended, all_up };
        let told = (&mut orders, &mut watch);
        let obeying = obey(told, nodes, (changes, read), (&mut address, gate));
        runtime.block_on(async {
            tokio::select! {
                () = obeying => {}
                () = watching => {}
                () = checking => {}
                () = watching_neighbours => {}
            }
        });
        let join = |thread: Thread<'_>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().try_for_each(|thread| thread.and_then(join))
    });
    // A look at a file may wait for a file system that does not answer. The end does not wait for it.
    runtime.shutdown_background();
    if watch.stuck() > 0 {
        tracing::error!(times = watch.stuck(), "threads of this server were stuck while it ran");
    }
    result
}

/// Checks the server behind a site again and again. Never ends.
async fn check(upstream: Option<&Upstream>) {
    match upstream {
        Some(upstream) => upstream.apart().keep_checking().await,
        None => pending().await,
    }
}

/// The thread of a node.
type Thread<'scope> = thread::ScopedJoinHandle<'scope, Result<(), ServeError>>;

/// Starts the thread of the node with this index.
fn start<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    index: usize,
    run: impl FnOnce() -> Result<(), ServeError> + Send + 'scope,
) -> Result<Thread<'scope>, ServeError> {
    let thread = thread::Builder::new().name(format!("tandem-{index}"));
    Ok(thread.spawn_scoped(scope, run).map_err(SystemError::thread)?)
}

/// How far the end of a server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServerEnd {
    No,
    /// Open flows may go on for a while.
    Drain,
    Now,
}

/// Lets all nodes end when one has ended, for whatever reason.
struct EndsAll(watch::Sender<ServerEnd>);

impl Drop for EndsAll {
    fn drop(&mut self) {
        drain(&self.0);
    }
}

/// Lets all nodes end, if they do not end already.
pub(super) fn drain(end: &watch::Sender<ServerEnd>) {
    end.send_modify(|end| *end = (*end).max(ServerEnd::Drain));
}

/// Completes when the end has come this far.
fn reached(end: &watch::Sender<ServerEnd>, least: ServerEnd) -> impl Future<Output = ()> + use<> {
    let mut end = end.subscribe();
    async move { drop(end.wait_for(|end| *end >= least).await) }
}

/// One node of a server. The first one tells when the server is ready.
struct ServingNode<'a, N, L, S> {
    /// The first node has it.
    on_listening: Option<&'a S>,
    result: Result<(), ServeError>,
    /// Each comes with what is dropped when it is in force.
    changes: mpsc::UnboundedReceiver<(Change<N>, mpsc::Sender<()>)>,
    look: L,
    pulse: Pulse,
    /// Gets something when the node listens.
    up: mpsc::Sender<()>,
}

impl<N: Node, L: FnMut(&mut N, &DriverStats), S: Fn(SocketAddr)> ServingNode<'_, N, L, S> {
    fn run(
        mut self,
        node: N,
        options: DriverOptions,
        end: &watch::Sender<ServerEnd>,
    ) -> Result<(), ServeError> {
        let pulse = self.pulse.clone();
        let running =
            pulse.of(driver::run(node, &mut self, options, reached(end, ServerEnd::Drain)));
        let finished = runtime()?.block_on(async {
            tokio::select! {
                finished = running => Some(finished),
                () = reached(end, ServerEnd::Now) => None,
            }
        });
        self.result?;
        let Some(finished) = finished else { return Ok(()) };
        let mut finished = after_grace(finished)?;
        (self.look)(&mut finished.node, &finished.stats);
        Ok(())
    }
}

impl<N, L: FnMut(&mut N, &DriverStats), S: Fn(SocketAddr)> Application<N>
    for ServingNode<'_, N, L, S>
{
    fn tick(&mut self, _: Instant, node: &mut N, driver: &DriverStats) {
        (self.look)(node, driver);
    }

    fn poll_change(&mut self, context: &mut Context<'_>, node: &mut N) -> Poll<()> {
        match self.changes.poll_recv(context) {
            Poll::Ready(Some((change, _applied))) => {
                change(node);
                Poll::Ready(())
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Listening(address) => {
                // There is room for all nodes.
                self.up.try_send(()).ok();
                if let Some(on_listening) = self.on_listening {
                    on_listening(address);
                }
            }
            Event::Closed(Err(error)) if error != ClientError::Interrupted => {
                self.result = Err(ServeError::Node { error });
            }
            Event::Closed(_)
            | Event::HopUp { .. }
            | Event::HopLost { .. }
            | Event::FlowFailed { .. }
            | Event::ModeChanged { .. }
            | Event::Chosen { .. }
            | Event::TunnelInfo { .. }
            | Event::TooLarge { .. }
            | Event::ResponseStarted { .. }
            | Event::Fetched(_) => {}
        }
    }
}

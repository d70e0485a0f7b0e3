//! Runs the nodes of a server, each in a thread of its own, until a signal ends them.

mod error;
mod gate;
mod signals;

use std::{
    future::Future,
    os::unix::net::UnixStream,
    panic::resume_unwind,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use tandem_net::{Application, DriverOptions, DriverStats, driver};
use tandem_node::{
    BusyNodes,
    error::ClientError,
    limits::Limits,
    node::{Event, Node},
};
use tokio::sync::{mpsc, watch};

pub(crate) use self::error::{ServeError, SetupError};
use self::signals::{Nodes, ServerSignals};
use crate::{
    admin::{Admin, OfProcess},
    error::SystemError,
    log,
    pulse::{Pulse, Watch},
    qlog,
    run::{after_grace, runtime, say_listening},
    takeover::Address,
    tls::Stamps,
};

/// What changes at each node.
pub(crate) type Change<N> = Arc<dyn Fn(&mut N) + Send + Sync>;

/// How the nodes of a server change while they run.
pub(crate) trait Changes<N> {
    /// Reads all files again. Also returns what to tell the operator.
    fn reload(&self) -> Result<(Change<N>, String), SetupError>;

    /// The files of the certificate.
    fn certificate_files(&self) -> Vec<PathBuf>;

    /// Reads the files of the certificate again.
    fn renew(&self) -> Result<Change<N>, SetupError>;

    /// Opens what only one process may have open. `usage`: the process that this one has taken over from tells there
    /// what users use. An error says that a server must not serve.
    fn begin(&self, usage: Option<UnixStream>) -> Result<(), ServeError>;

    /// Closes what [`Self::begin`] has opened, because another process has taken over. What users use is told there.
    fn hand_over(&self, usage: UnixStream, busy: BusyNodes) -> Change<N>;

    /// Opens again what [`Self::hand_over`] has closed, because the other process has died.
    fn take_back(&self) -> Change<N>;
}

/// The time that a server has for its end after a signal.
pub(crate) fn grace(limits: &Limits) -> Duration {
    limits.drain + limits.goodbye + Duration::from_secs(1)
}

/// Runs the nodes of a server until a signal ends them, which is not an error. A second signal ends them at
/// once.
///
/// A thread that does not come back to its event loop is an error in the log. The others go on.
///
/// SIGHUP lets `changes` read the server's files again, and those of its certificate are read again when they have
/// changed since the look `read`. SIGUSR2 lets another process take over the address. `look` gets the index of a node
/// and the node, at each tick of the options and at the end. `admin` serves operators.
pub(crate) fn serve<N: Node + Send>(
    nodes: Vec<(N, DriverOptions)>,
    mut address: Address,
    (changes, read): (&impl Changes<N>, Stamps),
    look: impl Fn(usize, &mut N, &DriverStats) + Sync,
    admin: Option<&Admin>,
) -> Result<(), ServeError> {
    log::use_own_thread()?;
    let runtime = runtime()?;
    let mut signals = runtime.block_on(async { ServerSignals::new() })?;
    let mut listener = None;
    if !address.waits_for_predecessor() {
        listener = runtime.block_on(async { admin.map(Admin::listen).transpose() })?;
        changes.begin(None)?;
    }
    let end = watch::Sender::new(End::No);
    let (running, all_ended) = mpsc::channel::<()>(1);
    let (up, all_up) = mpsc::channel::<()>(nodes.len().max(1));
    let look = &look;
    let mut watch = Watch::default();
    let result = thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut change_nodes = Vec::new();
        for (index, (node, options)) in nodes.into_iter().enumerate() {
            // An operator does not send more signals than a thread can follow.
            let (sender, changes_of_node) = mpsc::unbounded_channel();
            change_nodes.push(sender);
            let look = move |node: &mut N, driver: &DriverStats| look(index, node, driver);
            let pulse = watch.add();
            let up = up.clone();
            let server =
                Server { index, result: Ok(()), changes: changes_of_node, look, pulse, up };
            let (end, running) = (EndsAll(end.clone()), running.clone());
            let run = move || {
                let result = server.run(node, options, &end.0);
                drop((running, end));
                result
            };
            let thread = thread::Builder::new().name(format!("tandem-{index}"));
            let thread = thread.spawn_scoped(scope, run);
            threads.push(thread.map_err(|error| ServeError::from(SystemError::thread(error))));
        }
        drop((running, up));
        let stuck = watch.counter();
        let of_process = || OfProcess {
            is_draining: *end.borrow() != End::No,
            stuck_threads: stuck.load(Ordering::Relaxed),
            lost_log_lines: log::lost(),
            cut_qlogs: qlog::cut(),
        };
        let (gate, admin_gate) = gate::new(listener);
        let watching = admin_gate.watch(admin, of_process);
        let watching_neighbours = address.watch_neighbours();
        let nodes = Nodes { changes: change_nodes, busy: None, end: &end, all_ended, all_up };
        let obeying = signals.obey(nodes, (changes, read), (&mut address, gate), &mut watch);
        runtime.block_on(async {
            tokio::select! {
                () = obeying => {}
                () = watching => {}
                () = watching_neighbours => {}
            }
        });
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        threads.into_iter().try_for_each(|thread| thread.and_then(join))
    });
    // A look at a file may wait for a file system that does not answer. The end does not wait for it.
    runtime.shutdown_background();
    if watch.stuck() > 0 {
        tracing::error!(times = watch.stuck(), "threads of this server were stuck while it ran");
    }
    result
}

/// How far the end of a server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    No,
    /// Open flows may go on for a while.
    Drain,
    Now,
}

/// Lets all nodes end when one has ended, for whatever reason.
struct EndsAll(watch::Sender<End>);

impl Drop for EndsAll {
    fn drop(&mut self) {
        drain(&self.0);
    }
}

/// Lets all nodes end, if they do not end already.
fn drain(end: &watch::Sender<End>) {
    end.send_modify(|end| *end = (*end).max(End::Drain));
}

/// Completes when the end has come this far.
fn reached(end: &watch::Sender<End>, least: End) -> impl Future<Output = ()> + use<> {
    let mut end = end.subscribe();
    async move { drop(end.wait_for(|end| *end >= least).await) }
}

/// One node of a server. The first one tells when the server is ready.
struct Server<N, L> {
    index: usize,
    result: Result<(), ServeError>,
    /// Each comes with what is dropped when it is in force.
    changes: mpsc::UnboundedReceiver<(Change<N>, mpsc::Sender<()>)>,
    look: L,
    pulse: Pulse,
    /// Gets something when the node listens.
    up: mpsc::Sender<()>,
}

impl<N: Node, L: FnMut(&mut N, &DriverStats)> Server<N, L> {
    fn run(
        mut self,
        node: N,
        options: DriverOptions,
        end: &watch::Sender<End>,
    ) -> Result<(), ServeError> {
        let pulse = self.pulse.clone();
        let running = pulse.of(driver::run(node, &mut self, options, reached(end, End::Drain)));
        let finished = runtime()?.block_on(async {
            tokio::select! {
                finished = running => Some(finished),
                () = reached(end, End::Now) => None,
            }
        });
        self.result?;
        let Some(finished) = finished else { return Ok(()) };
        let mut finished = after_grace(finished)?;
        (self.look)(&mut finished.node, &finished.stats);
        Ok(())
    }
}

impl<N, L: FnMut(&mut N, &DriverStats)> Application<N> for Server<N, L> {
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
                if self.index == 0 {
                    say_listening(address);
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

//! Runs the nodes of a server, each in a thread of its own, until a signal ends them.

use std::{
    future::pending,
    panic::resume_unwind,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use tandem_net::{Application, DriverOptions, DriverStats, driver};
use tandem_node::{
    error::ClientError,
    limits::Limits,
    node::{Event, Node},
};
use tokio::{
    signal::unix::{Signal, SignalKind},
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};

use crate::{
    admin::{Admin, OfProcess},
    error::{CliError, ConfigError},
    pulse::{self, Pulse, Watch},
    run::{Signals, after_grace, listen, runtime, say_listening},
    text,
};

/// What a reload changes at each node.
pub(crate) type Change<N> = Arc<dyn Fn(&mut N) + Send + Sync>;

/// The time that a server has for its end after a signal.
pub(crate) fn grace(limits: &Limits) -> Duration {
    limits.drain + limits.goodbye + Duration::from_secs(1)
}

/// Runs the nodes of a server until a signal ends them, which is not an error. A second signal ends them at
/// once.
///
/// A thread that does not come back to its event loop is an error in the log. The others go on.
///
/// SIGHUP calls `reload`, which reads the server's files again and returns what changes at each node, and what
/// to tell the operator. `look` gets the index of a node and the node, at each tick of the options and at the
/// end. `admin` serves operators.
pub(crate) fn serve<N: Node + Send>(
    nodes: Vec<(N, DriverOptions)>,
    mut reload: impl FnMut() -> Result<(Change<N>, String), ConfigError>,
    look: impl Fn(usize, &mut N, &DriverStats) + Sync,
    admin: Option<&Admin>,
) -> Result<(), CliError> {
    let runtime = runtime()?;
    let mut signals = runtime.block_on(async { ServerSignals::new() })?;
    let listener = runtime.block_on(async { admin.map(Admin::listen).transpose() })?;
    let end = watch::Sender::new(End::No);
    let (running, mut all_ended) = mpsc::channel::<()>(1);
    let look = &look;
    let mut watch = Watch::default();
    let result = thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut changes_of = Vec::new();
        for (index, (node, options)) in nodes.into_iter().enumerate() {
            // An operator does not send more signals than a thread can follow.
            let (sender, changes) = mpsc::unbounded_channel();
            changes_of.push(sender);
            let look = move |node: &mut N, driver: &DriverStats| look(index, node, driver);
            let pulse = watch.add();
            let server = Server { index, result: Ok(()), changes, look, pulse };
            let (end, running) = (EndsAll(end.clone()), running.clone());
            let run = move || {
                let result = server.run(node, options, &end.0);
                drop((running, end));
                result
            };
            let thread = thread::Builder::new().name(format!("tandem-{index}"));
            let thread = thread.spawn_scoped(scope, run);
            threads
                .push(thread.map_err(|error| CliError::System { what: "start a thread", error }));
        }
        drop(running);
        let stuck = watch.counter();
        let of_process = || OfProcess {
            is_draining: *end.borrow() != End::No,
            stuck_threads: stuck.load(Ordering::Relaxed),
        };
        let watching = async {
            match (admin, &listener) {
                (Some(admin), Some(listener)) => admin.serve(listener, of_process).await,
                _ => pending().await,
            }
        };
        let obeying = signals.obey(&end, &mut all_ended, &mut watch, || {
            let (change, done) = reload()?;
            let (applied, all_applied) = mpsc::channel(1);
            for changes in &changes_of {
                // A node that has ended needs no change.
                drop(changes.send((Arc::clone(&change), applied.clone())));
            }
            Ok((all_applied, done))
        });
        runtime.block_on(async {
            tokio::select! {
                () = obeying => {}
                () = watching => {}
            }
        });
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        threads.into_iter().try_for_each(|thread| thread.and_then(join))
    });
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
        self.0.send_modify(|end| *end = (*end).max(End::Drain));
    }
}

/// The signals that a server obeys.
struct ServerSignals {
    ending: Signals,
    hangup: Signal,
}

impl ServerSignals {
    /// Listens from now on. Call within a runtime.
    fn new() -> Result<Self, CliError> {
        Ok(Self { ending: Signals::new()?, hangup: listen(SignalKind::hangup())? })
    }

    /// Does what signals ask for, until all nodes have ended.
    async fn obey(
        &mut self,
        end: &watch::Sender<End>,
        all_ended: &mut mpsc::Receiver<()>,
        watch: &mut Watch,
        mut reload: impl FnMut() -> Result<(mpsc::Receiver<()>, String), ConfigError>,
    ) {
        let mut looks = tokio::time::interval(pulse::INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A thread that is stuck must not keep the others from ending.
        let mut reloading: Option<(mpsc::Receiver<()>, String)> = None;
        loop {
            let all_applied = async {
                match &mut reloading {
                    Some((all_applied, _)) => all_applied.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                now = looks.tick() => watch.look(now.into_std()),
                _ = all_applied => {
                    reloading.take().into_iter().for_each(|(_, done)| text::say(done));
                }
                () = self.ending.next() => end.send_modify(|end| {
                    *end = if *end == End::No { End::Drain } else { End::Now };
                }),
                _ = self.hangup.recv() => match reload() {
                    Ok(reload) => reloading = Some(reload),
                    Err(error) => say_not_reloaded(&error),
                },
                _ = all_ended.recv() => return,
            }
        }
    }
}

fn say_not_reloaded(error: &ConfigError) {
    text::say(format_args!("error: {error}"));
    text::say(
        "not reloaded: the old certificate, key, CA, tokens, keys and limits stay in use; correct the error and \
         send SIGHUP again",
    );
}

/// One node of a server. The first one tells when the server is ready.
struct Server<N, L> {
    index: usize,
    result: Result<(), CliError>,
    /// Each comes with what is dropped when it is in force.
    changes: mpsc::UnboundedReceiver<(Change<N>, mpsc::Sender<()>)>,
    look: L,
    pulse: Pulse,
}

impl<N: Node, L: FnMut(&mut N, &DriverStats)> Server<N, L> {
    fn run(
        mut self,
        node: N,
        options: DriverOptions,
        end: &watch::Sender<End>,
    ) -> Result<(), CliError> {
        let reached = |least: End| {
            let mut end = end.subscribe();
            async move { drop(end.wait_for(|end| *end >= least).await) }
        };
        let pulse = self.pulse.clone();
        let running = pulse.of(driver::run(node, &mut self, options, reached(End::Drain)));
        let finished = runtime()?.block_on(async {
            tokio::select! {
                finished = running => Some(finished),
                () = reached(End::Now) => None,
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
            Event::Listening(address) if self.index == 0 => say_listening(address),
            Event::Closed(Err(error)) if error != ClientError::Interrupted => {
                self.result = Err(CliError::Client { error });
            }
            Event::Closed(_)
            | Event::Listening(_)
            | Event::HopUp { .. }
            | Event::HopLost { .. }
            | Event::FlowFailed { .. }
            | Event::ModeChanged { .. }
            | Event::TunnelInfo { .. }
            | Event::TooLarge { .. }
            | Event::ResponseStarted { .. }
            | Event::Fetched(_) => {}
        }
    }
}

//! What a server is told from outside while it runs: signals, and files that change.

use std::{future::pending, process, sync::Arc};

use tandem_net::clock;
use tandem_node::BusyNodes;
use tokio::{
    signal::unix::{Signal, SignalKind},
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};

use super::{Change, Changes, End, drain, gate::Gate};
use crate::{
    error::CliError,
    pulse,
    run::{Signals, listen},
    takeover::{Address, Told},
    text,
    tls::{self, Stamps},
};

/// The nodes of a server, as its main thread reaches them.
pub(super) struct Nodes<'a, N> {
    pub(super) changes: Vec<mpsc::UnboundedSender<(Change<N>, mpsc::Sender<()>)>>,
    /// Those that keep this process from its end after another one has taken over.
    pub(super) busy: Option<BusyNodes>,
    pub(super) end: &'a watch::Sender<End>,
    /// Is closed when all nodes have ended.
    pub(super) all_ended: mpsc::Receiver<()>,
    /// Gets something from each node when it listens, and is closed then or at its end.
    pub(super) all_up: mpsc::Receiver<()>,
}

impl<N> Nodes<'_, N> {
    /// Changes all nodes. The channel is closed when they have changed.
    fn change(&self, change: &Change<N>) -> mpsc::Receiver<()> {
        let (applied, all_applied) = mpsc::channel(1);
        for node in &self.changes {
            // A node that has ended needs no change.
            drop(node.send((Arc::clone(change), applied.clone())));
        }
        all_applied
    }

    /// Lets all nodes end, the second time at once.
    fn end(&self) {
        self.end.send_modify(|end| *end = if *end < End::Drain { End::Drain } else { End::Now });
    }
}

/// The signals that a server obeys.
pub(super) struct ServerSignals {
    ending: Signals,
    hangup: Signal,
    take_over: Signal,
}

impl ServerSignals {
    /// Listens from now on. Call within a runtime.
    pub(super) fn new() -> Result<Self, CliError> {
        Ok(Self {
            ending: Signals::new()?,
            hangup: listen(SignalKind::hangup())?,
            take_over: listen(SignalKind::user_defined2())?,
        })
    }

    /// Does what signals and changed files ask for, until all nodes have ended. `read` is the look at the files of the
    /// certificate after which they were read.
    pub(super) async fn obey<N>(
        &mut self,
        mut nodes: Nodes<'_, N>,
        (changes, read): (&impl Changes<N>, Stamps),
        (address, mut gate): (&mut Address, Gate),
        threads: &mut pulse::Watch,
    ) {
        let mut looks = tokio::time::interval(pulse::INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let files = changes.certificate_files();
        let mut looks_at_files = tls::looks(files);
        let mut certificate = tls::Watch::new(read);
        // A thread that is stuck must not keep the others from ending.
        let mut changing: Option<(mpsc::Receiver<()>, String)> = None;
        let mut missing = nodes.changes.len();
        loop {
            let all_changed = async {
                match &mut changing {
                    Some((all_changed, _)) => all_changed.recv().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                now = looks.tick() => {
                    threads.look(now.into_std());
                    if nodes.busy.as_ref().is_some_and(BusyNodes::is_none) {
                        drain(nodes.end);
                    }
                }
                _ = all_changed => changing.take().into_iter().for_each(|(_, done)| text::say(done)),
                () = self.ending.next() => nodes.end(),
                _ = self.hangup.recv() => {
                    changing = reload(&nodes, changes, &mut certificate, "").or(changing);
                    address.tell_reload().await;
                }
                Some(seen) = looks_at_files.recv() => {
                    if let Some(change) = renewed(&mut certificate, seen, changes) {
                        let done = "renewed: new connections get the certificate that has changed on the disk";
                        changing = Some((nodes.change(&change), done.to_owned()));
                    }
                }
                Some(()) = nodes.all_up.recv() => {
                    missing = missing.saturating_sub(1);
                    if missing == 0 {
                        address.ready().await;
                    }
                }
                _ = self.take_over.recv() => address.start_successor(),
                told = address.told() => match told {
                    Told::Reload => {
                        let me = format!("process {}: ", process::id());
                        changing = reload(&nodes, changes, &mut certificate, &me).or(changing);
                    }
                    _ => follow(&told, (address, &mut gate), &mut nodes, changes).await,
                },
                _ = nodes.all_ended.recv() => return,
            }
        }
    }
}

/// Follows what the other process at the address does.
async fn follow<N>(
    told: &Told,
    (address, gate): (&mut Address, &mut Gate),
    nodes: &mut Nodes<'_, N>,
    changes: &impl Changes<N>,
) {
    // What the process before this one has closed.
    let begin = |address: &mut Address| {
        if let Some(usage) = address.take_usage() {
            changes.begin(Some(usage));
            gate.open();
        }
    };
    match told {
        Told::Reload => {}
        Told::SuccessorReady => {
            let Some(usage) = address.hand_over() else { return };
            let busy = BusyNodes::all(nodes.changes.len());
            nodes.busy = Some(busy.clone());
            drop(nodes.change(&changes.hand_over(usage, busy)));
            gate.close().await;
            address.tell_yours().await;
        }
        Told::SuccessorEnded => {
            let is_ending = *nodes.end.borrow() != End::No;
            address.forget_successor(is_ending);
            if nodes.busy.take().is_some() && !is_ending {
                drop(nodes.change(&changes.take_back()));
                gate.open();
            }
        }
        Told::Yours => begin(address),
        Told::PredecessorEnded => {
            begin(address);
            address.forget_predecessor();
        }
    }
}

/// Reads all files again. Returns what [`Nodes::change`] returns, and what to say then. `me` stands before what is said.
fn reload<N>(
    nodes: &Nodes<'_, N>,
    changes: &impl Changes<N>,
    certificate: &mut tls::Watch,
    me: &str,
) -> Option<(mpsc::Receiver<()>, String)> {
    let read = Stamps::of(&changes.certificate_files());
    match changes.reload() {
        Ok((change, done)) => {
            *certificate = tls::Watch::new(read);
            Some((nodes.change(&change), format!("{me}{done}")))
        }
        Err(error) => {
            text::say(format_args!("{me}error: {error}"));
            text::say(format_args!(
                "{me}not reloaded: the old certificate, key, CA, tokens, keys and limits stay in use; correct the error \
                 and send SIGHUP again"
            ));
            None
        }
    }
}

/// Reads the certificate again if its files have changed.
fn renewed<N>(
    watch: &mut tls::Watch,
    seen: Stamps,
    changes: &impl Changes<N>,
) -> Option<Change<N>> {
    let now = clock::now();
    if !watch.is_due(now, &seen) {
        return None;
    }
    match changes.renew() {
        Ok(change) => {
            *watch = tls::Watch::new(seen);
            Some(change)
        }
        Err(error) => {
            let error = error.to_string();
            if watch.refuse(now, seen, &error) {
                text::say(format_args!("error: {error}"));
                text::say(
                    "not renewed: the files of the certificate have changed and cannot be used; the old certificate \
                     stays in use until they change again",
                );
            }
            None
        }
    }
}

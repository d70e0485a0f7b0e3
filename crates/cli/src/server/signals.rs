//! What a server is told from outside while it runs: signals, and files that change.

use std::{future::pending, process, sync::Arc};

use tandem_net::clock;
use tandem_node::BusyNodes;
use tokio::{
    signal::unix::{Signal, SignalKind},
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};

use super::{Change, Changes, End, ServeError, drain, gate::Gate};
use crate::{
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
    pub(super) fn new() -> Result<Self, ServeError> {
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
        let mut looks_at_files = tls::looks(changes.certificate_files());
        let mut files = Files { changes, certificate: tls::Watch::new(read), changing: None };
        let mut missing = nodes.changes.len();
        loop {
            tokio::select! {
                now = looks.tick() => {
                    threads.look(now.into_std());
                    if !threads.are_all_stuck() {
                        address.be_alive();
                    }
                    let is_idle = nodes.busy.as_ref().is_some_and(BusyNodes::is_none);
                    if is_idle && address.may_end() {
                        drain(nodes.end);
                    }
                }
                done = files.in_force() => text::say(done),
                () = self.ending.next() => nodes.end(),
                _ = self.hangup.recv() => {
                    files.reload(&nodes, "");
                    address.tell_reload().await;
                }
                Some(seen) = looks_at_files.recv() => files.renew(&nodes, seen),
                Some(()) = nodes.all_up.recv() => {
                    missing = missing.saturating_sub(1);
                    if missing == 0 {
                        address.ready().await;
                    }
                }
                _ = self.take_over.recv() => address.start_successor(),
                told = address.told() => {
                    follow(&told, (address, &mut gate), &mut nodes, &mut files).await;
                }
                _ = nodes.all_ended.recv() => return,
            }
        }
    }
}

/// Follows what the other process at the address does.
async fn follow<N, C: Changes<N>>(
    told: &Told,
    (address, gate): (&mut Address, &mut Gate),
    nodes: &mut Nodes<'_, N>,
    files: &mut Files<'_, C>,
) {
    let changes = files.changes;
    // What the process before this one has closed.
    let begin = |address: &mut Address| {
        if let Some(usage) = address.take_usage() {
            if let Err(error) = changes.begin(Some(usage)) {
                text::say(format_args!("error: {error}"));
            }
            gate.open();
        }
    };
    match told {
        Told::Reload => files.reload(nodes, &format!("process {}: ", process::id())),
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

/// The files of a server, which are read again while it runs.
struct Files<'a, C> {
    changes: &'a C,
    certificate: tls::Watch,
    /// The channel that is closed when all nodes have what was read last, and what to say then.
    changing: Option<(mpsc::Receiver<()>, String)>,
}

impl<C> Files<'_, C> {
    /// Waits until all nodes have what was read last. Returns what to say. A thread that is stuck must not keep the
    /// others from ending, so that nothing else waits for this.
    async fn in_force(&mut self) -> String {
        let Some((all_changed, _)) = &mut self.changing else { return pending().await };
        all_changed.recv().await;
        self.changing.take().map(|(_, done)| done).unwrap_or_default()
    }

    /// Reads all files again. `me` stands before what is said.
    fn reload<N>(&mut self, nodes: &Nodes<'_, N>, me: &str)
    where
        C: Changes<N>,
    {
        let read = Stamps::of(&self.changes.certificate_files());
        match self.changes.reload() {
            Ok((change, done)) => {
                self.certificate = tls::Watch::new(read);
                self.changing = Some((nodes.change(&change), format!("{me}{done}")));
            }
            Err(error) => {
                text::say(format_args!("{me}error: {error}"));
                text::say(format_args!(
                    "{me}not reloaded: the old certificate, key, CA, tokens, keys and limits stay in use; correct the \
                     error and send SIGHUP again"
                ));
            }
        }
    }

    /// Reads the certificate again if its files have changed.
    fn renew<N>(&mut self, nodes: &Nodes<'_, N>, seen: Stamps)
    where
        C: Changes<N>,
    {
        let now = clock::now();
        if !self.certificate.is_due(now, &seen) {
            return;
        }
        match self.changes.renew() {
            Ok(change) => {
                self.certificate = tls::Watch::new(seen);
                let done =
                    "renewed: new connections get the certificate that has changed on the disk";
                self.changing = Some((nodes.change(&change), done.to_owned()));
            }
            Err(error) => {
                let error = error.to_string();
                if self.certificate.refuse(now, seen, &error) {
                    text::say(format_args!("error: {error}"));
                    text::say(
                        "not renewed: the files of the certificate have changed and cannot be used; the old certificate \
                         stays in use until they change again",
                    );
                }
            }
        }
    }
}

//! What a server obeys while it runs: orders, the other process at its address, and files that change.

use std::{future::pending, process, sync::Arc};

use tandem_net::clock;
use tandem_node::BusyNodes;
use tokio::{
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};

use super::{
    changes::Changes,
    gate::Gate,
    orders::{Orders, ServerOrder},
    pulse,
    run::{ServerEnd, drain},
};
use crate::{
    process::say,
    role::{Change, Role},
    takeover::{Address, Told},
    tls::{self, Stamps},
};

/// The nodes of a server, as its main thread reaches them.
pub(super) struct Nodes<'a, N> {
    pub(super) changes: Vec<mpsc::UnboundedSender<(Change<N>, mpsc::Sender<()>)>>,
    /// Those that keep this process from its end after another one has taken over.
    pub(super) busy: Option<BusyNodes>,
    pub(super) end: &'a watch::Sender<ServerEnd>,
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
        self.end.send_modify(|end| {
            *end = if *end < ServerEnd::Drain { ServerEnd::Drain } else { ServerEnd::Now }
        });
    }
}

/// Does what orders and changed files ask for, until all nodes have ended. `read` is the look at the files of the
/// certificate after which they were read.
pub(super) async fn obey<R: Role>(
    (orders, threads): (&mut Orders, &mut pulse::Watch),
    mut nodes: Nodes<'_, R::Node>,
    (changes, read): (&Changes<'_, R>, Stamps),
    (address, mut gate): (&mut Address, Gate),
) {
    let mut looks = tokio::time::interval(pulse::INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks_at_files = tls::looks(changes.certificate_files());
    let mut files = WatchedFiles { changes, certificate: tls::Watch::new(read), changing: None };
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
            done = files.in_force() => say(done),
            order = orders.next() => match order {
                ServerOrder::End => nodes.end(),
                ServerOrder::Reload => {
                    files.reload(&nodes, "");
                    address.tell_reload().await;
                }
                ServerOrder::TakeOver => address.start_successor(),
            },
            Some(seen) = looks_at_files.recv() => files.renew(&nodes, seen),
            Some(()) = nodes.all_up.recv() => {
                missing = missing.saturating_sub(1);
                if missing == 0 {
                    address.ready().await;
                }
            }
            told = address.told() => {
                follow(&told, (address, &mut gate), &mut nodes, &mut files).await;
            }
            _ = nodes.all_ended.recv() => return,
        }
    }
}

/// Follows what the other process at the address does.
async fn follow<R: Role>(
    told: &Told,
    (address, gate): (&mut Address, &mut Gate),
    nodes: &mut Nodes<'_, R::Node>,
    files: &mut WatchedFiles<'_, R>,
) {
    let changes = files.changes;
    // What the process before this one has closed.
    let begin = |address: &mut Address| {
        if let Some(usage) = address.take_usage() {
            if let Err(error) = changes.begin(Some(usage)) {
                say(format_args!("error: {error}"));
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
            let is_ending = *nodes.end.borrow() != ServerEnd::No;
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
struct WatchedFiles<'a, R: Role> {
    changes: &'a Changes<'a, R>,
    certificate: tls::Watch,
    /// The channel that is closed when all nodes have what was read last, and what to say then.
    changing: Option<(mpsc::Receiver<()>, String)>,
}

impl<R: Role> WatchedFiles<'_, R> {
    /// Waits until all nodes have what was read last. Returns what to say. A thread that is stuck must not keep the
    /// others from ending, so that nothing else waits for this.
    async fn in_force(&mut self) -> String {
        let Some((all_changed, _)) = &mut self.changing else { return pending().await };
        all_changed.recv().await;
        self.changing.take().map(|(_, done)| done).unwrap_or_default()
    }

    /// Reads all files again. `me` stands before what is said.
    fn reload(&mut self, nodes: &Nodes<'_, R::Node>, me: &str) {
        let read = Stamps::of(&self.changes.certificate_files());
        match self.changes.reload() {
            Ok((change, done)) => {
                self.certificate = tls::Watch::new(read);
                self.changing = Some((nodes.change(&change), format!("{me}{done}")));
            }
            Err(error) => {
                say(format_args!("{me}error: {error}"));
                say(format_args!(
                    "{me}not reloaded: the old certificate, key, CA, tokens, keys and limits stay in use; correct the \
                     error and send SIGHUP again"
                ));
            }
        }
    }

    /// Reads the certificate again if its files have changed.
    fn renew(&mut self, nodes: &Nodes<'_, R::Node>, seen: Stamps) {
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
                    say(format_args!("error: {error}"));
                    say(
                        "not renewed: the files of the certificate have changed and cannot be used; the old certificate \
                         stays in use until they change again",
                    );
                }
            }
        }
    }
}

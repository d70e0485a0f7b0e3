//! Another process takes over the address of a server, and no connection ends by that
//! ([ADR 53](../../../../docs/design/adr/0053-another-process-takes-over.md)).
//!
//! SIGUSR2 starts the program again, whose file or configuration may be another one by then. The new process gets the
//! listening sockets, and the new connections as soon as it is ready. The kernel gives the packets of the others to the
//! old process, until that one ends. A pair of Unix sockets connects the two, on which either sees the end of the
//! other.

mod predecessor;
mod reset_secret;
mod sockets;
mod successor;

use std::{
    env,
    future::{Future, pending},
    io, mem,
    net::SocketAddr,
    os::unix::net::UnixStream,
    process, thread,
    time::{Duration, Instant},
};

use sd_notify::NotifyState;
use tandem_files::{setting::Within, takeover::Hello};
use tandem_net::{Listener, Listeners, Others, SocketOptions, clock};
use tandem_node::{
    error::ClientError,
    quic::{Fleet, Neighbours, OtherProcess, ResetSecret},
};
use tokio::{io::AsyncWriteExt, net};

use self::{predecessor::Predecessor, successor::Successor};
use crate::{capacity::Threads, process::say};

/// The environment variable that has the process ID of the process that started this one to take over from it.
const VARIABLE: &str = "TANDEM_TAKES_OVER_FROM";

/// The environment variable that has the process ID of a process that wants to hear [`ALIVE`] from its successor. It is
/// no field of [`Hello`], and what follows depends on both processes, so that a program with heartbeats and an earlier
/// one without them can take over from each other; then a successor that hangs goes unnoticed.
const HEARS_VARIABLE: &str = "TANDEM_HEARS_SUCCESSOR";

/// The new process is ready.
const READY: u8 = b'R';

/// The new process is alive. It says so before [`READY`], and then once a second
/// ([`INTERVAL`](crate::serve::pulse::INTERVAL)) as long as its main thread and one of its other threads work.
const ALIVE: u8 = b'A';

/// The old process has closed what only one of them may have open.
const YOURS: u8 = b'Y';

/// An operator wants files to be read again, and has told only one of the processes.
const RELOAD: u8 = b'H';

/// The address of a server, and the processes that share it.
pub(crate) struct Address {
    listeners: Listeners,
    other_process: OtherProcess,
    thread_at: usize,
    /// The other machines of the fleet.
    neighbours: Neighbours,
    predecessor: Option<Predecessor>,
    /// The end of the predecessor's accounts of users, until it is asked for.
    usage: Option<UnixStream>,
    successor: Option<Successor>,
    /// Whether to start a successor when the predecessor has ended.
    is_successor_wanted: bool,
    /// Whether all nodes listen.
    is_ready: bool,
    watchdog: Watchdog,
}

/// When systemd has to be told that the process works (`WatchdogSec=`, systemd.service(5)).
#[derive(Debug)]
struct Watchdog {
    /// A third of the time after which systemd would end the process. `None`: it does not.
    interval: Option<Duration>,
    next: Option<Instant>,
}

impl Watchdog {
    /// The process that the variable of systemd names is the one that was started first, and `WATCHDOG_PID` is not
    /// looked at for that reason.
    fn from_environment() -> Self {
        let microseconds = env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let interval = microseconds.map(|time| Duration::from_micros(time) / 3);
        Self { interval, next: None }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let Some(interval) = self.interval else { return false };
        let is_due = self.next.is_none_or(|next| next <= now);
        if is_due {
            self.next = Some(now + interval);
        }
        is_due
    }
}

/// This process cannot take over from the one that started it.
#[derive(Debug, thiserror::Error)]
#[error("cannot take over: {reason}; restart the server instead")]
pub struct TakeOverError {
    /// The reason.
    reason: String,
}

/// Why there is no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    /// It cannot be opened.
    #[error("{error}")]
    Listen {
        /// The cause.
        error: ClientError,
    },
    /// It cannot be taken over.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
}

/// What the other process does.
#[derive(Debug)]
pub(crate) enum Told {
    /// The successor is ready.
    SuccessorReady,
    /// The successor has ended, or does not work any more.
    SuccessorEnded,
    /// The predecessor has closed what only one of them may have open.
    Yours,
    /// The predecessor has ended.
    PredecessorEnded,
    /// The other process has been told to read its files again.
    Reload,
}

impl Address {
    /// The sockets of the process that this one takes over from, or new ones.
    pub(crate) fn open(
        address: SocketAddr,
        threads: Within<Threads>,
        fleet: Option<&Fleet>,
    ) -> Result<Self, AddressError> {
        let thread_at = fleet.map_or(0, Fleet::thread_at);
        let neighbours = fleet.map(|it| it.neighbours().clone()).unwrap_or_default();
        let other_process = OtherProcess::default();
        if let Some(found) = predecessor::find()? {
            let (predecessor, usage, listeners) = found.check(address, threads.0, thread_at)?;
            other_process.set(true);
            let (predecessor, usage) = (Some(predecessor), Some(usage));
            return Ok(Self {
                listeners,
                other_process,
                thread_at,
                neighbours,
                predecessor,
                usage,
                successor: None,
                is_successor_wanted: false,
                is_ready: false,
                watchdog: Watchdog::from_environment(),
            });
        }
        let listeners = Listeners::open(address, threads.0, thread_at, SocketOptions::default())
            .map_err(|error| AddressError::Listen { error })?;
        Ok(Self {
            listeners,
            other_process,
            thread_at,
            neighbours,
            predecessor: None,
            usage: None,
            successor: None,
            is_successor_wanted: false,
            is_ready: false,
            watchdog: Watchdog::from_environment(),
        })
    }

    /// The address, whose port the operating system may have chosen.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.listeners.local_addr().ok()
    }

    /// A listening socket for each thread.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = Listener> {
        self.listeners.of_this_process()
    }

    /// The secret of stateless resets of this server, from that of its key. A machine of a fleet has another one.
    pub(crate) fn reset_secret(&self, of_key: Option<&ResetSecret>) -> Option<ResetSecret> {
        let listens = self.listeners.local_addr().ok()?;
        of_key.map(|secret| reset_secret::of_server(secret, listens))
    }

    /// Looks after the other machines of the fleet, and never ends.
    pub(crate) fn watch_neighbours(&self) -> impl Future<Output = ()> + use<> {
        let neighbours = self.neighbours.clone();
        async move {
            if neighbours.addresses().len() == 0 {
                return pending().await;
            }
            tandem_net::neighbours::watch(neighbours).await;
        }
    }

    /// What the nodes learn about the other process.
    pub(crate) fn other_process(&self) -> OtherProcess {
        self.other_process.clone()
    }

    /// Whether another process still has what only one may have open.
    pub(crate) fn waits_for_predecessor(&self) -> bool {
        self.usage.is_some()
    }

    /// Where the predecessor tells what users use. Only the first call returns it.
    pub(crate) fn take_usage(&mut self) -> Option<UnixStream> {
        self.usage.take()
    }

    /// Tells that all nodes listen, and takes the new connections if another process has had them.
    pub(crate) async fn ready(&mut self) {
        self.is_ready = true;
        let Some(predecessor) = &mut self.predecessor else {
            return notify(NotifyState::Ready);
        };
        match self.listeners.take_new_connections(Others::Draining) {
            Ok(()) => {
                predecessor.tell_first_alive().await;
                predecessor.tell(READY).await;
            }
            // The old process waits for a while, and then ends this one.
            Err(error) => {
                tracing::error!(%error, "the kernel gives no new connections to this process");
            }
        }
    }

    /// Tells systemd and the process that this one takes over from that this one works.
    pub(crate) fn be_alive(&mut self) {
        let has_taken_over = self.successor.as_ref().is_some_and(Successor::is_ready);
        // Only the process that gets new connections: systemd would not notice otherwise that it hangs.
        if self.is_ready && !has_taken_over && self.watchdog.is_due(clock::now()) {
            notify(NotifyState::Watchdog);
        }
        if let Some(predecessor) = &mut self.predecessor {
            predecessor.tell_alive();
        }
    }

    /// Whether this process may end when it has nothing more to do. As long as the successor has not shown that it
    /// works, this one may have to serve again.
    pub(crate) fn may_end(&self) -> bool {
        self.successor.as_ref().is_none_or(Successor::works)
    }

    /// Starts a process that takes over, as soon as there is no predecessor.
    pub(crate) fn start_successor(&mut self) {
        if let Some(predecessor) = &self.predecessor {
            self.is_successor_wanted = true;
            return say(format_args!(
                "process {} still has connections; another process is started to take over when it has ended, which \
                 SIGTERM lets it do sooner",
                predecessor.process
            ));
        }
        let started = match &self.successor {
            Some(successor) => {
                Err(format!("process {} has been started for that", successor.process()))
            }
            // The kernel ends a container, and all that runs in it, with its first process.
            None if process::id() == 1 => {
                Err("this is process 1, and what it starts ends with it; start another container"
                    .to_owned())
            }
            None => Successor::start(&self.listeners, self.thread_at),
        };
        match started {
            Ok(successor) => {
                self.other_process.set(true);
                say(format_args!("process {} starts, to take over", successor.process()));
                self.successor = Some(successor);
            }
            Err(error) => say(format_args!("error: no other process takes over: {error}")),
        }
    }

    /// Lets the other process read its files again, as this one does.
    pub(crate) async fn tell_reload(&mut self) {
        if let Some(predecessor) = &mut self.predecessor {
            predecessor.tell(RELOAD).await;
        }
        if let Some(successor) = &mut self.successor {
            successor.tell(RELOAD).await;
        }
    }

    /// Waits for what the other process does.
    pub(crate) async fn told(&mut self) -> Told {
        let Self { predecessor, successor, .. } = self;
        let of_predecessor = async {
            match predecessor {
                Some(predecessor) => predecessor.told().await,
                None => pending().await,
            }
        };
        let of_successor = async {
            match successor {
                Some(successor) => successor.told().await,
                None => pending().await,
            }
        };
        tokio::select! {
            told = of_predecessor => told,
            told = of_successor => told,
        }
    }

    /// Where to tell the successor, which is ready, what users use.
    pub(crate) fn hand_over(&mut self) -> Option<UnixStream> {
        let successor = self.successor.as_mut()?;
        let process = successor.process();
        say(format_args!(
            "process {process} gets new connections from now on; this one goes on for those that it has"
        ));
        notify(NotifyState::MainPid(process));
        successor.take_usage()
    }

    /// Tells the successor that it may open what only one process may have open.
    pub(crate) async fn tell_yours(&mut self) {
        if let Some(successor) = &mut self.successor {
            successor.tell(YOURS).await;
        }
    }

    /// Notes that the successor has ended. New connections come to this process again, unless it ends too.
    pub(crate) fn forget_successor(&mut self, is_ending: bool) {
        let Some(successor) = self.successor.take() else { return };
        let had_taken_over = successor.is_ready();
        say(format_args!("error: {}", successor.end(is_ending)));
        self.be_alone();
        if had_taken_over && !is_ending {
            notify(NotifyState::MainPid(process::id()));
        }
    }

    /// Notes that the predecessor has ended.
    pub(crate) fn forget_predecessor(&mut self) {
        if let Some(predecessor) = self.predecessor.take() {
            say(format_args!("process {} has ended; this one has taken over", predecessor.process));
            self.be_alone();
        }
        if mem::take(&mut self.is_successor_wanted) {
            self.start_successor();
        }
    }

    fn be_alone(&self) {
        self.other_process.set(false);
        if let Err(error) = self.listeners.take_new_connections(Others::None) {
            tracing::error!(%error, "the kernel does not change who gets packets");
        }
    }
}

/// Tells systemd, if it has started this process and wants to know. A thread of its own does it, because signals and
/// operators must not wait for a systemd that does not read.
fn notify(state: NotifyState<'static>) {
    let failed = |error: io::Error| tracing::warn!(%error, "systemd cannot be told");
    let tell = move || sd_notify::notify(&[state]).unwrap_or_else(failed);
    let thread = thread::Builder::new().name("tandem-notify".to_owned()).spawn(tell);
    thread.map_or_else(failed, drop);
}

/// Tells the other process something. It may have ended, which is seen elsewhere.
async fn tell(control: &mut net::UnixStream, what: u8) {
    if let Err(error) = control.write_all(&[what]).await {
        tracing::debug!(%error, "the other process does not listen");
    }
}

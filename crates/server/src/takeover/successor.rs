//! The process that takes over from this one.

use std::{
    env, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{self, Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use tandem_net::{Listeners, clock};
use tandem_node::quic::Turn;
use tokio::{io::AsyncReadExt, net, time};

use super::{ALIVE, HEARS_VARIABLE, Hello, READY, RELOAD, Told, VARIABLE, sockets, tell};

/// The time in which the process must be ready. It reads files, and may look up names.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time without a sign of life after which a process that has taken over counts as one that hangs. It gives one
/// each second. A machine that is overloaded must not end it, and clients wait for no longer than some ten seconds.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The time in which a sign of life shows that the process works now.
const SILENCE_OF_WORK: Duration = Duration::from_secs(3);

/// The time for the end of a process that was killed. One that waits for a disk ends later.
const END_MAX: Duration = Duration::from_secs(1);

/// A process that was started to take over.
pub(super) struct Successor {
    child: Child,
    control: net::UnixStream,
    usage: Option<UnixStream>,
    /// When it must be ready. `None`: it is.
    ready_by: Option<time::Instant>,
    /// When it has given its last sign of life, and whether that was since it is ready. `None`: it has given none, as
    /// a program without heartbeats.
    alive: Option<(time::Instant, bool)>,
    /// Whether it has given none for too long.
    hangs: bool,
}

impl Successor {
    /// Starts the program with the arguments of this process. Call within a runtime.
    pub(super) fn start(listeners: &Listeners, thread_at: usize) -> Result<Self, String> {
        let listening = listeners.for_successor().ok_or("the system cannot share an address")?;
        let mut arguments = env::args_os();
        let program = arguments.next().ok_or("this process has no name")?;
        let is_second = listeners.turn() == Turn::First;
        let hello = Hello::new(listeners.nodes(), is_second, thread_at).to_string().into_bytes();
        let start = || {
            let (control, its_control) = UnixStream::pair()?;
            let (usage, its_usage) = UnixStream::pair()?;
            let mut files: Vec<BorrowedFd<'_>> = listening.collect();
            files.push(its_usage.as_fd());
            sockets::send(&control, &hello, &files)?;
            control.set_nonblocking(true)?;
            let control = net::UnixStream::from_std(control)?;
            let child = Command::new(&program)
                .args(arguments)
                .env(VARIABLE, process::id().to_string())
                .env(HEARS_VARIABLE, process::id().to_string())
                .stdin(Stdio::from(OwnedFd::from(its_control)))
                .spawn()?;
            let ready_by = Some(time::Instant::now() + PATIENCE);
            let usage = Some(usage);
            Ok(Self { child, control, usage, ready_by, alive: None, hangs: false })
        };
        start().map_err(|error: io::Error| format!("{} does not start: {error}", program.display()))
    }

    /// The ID of the process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn take_usage(&mut self) -> Option<UnixStream> {
        self.usage.take()
    }

    pub(super) async fn tell(&mut self, what: u8) {
        tell(&mut self.control, what).await;
    }

    pub(super) async fn told(&mut self) -> Told {
        loop {
            let mut byte = [0];
            let read = self.control.read(&mut byte);
            let silent_at = self.alive.map(|(last, _)| last + SILENCE_MAX);
            // What has arrived is read first, also if this process was stopped itself.
            let read = match self.ready_by.or(silent_at) {
                Some(until) => time::timeout_at(until, read).await,
                None => Ok(read.await),
            };
            let is_ready = self.is_ready();
            match read {
                Ok(Ok(1)) if byte == [ALIVE] => {
                    self.alive = Some((time::Instant::now(), is_ready));
                }
                Ok(Ok(1)) if byte == [READY] && self.ready_by.take().is_some() => {
                    return Told::SuccessorReady;
                }
                Ok(Ok(1)) if byte == [RELOAD] => return Told::Reload,
                _ => {
                    self.hangs = is_ready && read.is_err();
                    return Told::SuccessorEnded;
                }
            }
        }
    }

    /// Whether it has shown that it does its work since it has taken over. A program without heartbeats cannot.
    pub(super) fn works(&self) -> bool {
        self.alive.is_none_or(|(last, was_ready)| was_ready && last.elapsed() < SILENCE_OF_WORK)
    }

    /// Whether it has taken over.
    pub(super) const fn is_ready(&self) -> bool {
        self.ready_by.is_none()
    }

    /// Why it is not there any more. It ends if it has not. `is_ending`: so does this process.
    pub(super) fn end(mut self, is_ending: bool) -> String {
        let process = self.process();
        let this_one = if is_ending { "ends too" } else { "gets new connections again" };
        let was_ready = self.is_ready();
        if self.child.kill().is_err() {
            tracing::debug!("the process has ended before");
        }
        let how = match self.await_end() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "it does not end yet".to_owned(),
            Err(error) => error.to_string(),
        };
        if self.hangs {
            let seconds = SILENCE_MAX.as_secs();
            return format!(
                "process {process}, which had taken over, has done nothing for {seconds} s, and was killed ({how}); \
                 this process {this_one}"
            );
        }
        if was_ready {
            format!(
                "process {process}, which had taken over, has ended ({how}); this process {this_one}"
            )
        } else {
            format!("process {process} was not ready to take over ({how}); this process goes on")
        }
    }
}

impl Successor {
    /// Waits for the end of the process, which was killed.
    fn await_end(&mut self) -> io::Result<Option<ExitStatus>> {
        let until = clock::now() + END_MAX;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || clock::now() >= until {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Successor {
    /// A process that is not ready yet would wait for sockets that are not served.
    fn drop(&mut self) {
        if self.ready_by.is_some() && self.child.kill().is_ok() && self.child.wait().is_ok() {}
    }
}

//! The process that takes over from this one.

use std::{
    env, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{self, Child, Command, Stdio},
    time::Duration,
};

use tandem_net::Listeners;
use tandem_node::quic::Turn;
use tokio::{io::AsyncReadExt, net, time};

use super::{Hello, READY, RELOAD, Told, VARIABLE, sockets, tell};

/// The time in which the process must be ready. It reads files, and may look up names.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that was started to take over.
pub(super) struct Successor {
    child: Child,
    control: net::UnixStream,
    usage: Option<UnixStream>,
    /// When it must be ready. `None`: it is.
    ready_by: Option<time::Instant>,
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
                .stdin(Stdio::from(OwnedFd::from(its_control)))
                .spawn()?;
            let ready_by = Some(time::Instant::now() + PATIENCE);
            Ok(Self { child, control, usage: Some(usage), ready_by })
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
        let mut byte = [0];
        let read = self.control.read(&mut byte);
        let read = match self.ready_by {
            Some(ready_by) => time::timeout_at(ready_by, read).await.unwrap_or(Ok(0)),
            None => read.await,
        };
        match read {
            Ok(1) if byte == [READY] && self.ready_by.take().is_some() => Told::SuccessorReady,
            Ok(1) if byte == [RELOAD] => Told::Reload,
            _ => Told::SuccessorEnded,
        }
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
        let how = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        if was_ready {
            format!(
                "process {process}, which had taken over, has ended ({how}); this process {this_one}"
            )
        } else {
            format!("process {process} was not ready to take over ({how}); this process goes on")
        }
    }
}

impl Drop for Successor {
    /// A process that is not ready yet would wait for sockets that nobody serves.
    fn drop(&mut self) {
        if self.ready_by.is_some() && self.child.kill().is_ok() && self.child.wait().is_ok() {}
    }
}

//! The process that this one takes over from.

use std::{
    env, io,
    net::SocketAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::process::getppid;
use tandem_net::Listeners;
use tandem_node::quic::Turn;
use tokio::{io::AsyncReadExt, net};

use super::{
    ALIVE, HEARS_VARIABLE, Hello, RELOAD, TakeOverError, Told, VARIABLE, YOURS, sockets, tell,
};

/// What has been sent before this process started.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a predecessor has sent.
pub(super) struct FromPredecessor {
    process: u32,
    control: UnixStream,
    hello: Hello,
    files: Vec<OwnedFd>,
}

/// A running predecessor.
pub(super) struct Predecessor {
    pub(super) process: u32,
    /// Whether it wants to hear that this process works.
    hears: bool,
    /// It is connected when it is first used, within a runtime.
    control: ControlStream,
}

enum ControlStream {
    Idle(Option<UnixStream>),
    Connected(net::UnixStream),
}

/// The process that has started this one to take over, if there is one.
pub(super) fn find() -> Result<Option<FromPredecessor>, TakeOverError> {
    let process = named(VARIABLE);
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get().cast_unsigned());
    let Some(process) = process.filter(|&process| Some(process) == parent) else { return Ok(None) };
    let receive = || {
        let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        control.set_read_timeout(Some(PATIENCE))?;
        let (hello, files) = sockets::receive(&control)?;
        let hello = Hello::parse(&hello)?;
        Ok(FromPredecessor { process, control, hello, files })
    };
    let found: Result<FromPredecessor, io::Error> = receive();
    found.map(Some).map_err(|error| refuse(format!("process {process} sent no sockets: {error}")))
}

/// The process that a variable names.
fn named(variable: &str) -> Option<u32> {
    env::var(variable).ok()?.parse().ok()
}

fn refuse(reason: String) -> TakeOverError {
    TakeOverError { reason }
}

impl FromPredecessor {
    /// The sockets, which must be those that the settings ask for. The first result but one tells what users use.
    pub(super) fn check(
        mut self,
        address: SocketAddr,
        threads: u8,
        thread_at: usize,
    ) -> Result<(Predecessor, UnixStream, Listeners), TakeOverError> {
        let Hello { nodes, is_second, .. } = self.hello;
        if !self.hello.is_understood() {
            return Err(refuse("the versions of the programs are too different".to_owned()));
        }
        if threads != nodes {
            return Err(refuse(format!("the number of threads is {threads} and was {nodes}")));
        }
        if thread_at != self.hello.thread_at {
            return Err(refuse("connection IDs of the fleet have another length".to_owned()));
        }
        let turn = if is_second { Turn::Second } else { Turn::First };
        let Some(usage) = self.files.pop() else {
            return Err(refuse("the old process sent no sockets".to_owned()));
        };
        let error =
            |error| refuse(format!("the sockets of the old process are of no use: {error}"));
        let listeners = Listeners::adopt(self.files, (nodes, turn), thread_at).map_err(error)?;
        let listens = listeners.local_addr().map_err(error)?;
        let is_any_port = address.port() == 0 && address.ip() == listens.ip();
        if address != listens && !is_any_port {
            return Err(refuse(format!("the address to listen on is {address} and was {listens}")));
        }
        let control = ControlStream::Idle(Some(self.control));
        // A program without heartbeats may have passed on what an earlier process said.
        let hears = named(HEARS_VARIABLE) == Some(self.process);
        let predecessor = Predecessor { process: self.process, hears, control };
        Ok((predecessor, UnixStream::from(usage), listeners))
    }
}

impl Predecessor {
    pub(super) async fn tell(&mut self, what: u8) {
        if let Some(control) = self.control() {
            tell(control, what).await;
        }
    }

    /// Tells that this process is about to be ready, and works.
    pub(super) async fn tell_first_alive(&mut self) {
        if self.hears {
            self.tell(ALIVE).await;
        }
    }

    /// Tells that this process works. This does not wait for a predecessor that does not read.
    pub(super) fn tell_alive(&mut self) {
        if self.hears
            && let Some(control) = self.control()
            && let Err(error) = control.try_write(&[ALIVE])
        {
            tracing::debug!(%error, "the other process does not listen");
        }
    }

    pub(super) async fn told(&mut self) -> Told {
        let mut byte = [0];
        let Some(control) = self.control() else { return Told::PredecessorEnded };
        match control.read(&mut byte).await {
            Ok(1) if byte == [YOURS] => Told::Yours,
            Ok(1) if byte == [RELOAD] => Told::Reload,
            _ => Told::PredecessorEnded,
        }
    }

    fn control(&mut self) -> Option<&mut net::UnixStream> {
        if let ControlStream::Idle(control) = &mut self.control {
            let control = control.take()?;
            control.set_nonblocking(true).ok()?;
            self.control = ControlStream::Connected(net::UnixStream::from_std(control).ok()?);
        }
        match &mut self.control {
            ControlStream::Connected(control) => Some(control),
            ControlStream::Idle(_) => None,
        }
    }
}

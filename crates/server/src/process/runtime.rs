//! What running a node takes: a runtime, signals, and its end.

use std::{io, net::SocketAddr};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tandem_net::{DriveError, Finished};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use crate::process::{SystemError, say};

/// A runtime of one thread, as the driver needs it.
pub fn runtime() -> Result<Runtime, SystemError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| SystemError { what: "start the event loop", error })
}

/// SIGINT (Ctrl-C), SIGTERM, and SIGHUP for programs that end with their terminal or their parent.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    came: bool,
}

impl Signals {
    /// Listens from now on. Call within a runtime.
    pub fn new() -> Result<Self, SystemError> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: None,
            came: false,
        })
    }

    /// Listens for SIGHUP too, which would otherwise end the process before it has said why it ends.
    pub fn with_hangup() -> Result<Self, SystemError> {
        Ok(Self { hangup: Some(listen(SignalKind::hangup())?), ..Self::new()? })
    }

    /// Completes when one has come, now or earlier.
    pub async fn any(&mut self) {
        if !self.came {
            self.next().await;
            self.came = true;
        }
    }

    /// Completes with each one that comes.
    pub async fn next(&mut self) {
        let signals = [Some(&mut self.interrupt), Some(&mut self.terminate), self.hangup.as_mut()];
        // A driver asks for signals each time it wakes up. These futures are asked only when one of them wakes it.
        let mut came: FuturesUnordered<_> =
            signals.into_iter().flatten().map(Signal::recv).collect();
        came.next().await;
    }
}

/// Listens for a signal from now on. Call within a runtime.
pub fn listen(kind: SignalKind) -> Result<Signal, SystemError> {
    signal(kind).map_err(|error| SystemError { what: "listen for signals", error })
}

/// A node that does not end in time after a signal has still done its work.
pub fn after_grace<N>(finished: Finished<N>) -> Result<Finished<N>, SystemError> {
    match &finished.result {
        Ok(()) | Err(DriveError::GraceExpired(_)) => Ok(finished),
        Err(DriveError::Body(error)) => {
            let number = error.raw_os_error();
            let error = number.map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            Err(SystemError { what: "write", error })
        }
    }
}

/// The line that scripts wait for.
pub fn say_listening(address: SocketAddr) {
    say(format_args!("listening on {address}"));
}

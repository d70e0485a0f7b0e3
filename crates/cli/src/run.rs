//! Runs a node until it ends or a signal ends it.

use std::{io, net::SocketAddr, time::Duration};

use tandem_net::{Application, DriveError, DriverOptions, Finished, driver};
use tandem_node::{
    error::ClientError,
    limits::Limits,
    node::{Event, Node},
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{error::CliError, text};

/// A runtime of one thread, as the driver needs it.
pub(crate) fn runtime() -> Result<Runtime, CliError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::System { what: "start the event loop", error })
}

/// SIGINT (Ctrl-C) and SIGTERM.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    came: bool,
}

impl Signals {
    /// Listens from now on. Call within a runtime.
    pub(crate) fn new() -> Result<Self, CliError> {
        let listen = |kind| {
            signal(kind).map_err(|error| CliError::System { what: "listen for signals", error })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            came: false,
        })
    }

    /// Completes when one has come, now or earlier.
    pub(crate) async fn any(&mut self) {
        if !self.came {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
            self.came = true;
        }
    }
}

/// The time that a server has for its end after a signal.
pub(crate) fn grace(limits: &Limits) -> Duration {
    limits.drain + limits.goodbye + Duration::from_secs(1)
}

/// Runs a server until a signal ends it, which is not an error. A second signal ends it at once.
pub(crate) fn serve<N: Node>(node: N, options: DriverOptions) -> Result<(), CliError> {
    let mut server = Server(Ok(()));
    let finished = runtime()?.block_on(async {
        let (mut first, mut second) = (Signals::new()?, Signals::new()?);
        let impatient = async {
            second.any().await;
            second.came = false;
            second.any().await;
        };
        tokio::select! {
            finished = driver::run(node, &mut server, options, first.any()) => {
                Ok::<_, CliError>(Some(finished))
            }
            () = impatient => Ok(None),
        }
    })?;
    server.0?;
    finished.map_or(Ok(()), |finished| after_grace(finished).map(drop))
}

/// A node that does not end in time after a signal has still done its work.
pub(crate) fn after_grace<N>(finished: Finished<N>) -> Result<Finished<N>, CliError> {
    match &finished.result {
        Ok(()) | Err(DriveError::GraceExpired(_)) => Ok(finished),
        Err(DriveError::Body(error)) => {
            Err(CliError::System { what: "write", error: io::Error::from(error.kind()) })
        }
    }
}

/// Prints when a server is ready.
struct Server(Result<(), CliError>);

impl<N> Application<N> for Server {
    fn event(&mut self, event: Event) {
        match event {
            Event::Listening(address) => say_listening(address),
            Event::Closed(Err(error)) if error != ClientError::Interrupted => {
                self.0 = Err(CliError::Client { error });
            }
            Event::Closed(_)
            | Event::HopUp { .. }
            | Event::HopLost { .. }
            | Event::TunnelInfo { .. }
            | Event::ResponseStarted { .. }
            | Event::Fetched(_) => {}
        }
    }
}

/// The line that scripts wait for.
pub(crate) fn say_listening(address: SocketAddr) {
    text::say(format_args!("listening on {address}"));
}

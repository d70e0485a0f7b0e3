//! Runs a node until it ends or a signal ends it.

use std::{future::Future, io, net::SocketAddr};

use tandem_net::{Application, DriveError, DriverOptions, Finished, driver};
use tandem_node::{
    error::ClientError,
    node::{Event, Node},
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

use crate::{error::CliError, text};

/// A runtime of one thread, which is what a driver wants.
pub(crate) fn runtime() -> Result<Runtime, CliError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::System { what: "start the event loop", error })
}

/// Completes at the first SIGINT (Ctrl-C) or SIGTERM. Call within a runtime.
pub(crate) fn signals() -> Result<impl Future<Output = ()>, CliError> {
    let listen =
        |kind| signal(kind).map_err(|error| CliError::System { what: "listen for signals", error });
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Runs a server until a signal ends it, which is no error.
pub(crate) fn serve<N: Node>(node: N, options: DriverOptions) -> Result<(), CliError> {
    let mut server = Server(Ok(()));
    let finished = runtime()?.block_on(async {
        let shutdown = signals()?;
        Ok::<_, CliError>(driver::run(node, &mut server, options, shutdown).await)
    })?;
    server.0?;
    after_grace(finished).map(drop)
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

/// Says when a server is ready.
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
            | Event::ResponseStarted { .. }
            | Event::Fetched(_) => {}
        }
    }
}

/// The line that scripts wait for.
pub(crate) fn say_listening(address: SocketAddr) {
    text::say(format_args!("listening on {address}"));
}

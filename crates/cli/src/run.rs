//! Runs a node until it ends or a signal ends it.

use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tandem_net::{Application, DriveError, DriverOptions, DriverStats, Finished, driver};
use tandem_node::{
    error::ClientError,
    limits::Limits,
    node::{Event, Node},
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{
    error::{CliError, ConfigError},
    text,
};

/// A runtime of one thread, as the driver needs it.
pub(crate) fn runtime() -> Result<Runtime, CliError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::System { what: "start the event loop", error })
}

/// SIGINT (Ctrl-C), SIGTERM, and SIGHUP for programs that end with their terminal or their parent.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    came: bool,
}

impl Signals {
    /// Listens from now on. Call within a runtime.
    pub(crate) fn new() -> Result<Self, CliError> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: None,
            came: false,
        })
    }

    /// Listens for SIGHUP too, which would otherwise end the process before it has said why it ends.
    pub(crate) fn with_hangup() -> Result<Self, CliError> {
        Ok(Self { hangup: Some(listen(SignalKind::hangup())?), ..Self::new()? })
    }

    /// Completes when one has come, now or earlier.
    pub(crate) async fn any(&mut self) {
        if !self.came {
            let hangup = async {
                match &mut self.hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = hangup => {}
            }
            self.came = true;
        }
    }
}

/// Listens for a signal from now on. Call within a runtime.
fn listen(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| CliError::System { what: "listen for signals", error })
}

/// The time that a server has for its end after a signal.
pub(crate) fn grace(limits: &Limits) -> Duration {
    limits.drain + limits.goodbye + Duration::from_secs(1)
}

/// Runs a server until a signal ends it, which is not an error. A second signal ends it at once.
/// SIGHUP makes `reload` read the server's files again; it returns what to tell the operator. `look` is
/// called at each tick of the options, and at the end.
pub(crate) fn serve<N: Node>(
    node: N,
    options: DriverOptions,
    reload: impl FnMut(&mut N) -> Result<String, ConfigError>,
    look: impl FnMut(&mut N),
) -> Result<(), CliError> {
    let runtime = runtime()?;
    let hangup = {
        let _guard = runtime.enter();
        listen(SignalKind::hangup())?
    };
    let mut server = Server { result: Ok(()), hangup, reload, look };
    let finished = runtime.block_on(async {
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
    server.result?;
    let Some(finished) = finished else { return Ok(()) };
    let mut finished = after_grace(finished)?;
    (server.look)(&mut finished.node);
    Ok(())
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

/// Prints when a server is ready, and reloads its files after SIGHUP.
struct Server<F, L> {
    result: Result<(), CliError>,
    hangup: Signal,
    reload: F,
    look: L,
}

impl<N, F, L> Application<N> for Server<F, L>
where
    F: FnMut(&mut N) -> Result<String, ConfigError>,
    L: FnMut(&mut N),
{
    fn tick(&mut self, _: Instant, node: &mut N, _: &DriverStats) {
        (self.look)(node);
    }

    fn poll_change(&mut self, context: &mut Context<'_>, node: &mut N) -> Poll<()> {
        if self.hangup.poll_recv(context).is_pending() {
            return Poll::Pending;
        }
        match (self.reload)(node) {
            Ok(done) => text::say(done),
            Err(error) => {
                text::say(format_args!("error: {error}"));
                text::say(
                    "not reloaded: the old certificate, key, CA and tokens stay in use; correct the \
                     error and send SIGHUP again",
                );
            }
        }
        Poll::Ready(())
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Listening(address) => say_listening(address),
            Event::Closed(Err(error)) if error != ClientError::Interrupted => {
                self.result = Err(CliError::Client { error });
            }
            Event::Closed(_)
            | Event::HopUp { .. }
            | Event::HopLost { .. }
            | Event::FlowFailed { .. }
            | Event::ModeChanged { .. }
            | Event::TunnelInfo { .. }
            | Event::TooLarge { .. }
            | Event::ResponseStarted { .. }
            | Event::Fetched(_) => {}
        }
    }
}

/// The line that scripts wait for.
pub(crate) fn say_listening(address: SocketAddr) {
    text::say(format_args!("listening on {address}"));
}

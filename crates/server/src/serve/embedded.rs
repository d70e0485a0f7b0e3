//! A server in another program.

use std::{
    net::SocketAddr,
    panic::resume_unwind,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use tokio::sync::oneshot;

use super::{Prepared, orders::Orders};
use crate::{error::ServeError, process::SystemError, role::Role, setup::Setup};

/// A server in another program, which it does not disturb: it listens for no signals. It ends when this is dropped.
///
/// The lines that it prints go to standard error, and its log to the `tracing` subscriber of the program. The bound on
/// memory holds only in programs whose allocator is jemalloc.
#[derive(Debug)]
pub struct Embedded {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Embedded {
    /// Starts the server in threads of its own. Returns when it listens.
    pub fn start<R: Role + Send + 'static>(role: R, setup: Setup) -> Result<Self, ServeError> {
        let (end, ended) = oneshot::channel();
        let (up, listening) = mpsc::channel();
        let run = move || {
            let orders = || Ok(Orders::OfProgram(Some(ended)));
            // Nobody hears it any more if the program has gone on.
            Prepared::new(&role, &setup)?.run(orders, |address| {
                up.send(address).ok();
            })
        };
        let thread = thread::Builder::new().name("tandem-server".to_owned()).spawn(run);
        let thread = thread.map_err(SystemError::thread)?;
        let Ok(address) = listening.recv() else {
            return match joined(thread) {
                Err(error) => Err(error),
                Ok(()) => unreachable!("a server ends without an error only after it has listened"),
            };
        };
        Ok(Self { address, end: Some(end), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the server, and waits until its clients are gone, but no longer than its settings say.
    pub fn end(mut self) -> Result<(), ServeError> {
        drop(self.end.take());
        self.thread.take().map_or(Ok(()), joined)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The program did not ask what became of it.
            thread.join().ok();
        }
    }
}

fn joined(thread: JoinHandle<Result<(), ServeError>>) -> Result<(), ServeError> {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

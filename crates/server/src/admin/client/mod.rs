//! What the user of a running client sees of it: the same listener as that of servers, with the paths that make sense
//! for a client.
//!
//! The node leaves its state behind a lock once a second. A thread of its own serves HTTP, so that a look at the client
//! delays no packets.

mod board;
mod metrics;
mod now;

use std::{
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use http::StatusCode;
use tandem_net::admin::{Answer, answer, text};
use tandem_node::{client::ClientStatus, error::ClientError};
use tokio::sync::oneshot;

use self::board::{Board, Seen};
pub use self::now::{ClientFlow, ClientHop, ClientNow, ClientState};
use super::{AdminAddr, listen};
use crate::{
    error::ServeError,
    process::{SystemError, runtime},
};

/// How often the node is looked at.
const INTERVAL: Duration = super::INTERVAL;

/// How many flows are listed.
const FLOWS: usize = 50;

/// What the node's thread and the one that serves HTTP share.
type Shared = Arc<Mutex<Arc<Seen>>>;

/// The listener of a client, and what is known of it. It ends when it is dropped.
#[derive(Debug)]
pub struct ClientAdmin {
    board: Board,
    shared: Shared,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ClientAdmin {
    /// How often to call [`Self::note`].
    pub const INTERVAL: Duration = INTERVAL;

    /// How many flows a [`ClientStatus`] needs.
    pub const FLOWS: usize = FLOWS;

    /// Listens from now on.
    ///
    /// # Errors
    ///
    /// The address cannot be used, or the operating system gives no thread.
    pub fn start(address: &AdminAddr) -> Result<Self, ServeError> {
        let board = Board::new();
        let shared: Shared = Arc::new(Mutex::new(Arc::new(board.see(&ClientStatus::default()))));
        let (stop, is_stopped) = oneshot::channel::<()>();
        let (listens, said) = mpsc::channel();
        let run = {
            let (address, shared) = (address.clone(), Arc::clone(&shared));
            move || serve(&address, &shared, is_stopped, &listens)
        };
        let thread = thread::Builder::new().name("tandem-admin".to_owned()).spawn(run);
        let what = "start the thread of the admin listener";
        let thread = thread.map_err(|error| SystemError { what, error })?;
        let admin = Self { board, shared, stop: Some(stop), thread: Some(thread) };
        // Without a word the thread has ended, which it does only after one.
        said.recv().unwrap_or(Ok(()))?;
        Ok(admin)
    }

    /// Takes the state of the node.
    pub fn note(&mut self, status: &ClientStatus) {
        let seen = Arc::new(self.board.update(status));
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Notes that the tunnel is up.
    pub fn note_up(&mut self) {
        self.board.note_up();
    }

    /// Notes that the tunnel was lost, or could not be established, and when the client tries again.
    pub fn note_lost(&mut self, error: &ClientError, retry_in: Duration) {
        self.board.note_lost(error, retry_in);
    }
}

impl Drop for ClientAdmin {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default(); // it may have panicked, and is gone too
        }
    }
}

/// Serves until the other end of `is_stopped` is dropped. Says first whether it listens.
fn serve(
    address: &AdminAddr,
    shared: &Shared,
    is_stopped: oneshot::Receiver<()>,
    listens: &mpsc::Sender<Result<(), ServeError>>,
) {
    // Sending fails if the client has ended meanwhile. Then nobody needs the word.
    let say = |word| listens.send(word).unwrap_or_default();
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return say(Err(error.into())),
    };
    runtime.block_on(async {
        let listener = match listen(address) {
            Ok(listener) => listener,
            Err(error) => return say(Err(error.into())),
        };
        say(Ok(()));
        tokio::select! {
            _ = is_stopped => {}
            () = listener.serve(|path| answer_for(path, shared)) => {}
        }
    });
}

fn answer_for(path: &str, shared: &Shared) -> Answer {
    let seen = Arc::clone(&shared.lock().unwrap_or_else(PoisonError::into_inner));
    match path {
        "/metrics" => answer(StatusCode::OK, metrics::CONTENT_TYPE, metrics::text(&seen)),
        "/api/now" => {
            let json = serde_json::to_string(&seen.now).expect("all keys are strings");
            answer(StatusCode::OK, "application/json", json)
        }
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match seen.now.state {
            ClientState::Up => text(StatusCode::OK, "ready\n"),
            ClientState::Connecting => text(StatusCode::SERVICE_UNAVAILABLE, "connecting\n"),
            ClientState::Away => text(StatusCode::SERVICE_UNAVAILABLE, "trying again\n"),
        },
        "/" => text(
            StatusCode::OK,
            "This is a Tandem client. `tandem top ADDRESS` shows it.\n\
             There is /metrics, /api/now, /healthz and /readyz.\n",
        ),
        _ => text(StatusCode::NOT_FOUND, "There is /metrics, /api/now, /healthz and /readyz.\n"),
    }
}

#[cfg(test)]
mod tests;

//! Who tells a server what to do: signals, or the program that embeds it.

use std::future::pending;

use tokio::{
    signal::unix::{Signal, SignalKind},
    sync::oneshot,
};

use crate::{
    error::ServeError,
    process::{Signals, listen},
};

/// What a server is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerOrder {
    /// End; when it comes again, at once.
    End,
    /// Read all files again.
    Reload,
    /// Let another process take over the address.
    TakeOver,
}

/// From where the orders come.
pub(super) enum Orders {
    OfSignals {
        ending: Signals,
        hangup: Signal,
        take_over: Signal,
    },
    /// The program sends, or drops the other end, when the server has to end.
    OfProgram(Option<oneshot::Receiver<()>>),
}

impl Orders {
    /// Listens for signals from now on. Call within a runtime.
    pub(super) fn of_signals() -> Result<Self, ServeError> {
        Ok(Self::OfSignals {
            ending: Signals::new()?,
            hangup: listen(SignalKind::hangup())?,
            take_over: listen(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) -> ServerOrder {
        match self {
            Self::OfSignals { ending, hangup, take_over } => tokio::select! {
                () = ending.next() => ServerOrder::End,
                _ = hangup.recv() => ServerOrder::Reload,
                _ = take_over.recv() => ServerOrder::TakeOver,
            },
            Self::OfProgram(end) => {
                let Some(ending) = end else { return pending().await };
                ending.await.ok();
                *end = None;
                ServerOrder::End
            }
        }
    }
}

//! When the main thread serves operators, of which one process of two can listen at a time.

use std::future::pending;

use tandem_net::admin::AdminListener;
use tokio::sync::oneshot;

use crate::{
    admin::{Admin, OfProcess},
    text,
};

/// Where one part of the main thread lets the other begin and end to serve operators.
pub(super) struct Gate {
    open: Option<oneshot::Sender<()>>,
    close: Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>,
}

/// The part that serves operators.
pub(super) struct AdminGate {
    opens: oneshot::Receiver<()>,
    closes: oneshot::Receiver<()>,
    /// Is dropped when nobody listens any more.
    gone: oneshot::Sender<()>,
}

pub(super) fn new() -> (Gate, AdminGate) {
    let (open, opens) = oneshot::channel();
    let (close, closes) = oneshot::channel();
    let (gone, is_gone) = oneshot::channel();
    let gate = Gate { open: Some(open), close: Some((close, is_gone)) };
    (gate, AdminGate { opens, closes, gone })
}

impl Gate {
    /// Lets operators be served, because the process before this one has ended to do so.
    pub(super) fn open(&mut self) {
        if let Some(open) = self.open.take() {
            open.send(()).ok(); // a server without operators does not wait
        }
    }

    /// Ends to serve operators. When this is over, nobody listens any more.
    pub(super) async fn close(&mut self) {
        if let Some((close, is_gone)) = self.close.take() {
            close.send(()).ok();
            is_gone.await.ok();
        }
    }
}

impl AdminGate {
    /// Serves operators at a listener, or at one that is opened with the gate, until the gate is closed. Never ends.
    pub(super) async fn watch(
        self,
        admin: Option<&Admin>,
        listener: Option<AdminListener>,
        of_process: impl Fn() -> OfProcess,
    ) {
        let Self { opens, closes, gone } = self;
        let serving = async {
            let Some(admin) = admin else { return pending().await };
            let listener = match listener {
                Some(listener) => listener,
                None if opens.await.is_err() => return pending().await,
                None => match admin.listen() {
                    Ok(listener) => listener,
                    Err(error) => {
                        text::say(format_args!("error: {error}; there is no admin page"));
                        return pending().await;
                    }
                },
            };
            admin.serve(&listener, of_process).await;
        };
        tokio::select! {
            () = serving => {}
            _ = closes => {}
        }
        drop(gone);
        pending::<()>().await;
    }
}

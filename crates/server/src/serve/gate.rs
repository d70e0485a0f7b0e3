//! When the main thread serves operators, of which one process of two can listen at a time.

use std::future::pending;

use tandem_net::admin::AdminListener;
use tokio::sync::watch;

use crate::{
    admin::{Admin, OfProcess},
    process::say,
};

/// Where one part of the main thread lets the other begin and end to serve operators.
pub(super) struct Gate {
    is_open: watch::Sender<bool>,
    listens: watch::Receiver<bool>,
}

/// The part that serves operators.
pub(super) struct AdminGate {
    is_open: watch::Receiver<bool>,
    listens: watch::Sender<bool>,
    /// The first one, if the gate is open from the start.
    listener: Option<AdminListener>,
}

pub(super) fn new(listener: Option<AdminListener>) -> (Gate, AdminGate) {
    let is_open = watch::Sender::new(listener.is_some());
    let listens = watch::Sender::new(listener.is_some());
    let (opens, listening) = (is_open.subscribe(), listens.subscribe());
    (Gate { is_open, listens: listening }, AdminGate { is_open: opens, listens, listener })
}

impl Gate {
    /// Lets operators be served, because the other process does not do so.
    pub(super) fn open(&self) {
        self.is_open.send_replace(true);
    }

    /// Stops serving operators, and returns when the listener is closed.
    pub(super) async fn close(&mut self) {
        self.is_open.send_replace(false);
        self.listens.wait_for(|listens| !listens).await.ok();
    }
}

impl AdminGate {
    /// Serves operators whenever the gate is open. Never ends.
    pub(super) async fn watch(mut self, admin: Option<&Admin>, of_process: impl Fn() -> OfProcess) {
        let Some(admin) = admin else { return pending().await };
        loop {
            if self.is_open.wait_for(|is_open| *is_open).await.is_err() {
                return pending().await;
            }
            match self.listener.take().map_or_else(|| admin.listen(), Ok) {
                Ok(listener) => {
                    self.listens.send_replace(true);
                    tokio::select! {
                        () = admin.serve(&listener, &of_process) => {}
                        _ = self.is_open.wait_for(|is_open| !is_open) => {}
                    }
                    drop(listener);
                    self.listens.send_replace(false);
                }
                Err(error) => {
                    say(format_args!("error: {error}; there is no admin page"));
                    self.is_open.wait_for(|is_open| !is_open).await.ok();
                }
            }
        }
    }
}

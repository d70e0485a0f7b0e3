//! Drives a client node through one download.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_net::{
    Application, DriveError, DriverOptions, DriverStats, SocketOptions, clock, driver,
};
use tandem_node::{
    Client,
    error::ClientError,
    node::{Event, FetchReport},
};
use tandem_server::{pause::PauseSetting, process::Signals};
use tokio::{sync::oneshot, time::sleep};
use tracing::info;

use crate::{
    download::Download,
    error::{NoResult, TransferError},
    hops::{self, Retries},
    patience::{GaveUp, LOOK, Patience},
    progress::Progress,
};

/// How often a connection that is not read says that it is still there. Peers forget one after 30 s of silence.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// Runs the node until the whole body is in the download, or the fetch has failed. A signal, or the end of
/// the patience, ends it early.
pub(crate) async fn fetch(
    node: Client,
    download: &mut Download,
    progress: &impl Progress,
    (patience, signals): (&mut Patience, &mut Signals),
    pause: PauseSetting,
) -> Result<FetchReport, TransferError> {
    patience.restart(clock::now());
    let (give_up, end_of_patience) = oneshot::channel();
    let mut fetch = RunningFetch {
        download,
        progress,
        patience,
        bytes: 0,
        give_up: Some(give_up),
        retries: Retries::default(),
        report: None,
        end: None,
        held_since: None,
    };
    let socket = SocketOptions { reuses_memory: false, ..SocketOptions::default() };
    let (tick, pause) = (Some(LOOK), pause.0);
    let options = DriverOptions { socket, tick, pause, ..DriverOptions::default() };
    let mut reason = None;
    let shutdown = async {
        tokio::select! {
            () = signals.any() => {}
            Ok(why) = end_of_patience => reason = Some(why),
        }
    };
    let finished = driver::run(node, &mut fetch, options, shutdown).await;
    let RunningFetch { download, patience, report, end, .. } = fetch;
    if let (Some(why), None) = (reason, &report) {
        return Err(why.into());
    }
    match (finished.result, report, end) {
        (Err(DriveError::Body(error)), _, _) => Err(download.write_error(error)),
        // The download is complete; an error while the connection closes does not matter.
        (_, Some(report), _) => {
            written(download, patience, signals).await?;
            Ok(report)
        }
        (_, None, Some(Err(error))) => Err(TransferError::Client { error }),
        (Err(DriveError::GraceExpired(_)), None, _) => Err(TransferError::Interrupted),
        (Ok(()), None, _) => Err(NoResult { role: "client" }.into()),
    }
}

/// Waits until a reader has taken everything, for which it may need any time.
async fn written(
    download: &Download,
    patience: &mut Patience,
    signals: &mut Signals,
) -> Result<(), TransferError> {
    loop {
        tokio::select! {
            result = poll_fn(|context| download.poll_written(context)) => {
                return result.map_err(|error| download.write_error(error));
            }
            () = signals.any() => return Err(TransferError::Interrupted),
            () = sleep(LOOK) => {
                patience.excuse(clock::now());
                if let Some(why) = patience.look(clock::now(), 0) {
                    return Err(why.into());
                }
            }
        }
    }
}

struct RunningFetch<'a, P> {
    download: &'a mut Download,
    progress: &'a P,
    patience: &'a mut Patience,
    /// The bytes of the file that this request has brought.
    bytes: u64,
    /// Tells once why the transfer is given up.
    give_up: Option<oneshot::Sender<GaveUp>>,
    retries: Retries,
    report: Option<FetchReport>,
    end: Option<Result<(), ClientError>>,
    /// When the connection has last said that it is there, while it is not read because a reader does not read either.
    held_since: Option<Instant>,
}

impl<P: Progress> Application<Client> for RunningFetch<'_, P> {
    fn event(&mut self, event: Event) {
        match event {
            Event::HopUp { hop, authority, setup, agreement } => {
                self.retries.on_up(hop, &authority, setup, agreement);
                self.progress.say(format!("tunnel through {authority} is up"));
            }
            Event::HopLost { error, retry_in, .. } => {
                self.patience.excuse(clock::now());
                self.retries.on_lost(&error, retry_in);
                self.progress.say(format!("{error}; trying again"));
            }
            Event::ModeChanged { authority, agreement, .. } => {
                hops::say_lesser(&authority, agreement, "now runs");
            }
            Event::Chosen { hop, choice } => info!(hop, "the tunnel {choice}"),
            Event::ResponseStarted { len, start, validator, .. } => {
                self.download.answered(start, validator.as_ref());
                self.progress.start(len);
                self.progress.advance(start);
            }
            Event::Fetched(report) => self.report = Some(report),
            Event::Closed(result) => self.end = Some(result),
            Event::Listening(_)
            | Event::TunnelInfo { .. }
            | Event::TooLarge { .. }
            | Event::FlowFailed { .. } => {}
        }
    }

    fn body(&mut self, offset: u64, data: Bytes) -> io::Result<()> {
        self.download.write(offset, &data)?;
        self.bytes += data.len() as u64;
        self.progress.advance(data.len() as u64);
        Ok(())
    }

    fn poll_change(&mut self, context: &mut Context<'_>, node: &mut Client) -> Poll<()> {
        let is_held = self.download.poll_room(context).is_pending();
        if is_held == self.held_since.is_some() {
            return Poll::Pending;
        }
        self.held_since = is_held.then(clock::now);
        node.hold_body(is_held);
        Poll::Ready(())
    }

    fn tick(&mut self, now: Instant, node: &mut Client, _: &DriverStats) {
        if let Some(since) = &mut self.held_since {
            self.patience.excuse(now);
            if now.saturating_duration_since(*since) >= SIGN_OF_LIFE {
                *since = now;
                node.ping();
            }
        }
        if let Some(why) = self.patience.look(now, self.bytes + node.uploaded())
            && let Some(give_up) = self.give_up.take()
        {
            // It is not heard if a signal has ended the transfer already.
            give_up.send(why).ok();
        }
    }
}

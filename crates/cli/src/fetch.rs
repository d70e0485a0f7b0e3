//! Drives a client node through one download.

use std::{io, time::Instant};

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
use tokio::sync::oneshot;
use tracing::info;

use crate::{
    download::Download,
    error::{NoResult, TransferError},
    hops::{self, Retries},
    patience::{GaveUp, LOOK, Patience},
    progress::Progress,
};

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
    let RunningFetch { download, report, end, .. } = fetch;
    if let (Some(why), None) = (reason, &report) {
        return Err(why.into());
    }
    match (finished.result, report, end) {
        (Err(DriveError::Body(error)), _, _) => Err(download.write_error(error)),
        // The download is complete; an error while the connection closes does not matter.
        (_, Some(report), _) => Ok(report),
        (_, None, Some(Err(error))) => Err(TransferError::Client { error }),
        (Err(DriveError::GraceExpired(_)), None, _) => Err(TransferError::Interrupted),
        (Ok(()), None, _) => Err(NoResult { role: "client" }.into()),
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

    fn tick(&mut self, now: Instant, node: &mut Client, _: &DriverStats) {
        if let Some(why) = self.patience.look(now, self.bytes + node.uploaded())
            && let Some(give_up) = self.give_up.take()
        {
            // It is not heard if a signal has ended the transfer already.
            give_up.send(why).ok();
        }
    }
}

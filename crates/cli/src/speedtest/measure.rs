//! Drives a client node through one transfer for a bounded time, and looks at it meanwhile.

use std::{
    io,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_net::{Application, DriverOptions, DriverStats, clock};
use tandem_node::{Client, client::ClientStatus, error::ClientError, node::Event};
use tokio::sync::oneshot;

use super::{
    Direction,
    report::{Measured, Sample},
};
use crate::{
    error::{NoResult, TransferError},
    hops::Retries,
    progress::Progress,
    through::run_until,
};

/// How often the transfer is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Transfers for this time, or until the body ends. A signal ends it early, with an error.
pub(super) async fn measure(
    node: Client,
    (direction, time): (Direction, Duration),
    progress: &impl Progress,
) -> Result<Measured, TransferError> {
    let (done, is_done) = oneshot::channel();
    let mut running = Running {
        direction,
        time,
        progress,
        downloaded: 0,
        told: 0,
        began: None,
        samples: Vec::new(),
        done: Some(done),
        retries: Retries::default(),
        is_over: false,
        status: None,
        end: None,
    };
    let options = DriverOptions { tick: Some(LOOK), ..DriverOptions::default() };
    if run_until(node, &mut running, options, is_done).await? {
        return Err(TransferError::Interrupted);
    }
    let Running { samples, status, end, is_over, .. } = running;
    match (end, status) {
        (Some(Err(error)), _) if !is_over => Err(TransferError::Client { error }),
        (_, Some(status)) => Ok(Measured::new(&samples, &status)),
        (_, None) => Err(NoResult { role: "client" }.into()),
    }
}

struct Running<'a, P> {
    direction: Direction,
    time: Duration,
    progress: &'a P,
    /// The bytes of the body that have come.
    downloaded: u64,
    /// The bytes of which the progress was told.
    told: u64,
    /// When the body began.
    began: Option<Instant>,
    samples: Vec<Sample>,
    /// Ends the client.
    done: Option<oneshot::Sender<()>>,
    retries: Retries,
    /// Whether the time is over, or the body is complete.
    is_over: bool,
    /// The state of the client at the last look.
    status: Option<ClientStatus>,
    end: Option<Result<(), ClientError>>,
}

impl<P: Progress> Running<'_, P> {
    /// Looks at the transfer, if it has begun and is not over.
    fn look(&mut self, now: Instant, node: &mut Client) {
        let status = node.status(0);
        let end_to_end = status.end_to_end.as_ref().filter(|it| it.handshake.is_some());
        let Some(rtt) = end_to_end.map(|it| it.connection.smoothed_rtt) else {
            return; // the handshake is not complete
        };
        if self.began.is_none() {
            self.progress.start(None);
        }
        let began = *self.began.get_or_insert(now);
        let bytes = match self.direction {
            Direction::Download => self.downloaded,
            Direction::Upload => node.uploaded(),
        };
        self.progress.advance(bytes.saturating_sub(self.told));
        self.told = bytes;
        let at = now.saturating_duration_since(began);
        self.samples.push(Sample { at, bytes, rtt });
        self.status = Some(status);
        node.ping();
        if at >= self.time {
            self.finish();
        }
    }

    /// Handles that the whole body has been transferred before the time was over.
    fn complete(&mut self, now: Instant) {
        self.is_over = true;
        if let (Some(began), Some(last)) = (self.began, self.samples.last().copied())
            && self.direction == Direction::Download
        {
            let at = now.saturating_duration_since(began);
            self.samples.push(Sample { at, bytes: self.downloaded, ..last });
        }
    }

    fn finish(&mut self) {
        self.is_over = true;
        if let Some(done) = self.done.take() {
            done.send(()).unwrap_or_default(); // an error: it has ended already
        }
    }
}

impl<P: Progress> Application<Client> for Running<'_, P> {
    fn event(&mut self, event: Event) {
        match event {
            Event::HopUp { hop, authority, setup, agreement } => {
                self.retries.on_up(hop, &authority, setup, agreement);
                self.progress.say(format!("tunnel through {authority} is up"));
            }
            Event::HopLost { error, retry_in, .. } => {
                self.retries.on_lost(&error, retry_in);
            }
            Event::Fetched(_) => self.complete(clock::now()),
            Event::Closed(result) => self.end = Some(result),
            _ => {}
        }
    }

    fn body(&mut self, _: u64, data: Bytes) -> io::Result<()> {
        self.downloaded += data.len() as u64;
        Ok(())
    }

    /// The first look is as soon as the handshake is complete, when the path is idle.
    fn poll_change(&mut self, _: &mut Context<'_>, node: &mut Client) -> Poll<()> {
        if self.began.is_none() {
            self.look(clock::now(), node);
        }
        Poll::Pending
    }

    fn tick(&mut self, now: Instant, node: &mut Client, _: &DriverStats) {
        if !self.is_over {
            self.look(now, node);
        }
    }
}

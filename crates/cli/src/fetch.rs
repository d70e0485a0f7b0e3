//! Drives a client node through one download.

use std::io;

use bytes::Bytes;
use tandem_net::{Application, DriveError, DriverOptions, driver};
use tandem_node::{
    Client,
    error::ClientError,
    node::{Event, FetchReport},
};
use tracing::warn;

use crate::{
    download::Download,
    error::CliError,
    hops::{self, Retries},
    progress::Progress,
    run::Signals,
};

/// Runs the node until the whole body is in the download, or the fetch has failed. A signal ends it
/// early.
pub(crate) async fn fetch(
    node: Client,
    download: &mut Download,
    progress: &impl Progress,
    signals: &mut Signals,
) -> Result<FetchReport, CliError> {
    let retries = Retries::default();
    let mut fetch = Fetch { download, progress, retries, report: None, end: None };
    let options = DriverOptions::default();
    let finished = driver::run(node, &mut fetch, options, signals.any()).await;
    let Fetch { download, report, end, .. } = fetch;
    match (finished.result, report, end) {
        (Err(DriveError::Body(error)), _, _) => Err(download.write_error(error)),
        // The download is complete; an error while the connection closes does not matter.
        (_, Some(report), _) => Ok(report),
        (_, None, Some(Err(error))) => Err(CliError::Client { error }),
        (Err(DriveError::GraceExpired(_)), None, _) => Err(CliError::Interrupted),
        (Ok(()), None, _) => Err(CliError::NoResult { role: "client" }),
    }
}

struct Fetch<'a, P> {
    download: &'a mut Download,
    progress: &'a P,
    retries: Retries,
    report: Option<FetchReport>,
    end: Option<Result<(), ClientError>>,
}

impl<P: Progress> Application<Client> for Fetch<'_, P> {
    fn event(&mut self, event: Event) {
        match event {
            Event::HopUp { hop, authority, setup, agreement } => {
                self.retries = Retries::default();
                hops::say_up(hop, &authority, setup, agreement);
                self.progress.say(format!("tunnel through {authority} is up"));
            }
            Event::HopLost { error, retry_in, .. } => {
                if self.retries.is_news(&error) {
                    warn!("{}", hops::trying_again(&error, retry_in));
                }
                self.progress.say(format!("{error}; trying again"));
            }
            Event::ModeChanged { authority, agreement, .. } => {
                warn!(authority, "the tunnel now runs in mode {agreement}");
            }
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
        self.progress.advance(data.len() as u64);
        Ok(())
    }
}

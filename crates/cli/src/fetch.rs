//! Drives a client node through one download.

use std::io;

use bytes::Bytes;
use tandem_net::{Application, DriveError, DriverOptions, driver};
use tandem_node::{
    Client,
    error::ClientError,
    node::{Event, FetchReport},
};
use tracing::{info, warn};

use crate::{download::Download, error::CliError, progress::Progress, run::Signals};

/// Runs the node until the whole body is in the download, or the fetch has failed. A signal ends it
/// early.
pub(crate) async fn fetch(
    node: Client,
    download: &mut Download,
    progress: &impl Progress,
    signals: &mut Signals,
) -> Result<FetchReport, CliError> {
    let mut fetch = Fetch { download, progress, report: None, end: None };
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
    report: Option<FetchReport>,
    end: Option<Result<(), ClientError>>,
}

impl<P: Progress> Application<Client> for Fetch<'_, P> {
    fn event(&mut self, event: Event) {
        match event {
            Event::HopUp { hop, authority, setup } => {
                info!(hop, authority, ?setup, "tunnel up");
                self.progress.say(format!("tunnel through {authority} is up"));
            }
            Event::HopLost { hop, error } => {
                warn!(hop, %error, "tunnel broken, rebuilding it");
                self.progress.say("tunnel broken, rebuilding it".to_owned());
            }
            Event::ResponseStarted { len, start, validator, .. } => {
                self.download.answered(start, validator.as_ref());
                self.progress.start(len);
                self.progress.advance(start);
            }
            Event::Fetched(report) => self.report = Some(report),
            Event::Closed(result) => self.end = Some(result),
            Event::Listening(_) | Event::TunnelInfo { .. } => {}
        }
    }

    fn body(&mut self, offset: u64, data: Bytes) -> io::Result<()> {
        self.download.write(offset, &data)?;
        self.progress.advance(data.len() as u64);
        Ok(())
    }
}

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

use crate::{
    download::{Download, Sha256Hex},
    error::CliError,
    hops::{self, Retries},
    progress::Progress,
    run::Signals,
};

/// Runs the node until the download is complete or has failed. A signal ends it early.
pub(crate) async fn fetch(
    node: Client,
    download: Download,
    progress: &impl Progress,
    signals: &mut Signals,
) -> Result<(FetchReport, Sha256Hex), CliError> {
    let retries = Retries::default();
    let mut fetch = Fetch { download, progress, retries, report: None, end: None };
    let options = DriverOptions::default();
    let finished = driver::run(node, &mut fetch, options, signals.any()).await;
    let Fetch { download, report, end, .. } = fetch;
    match (finished.result, report, end) {
        (Err(DriveError::Body(error)), _, _) => {
            let error = download.write_error(error);
            Err(download.explain(error))
        }
        // The download is complete; an error while the connection closes does not matter.
        (_, Some(report), _) => Ok((report, download.finish()?)),
        (_, None, Some(Err(error))) => Err(download.explain(CliError::Client { error })),
        (Err(DriveError::GraceExpired(_)), None, _) => Err(download.explain(CliError::Interrupted)),
        (Ok(()), None, _) => Err(download.explain(CliError::NoResult { role: "client" })),
    }
}

struct Fetch<'a, P> {
    download: Download,
    progress: &'a P,
    retries: Retries,
    report: Option<FetchReport>,
    end: Option<Result<(), ClientError>>,
}

impl<P: Progress> Application<Client> for Fetch<'_, P> {
    fn event(&mut self, event: Event) {
        match event {
            Event::HopUp { hop, authority, setup } => {
                self.retries = Retries::default();
                info!(hop, authority, ?setup, "tunnel up");
                self.progress.say(format!("tunnel through {authority} is up"));
            }
            Event::HopLost { error, retry_in, .. } => {
                if self.retries.is_news(&error) {
                    warn!("{}", hops::trying_again(&error, retry_in));
                }
                self.progress.say(format!("{error}; trying again"));
            }
            Event::ResponseStarted { len, .. } => self.progress.start(len),
            Event::Fetched(report) => self.report = Some(report),
            Event::Closed(result) => self.end = Some(result),
            Event::Listening(_) | Event::TunnelInfo { .. } | Event::FlowFailed { .. } => {}
        }
    }

    fn body(&mut self, offset: u64, data: Bytes) -> io::Result<()> {
        self.download.write(offset, &data)?;
        self.progress.advance(data.len() as u64);
        Ok(())
    }
}

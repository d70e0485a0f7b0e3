//! A proxy that may open few files.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use clap::Args;
use tokio::time::{sleep, timeout};

use crate::{
    client::endpoint,
    proxy::Launch,
    report::{Bound, Report, float},
    target::Echo,
    user,
};

/// Ask for more flows than the proxy may open files
#[derive(Args)]
pub(crate) struct Descriptors {
    /// Limit of the proxy's open files. The proxy keeps 64 of them, and a quarter of the rest
    #[arg(long, default_value_t = 256)]
    files: u32,
    /// Number of requests
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Bound on the lines in the log that the refusals cause
    #[arg(long, default_value_t = 20)]
    lines_max: u32,
}

impl Descriptors {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        let mut report = Report::new("descriptors");
        let proxy = Launch { files: Some(self.files), ..launch }.start().await?;
        let target = Echo::start().await?;
        let before = proxy.usage()?.descriptors;
        report.note("descriptors before", float(before), "");
        let warnings = proxy.log().warnings;
        let endpoint = endpoint(user::ADDRESSES[0])?;
        let client = proxy.login.connect(&endpoint, proxy.login.config(None)).await?;
        let mut flows = Vec::new();
        let mut statuses: BTreeMap<(u16, String), usize> = BTreeMap::new();
        for _ in 0..self.requests {
            let answer = client.ask(target.address, &[]).await?;
            let reason = if answer.status == 200 { String::new() } else { answer.proxy_status };
            *statuses.entry((answer.status, reason)).or_default() += 1;
            if answer.status == 200 {
                flows.push(answer.flow);
            }
        }
        for ((status, reason), count) in &statuses {
            report.note(format!("answers {status} {reason}"), float(*count), "");
        }
        let wrong = |(status, reason): &&(u16, String)| {
            ![200, 503].contains(status) || reason.contains("destination")
        };
        let wrong = statuses.iter().filter(|(answer, _)| wrong(answer)).map(|(_, count)| count);
        report.check_none("answers that blame the target", wrong.sum());
        let lines = float(proxy.log().warnings - warnings);
        report.check("warnings in the log", lines, "", Bound::AtLeast(1.0));
        report.check("lines in the log", lines, "", Bound::AtMost(self.lines_max.into()));
        report.note("descriptors at the limit", float(proxy.usage()?.descriptors), "");
        let pace = (1, Duration::from_secs(5));
        user::check(&proxy.login, target.address, pace, &mut report).await;
        drop(flows);
        client.close();
        timeout(Duration::from_secs(5), endpoint.wait_idle()).await.ok();
        sleep(Duration::from_secs(2)).await;
        let left = proxy.usage()?.descriptors;
        report.check("descriptors after", float(left), "", Bound::AtMost(float(before)));
        user::check(&proxy.login, target.address, pace, &mut report).await;
        proxy.end().await?;
        Ok(report)
    }
}

//! Many connections without a token, while users ask to be served.

use anyhow::Result;
use clap::Args;
use tandem_units::{ByteCount, HumanDuration};
use tokio::time::{Instant, sleep};

use crate::{
    idle::{Crowd, PING, Sources},
    proxy::Launch,
    report::{Bound, Report, float},
    target::Echo,
    user,
};

/// Hold many connections without a token, while users ask
#[derive(Args)]
pub(crate) struct Connections {
    /// Number of connections
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    #[command(flatten)]
    sources: Sources,
    /// Number of users of each address
    #[arg(long, default_value_t = 3)]
    users: usize,
    /// Time after which a user gives up
    #[arg(long, default_value = "10s")]
    patience: HumanDuration,
    /// Time for which the connections stay open
    #[arg(long, default_value = "20s")]
    hold: HumanDuration,
    /// Time after the last connection before memory is read again
    #[arg(long, default_value = "60s")]
    rest: HumanDuration,
    /// Bound on the memory after that time
    #[arg(long, default_value = "60MB")]
    memory_after: ByteCount,
}

impl Connections {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        let mut report = Report::new("connections");
        let proxy = launch.start().await?;
        let target = Echo::start().await?;
        report.usage("before", &proxy.usage()?);
        let began = Instant::now();
        let addresses = self.sources.addresses();
        let crowd = Crowd::open(&proxy.login, addresses, self.count, PING).await?;
        report.note("connections that were let in", float(crowd.connections.len()), "");
        report.note("connections that were refused", float(crowd.refused), "");
        report.note("time to open them", began.elapsed().as_secs_f64().round(), "s");
        report.usage("with the connections", &proxy.usage()?);
        let pace = (self.users, self.patience.0);
        user::check(&proxy.login, target.address, pace, &mut report).await;
        sleep(self.hold.0).await;
        report.note("connections that still live", float(crowd.alive()), "");
        user::check(&proxy.login, target.address, pace, &mut report).await;
        let is_limited = crowd.refused > 0 || crowd.alive() < crowd.connections.len();
        let warnings = float(proxy.log().warnings);
        let least = if is_limited { 1.0 } else { 0.0 };
        report.check("warnings in the log", warnings, "", Bound::AtLeast(least));
        crowd.leave().await;
        sleep(self.rest.0).await;
        let after = proxy.usage()?;
        report.usage("after they left", &after);
        let bound = Bound::megabytes(self.memory_after);
        report.check("memory after a rest", after.memory_mb(), "MB", bound);
        proxy.end().await?;
        Ok(report)
    }
}

//! Guesses of tokens.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use clap::Args;
use tandem_units::HumanDuration;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    client::{Login, endpoint},
    proxy::Launch,
    report::{Bound, Report, float},
    target::Echo,
    user,
};

/// The number of guesses that wait for an answer on each connection.
const PARALLEL: usize = 8;

/// The statuses of a guess that the proxy looked at.
const JUDGED: [u16; 3] = [401, 403, 407];

/// Send wrong tokens as fast as the proxy answers them
#[derive(Args)]
pub(crate) struct Guesses {
    /// Number of connections
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Time of the attack
    #[arg(long, default_value = "6s")]
    duration: HumanDuration,
    /// Bound on the guesses that the proxy looks at
    #[arg(long, default_value_t = 100)]
    judged_max: u32,
    /// Bound on the lines in the log
    #[arg(long, default_value_t = 20)]
    lines_max: u32,
}

impl Guesses {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        let mut report = Report::new("guesses");
        let proxy = launch.start().await?;
        let target = Echo::start().await?;
        let lines = proxy.log().lines;
        let end = Instant::now() + self.duration.0;
        let mut tasks = JoinSet::new();
        for _ in 0..self.connections * PARALLEL {
            tasks.spawn(guess(proxy.login.clone(), end));
        }
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        for status in tasks.join_all().await.into_iter().flatten() {
            *statuses.entry(status).or_default() += 1;
        }
        for (status, count) in &statuses {
            let what = if *status == 0 { "closed".to_owned() } else { status.to_string() };
            report.note(format!("guesses answered with {what}"), float(*count), "");
        }
        let is_judged = |status: &u16| JUDGED.contains(status);
        let judged = statuses.iter().filter(|(status, _)| is_judged(status));
        let judged: usize = judged.map(|(_, count)| count).sum();
        let bound = Bound::AtMost(self.judged_max.into());
        report.check("guesses that were looked at", float(judged), "", bound);
        report.check_none("guesses that were right", statuses.get(&200).copied().unwrap_or(0));
        let warnings = float(proxy.log().warnings);
        report.check("warnings in the log", warnings, "", Bound::AtLeast(1.0));
        let lines = float(proxy.log().lines - lines);
        report.check("lines in the log", lines, "", Bound::AtMost(self.lines_max.into()));
        // A user of the attacker's address may ask again after a second, as `Retry-After` says.
        sleep(Duration::from_secs(2)).await;
        let pace = (1, Duration::from_secs(10));
        user::check(&proxy.login, target.address, pace, &mut report).await;
        proxy.end().await?;
        Ok(report)
    }
}

/// Guesses until the end, and returns the statuses. 0 stands for a closed connection, after which
/// the client connects again.
async fn guess(login: Login, end: Instant) -> Vec<u16> {
    let login = login.with_token("0123456789abcdef0123456789abcdef".to_owned());
    let mut statuses = Vec::new();
    let target = login.address;
    // The attack ends in the middle of a guess.
    timeout_at(end, async {
        let Ok(endpoint) = endpoint(user::ADDRESSES[0]) else { return };
        loop {
            let Ok(client) = login.connect(&endpoint, login.config(None)).await else {
                statuses.push(0);
                continue;
            };
            while let Ok(answer) = client.ask(target, &[]).await {
                statuses.push(answer.status);
            }
            statuses.push(0);
        }
    })
    .await
    .ok();
    statuses
}

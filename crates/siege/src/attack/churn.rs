//! Users who stay for a while, leave, and come again.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use quinn::Endpoint;
use tandem_units::{ByteCount, HumanDuration};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::count;
use crate::{
    client::{Login, endpoints},
    proxy::{Launch, Proxy},
    report::{Bound, Report, float},
    target::Echo,
    user,
};

/// The number of sockets that users share, each at an address of another prefix.
const SOCKETS: u8 = 64;

/// The number of handshakes that are in progress at the same time.
const HANDSHAKES: usize = 64;

/// The pause between two payloads of a user. The proxy forgets connections after 30 s.
const PAUSE: Duration = Duration::from_secs(20);

/// The number of users who come in a second at the start.
const ARRIVALS: usize = 250;

/// The wait after the last arrival, in which the proxy gives back what handshakes needed.
const SETTLE: Duration = Duration::from_secs(5);

/// The wait before the first user leaves, in which the users who are there and the proxy's memory are counted.
const COUNTED: Duration = Duration::from_secs(2);

/// Let many users, each with a connection and a flow, stay, leave and come again
#[derive(Args)]
pub(crate) struct Churn {
    /// Number of users who are there at the same time
    #[arg(long, default_value_t = 10_000)]
    users: usize,
    /// Number of users who leave in a second, and come again at once
    #[arg(long, default_value_t = 50)]
    leave: usize,
    /// Time of coming and going, after all have come
    #[arg(long, default_value = "30min")]
    duration: HumanDuration,
    /// Bound on the memory for each user, when all have come
    #[arg(long, default_value = "90kB")]
    each: ByteCount,
}

/// What users counted.
#[derive(Debug, Default)]
struct ChurnCounts {
    present: usize,
    arrivals: usize,
    echoes: usize,
    done: usize,
    failures: BTreeMap<String, usize>,
}

type Shared = Arc<Mutex<ChurnCounts>>;

/// One user.
struct ChurnUser {
    login: Login,
    endpoint: Endpoint,
    target: SocketAddr,
    /// When the user comes first.
    comes: Instant,
    /// How long the user stays at most.
    stay: Duration,
    end: Instant,
    counts: Shared,
    permits: Arc<Semaphore>,
}

impl Churn {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        let proxy = Launch { users: self.users, ..launch }.start().await?;
        let target = Echo::start().await?;
        // The first connection opens what the proxy needs for all of them.
        user::visit(&proxy.login, user::ADDRESSES[0], target.address).await?;
        let before = proxy.usage()?;
        let counts = Shared::default();
        let seconds = u64::try_from(self.users.div_ceil(ARRIVALS))?;
        let full = Instant::now() + Duration::from_secs(seconds) + SETTLE;
        let end = full + self.duration.0;
        let mut users = self.users(&proxy, target.address, (full, end), &counts)?;
        let progress = || count(&counts, |counts| counts.progress());
        proxy.watch(full, progress).await?;
        let there = count(&counts, |counts| counts.present);
        let with_all = proxy.usage()?;
        let samples = proxy.watch(end, progress).await?;
        while users.join_next().await.is_some() {}
        let mut report = Report::new("churn");
        report.usage("before", &before);
        report.usage("with all users", &with_all);
        report.usage("at the end", &proxy.usage()?);
        report.check_all("users there at the start", there, self.users);
        let grown = (with_all.memory_mb() - before.memory_mb()) * 1000.0;
        let most = Bound::kilobytes(self.each);
        report.check("memory for each user", grown / float(there.max(1)), "kB", most);
        report.check_flat(&samples);
        count(&counts, |counts| counts.report(self.users, &mut report));
        report.note("warnings in the log", float(proxy.log().warnings), "");
        proxy.end().await?;
        Ok(report)
    }

    /// Starts all users. The first stays end evenly from the moment when all have been counted.
    fn users(
        &self,
        proxy: &Proxy,
        target: SocketAddr,
        (full, end): (Instant, Instant),
        counts: &Shared,
    ) -> Result<JoinSet<()>> {
        let endpoints = endpoints(SOCKETS)?;
        let began = Instant::now();
        let stay =
            Duration::from_secs(1) * u32::try_from(self.users)? / u32::try_from(self.leave.max(1))?;
        let permits = Arc::new(Semaphore::new(HANDSHAKES));
        let mut tasks = JoinSet::new();
        for ((index, login), endpoint) in proxy.logins().enumerate().zip(endpoints.iter().cycle()) {
            let part = f64::from(u32::try_from(index)?) / f64::from(u32::try_from(self.users)?);
            let user = ChurnUser {
                login,
                endpoint: endpoint.clone(),
                target,
                comes: began + (full - SETTLE - began).mul_f64(part),
                stay,
                // 10,000 payloads at once would not find room in the target's socket.
                end: end + PAUSE.mul_f64(part),
                counts: counts.clone(),
                permits: Arc::clone(&permits),
            };
            tasks.spawn(user.come_and_go(full + COUNTED + stay.mul_f64(part)));
        }
        Ok(tasks)
    }
}

impl ChurnUser {
    /// Comes and goes until the end. The first stay ends at this time.
    async fn come_and_go(self, mut leaves: Instant) {
        sleep_until(self.comes).await;
        while Instant::now() < self.end {
            if let Err(error) = self.stay(leaves).await {
                let why = format!("{error:#}");
                count(&self.counts, |counts| *counts.failures.entry(why).or_default() += 1);
                sleep(Duration::from_secs(1)).await;
            }
            leaves = Instant::now() + self.stay;
        }
    }

    async fn stay(&self, leaves: Instant) -> Result<()> {
        let permit = self.permits.acquire().await?;
        let client = self.login.connect(&self.endpoint, self.login.config(None)).await?;
        let flow = client.open(self.target, &[]).await?;
        user::echo(&client, &flow).await?;
        drop(permit);
        count(&self.counts, |counts| {
            counts.present += 1;
            counts.arrivals += 1;
        });
        let leaves = leaves.min(self.end);
        let stayed = async {
            while timeout_at(leaves, sleep(PAUSE)).await.is_ok() {
                user::echo(&client, &flow).await?;
                count(&self.counts, |counts| counts.echoes += 1);
            }
            user::echo(&client, &flow).await
        };
        let stayed = stayed.await;
        count(&self.counts, |counts| {
            counts.present -= 1;
            counts.done += usize::from(stayed.is_ok() && leaves == self.end);
        });
        client.close();
        stayed
    }
}

impl ChurnCounts {
    fn progress(&self) -> String {
        format!(
            "{} users of {} arrivals, {} echoes, {} failures",
            self.present,
            self.arrivals,
            self.echoes,
            self.failures.values().sum::<usize>(),
        )
    }

    fn report(&self, users: usize, report: &mut Report) {
        report.note("arrivals", float(self.arrivals), "");
        report.note("echoes", float(self.echoes), "");
        report.check_failures(&self.failures);
        report.check_all("users there at the end", self.done, users);
    }
}

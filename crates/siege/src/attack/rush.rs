//! As many complete handshakes as a core can make, from one address, while users download.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use quinn::Endpoint;
use tandem_units::HumanDuration;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    client::{Client, Login, endpoint},
    proxy::Launch,
    report::{Bound, Report, float},
    target::{Echo, File},
    user,
};

/// The length of a user's download in bytes.
const DOWNLOAD: usize = 3_000_000;

/// The time after which the attacker gives up a handshake.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two downloads.
const PAUSE: Duration = Duration::from_millis(200);

/// Make as many complete handshakes as a core can, from one address, while users download 3 MB each
#[derive(Args)]
pub(crate) struct Rush {
    /// Time of the attack
    #[arg(long, default_value = "10s")]
    duration: HumanDuration,
    /// Number of handshakes that the attacker works on at the same time
    #[arg(long, default_value_t = 128)]
    at_once: usize,
    /// Time after which the attacker begins another handshake beside one that the proxy lets wait
    #[arg(long, default_value = "250ms")]
    beside: HumanDuration,
    /// Number of handshakes that the attacker must begin in a second; fewer are no attack
    #[arg(long, default_value_t = 100)]
    least: usize,
    /// Time in which a download must be complete, handshake included
    #[arg(long, default_value = "10s")]
    download: HumanDuration,
}

/// What the attacker counted.
#[derive(Debug, Default)]
struct RushCounts {
    begun: AtomicUsize,
    complete: AtomicUsize,
    ends: AtomicBool,
}

/// Users who download in turns, and what became of them.
struct Downloaders {
    whose: &'static str,
    source: IpAddr,
    /// The connection that was there before the attack.
    client: Option<Client>,
    /// Whether the proxy knows them from an earlier connection.
    come_again: bool,
    times: Vec<Duration>,
    failed: usize,
}

impl Rush {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        let mut report = Report::new("rush");
        let proxy = launch.start().await?;
        let (echo, file) = (Echo::start().await?, File::start(DOWNLOAD).await?);
        let login = proxy.login.of_newcomer();
        let [attacker, other] = user::ADDRESSES;
        let endpoint = endpoint(other)?;
        let client = login.connect(&endpoint, login.config(None)).await?;
        // The connection before the attack shows which times the machine has for downloads.
        client.download(file.address).await?;
        let calm = Instant::now();
        client.download(file.address).await?;
        report.note("a download without the attack", milliseconds(calm.elapsed()), "ms");
        let known = proxy.login.of_newcomer();
        user::visit(&known, attacker, echo.address).await?;
        let mut all = [
            Downloaders::new("other prefix, connected before", other, Some(client), false),
            Downloaders::new("other prefix", other, None, false),
            Downloaders::new("attacker's address, come again", attacker, None, true),
            Downloaders::new("attacker's address", attacker, None, false),
        ];
        let counts = Arc::new(RushCounts::default());
        let thread = self.attack(&proxy.login, attacker, &counts);
        sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        let read =
            |counts: &RushCounts| (counts.begun.load(Relaxed), counts.complete.load(Relaxed));
        let (begun_before, complete_before) = read(&counts);
        let processor_before = proxy.usage()?.processor;
        while start.elapsed() < self.duration.0 {
            for users in &mut all {
                let login = if users.come_again { &known } else { &proxy.login.of_newcomer() };
                users.download(login, (file.address, self.download.0)).await;
                sleep(PAUSE).await;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let (begun, complete) = read(&counts);
        let processor = proxy.usage()?.processor.saturating_sub(processor_before);
        let processor = processor.as_secs_f64() / seconds;
        counts.ends.store(true, Relaxed);
        thread.join().ok().context("the attacker failed")??;
        let begun = float(begun - begun_before) / seconds;
        let least = Bound::AtLeast(float(self.least));
        report.check("handshakes begun in a second", begun.round(), "", least);
        let complete = float(complete - complete_before) / seconds;
        report.note("handshakes complete in a second", complete.round(), "");
        report.note("processor time of the proxy in a second", processor, "s");
        for users in &all {
            users.report(&mut report);
        }
        proxy.end().await?;
        Ok(report)
    }

    /// Starts the attacker, who has a thread, so that users do not wait for him in this program.
    fn attack(
        &self,
        login: &Login,
        source: IpAddr,
        counts: &Arc<RushCounts>,
    ) -> thread::JoinHandle<Result<()>> {
        let (login, counts) = (login.of_newcomer(), Arc::clone(counts));
        let (at_once, beside) = (self.at_once.max(1), self.beside.0);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let endpoints = (0..10).map(|_| endpoint(source)).collect::<Result<Vec<_>>>()?;
                let permits = Arc::new(Semaphore::new(at_once));
                let mut tasks = JoinSet::new();
                for endpoint in endpoints.iter().cycle() {
                    let permit = Arc::clone(&permits).acquire_owned().await?;
                    if counts.ends.load(Relaxed) {
                        break;
                    }
                    let hurry = hurry(endpoint.clone(), login.clone(), counts.clone());
                    tasks.spawn(async move {
                        let mut hurry = std::pin::pin!(hurry);
                        if timeout(beside, &mut hurry).await.is_err() {
                            drop(permit);
                            hurry.await;
                        }
                    });
                    while tasks.try_join_next().is_some() {}
                }
                tasks.join_all().await;
                Ok(())
            })
        })
    }
}

/// Makes one handshake, and leaves the connection at once.
async fn hurry(endpoint: Endpoint, login: Login, counts: Arc<RushCounts>) {
    let config = login.config(None);
    let Ok(connecting) = endpoint.connect_with(config, login.address, "localhost") else { return };
    counts.begun.fetch_add(1, Relaxed);
    if let Ok(Ok(connection)) = timeout(PATIENCE, connecting).await {
        counts.complete.fetch_add(1, Relaxed);
        connection.close(0x100_u32.into(), b"");
    }
}

impl Downloaders {
    const fn new(
        whose: &'static str,
        source: IpAddr,
        client: Option<Client>,
        come_again: bool,
    ) -> Self {
        Self { whose, source, client, come_again, times: Vec::new(), failed: 0 }
    }

    async fn download(&mut self, login: &Login, (target, patience): (SocketAddr, Duration)) {
        let began = Instant::now();
        let downloaded = timeout(patience, async {
            if let Some(client) = &self.client {
                return client.download(target).await;
            }
            let endpoint = endpoint(self.source)?;
            let client = login.connect(&endpoint, login.config(None)).await?;
            let bytes = client.download(target).await;
            client.close();
            // The end of the connection must leave before the socket does.
            timeout(Duration::from_millis(100), endpoint.wait_idle()).await.ok();
            bytes
        });
        match downloaded.await {
            Ok(Ok(DOWNLOAD)) => self.times.push(began.elapsed()),
            Ok(Ok(bytes)) => self.fail(&format!("{bytes} bytes came")),
            Ok(Err(error)) => self.fail(&format!("{error:#}")),
            Err(_) => self.fail("the user gave up"),
        }
    }

    fn fail(&mut self, why: &str) {
        self.failed += 1;
        eprintln!("a user ({}) was not served: {why}", self.whose);
    }

    fn report(&self, report: &mut Report) {
        let Self { whose, times, failed, .. } = self;
        let served = format!("downloads, {whose}");
        // Nothing distinguishes a stranger at the attacker's address from the attacker.
        if self.come_again || self.source != user::ADDRESSES[0] {
            report.check_all(served, times.len(), times.len() + failed);
        } else {
            report.note(format!("{served} (of {})", times.len() + failed), float(times.len()), "");
        }
        let mut sorted = times.clone();
        sorted.sort_unstable();
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let slowest = sorted.last().copied().unwrap_or_default();
        report.note(format!("median, {whose}"), milliseconds(median), "ms");
        report.note(format!("slowest, {whose}"), milliseconds(slowest), "ms");
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round()
}

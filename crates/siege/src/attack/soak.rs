//! A long run of users, faults and small attacks at the same time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use quinn::Endpoint;
use tandem_units::HumanDuration;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use super::count;
use crate::{
    client::{Flow, Login, endpoint, endpoints},
    idle::Sources,
    limits::Limit,
    proxy::{Launch, Proxy},
    relay::Relay,
    report::{Bound, Report, float},
    target::Echo,
    user,
};

/// The number of users who are there at the same time at most.
const USERS_MAX: usize = 100;

/// The number of sockets that users share, each at an address of another prefix.
const USER_SOCKETS: u8 = 8;

/// One of this number of users has a bad path, and leaves without a word.
const FAULTY: usize = 25;

/// Let users come and go for a long time, with faults and small attacks in between
#[derive(Args)]
pub(crate) struct Soak {
    /// Number of flows
    #[arg(long, default_value_t = 1_000_000)]
    flows: usize,
    /// Number of connections that they share
    #[arg(long, default_value_t = 100_000)]
    connections: usize,
    /// Time for all of them
    #[arg(long, default_value = "1h")]
    duration: HumanDuration,
    /// Time until every connection that was left must have gone
    #[arg(long, default_value = "45s")]
    rest: HumanDuration,
    /// Number of idle connections of each attack that consists of them
    #[arg(long, default_value_t = 2600)]
    crowd: usize,
    #[command(flatten)]
    sources: Sources,
    /// Limit of the proxy's open files
    #[arg(long, default_value_t = 1024)]
    files: u32,
}

/// What users and attackers counted.
#[derive(Debug, Default)]
struct SoakCounts {
    connections: usize,
    flows: usize,
    echoes: usize,
    hung: usize,
    failures: BTreeMap<String, usize>,
    hits: BTreeMap<Limit, usize>,
    attacks: usize,
}

type Shared = Arc<Mutex<SoakCounts>>;

impl Soak {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        // One user alone would meet its limit of flows in a second.
        let proxy = Launch { files: Some(self.files), users: USERS_MAX, ..launch }.start().await?;
        let target = Echo::start().await?;
        let counts = Shared::default();
        // The first connection opens what the proxy needs for all of them.
        user::visit(&proxy.login, user::ADDRESSES[0], target.address).await?;
        let before = proxy.usage()?;
        let end = Instant::now() + self.duration.0;
        let attacks = tokio::spawn(attack(
            proxy.login.clone(),
            (self.sources, self.crowd),
            end,
            counts.clone(),
        ));
        let users = tokio::spawn(self.users(&proxy, &target, &counts)?);
        let progress = || count(&counts, |counts| counts.progress());
        let samples = proxy.watch(end, progress).await?;
        users.await?;
        attacks.await?;
        eprintln!("waiting {} for the last connections to go", self.rest);
        sleep(self.rest.0).await;
        let after = proxy.usage()?;
        let mut report = Report::new("soak");
        report.usage("before", &before);
        report.usage("after", &after);
        let descriptors = Bound::AtMost(float(before.descriptors));
        report.check("descriptors left", float(after.descriptors), "", descriptors);
        report.check_flat(&samples);
        count(&counts, |counts| counts.report(&mut report));
        report.note("lines in the log", float(proxy.log().lines), "");
        report.note("warnings in the log", float(proxy.log().warnings), "");
        proxy.end().await?;
        Ok(report)
    }

    /// Lets users come at an even rate.
    fn users(
        &self,
        proxy: &Proxy,
        target: &Echo,
        counts: &Shared,
    ) -> Result<impl Future<Output = ()> + 'static> {
        let endpoints = endpoints(USER_SOCKETS)?;
        let pause = self.duration.0 / u32::try_from(self.connections.max(1))?;
        let (connections, flows) = (self.connections, self.flows / self.connections.max(1));
        let logins: Vec<_> = proxy.logins().collect();
        let (target, counts) = (target.address, counts.clone());
        Ok(async move {
            let permits = Arc::new(Semaphore::new(USERS_MAX));
            let mut ticks = interval(pause.max(Duration::from_micros(100)));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut tasks = JoinSet::new();
            let places = endpoints.iter().cycle().zip(logins.iter().cycle()).take(connections);
            for (index, (endpoint, login)) in places.enumerate() {
                ticks.tick().await;
                let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
                let user = SoakUser {
                    login: login.clone(),
                    endpoint: endpoint.clone(),
                    target,
                    index,
                    flows,
                    counts: counts.clone(),
                };
                tasks.spawn(async move {
                    user.come_and_go().await;
                    drop(permit);
                });
                while tasks.try_join_next().is_some() {}
            }
            tasks.join_all().await;
        })
    }
}

/// One user, who opens a connection and some flows.
struct SoakUser {
    login: Login,
    endpoint: Endpoint,
    target: std::net::SocketAddr,
    index: usize,
    flows: usize,
    counts: Shared,
}

impl SoakUser {
    async fn come_and_go(self) {
        let used = timeout(Duration::from_secs(30), self.use_the_proxy()).await;
        count(&self.counts, |counts| match used {
            Ok(Ok(())) => {}
            Ok(Err(error)) => *counts.failures.entry(format!("{error:#}")).or_default() += 1,
            Err(_) => counts.hung += 1,
        });
    }

    async fn use_the_proxy(&self) -> Result<()> {
        let is_faulty = self.index.is_multiple_of(FAULTY);
        let mut relay = None;
        if is_faulty {
            relay = Some(Relay::start(self.login.address, 20).await?);
        }
        let address = relay.as_ref().map_or(self.login.address, |relay| relay.address);
        let own = if is_faulty { Some(endpoint(user::ADDRESSES[0])?) } else { None };
        let login = self.login.at(address);
        let endpoint = own.as_ref().unwrap_or(&self.endpoint);
        let client = login.connect(endpoint, login.config(None)).await?;
        count(&self.counts, |counts| counts.connections += 1);
        let mut left = Vec::new();
        for index in 0..self.flows {
            let flow = client.open(self.target, &[]).await?;
            count(&self.counts, |counts| counts.flows += 1);
            if index % 3 == 0 {
                user::echo(&client, &flow).await?;
                count(&self.counts, |counts| counts.echoes += 1);
            }
            left.extend(leave(flow, index));
        }
        match relay {
            // Nothing that this client still sends arrives.
            Some(relay) => drop(relay),
            None => client.close(),
        }
        Ok(())
    }
}

/// Leaves a flow in one of several ways. Returns a flow that ends with its connection.
fn leave(mut flow: Flow, way: usize) -> Option<Flow> {
    // An error says that the flow has ended already.
    match way % 4 {
        0 => drop(flow.send.finish()),
        1 => drop(flow.send.reset(0x10c_u32.into())),
        2 => drop((flow.recv.stop(0x10c_u32.into()), flow.send.reset(0x10c_u32.into()))),
        _ => return Some(flow),
    }
    None
}

/// Attacks one limit after the other until the end.
async fn attack(login: Login, crowd: (Sources, usize), end: Instant, counts: Shared) {
    for limit in Limit::ALL.into_iter().cycle() {
        if Instant::now() >= end {
            return;
        }
        let hit = timeout(Duration::from_secs(180), limit.is_hit(&login, crowd)).await;
        let is_hit = matches!(hit, Ok(Ok(true)));
        count(&counts, |counts| {
            counts.attacks += 1;
            *counts.hits.entry(limit).or_default() += usize::from(is_hit);
        });
        sleep(Duration::from_millis(500)).await;
    }
}

impl SoakCounts {
    fn progress(&self) -> String {
        format!(
            "{} connections, {} flows, {} failures, {} hung, {} attacks",
            self.connections,
            self.flows,
            self.failures.values().sum::<usize>(),
            self.hung,
            self.attacks,
        )
    }

    fn report(&self, report: &mut Report) {
        report.note("connections", float(self.connections), "");
        report.note("flows", float(self.flows), "");
        report.note("echoes", float(self.echoes), "");
        report.check_none("users who waited in vain", self.hung);
        report.check_failures(&self.failures);
        for limit in Limit::ALL {
            let hits = float(self.hits.get(&limit).copied().unwrap_or_default());
            report.check(format!("limit hit: {}", limit.name()), hits, "", Bound::AtLeast(1.0));
        }
    }
}

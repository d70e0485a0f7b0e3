//! Users with a token, who ask for what a proxy is there for.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, timeout};

use crate::{
    client::{Client, Flow, Login, endpoint},
    report::Report,
};

/// The addresses of users: that of the attacker, and one in another prefix.
pub(crate) const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1))];

/// What became of the users of one address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    /// The number of users.
    pub(crate) users: usize,
    /// The number of users who got an echo through the proxy in time.
    pub(crate) done: usize,
    /// The longest time until an echo.
    slowest: Duration,
    /// Why the last user was not served.
    failure: Option<String>,
}

/// Connects, asks for a flow and exchanges one payload with the target.
pub(crate) async fn visit(login: &Login, source: IpAddr, target: SocketAddr) -> Result<()> {
    let endpoint = endpoint(source)?;
    let client = login.connect(&endpoint, login.config(None)).await?;
    let flow = client.open(target, &[]).await?;
    echo(&client, &flow).await?;
    client.close();
    Ok(())
}

/// Exchanges one payload with the target. It tries again, because a payload may be lost.
pub(crate) async fn echo(client: &Client, flow: &Flow) -> Result<()> {
    for _ in 0..5 {
        if let Ok(echoed) = timeout(Duration::from_secs(1), client.echo(flow, b"hi")).await {
            return echoed;
        }
    }
    bail!("no payload came back");
}

impl Served {
    /// Lets one user visit the proxy. The user gives up after `patience`.
    pub(crate) async fn add(
        &mut self,
        login: &Login,
        source: IpAddr,
        (target, patience): (SocketAddr, Duration),
    ) {
        let began = Instant::now();
        let visited = timeout(patience, visit(&login.of_newcomer(), source, target)).await;
        let visited = visited.context("the user gave up").and_then(|visited| visited);
        self.users += 1;
        match visited {
            Ok(()) => self.done += 1,
            Err(error) => self.failure = Some(format!("{error:#}")),
        }
        self.slowest = self.slowest.max(began.elapsed());
    }

    /// Reports that every user must have been served.
    pub(crate) fn report(&self, whose: &str, report: &mut Report) {
        report.check_all(format!("users served, {whose}"), self.done, self.users);
        let milliseconds = self.slowest.as_secs_f64() * 1000.0;
        report.note(format!("slowest user, {whose}"), milliseconds.round(), "ms");
        if let Some(failure) = &self.failure {
            eprintln!("a user ({whose}) was not served: {failure}");
        }
    }
}

/// Lets users of the attacker's address and of another prefix visit the proxy, one after the other.
pub(crate) async fn check(
    login: &Login,
    target: SocketAddr,
    (rounds, patience): (usize, Duration),
    report: &mut Report,
) {
    for (source, whose) in ADDRESSES.into_iter().zip(["attacker's address", "other prefix"]) {
        let mut served = Served::default();
        for _ in 0..rounds {
            served.add(login, source, (target, patience)).await;
        }
        served.report(whose, report);
    }
}

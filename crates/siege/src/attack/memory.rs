//! Clients with a valid token that hold as much of the proxy's memory as they can.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use tandem_units::{ByteCount, HumanDuration};
use tandem_wire::{CONTEXT_ID_UDP, VarInt};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::gaps::{CONTEXT, numbered};
use crate::{
    client::{Client, Flow, Login, endpoint},
    proxy::Launch,
    relay::Relay,
    report::{Bound, Report, float},
    target::{Echo, FLOOD_PAYLOAD},
    user::{self, Served},
};

/// The length of a header section that is just permitted (docs/design/threats.md) but never complete.
const SECTION: usize = 16_000;

/// The number of numbered payloads behind a gap, the flows that have one, and the size of payloads.
const HELD: u32 = 4000;
const GAP_FLOWS: usize = 4;
const HELD_PAYLOAD: &[u8] = &[0; 1100];

/// Hold as much memory as clients with a token can
#[derive(Args)]
pub(crate) struct Memory {
    /// Setting of the proxy, which its memory must stay below
    #[arg(long, default_value = "300MB")]
    setting: ByteCount,
    /// Do not pass the setting to the proxy
    #[arg(long)]
    unset: bool,
    /// Number of clients of each kind
    #[arg(long, default_value_t = 20)]
    clients: usize,
    /// Time of the attack
    #[arg(long, default_value = "25s")]
    duration: HumanDuration,
}

/// The number of flows of a deaf client, and the number of payloads that the target sends to each.
const DEAF_FLOWS: usize = 10;
const FLOOD: usize = 20_000;

/// The number of requests of a client, and of requests that never come.
const REQUESTS: usize = 1000;

/// A kind of hostile client.
#[derive(Clone, Copy, Debug)]
enum HostileKind {
    /// Requests whose header section never ends, on all streams.
    Requests,
    /// Payloads behind a gap.
    Gaps,
    /// A flood of targets to a client that does not acknowledge.
    Deaf,
    /// Payloads for requests that never come.
    Early,
}

const KINDS: [HostileKind; 4] =
    [HostileKind::Requests, HostileKind::Gaps, HostileKind::Deaf, HostileKind::Early];

impl HostileKind {
    /// The bytes that a client of this kind wants the proxy to hold.
    const fn wants(self) -> usize {
        match self {
            Self::Requests => REQUESTS * SECTION,
            Self::Gaps => GAP_FLOWS * HELD as usize * HELD_PAYLOAD.len(),
            Self::Deaf => DEAF_FLOWS * FLOOD * FLOOD_PAYLOAD,
            Self::Early => REQUESTS * HELD_PAYLOAD.len(),
        }
    }
}

impl Memory {
    pub(crate) async fn run(self, mut launch: Launch) -> Result<Report> {
        let mut report = Report::new("memory");
        if !self.unset {
            launch.arguments.push(format!("--memory={}", self.setting));
        }
        let proxy = launch.start().await?;
        let (target, flood) = (Echo::start().await?, Echo::flood(FLOOD).await?);
        report.usage("before", &proxy.usage()?);
        let mut hostile = JoinSet::new();
        for _ in 0..self.clients {
            for kind in KINDS {
                hostile.spawn(hold(proxy.login.clone(), kind, flood.address));
            }
        }
        let end = Instant::now() + self.duration.0;
        let mut served = Served::default();
        while Instant::now() < end {
            let pace = (target.address, Duration::from_secs(10));
            served.add(&proxy.login, user::ADDRESSES[1], pace).await;
            sleep(Duration::from_secs(1)).await;
        }
        served.report("light, other prefix", &mut report);
        let usage = proxy.usage()?;
        report.usage("at the end", &usage);
        let bound = Bound::megabytes(self.setting);
        report.check("peak of memory", usage.peak_mb(), "MB", bound);
        let wanted: usize = KINDS.into_iter().map(|kind| self.clients * kind.wants()).sum();
        let tenfold = Bound::AtLeast(10.0 * float(usize::try_from(self.setting.get())?) / 1e6);
        report.check("what clients want it to hold", float(wanted) / 1e6, "MB", tenfold);
        report.note("hostile clients", float(self.clients * KINDS.len()), "");
        report.note("warnings in the log", float(proxy.log().warnings), "");
        hostile.shutdown().await;
        proxy.end().await?;
        Ok(report)
    }
}

/// Holds memory until the task is ended. A client whose connection ends comes back.
async fn hold(login: Login, kind: HostileKind, flood: std::net::SocketAddr) {
    loop {
        // An error is what the client wants to cause at the proxy.
        hold_once(&login, kind, flood).await.ok();
        sleep(Duration::from_secs(1)).await;
    }
}

async fn hold_once(login: &Login, kind: HostileKind, flood: std::net::SocketAddr) -> Result<()> {
    let endpoint = endpoint(user::ADDRESSES[0])?;
    let ping = Some(Duration::from_secs(5));
    let relay = Relay::start(login.address, 0).await?;
    let address = if matches!(kind, HostileKind::Deaf) { relay.address } else { login.address };
    let login = login.at(address);
    let client = login.connect(&endpoint, login.config(ping)).await?;
    match kind {
        HostileKind::Requests => requests(&client).await?,
        HostileKind::Gaps => gaps(&client, flood).await?,
        HostileKind::Deaf => deaf(&client, &relay, flood).await?,
        HostileKind::Early => {
            for stream in 0..REQUESTS as u64 {
                client.send_to(stream * 4, Bytes::from_static(HELD_PAYLOAD))?;
            }
        }
    }
    client.connection.closed().await;
    Ok(())
}

async fn requests(client: &Client) -> Result<()> {
    let mut head = vec![0x01]; // RFC 9114 §7.2.2: HEADERS
    VarInt::from_u32(u32::try_from(SECTION)?).encode(&mut head);
    head.resize(SECTION, 0);
    let mut streams = Vec::new();
    for _ in 0..REQUESTS {
        let (mut send, recv) = client.connection.open_bi().await?;
        send.write_all(&head).await?;
        streams.push((send, recv));
    }
    client.connection.closed().await;
    Ok(())
}

async fn gaps(client: &Client, target: std::net::SocketAddr) -> Result<()> {
    let field = format!("1;context={};order=ordered", CONTEXT.get());
    loop {
        let mut flows: Vec<Flow> = Vec::new();
        for _ in 0..GAP_FLOWS {
            flows.push(client.open(target, &[("tandem-repair", &field)]).await?);
        }
        for number in 1..HELD {
            for flow in &flows {
                client.send(flow, CONTEXT, numbered(number, Bytes::from_static(HELD_PAYLOAD)))?;
            }
            if number % 10 == 0 {
                sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

async fn deaf(client: &Client, relay: &Relay, flood: std::net::SocketAddr) -> Result<()> {
    let field = format!("1;context={};order=ordered", CONTEXT.get());
    let mut flows = Vec::new();
    for _ in 0..DEAF_FLOWS {
        let flow = client.open(flood, &[("tandem-repair", &field)]).await?;
        client.send(&flow, CONTEXT_ID_UDP, Bytes::from_static(b"flood"))?;
        flows.push(flow);
    }
    sleep(Duration::from_millis(200)).await;
    relay.lose_acknowledgements();
    client.connection.closed().await;
    Ok(())
}

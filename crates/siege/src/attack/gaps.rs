//! Flows with numbered payloads that leave a gap, which the proxy's resequencer waits for.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use clap::Args;
use tandem_wire::{Sequenced, VarInt};
use tokio::time::sleep;

use crate::{
    client::{Client, Flow, endpoint},
    proxy::Launch,
    report::{Bound, Report, float},
    target::Echo,
    user,
};

/// The Context ID under which numbered payloads are sent.
pub(crate) const CONTEXT: VarInt = VarInt::from_u32(2);

/// Leave a gap in the numbers of many flows
#[derive(Args)]
pub(crate) struct Gaps {
    /// Number of connections
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Number of flows of each connection
    #[arg(long, default_value_t = 1000)]
    flows: usize,
    /// Number of the second payload; the first has the number 1
    #[arg(long, default_value_t = 7100)]
    far: u32,
    /// Order that the requests ask for: window or ordered
    #[arg(long, default_value = "ordered")]
    order: String,
    /// Bound on what the payloads add to the memory, in bytes per flow: 1 kB in which a flow notes
    /// which numbers arrived, and a node of a map for the payloads and for the gaps
    #[arg(long, default_value_t = 2500)]
    bytes_per_flow: u32,
}

impl Gaps {
    pub(crate) async fn run(self, launch: Launch) -> Result<Report> {
        let mut report = Report::new("gaps");
        let proxy = launch.start().await?;
        let target = Echo::start().await?;
        let endpoint = endpoint(user::ADDRESSES[0])?;
        let before = proxy.usage()?;
        report.usage("before", &before);
        let field = format!("1;context={};order={}", CONTEXT.get(), self.order);
        let mut clients = Vec::new();
        for _ in 0..self.connections {
            let client = proxy.login.connect(&endpoint, proxy.login.config(None)).await?;
            let mut flows = Vec::new();
            for _ in 0..self.flows {
                flows.push(client.open(target.address, &[("tandem-repair", &field)]).await?);
            }
            clients.push((client, flows));
        }
        let opened = proxy.usage()?;
        report.usage("with the flows", &opened);
        let bytes = self.leave_gaps(&clients).await?;
        let gapped = proxy.usage()?;
        report.usage("with the gaps", &gapped);
        let flows = float(self.connections * self.flows);
        report.note("flows", flows, "");
        report.note("bytes of datagrams", float(bytes), "");
        let grown = gapped.peak_kb.saturating_sub(opened.memory_kb) * 1024;
        let bound = Bound::AtMost(self.bytes_per_flow.into());
        let grown = float(usize::try_from(grown)?);
        report.check("growth by the gaps, per flow", (grown / flows).round(), "B", bound);
        let pace = (1, Duration::from_secs(10));
        user::check(&proxy.login, target.address, pace, &mut report).await;
        proxy.end().await?;
        Ok(report)
    }

    /// Sends two payloads in each flow, and returns the number of their bytes.
    async fn leave_gaps(&self, clients: &[(Client, Vec<Flow>)]) -> Result<usize> {
        let mut bytes = 0;
        for (client, flows) in clients {
            for (index, flow) in flows.iter().enumerate() {
                for number in [1, self.far] {
                    let payload = numbered(number, Bytes::from_static(b"x"));
                    bytes += payload.len();
                    client.send(flow, CONTEXT, payload)?;
                }
                // The attacker's own queue of datagrams must not drop any.
                if index % 20 == 19 {
                    sleep(Duration::from_millis(5)).await;
                }
            }
        }
        sleep(Duration::from_secs(1)).await;
        clients.first().context("an attack needs a connection")?;
        Ok(bytes)
    }
}

/// A payload with this number. The sender still repairs everything before it.
pub(crate) fn numbered(number: u32, payload: Bytes) -> Bytes {
    let mut out = BytesMut::new();
    let (sequence, floor) = (VarInt::from_u32(number), VarInt::from_u32(0));
    Sequenced { sequence, floor, payload }.encode(&mut out);
    out.freeze()
}

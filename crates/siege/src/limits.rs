//! Small attacks, each of which drives the proxy to one of its limits and tells whether the proxy
//! reacted as docs/design/threats.md says.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use quinn::ConnectionError;
use tandem_wire::{CONTEXT_ID_UDP, Code, VarInt};
use tokio::time::{sleep, timeout};

use crate::{
    attack::{
        gaps::{CONTEXT, numbered},
        handshakes::{received, send_initials, sockets},
    },
    client::{Client, Login, endpoint},
    idle::{Crowd, PING, Sources},
    target::Echo,
    user,
};

/// The longest wait for the reaction of the proxy.
const REACTION: Duration = Duration::from_secs(3);

/// A limit of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// Requests that are open at the same time.
    Streams,
    /// The header section of a request.
    Section,
    /// A frame on the control stream.
    ControlFrame,
    /// A capsule.
    Capsule,
    /// A payload for a stream beyond the limit of streams.
    StreamId,
    /// Numbers that a resequencer waits for.
    Gap,
    /// The queue of a tunnel.
    Queue,
    /// Wrong tokens.
    Guesses,
    /// Handshakes that are not complete.
    Handshakes,
    /// Sockets towards targets.
    Sockets,
    /// Connections that ask for nothing.
    Connections,
}

impl Limit {
    pub(crate) const ALL: [Self; 11] = [
        Self::Streams,
        Self::Section,
        Self::ControlFrame,
        Self::Capsule,
        Self::StreamId,
        Self::Gap,
        Self::Queue,
        Self::Guesses,
        Self::Handshakes,
        Self::Sockets,
        Self::Connections,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Streams => "request streams",
            Self::Section => "header section",
            Self::ControlFrame => "frame on the control stream",
            Self::Capsule => "capsule",
            Self::StreamId => "payload of an impossible stream",
            Self::Gap => "numbers of a gap",
            Self::Queue => "queue of a tunnel",
            Self::Guesses => "guesses of a token",
            Self::Handshakes => "incomplete handshakes",
            Self::Sockets => "sockets of a connection",
            Self::Connections => "connections without a request",
        }
    }

    /// Whether an attack with this number of idle connections drives the proxy to its limit.
    pub(crate) async fn is_hit(self, login: &Login, crowd: (Sources, usize)) -> Result<bool> {
        match self {
            Self::ControlFrame => return control_frame(login).await,
            Self::Guesses => return guesses(login).await,
            Self::Handshakes => return handshakes(login).await,
            Self::Connections => return connections(login, crowd).await,
            _ => {}
        }
        let target = Echo::start().await?;
        let endpoint = endpoint(user::ADDRESSES[0])?;
        let client = login.connect(&endpoint, login.config(None)).await?;
        let is_hit = match self {
            Self::Streams => streams(&client).await?,
            Self::Section => section(&client).await?,
            Self::Capsule => capsule(&client, target.address).await?,
            Self::StreamId => {
                client.send_to(4 * 100_000, Bytes::from_static(b"x"))?;
                is_closed_with(&client, Code::H3_ID_ERROR).await
            }
            Self::Gap => gap(&client, target.address).await?,
            Self::Queue => queue(&client).await?,
            _ => many_flows(&client, target.address).await?,
        };
        client.close();
        timeout(REACTION, endpoint.wait_idle()).await.ok();
        Ok(is_hit)
    }
}

async fn is_closed_with(client: &Client, code: Code) -> bool {
    let closed = timeout(REACTION, client.connection.closed()).await;
    matches!(
        closed,
        Ok(ConnectionError::ApplicationClosed(close)) if close.error_code.into_inner() == code.0
    )
}

async fn streams(client: &Client) -> Result<bool> {
    let mut open = Vec::new();
    for _ in 0..2000 {
        match timeout(Duration::from_millis(500), client.connection.open_bi()).await {
            Ok(stream) => open.push(stream?),
            Err(_) => return Ok(true),
        }
    }
    Ok(false)
}

/// The beginning of a frame with this type and length.
fn frame(kind: u8, len: u32) -> Vec<u8> {
    let mut head = vec![kind];
    VarInt::from_u32(len).encode(&mut head);
    head
}

async fn section(client: &Client) -> Result<bool> {
    let (mut send, mut recv) = client.connection.open_bi().await?;
    send.write_all(&frame(0x01, 20_000)).await?;
    send.write_all(&vec![0; 20_000]).await.ok();
    Ok(is_reset_with(&mut recv, Code::H3_EXCESSIVE_LOAD).await)
}

async fn is_reset_with(recv: &mut quinn::RecvStream, code: Code) -> bool {
    let read = async {
        loop {
            match recv.read_chunk(usize::MAX, true).await {
                Ok(Some(_)) => {}
                Err(quinn::ReadError::Reset(reset)) => return reset.into_inner() == code.0,
                Ok(None) | Err(_) => return false,
            }
        }
    };
    timeout(REACTION, read).await.unwrap_or(false)
}

async fn control_frame(login: &Login) -> Result<bool> {
    let endpoint = endpoint(user::ADDRESSES[0])?;
    let mut control = vec![0x00]; // RFC 9114 §6.2.1: the type of a control stream
    control.extend(frame(0x04, 10_000)); // SETTINGS
    control.resize(10_000, 0);
    let client = login.connect_with_control(&endpoint, login.config(None), &control).await?;
    Ok(is_closed_with(&client, Code::H3_EXCESSIVE_LOAD).await)
}

async fn capsule(client: &Client, target: SocketAddr) -> Result<bool> {
    let mut flow = client.open(target, &[]).await?;
    let mut head = frame(0x00, 100_000);
    head.extend(frame(0x00, 90_000));
    flow.send.write_all(&head).await?;
    flow.send.write_all(&vec![0; 80_000]).await.ok();
    Ok(is_reset_with(&mut flow.recv, Code::H3_DATAGRAM_ERROR).await)
}

async fn gap(client: &Client, target: SocketAddr) -> Result<bool> {
    let field = format!("1;context={};order=ordered", CONTEXT.get());
    let flow = client.open(target, &[("tandem-repair", &field)]).await?;
    for number in [1, 8000] {
        client.send(&flow, CONTEXT, numbered(number, Bytes::from_static(b"x")))?;
        sleep(Duration::from_millis(20)).await;
    }
    // The second number is too far ahead, so the first payload leaves at once and comes back.
    Ok(timeout(REACTION, client.connection.read_datagram()).await.is_ok_and(|read| read.is_ok()))
}

async fn queue(client: &Client) -> Result<bool> {
    let count = 20_000;
    let flood = Echo::flood(count).await?;
    let flow = client.open(flood.address, &[]).await?;
    client.send(&flow, CONTEXT_ID_UDP, Bytes::from_static(b"flood"))?;
    let mut came = 0;
    while let Ok(Ok(_)) = timeout(Duration::from_secs(1), client.connection.read_datagram()).await {
        came += 1;
    }
    Ok(came < count)
}

async fn many_flows(client: &Client, target: SocketAddr) -> Result<bool> {
    let mut flows = Vec::new();
    for _ in 0..1000 {
        let answer = client.ask(target, &[]).await?;
        match answer.status {
            200 => flows.push(answer.flow),
            status => return Ok(status == 503),
        }
    }
    Ok(false)
}

/// Guesses from a prefix of its own: a proxy refuses requests of a prefix from which too many wrong tokens came, and
/// the attacks that follow must reach the limits that they are for.
async fn guesses(login: &Login) -> Result<bool> {
    let endpoint = endpoint([127, 0, 2, 1].into())?;
    let login = login.with_token("0123456789abcdef0123456789abcdef".to_owned());
    for _ in 0..6 {
        let client = login.connect(&endpoint, login.config(None)).await?;
        for _ in 0..20 {
            match timeout(REACTION, client.ask(login.address, &[])).await? {
                Ok(answer) if answer.status == 429 => return Ok(true),
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
    Ok(false)
}

async fn handshakes(login: &Login) -> Result<bool> {
    let sockets = sockets(login.address, 10).await?;
    let exchanged = send_initials(login, &sockets, (300, 1000)).await?;
    sleep(Duration::from_millis(200)).await;
    Ok(exchanged.retries + received(&sockets)?.retries > 0)
}

async fn connections(login: &Login, (sources, count): (Sources, usize)) -> Result<bool> {
    let crowd = Crowd::open(login, sources.addresses(), count, PING).await?;
    sleep(Duration::from_secs(1)).await;
    let is_hit = crowd.refused > 0 || crowd.alive() < crowd.connections.len();
    crowd.leave().await;
    Ok(is_hit)
}

//! A client of any proxy for UDP, with as many connections as are wanted, so that only proxies are compared:
//!
//! ```text
//! client connect-udp|relay PROXY CA carry CONNECTIONS LISTEN=TARGET ...
//! client connect-udp|relay PROXY CA idle CONNECTIONS FLOWS TARGET       FLOWS in each connection
//! client connect-udp|relay PROXY CA setup full|resumed COUNT TARGET     new connections, one after the other
//! ```
//!
//! Before all of them may be `--pause MICROSECONDS`.
#![expect(clippy::disallowed_methods, reason = "it measures with the real clock")]

use std::{
    collections::{BTreeMap, btree_map::Entry},
    future,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use data_path_bench::{
    echo::{Echoes, summary},
    pause::{self, Side},
    tls::Verifier,
    tunnel::{Flow, Protocol, Tunnel, socket},
};
use rustls::{ClientConfig, client::Resumption};
use tokio::{net::UdpSocket, task, time};

const ECHO: &[u8] = &[0; 64];
/// An echo that takes longer is lost.
const LIMIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(5);

fn main() -> Result<()> {
    let arguments = pause::arguments()?;
    pause::runtime()?.block_on(run(&arguments))
}

struct Proxy {
    address: SocketAddr,
    protocol: Protocol,
    verifier: Arc<Verifier>,
}

async fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [protocol, address, ca, rest @ ..] = words.as_slice() else { bail!("which proxy?") };
    let protocol = match *protocol {
        "connect-udp" => Protocol::ConnectUdp,
        "relay" => Protocol::Relay,
        other => bail!("{other} is no protocol"),
    };
    let proxy = Proxy { address: address.parse()?, protocol, verifier: Verifier::new(ca)? };
    match rest {
        ["carry", connections, listen @ ..] => carry(&proxy, connections.parse()?, listen).await,
        ["idle", connections, flows, target] => {
            idle(&proxy, connections.parse()?, flows.parse()?, target.parse()?).await
        }
        ["setup", kind, count, target] => {
            setup(&proxy, *kind == "resumed", count.parse()?, target.parse()?).await
        }
        _ => bail!("carry, idle or setup?"),
    }
}

impl Proxy {
    async fn connect(&self, tls: &Arc<ClientConfig>) -> Result<Tunnel> {
        Tunnel::connect(self.address, self.protocol, tls.clone()).await.context("no connection")
    }

    async fn connect_all(&self, connections: usize) -> Result<Vec<Tunnel>> {
        let tls = self.verifier.config(self.protocol, Resumption::disabled());
        let mut tunnels = Vec::new();
        for _ in 0..connections {
            tunnels.push(self.connect(&tls).await?);
        }
        Ok(tunnels)
    }
}

/// A local port, whose packets go to one target.
struct Local {
    socket: UdpSocket,
    number: u64,
    target: SocketAddr,
}

/// Who gets what a tunnel receives for a flow.
type Receivers = Arc<Mutex<BTreeMap<Vec<u8>, (Arc<Local>, SocketAddr)>>>;

async fn carry(proxy: &Proxy, connections: usize, listen: &[&str]) -> Result<()> {
    let mut locals = Vec::new();
    for (number, words) in listen.iter().enumerate() {
        let (listen, target) = words.split_once('=').context("no target")?;
        let socket = UdpSocket::from_std(socket(listen.parse()?)?.into())?;
        locals.push(Local { socket, number: number as u64, target: target.parse()? });
    }
    let first = locals.first().context("no local port")?;
    let tls = proxy.verifier.config(proxy.protocol, Resumption::disabled());
    let (mut tunnels, mut flows) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let tunnel = proxy.connect(&tls).await?;
        // At once, as clients do: a proxy may close connections that ask for nothing.
        let mut flow = tunnel.open(first.number, first.target).await?;
        flow.answered().await?;
        flows.push(flow);
        let receivers = Receivers::default();
        tokio::spawn(to_programs(tunnel.clone(), receivers.clone()));
        tunnels.push((tunnel, receivers));
    }
    let mut tasks = task::JoinSet::new();
    for local in locals {
        eprintln!("listening on {}", local.socket.local_addr()?);
        let open = std::mem::take(&mut flows); // the first local port has them
        tasks.spawn(from_programs(Arc::new(local), tunnels.clone(), open));
    }
    tasks.join_next().await.context("no local port")??
}

async fn to_programs(tunnel: Tunnel, receivers: Receivers) -> Result<()> {
    loop {
        let (flow, payload) = tunnel.receive().await?;
        pause::came(Side::Tunnel, 1);
        let known = receivers.lock().expect("no thread panics").get(&flow[..]).cloned();
        if let Some((local, source)) = known {
            let _ = local.socket.send_to(&payload, source).await;
        }
    }
}

/// Gives a flow to each program. Tunnels get flows in turn, of which the first ones are open.
async fn from_programs(
    local: Arc<Local>,
    tunnels: Vec<(Tunnel, Receivers)>,
    open: Vec<Flow>,
) -> Result<()> {
    let mut open = open.into_iter();
    let mut flows: BTreeMap<SocketAddr, (Tunnel, Flow)> = BTreeMap::new();
    let mut packet = [0; 2048];
    loop {
        let Ok((length, source)) = local.socket.recv_from(&mut packet).await else { continue };
        pause::came(Side::Plain, 1);
        let next = flows.len() % tunnels.len();
        let (tunnel, flow) = match flows.entry(source) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (tunnel, receivers) = &tunnels[next];
                let flow = match open.next() {
                    Some(flow) => flow,
                    None => tunnel.open(local.number, local.target).await?,
                };
                let key = flow.prefix().to_vec();
                receivers.lock().expect("no thread panics").insert(key, (local.clone(), source));
                new.insert((tunnel.clone(), flow))
            }
        };
        tunnel.send(flow.prefix(), &packet[..length]);
    }
}

async fn idle(proxy: &Proxy, connections: usize, flows: usize, target: SocketAddr) -> Result<()> {
    let mut open = Vec::new();
    for tunnel in proxy.connect_all(connections).await? {
        for _ in 0..flows {
            let mut flow = tunnel.open(0, target).await?;
            flow.answered().await?;
            tunnel.send(flow.prefix(), ECHO);
            open.push((tunnel.clone(), flow));
        }
    }
    eprintln!("listening on nothing");
    future::pending().await
}

/// The time from the first packet of a connection until the first echo through it.
async fn setup(proxy: &Proxy, resumed: bool, count: usize, target: SocketAddr) -> Result<()> {
    let resumption =
        if resumed { Resumption::in_memory_sessions(64) } else { Resumption::disabled() };
    let tls = proxy.verifier.config(proxy.protocol, resumption);
    first_echo(proxy, &tls, target).await?;
    let before = proxy.verifier.checked();
    let mut echoes = Echoes { times: Vec::new(), lost: 0 };
    for _ in 0..count {
        match first_echo(proxy, &tls, target).await? {
            Some(time) => echoes.times.push(time),
            None => echoes.lost += 1,
        }
        ensure!(echoes.lost <= 20, "more than 20 first echoes are lost");
    }
    let full = proxy.verifier.checked() - before;
    println!(r#"{{{}, "full_handshakes": {full}}}"#, summary(echoes));
    Ok(())
}

async fn first_echo(
    proxy: &Proxy,
    tls: &Arc<ClientConfig>,
    target: SocketAddr,
) -> Result<Option<Duration>> {
    let begin = Instant::now();
    let tunnel = proxy.connect(tls).await?;
    let mut flow = tunnel.open(1, target).await?;
    flow.answered().await?;
    tunnel.send(flow.prefix(), ECHO);
    let echo = time::timeout(LIMIT, tunnel.receive()).await;
    let elapsed = begin.elapsed();
    // A ticket for the next session may still arrive.
    time::sleep(PAUSE).await;
    tunnel.connection.close(0_u32.into(), b"");
    time::sleep(PAUSE).await;
    echo.ok().map(|echo| echo.map(|_| elapsed)).transpose()
}

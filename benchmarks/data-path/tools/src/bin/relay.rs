//! A relay for UDP packets with nothing but quinn and tokio: a floor for what a tunnel of QUIC datagrams costs in Rust.
//!
//! ```text
//! relay proxy LISTEN CERT KEY TARGET ...
//! relay client PROXY CA LISTEN ...            one local address for each target, in the same order
//! relay idle PROXY CA CONNECTIONS FLOWS       opens CONNECTIONS with FLOWS each, and keeps them until it is ended
//! ```
//!
//! A datagram is a flow ID (a varint) and the payload. The flow ID is four times the number of the flow, plus the
//! number of its target. There is no HTTP, no policy and no limit. It has one thread.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    env,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use socket2::{Domain, Socket, Type};
use tokio::net::UdpSocket;

const SOCKET_BUFFER: usize = 4 << 20;
const DATAGRAM_BUFFER: usize = 4 << 20;
/// A payload of 1200 bytes fits a datagram without probing.
const INITIAL_MTU: u16 = 1350;
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const TARGETS: u64 = 4;

fn main() -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["proxy", listen, cert, key, targets @ ..] => {
            let targets = targets.iter().map(|it| it.parse()).collect::<Result<Vec<_>, _>>()?;
            proxy(listen.parse()?, cert, key, targets.into()).await
        }
        ["client", proxy, ca, listen @ ..] => {
            let connection = connect(&endpoint(ca)?, proxy.parse()?).await?;
            client(connection, listen).await
        }
        ["idle", proxy, ca, connections, flows] => {
            idle(proxy.parse()?, ca, connections.parse()?, flows.parse()?).await
        }
        _ => bail!("proxy, client or idle?"),
    }
}

fn socket(listen: SocketAddr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.bind(&listen.into())?;
    Ok(socket)
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(INITIAL_MTU)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_BUFFER);
    Arc::new(transport)
}

async fn proxy(
    listen: SocketAddr,
    cert: &str,
    key: &str,
    targets: Arc<[SocketAddr]>,
) -> Result<()> {
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<_, _>>()?;
    let mut config = ServerConfig::with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.transport_config(transport());
    let socket = socket(listen)?.into();
    let endpoint =
        Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?;
    eprintln!("listening on {}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        let targets = targets.clone();
        tokio::spawn(async move {
            if let Ok(connection) = incoming.await {
                to_targets(connection, &targets).await;
            }
        });
    }
    Ok(())
}

/// Passes packets of a connection on, until it ends.
async fn to_targets(connection: Connection, targets: &[SocketAddr]) {
    let mut flows: BTreeMap<u64, Arc<UdpSocket>> = BTreeMap::new();
    while let Ok(datagram) = connection.read_datagram().await {
        let Some((flow, payload)) = split(&datagram) else { continue };
        let socket = match flows.entry(flow) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let Some(target) = targets.get((flow % TARGETS) as usize) else { continue };
                let Ok(socket) = to_target(*target) else { continue };
                let socket = Arc::new(socket);
                tokio::spawn(from_target(socket.clone(), flow, connection.clone()));
                new.insert(socket)
            }
        };
        // A packet that the kernel refuses is lost.
        let _ = socket.send(payload).await;
    }
}

fn to_target(target: SocketAddr) -> Result<UdpSocket> {
    let socket = socket(any_port())?;
    socket.connect(&target.into())?;
    Ok(UdpSocket::from_std(socket.into())?)
}

async fn from_target(socket: Arc<UdpSocket>, flow: u64, connection: Connection) {
    let mut packet = [0; 2048];
    while connection.close_reason().is_none() {
        if let Ok(length) = socket.recv(&mut packet).await {
            let _ = connection.send_datagram(joined(flow, &packet[..length]));
        }
    }
}

fn endpoint(ca: &str) -> Result<Endpoint> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(transport());
    let socket = socket(any_port())?.into();
    let mut endpoint =
        Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))?;
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

async fn connect(endpoint: &Endpoint, proxy: SocketAddr) -> Result<Connection> {
    Ok(endpoint.connect(proxy, "localhost")?.await?)
}

/// Who has which flow.
#[derive(Default)]
struct Flows {
    of_source: BTreeMap<(u64, SocketAddr), u64>,
    sources: Vec<(u64, SocketAddr)>,
}

impl Flows {
    fn id(&mut self, target: u64, source: SocketAddr) -> u64 {
        let Self { of_source, sources } = self;
        *of_source.entry((target, source)).or_insert_with(|| {
            sources.push((target, source));
            (sources.len() as u64 - 1) * TARGETS + target
        })
    }
}

async fn client(connection: Connection, listen: &[&str]) -> Result<()> {
    let flows = Arc::new(Mutex::new(Flows::default()));
    let mut locals = Vec::new();
    for (target, listen) in listen.iter().enumerate() {
        let local = Arc::new(UdpSocket::from_std(socket(listen.parse()?)?.into())?);
        eprintln!("listening on {}", local.local_addr()?);
        tokio::spawn(from_programs(
            local.clone(),
            target as u64,
            connection.clone(),
            flows.clone(),
        ));
        locals.push(local);
    }
    loop {
        let datagram = connection.read_datagram().await?;
        let Some((flow, payload)) = split(&datagram) else { continue };
        let known =
            flows.lock().expect("no thread panics").sources.get((flow / TARGETS) as usize).copied();
        if let Some((target, source)) = known {
            let _ = locals[target as usize].send_to(payload, source).await;
        }
    }
}

async fn from_programs(
    local: Arc<UdpSocket>,
    target: u64,
    connection: Connection,
    flows: Arc<Mutex<Flows>>,
) {
    let mut packet = [0; 2048];
    loop {
        if let Ok((length, source)) = local.recv_from(&mut packet).await {
            let flow = flows.lock().expect("no thread panics").id(target, source);
            let _ = connection.send_datagram(joined(flow, &packet[..length]));
        }
    }
}

async fn idle(proxy: SocketAddr, ca: &str, connections: usize, flows: u64) -> Result<()> {
    let endpoint = endpoint(ca)?;
    let mut open = Vec::new();
    for _ in 0..connections {
        let connection = connect(&endpoint, proxy).await.context("no connection")?;
        for flow in 0..flows {
            connection.send_datagram(joined(flow * TARGETS, &[0; 64]))?;
        }
        open.push(connection);
    }
    eprintln!("listening on nothing");
    std::future::pending().await
}

fn joined(flow: u64, payload: &[u8]) -> Bytes {
    let mut datagram = Vec::with_capacity(8 + payload.len());
    match flow {
        0..0x40 => datagram.push(flow as u8),
        0x40..0x4000 => datagram.extend((flow as u16 | 0x4000).to_be_bytes()),
        _ => datagram.extend((flow as u32 | 0x8000_0000).to_be_bytes()),
    }
    datagram.extend_from_slice(payload);
    datagram.into()
}

fn split(datagram: &[u8]) -> Option<(u64, &[u8])> {
    let length = 1 << (datagram.first()? >> 6);
    let (varint, payload) = datagram.split_at_checked(length)?;
    let value = varint[1..]
        .iter()
        .fold(u64::from(varint[0] & 0x3f), |value, &byte| value << 8 | u64::from(byte));
    Some((value, payload)).filter(|_| value < VarInt::MAX.into_inner())
}

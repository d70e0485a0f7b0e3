//! A relay for UDP packets with nothing but quinn and tokio: a floor for what a tunnel of QUIC datagrams costs in Rust.
//!
//! ```text
//! relay [--pause MICROSECONDS] LISTEN CERT KEY TARGET ...
//! ```
//!
//! A datagram is a flow ID (a varint) and the payload. The flow ID is four times the number of the flow, plus the
//! number of its target. There is no HTTP, no policy and no limit. It has one thread.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::SocketAddr,
    sync::Arc,
};

use anyhow::{Result, bail};
use bytes::Bytes;
use data_path_bench::{
    pause::{self, Side},
    tunnel::{TARGETS, any_port, socket, split_varint, transport, varint},
};
use quinn::{Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::net::UdpSocket;

fn main() -> Result<()> {
    let arguments = pause::arguments()?;
    pause::runtime()?.block_on(run(&arguments))
}

async fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [listen, cert, key, targets @ ..] = words.as_slice() else { bail!("relay what?") };
    let targets = targets.iter().map(|it| it.parse()).collect::<Result<Vec<_>, _>>()?;
    proxy(listen.parse()?, cert, key, targets.into()).await
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
        pause::came(Side::Tunnel, 1);
        let Some((flow, payload)) = split_varint(&datagram) else { continue };
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
            pause::came(Side::Plain, 1);
            let _ = connection.send_datagram(joined(flow, &packet[..length]));
        }
    }
}

fn joined(flow: u64, payload: &[u8]) -> Bytes {
    [&varint(flow), payload].concat().into()
}

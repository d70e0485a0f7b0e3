//! The proxy.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use bytes::Bytes;
use h3::{ext::Protocol, server::RequestResolver};
use http::{Response, StatusCode};
use quinn::Connection;
use tokio::net::UdpSocket;

use crate::{
    ends::{Packets, listen},
    tunnel,
};

/// The sockets to the targets, by the Quarter Stream ID of the request.
type Sockets = Arc<Mutex<HashMap<u64, Arc<UdpSocket>>>>;

pub async fn run(cert: &str, key: &str) -> Result<()> {
    let endpoint = listen(cert, key, Packets::Tunnel)?;
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await?;
            let result = serve(connection).await;
            eprintln!("a connection ended: {result:?}");
            anyhow::Ok(())
        });
    }
    Ok(())
}

async fn serve(connection: Connection) -> Result<()> {
    let sockets = Sockets::default();
    tokio::spawn(relay_to_targets(connection.clone(), sockets.clone()));
    let quic = h3_quinn::Connection::new(connection.clone());
    let mut builder = h3::server::builder();
    let mut http: h3::server::Connection<_, Bytes> =
        builder.enable_datagram(true).enable_extended_connect(true).build(quic).await?;
    while let Some(request) = http.accept().await? {
        let (connection, sockets) = (connection.clone(), sockets.clone());
        tokio::spawn(async move {
            if let Err(error) = tunnel_of(request, connection, sockets).await {
                eprintln!("a request failed: {error:?}");
            }
        });
    }
    Ok(())
}

async fn relay_to_targets(connection: Connection, sockets: Sockets) -> Result<()> {
    loop {
        let (quarter_id, payload) = tunnel::receive(&connection).await?;
        let socket =
            sockets.lock().unwrap_or_else(PoisonError::into_inner).get(&quarter_id).cloned();
        if let Some(socket) = socket {
            let _ = socket.send(&payload).await; // UDP may lose packets
        }
    }
}

/// Answers a request, and relays what its target sends until the client ends the tunnel.
async fn tunnel_of(
    request: RequestResolver<h3_quinn::Connection, Bytes>,
    connection: Connection,
    sockets: Sockets,
) -> Result<()> {
    let (request, mut stream) = request.resolve_request().await?;
    let is_connect_udp = request.extensions().get() == Some(&Protocol::CONNECT_UDP);
    let Some(target) = target(request.uri().path()).filter(|_| is_connect_udp) else {
        let response = Response::builder().status(StatusCode::NOT_FOUND).body(())?;
        stream.send_response(response).await?;
        return Ok(stream.finish().await?);
    };
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
    socket.connect(target).await?;
    let quarter_id = stream.id().into_inner() / 4;
    sockets.lock().unwrap_or_else(PoisonError::into_inner).insert(quarter_id, socket.clone());
    let response = Response::builder().header("capsule-protocol", "?1").body(())?;
    stream.send_response(response).await?;
    eprintln!("a tunnel to {target}");
    let mut buffer = vec![0; 65536];
    loop {
        tokio::select! {
            received = socket.recv(&mut buffer) => match received {
                Ok(len) => tunnel::send(&connection, quarter_id, &buffer[..len]),
                Err(error) => eprintln!("{target}: {error}"),
            },
            // Capsules are skipped.
            data = stream.recv_data() => if data?.is_none() { break },
        }
    }
    sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(&quarter_id);
    Ok(stream.finish().await?)
}

/// Returns the target in a path of the default template of RFC 9298 §2.
fn target(path: &str) -> Option<SocketAddr> {
    let (host, port) =
        path.strip_prefix("/.well-known/masque/udp/")?.strip_suffix('/')?.split_once('/')?;
    let host: IpAddr = host.replace("%3A", ":").parse().ok()?;
    Some(SocketAddr::new(host, port.parse().ok()?))
}

//! The client.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use bytes::{Buf as _, Bytes};
use h3::{client::SendRequest, ext::Protocol};
use h3_quinn::OpenStreams;
use http::{Method, Request, Uri};
use quinn::{Connection, VarInt};
use tokio::{fs, net::UdpSocket};

use crate::{
    ends::{Packets, connect},
    tunnel,
};

type Requests = SendRequest<OpenStreams, Bytes>;

/// Fetches a URL and writes the body to a file.
pub async fn get(ca: &str, url: &str, output: &str, proxy: Option<&str>) -> Result<()> {
    let target = address(url)?;
    let server = match proxy {
        Some(proxy) => open_tunnel(ca, proxy, target).await?,
        None => target,
    };
    let connection = connect(ca, server, Packets::Default).await?;
    let mut requests = open_http(&connection).await?;
    let mut stream = requests.send_request(Request::get(url).body(())?).await?;
    stream.finish().await?;
    let response = stream.recv_response().await?;
    ensure!(response.status().is_success(), "{}", response.status());
    let mut body = Vec::new();
    while let Some(mut data) = stream.recv_data().await? {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    connection.close(VarInt::from_u32(0x100), b""); // H3_NO_ERROR
    fs::write(output, body).await?;
    Ok(())
}

/// Opens a tunnel to a target, and returns the address of its local end.
async fn open_tunnel(ca: &str, proxy: &str, target: SocketAddr) -> Result<SocketAddr> {
    let connection = connect(ca, address(proxy)?, Packets::Tunnel).await?;
    let mut requests = open_http(&connection).await?;
    let path = format!(".well-known/masque/udp/{}/{}/", target.ip(), target.port());
    let request = Request::builder()
        .method(Method::CONNECT)
        .uri(format!("{}/{path}", proxy.trim_end_matches('/')))
        .header("capsule-protocol", "?1")
        .extension(Protocol::CONNECT_UDP)
        .body(())?;
    let mut stream = requests.send_request(request).await?;
    let response = stream.recv_response().await?;
    ensure!(response.status().is_success(), "the proxy answered {}", response.status());
    let local = UdpSocket::bind("127.0.0.1:0").await?;
    let address = local.local_addr()?;
    tokio::spawn(async move {
        let quarter_id = stream.id().into_inner() / 4;
        let result = forward(&connection, quarter_id, &local).await;
        eprintln!("the tunnel ended: {result:?}");
        drop((stream, requests));
    });
    Ok(address)
}

/// Forwards what one local program sends, and what comes back.
async fn forward(connection: &Connection, quarter_id: u64, local: &UdpSocket) -> Result<()> {
    let mut buffer = vec![0; 65536];
    let (_, program) = local.peek_from(&mut buffer).await?;
    loop {
        tokio::select! {
            received = local.recv_from(&mut buffer) => {
                let (len, _) = received?;
                tunnel::send(connection, quarter_id, &buffer[..len]);
            }
            received = tunnel::receive(connection) => {
                let (_, payload) = received?;
                local.send_to(&payload, program).await?;
            }
        }
    }
}

async fn open_http(connection: &Connection) -> Result<Requests> {
    let quic = h3_quinn::Connection::new(connection.clone());
    let mut builder = h3::client::builder();
    let (mut driver, requests) =
        builder.enable_datagram(true).enable_extended_connect(true).build(quic).await?;
    tokio::spawn(async move { driver.wait_idle().await });
    Ok(requests)
}

/// Returns the address in a URL, which must be a literal one with a port.
fn address(url: &str) -> Result<SocketAddr> {
    let uri: Uri = url.parse()?;
    let authority = uri.authority().context("a URL needs an authority")?;
    Ok(authority.as_str().parse()?)
}

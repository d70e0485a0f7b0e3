//! A proxy for CONNECT-UDP (RFC 9298) on tokio-quiche, whose HTTP/3 driver knows datagrams:
//!
//! ```text
//! tokio-quiche LISTEN CERT KEY
//! ```
//!
//! It has no policy and no limits of its own. It has one thread.

use std::{
    collections::BTreeMap,
    env,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result, anyhow, bail};
use futures::{SinkExt, StreamExt};
use socket2::{Domain, Socket, Type};
use tokio::{net::UdpSocket, task};
use tokio_quiche::{
    ConnectionParams, ServerH3Controller, ServerH3Driver,
    datagram_socket::DgramBuffer,
    http3::{
        driver::{
            H3Event, InboundFrame, InboundFrameStream, IncomingH3Headers, OutboundFrame,
            OutboundFrameSender, ServerH3Event,
        },
        settings::Http3Settings,
    },
    listen,
    metrics::DefaultMetrics,
    quiche::h3::{Header, NameValue},
    settings::{CertificateKind, Hooks, QuicSettings, TlsCertificatePaths},
};

/// No packet may be lost because a socket is full.
const SOCKET_BUFFER: usize = 4 << 20;
const STREAMS: u64 = 5000;
/// As large as QUIC packets of the other peers.
const MAX_PACKET: usize = 1452;
/// Room for the number of the flow, which the driver puts before the context ID.
const HEADROOM: usize = 8;
const UDP_PAYLOAD: u8 = 0;

fn main() -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, cert, key] = arguments.as_slice() else { bail!("listen where?") };
    let mut settings = QuicSettings::default();
    settings.initial_max_streams_bidi = STREAMS;
    settings.max_send_udp_payload_size = MAX_PACKET;
    settings.max_recv_udp_payload_size = MAX_PACKET;
    settings.discover_path_mtu = true;
    settings.disable_client_ip_validation = true;
    let paths = TlsCertificatePaths { cert, private_key: key, kind: CertificateKind::X509 };
    let params = ConnectionParams::new_server(settings, paths, Hooks::default());
    let socket = UdpSocket::from_std(socket(address.parse()?)?.into())?;
    eprintln!("listening on {}", socket.local_addr()?);
    let mut listeners = listen([socket], params, DefaultMetrics)?;
    let connections = &mut listeners[0];
    while let Some(connection) = connections.next().await {
        let Ok(connection) = connection else { continue };
        let mut settings = Http3Settings::default();
        settings.enable_extended_connect = true;
        let (driver, controller) = ServerH3Driver::new(settings);
        connection.start(driver);
        tokio::spawn(serve(controller));
    }
    Ok(())
}

fn socket(listen: SocketAddr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.bind(&listen.into())?;
    Ok(socket)
}

/// Serves a connection. The driver announces the flow of a request before its header.
async fn serve(mut controller: ServerH3Controller) {
    let mut announced = BTreeMap::new();
    let mut flows = task::JoinSet::new();
    while let Some(event) = controller.event_receiver_mut().recv().await {
        match event {
            ServerH3Event::Core(H3Event::NewFlow { flow_id, send, recv }) => {
                announced.insert(flow_id, (send, recv));
            }
            ServerH3Event::Headers { incoming_headers: request, .. } => {
                if let Some((send, receive)) = announced.remove(&(request.stream_id / 4)) {
                    flows.spawn(carry(request, send, receive));
                }
            }
            ServerH3Event::Core(H3Event::ConnectionShutdown(_)) => return,
            ServerH3Event::Core(_) => {}
        }
    }
}

/// Answers a request, and carries the packets of its flow until the client ends it.
async fn carry(
    mut request: IncomingH3Headers,
    send: OutboundFrameSender,
    mut receive: InboundFrameStream,
) -> Result<()> {
    let socket = Arc::new(to_target(&request.headers)?);
    let answer = vec![Header::new(b":status", b"200"), Header::new(b"capsule-protocol", b"?1")];
    let answer = OutboundFrame::Headers(answer, None);
    request.send.send(answer).await.map_err(|_| anyhow!("no connection"))?;
    let from_target =
        tokio::spawn(from_target(socket.clone(), send, request.stream_id / 4)).abort_handle();
    loop {
        tokio::select! {
            frame = receive.recv() => match frame {
                Some(InboundFrame::Datagram(datagram)) => {
                    if let [UDP_PAYLOAD, payload @ ..] = datagram.as_slice() {
                        // A packet that the kernel refuses is lost.
                        let _ = socket.send(payload).await;
                    }
                }
                Some(InboundFrame::Body(..)) => {}
                None => break,
            },
            body = request.recv.recv() => if !matches!(body, Some(InboundFrame::Body(_, false))) {
                break;
            },
        }
    }
    from_target.abort();
    Ok(())
}

async fn from_target(socket: Arc<UdpSocket>, mut send: OutboundFrameSender, flow: u64) {
    let mut packet = [UDP_PAYLOAD; 2048];
    loop {
        let Ok(length) = socket.recv(&mut packet[1..]).await else { continue };
        let datagram = [&[0; HEADROOM][..], &packet[..=length]].concat();
        let datagram = DgramBuffer::from_vec_with_headroom(datagram, HEADROOM);
        if send.send(OutboundFrame::Datagram(datagram, flow)).await.is_err() {
            return;
        }
    }
}

/// A socket to the target in the path of a request.
fn to_target(headers: &[Header]) -> Result<UdpSocket> {
    let path = headers.iter().find(|header| header.name() == b":path").context("no path")?;
    let path = str::from_utf8(path.value())?;
    let target = path.strip_prefix("/.well-known/masque/udp/").context("another path")?;
    let (host, port) = target.trim_end_matches('/').split_once('/').context("no port")?;
    let socket = socket((Ipv4Addr::UNSPECIFIED, 0).into())?;
    let target = SocketAddr::new(host.parse()?, port.parse()?);
    socket.connect(&target.into())?;
    Ok(UdpSocket::from_std(socket.into())?)
}

//! The client's end of tunnels for UDP on quinn: connections to a proxy, and flows in them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, TokioRuntime,
    TransportConfig, crypto::rustls::QuicClientConfig,
};
use socket2::{Domain, Socket, Type};

use crate::connect_udp;

const SOCKET_BUFFER: usize = 4 << 20;
const DATAGRAM_BUFFER: usize = 4 << 20;
/// A payload of 1200 bytes fits a datagram without probing.
const INITIAL_MTU: u16 = 1350;
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A flow ID of the plain relay is the number of the flow times this, plus the number of its target.
pub const TARGETS: u64 = 4;

/// What a proxy speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 9298: one request for each flow.
    ConnectUdp,
    /// The plain relay: a flow is a number.
    Relay,
}

impl Protocol {
    pub fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Self::ConnectUdp => vec![b"h3".to_vec()],
            Self::Relay => Vec::new(),
        }
    }
}

pub fn socket(listen: SocketAddr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.bind(&listen.into())?;
    Ok(socket)
}

pub fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// For a client's end of a connection. Another address has ports of its own: one does not have enough for all of 10,000
/// connections, their flows, and the programs.
pub fn any_port_of_client() -> SocketAddr {
    (Ipv4Addr::new(127, 0, 0, 3), 0).into()
}

pub fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(INITIAL_MTU)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_BUFFER);
    Arc::new(transport)
}

/// A connection to a proxy, with a socket of its own, as that of another client would have.
#[derive(Clone)]
pub struct Tunnel {
    pub connection: Connection,
    protocol: Protocol,
    /// How many flows of the plain relay there are.
    relayed: Arc<AtomicU64>,
    _control: Option<Arc<SendStream>>,
}

/// A flow of a tunnel: what is put before its payloads, and its request.
pub struct Flow {
    prefix: Vec<u8>,
    request: Option<(SendStream, RecvStream)>,
}

impl Tunnel {
    pub async fn connect(
        proxy: SocketAddr,
        protocol: Protocol,
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self> {
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(transport());
        let socket = socket(any_port_of_client())?.into();
        let endpoint =
            Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))?;
        let connection = endpoint.connect_with(config, proxy, "localhost")?.await?;
        let control = match protocol {
            Protocol::ConnectUdp => {
                let mut control = connection.open_uni().await?;
                control.write_all(connect_udp::SETTINGS).await?;
                Some(Arc::new(control))
            }
            Protocol::Relay => None,
        };
        Ok(Self { connection, protocol, relayed: Arc::default(), _control: control })
    }

    /// Opens a flow to a target, and does not wait for the answer.
    pub async fn open(&self, number: u64, target: SocketAddr) -> Result<Flow> {
        if self.protocol == Protocol::Relay {
            let flow = self.relayed.fetch_add(1, Ordering::Relaxed) * TARGETS + number;
            return Ok(Flow { prefix: varint(flow), request: None });
        }
        let (mut send, receive) = self.connection.open_bi().await?;
        let proxy = self.connection.remote_address();
        send.write_all(&connect_udp::request(proxy, target)).await?;
        let mut prefix = varint(u64::from(send.id()) / 4);
        prefix.push(connect_udp::UDP_PAYLOAD);
        Ok(Flow { prefix, request: Some((send, receive)) })
    }

    /// The prefix of a flow and the payload of the next datagram.
    pub async fn receive(&self) -> Result<(Bytes, Bytes)> {
        loop {
            let mut datagram = self.connection.read_datagram().await?;
            let Some(&first) = datagram.first() else { continue };
            let context = usize::from(self.protocol == Protocol::ConnectUdp);
            let length = (1 << (first >> 6)) + context;
            if datagram.len() >= length {
                return Ok((datagram.split_to(length), datagram));
            }
        }
    }

    pub fn send(&self, flow: &[u8], payload: &[u8]) {
        // What does not fit is lost.
        let _ = self.connection.send_datagram([flow, payload].concat().into());
    }
}

impl Flow {
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Waits for the proxy's answer, if its protocol has one.
    pub async fn answered(&mut self) -> Result<()> {
        if let Some((_, receive)) = &mut self.request {
            receive.read_chunk(usize::MAX, true).await?.context("the proxy ended a request")?;
        }
        Ok(())
    }
}

pub fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        _ => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
    }
}

/// A number, and what follows it.
pub fn split_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = 1 << (bytes.first()? >> 6);
    let (varint, rest) = bytes.split_at_checked(length)?;
    let value = varint[1..]
        .iter()
        .fold(u64::from(varint[0] & 0x3f), |value, &byte| value << 8 | u64::from(byte));
    Some((value, rest))
}

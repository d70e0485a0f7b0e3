//! A program that opens flows through a tunnel by itself, without a local UDP port.
//!
//! It connects a [`Client`] to a proxy, opens two flows to a target, which echoes, and prints what
//! comes back. The proxy and the target are in this program too, so that all packets use loopback:
//!
//! ```text
//! $ cargo run -p tandem-net --example embedded_client
//! the tunnel to 127.0.0.1:40571 was up
//! the first flow got 5 bytes: hello
//! the second flow got 1400 bytes
//! ```

#[path = "server/mod.rs"]
mod server;

use std::{
    error::Error,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    version::TLS13,
};
use tandem_net::{Client, ClientError, ClientOptions, DriverOptions};
use tandem_node::{
    Proxy, ProxyConfig,
    proxy::{Access, NamedToken, TargetPolicy, Token},
    quic::Transport,
    tls::{KeyExchange, provider},
};
use tokio::net::UdpSocket;

use self::server::Server;

/// The token that the proxy wants.
pub(crate) const TOKEN: &str = "a-token-of-the-example";

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn main() -> Result<(), Box<dyn Error>> {
    let (proxy, pem) = start_proxy()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let url = format!("https://{}", proxy.address);
    let [first, second] = runtime.block_on(async {
        let target = start_echo().await?;
        let options = ClientOptions::new(url).token(TOKEN).ca(pem);
        Ok::<_, Box<dyn Error>>(talk(options, target).await?)
    })?;
    println!("the tunnel to {} was up", proxy.address);
    println!("the first flow got {} bytes: {}", first.len(), first.escape_ascii());
    println!("the second flow got {} bytes", second.len());
    proxy.stop()?;
    Ok(())
}

/// Sends a payload on each of two flows, and returns what comes back.
pub(crate) async fn talk(
    options: ClientOptions,
    target: SocketAddr,
) -> Result<[Vec<u8>; 2], ClientError> {
    let client = Client::connect(options).await?;
    let first = client.open_udp(target.ip().to_string(), target.port()).await?;
    let second = client.open_udp(target.ip().to_string(), target.port()).await?;
    first.send(b"hello").await?;
    second.send(&[0; 1400]).await?;
    let echoes = [first.recv().await?.to_vec(), second.recv().await?.to_vec()];
    client.close().await?;
    Ok(echoes)
}

/// Starts a target that sends everything back, as a task.
pub(crate) async fn start_echo() -> std::io::Result<SocketAddr> {
    let socket = UdpSocket::bind(ANY_PORT).await?;
    let address = socket.local_addr()?;
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            let payload = buffer.get(..len).unwrap_or_default();
            // A datagram that cannot be sent is lost, as others are.
            socket.send_to(payload, from).await.unwrap_or_default();
        }
    });
    Ok(address)
}

/// Starts a proxy that carries packets to loopback for those who know the token. Returns it with its
/// certificate, which clients must trust.
pub(crate) fn start_proxy() -> Result<(Server<Proxy>, String), Box<dyn Error>> {
    let identity = Identity::new()?;
    Ok((identity.start_proxy(ANY_PORT)?, identity.pem))
}

/// The certificate of a proxy.
pub(crate) struct Identity {
    pub(crate) pem: String,
    tls: rustls::ServerConfig,
}

impl Identity {
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        let pair = rcgen::KeyPair::generate()?;
        let params = rcgen::CertificateParams::new([ANY_PORT.ip().to_string()])?;
        let certificate = params.self_signed(&pair)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.serialize_der()));
        let tls = rustls::ServerConfig::builder_with_provider(provider(KeyExchange::Hybrid))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        Ok(Self { pem: certificate.pem(), tls })
    }

    /// Starts a proxy that listens here.
    pub(crate) fn start_proxy(&self, listen: SocketAddr) -> Result<Server<Proxy>, Box<dyn Error>> {
        let config = ProxyConfig {
            transport: Transport::tunnel(),
            access: Access::Tokens(vec![NamedToken::new("example", Token::parse(TOKEN)?)?]),
            policy: TargetPolicy::allowing(vec!["127.0.0.0/8".parse()?]),
            ..ProxyConfig::new(listen, self.tls.clone())
        };
        Server::start(Proxy::new(config)?, DriverOptions::default())
    }
}

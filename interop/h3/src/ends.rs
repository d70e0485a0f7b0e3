//! The ends of QUIC connections: their TLS and their packets.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result};
use quinn::{
    ClientConfig, Connection, Endpoint, ServerConfig, TransportConfig,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

const ALPN: &[u8] = b"h3";

/// The packets of a tunnel are so large from the start that its datagrams have room for the packets of a connection
/// inside it, which have 1200 bytes or more.
const TUNNEL_PACKET_LEN: u16 = 1452;

/// Which packets a connection sends.
#[derive(Clone, Copy)]
pub enum Packets {
    /// quinn's default: 1200 bytes at first, and more when probes have arrived.
    Default,
    /// Those of a tunnel.
    Tunnel,
}

fn transport(packets: Packets) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    if matches!(packets, Packets::Tunnel) {
        transport.initial_mtu(TUNNEL_PACKET_LEN);
    }
    Arc::new(transport)
}

/// Listens on a free port of loopback, and prints it.
pub fn listen(cert: &str, key: &str, packets: Packets) -> Result<Endpoint> {
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let mut tls =
        rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport(packets));
    let endpoint = Endpoint::server(config, SocketAddr::from(([127, 0, 0, 1], 0)))?;
    println!("listening on {}", endpoint.local_addr()?);
    Ok(endpoint)
}

/// Connects to a server, whose certificate must be from this CA.
pub async fn connect(ca: &str, server: SocketAddr, packets: Packets) -> Result<Connection> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let mut tls =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport(packets));
    let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let connecting = endpoint.connect_with(config, server, &server.ip().to_string())?;
    connecting.await.with_context(|| format!("cannot connect to {server}"))
}

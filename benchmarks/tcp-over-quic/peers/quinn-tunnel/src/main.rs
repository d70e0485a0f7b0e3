//! A tunnel for TCP in QUIC, with quinn and tokio alone: each TCP connection is one bidirectional
//! stream, and all streams share one QUIC connection. It stands for the tunnel that the paper
//! describes, and is a peer of the benchmark only: it checks neither targets nor tokens.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use quinn::{
    ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig, TransportConfig,
    VarInt, congestion,
};
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
};

/// The largest piece that is copied at once.
const PIECE: usize = 64 * 1024;

#[derive(Clone, Copy, ValueEnum)]
enum Controller {
    Cubic,
    Bbr,
}

#[derive(Parser)]
struct Common {
    /// Congestion controller of this end
    #[arg(long, default_value = "cubic")]
    controller: Controller,

    /// Window of each stream and of the connection in bytes [default: those of quinn]
    #[arg(long)]
    window: Option<u32>,

    /// Largest number of streams at a time
    #[arg(long, default_value_t = 100)]
    streams: u32,
}

#[derive(Parser)]
enum Command {
    /// The end that connects to the service
    Serve {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        dest: SocketAddr,
        #[arg(long)]
        cert: PathBuf,
        #[arg(long)]
        key: PathBuf,
        #[command(flatten)]
        common: Common,
    },
    /// The end that programs connect to
    Connect {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        dest: SocketAddr,
        #[arg(long)]
        ca: PathBuf,
        #[command(flatten)]
        common: Common,
    },
}

impl Common {
    fn transport(&self) -> Arc<TransportConfig> {
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(self.streams.into())
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .keep_alive_interval(Some(Duration::from_secs(2)));
        match self.controller {
            Controller::Cubic => transport
                .congestion_controller_factory(Arc::new(congestion::CubicConfig::default())),
            Controller::Bbr => {
                transport.congestion_controller_factory(Arc::new(congestion::BbrConfig::default()))
            }
        };
        if let Some(window) = self.window {
            transport
                .stream_receive_window(window.into())
                .receive_window(window.into())
                .send_window(window.into());
        }
        Arc::new(transport)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    match Command::parse() {
        Command::Serve { listen, dest, cert, key, common } => {
            let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<_, _>>()?;
            let mut config =
                ServerConfig::with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
            config.transport_config(common.transport());
            serve(Endpoint::server(config, listen)?, dest).await
        }
        Command::Connect { listen, dest, ca, common } => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(ca)?)?;
            let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
            config.transport_config(common.transport());
            let mut endpoint = Endpoint::client("0.0.0.0:0".parse()?)?;
            endpoint.set_default_client_config(config);
            let connection = endpoint.connect(dest, &dest.ip().to_string())?.await?;
            connect(TcpListener::bind(listen).await?, &connection).await
        }
    }
}

async fn serve(endpoint: Endpoint, dest: SocketAddr) -> Result<()> {
    eprintln!("listening on {}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await?;
            loop {
                let (send, recv) = connection.accept_bi().await?;
                tokio::spawn(async move {
                    let tcp = TcpStream::connect(dest).await?;
                    relay(tcp, send, recv).await
                });
            }
            #[expect(unreachable_code, reason = "it names the type of the errors above")]
            anyhow::Ok(())
        });
    }
    Ok(())
}

async fn connect(listener: TcpListener, connection: &Connection) -> Result<()> {
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (tcp, _) = listener.accept().await?;
        let connection = connection.clone();
        tokio::spawn(async move {
            let (send, recv) = connection.open_bi().await.context("no stream")?;
            relay(tcp, send, recv).await
        });
    }
}

/// Copies both ways until both directions have ended, or one has failed.
async fn relay(mut tcp: TcpStream, send: SendStream, recv: RecvStream) -> Result<()> {
    tcp.set_nodelay(true)?;
    let (read, write) = tcp.split();
    tokio::try_join!(to_stream(read, send), to_tcp(recv, write))?;
    Ok(())
}

async fn to_stream(mut from: tcp::ReadHalf<'_>, mut to: SendStream) -> Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece).await? {
            0 => return Ok(to.finish()?),
            count => to.write_all(&piece[..count]).await?,
        }
    }
}

async fn to_tcp(mut from: RecvStream, mut to: tcp::WriteHalf<'_>) -> Result<()> {
    while let Some(chunk) = from.read_chunk(PIECE, true).await? {
        to.write_all(&chunk.bytes).await?;
    }
    Ok(to.shutdown().await?)
}

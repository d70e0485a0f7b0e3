//! Targets on loopback.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, UdpSocket},
    task::JoinHandle,
};

/// The size of the payloads of a flood in bytes.
pub(crate) const FLOOD_PAYLOAD: usize = 1200;

/// A target that sends back what it gets. It ends when it is dropped.
pub(crate) struct Echo {
    /// Its address.
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Echo {
    /// A target that sends every payload back.
    pub(crate) async fn start() -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.context("no socket for a target")?;
        let address = socket.local_addr()?;
        let task = tokio::spawn(async move {
            let mut buf = vec![0; 65_536];
            loop {
                // An error is that of an earlier payload, whose receiver has gone.
                let Ok((len, from)) = socket.recv_from(&mut buf).await else { continue };
                let Some(payload) = buf.get(..len) else { continue };
                socket.send_to(payload, from).await.ok();
            }
        });
        Ok(Self { address, task })
    }

    /// A target that answers every payload with this number of large ones.
    pub(crate) async fn flood(count: usize) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.context("no socket for a target")?;
        let address = socket.local_addr()?;
        let task = tokio::spawn(async move {
            let mut buf = [0; 1500];
            loop {
                let Ok((_, from)) = socket.recv_from(&mut buf).await else { continue };
                for _ in 0..count {
                    socket.send_to(&[0; FLOOD_PAYLOAD], from).await.ok();
                }
            }
        });
        Ok(Self { address, task })
    }
}

/// A TCP target that sends a file to everybody. It ends when it is dropped.
pub(crate) struct File {
    /// Its address.
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl File {
    /// A target with a file of this many bytes.
    pub(crate) async fn start(bytes: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no socket for a target")?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move { stream.write_all(&vec![7; bytes]).await });
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

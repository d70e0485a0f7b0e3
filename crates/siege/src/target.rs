//! Targets on loopback.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::{net::UdpSocket, task::JoinHandle};

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

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

//! Targets on loopback.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::{net::UdpSocket, task::JoinHandle};

/// A target that sends every payload back. It ends when it is dropped.
pub(crate) struct Echo {
    /// Its address.
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Echo {
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
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

//! A path between one client and the proxy that loses packets, or all of them at once.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result};
use tokio::{net::UdpSocket, task::JoinHandle};

/// A path for one client. No packet passes when it is dropped.
pub(crate) struct Relay {
    /// The address to which the client connects.
    pub(crate) address: SocketAddr,
    is_deaf: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Relay {
    /// Starts a path that loses one of `loss` packets towards the proxy. 0: none.
    pub(crate) async fn start(proxy: SocketAddr, loss: u32) -> Result<Self> {
        let front = UdpSocket::bind("127.0.0.1:0").await.context("no socket for a relay")?;
        let back = UdpSocket::bind("127.0.0.1:0").await.context("no socket for a relay")?;
        back.connect(proxy).await?;
        let address = front.local_addr()?;
        let is_deaf = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(carry(front, back, loss, Arc::clone(&is_deaf)));
        Ok(Self { address, is_deaf, task })
    }

    /// Loses every further packet to the proxy, and so the client's acknowledgements.
    pub(crate) fn lose_acknowledgements(&self) {
        self.is_deaf.store(true, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(front: UdpSocket, back: UdpSocket, loss: u32, is_deaf: Arc<AtomicBool>) {
    let mut client = None;
    let (mut up, mut down) = ([0; 2048], [0; 2048]);
    let mut count: u32 = 0;
    loop {
        tokio::select! {
            received = front.recv_from(&mut up) => {
                let Ok((len, from)) = received else { continue };
                client = Some(from);
                count = count.wrapping_add(1);
                let is_lost = count.checked_rem(loss) == Some(0) || is_deaf.load(Ordering::Relaxed);
                if !is_lost && let Some(packet) = up.get(..len) {
                    back.send(packet).await.ok();
                }
            }
            received = back.recv(&mut down) => {
                if let (Ok(len), Some(client)) = (received, client)
                    && let Some(packet) = down.get(..len)
                {
                    front.send_to(packet, client).await.ok();
                }
            }
        }
    }
}

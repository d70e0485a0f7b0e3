//! A crowd of connections that stay open and ask for nothing.

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::Result;
use quinn::{Connection, Endpoint};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use crate::client::{Login, endpoint};

/// The silence after which a connection of a crowd sends a PING, unless an attack needs another one.
pub(crate) const PING: Duration = Duration::from_secs(10);

/// The number of handshakes that are in progress at the same time.
const HANDSHAKES: usize = 64;

/// The longest time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections without a request.
pub(crate) struct Crowd {
    endpoints: Vec<Endpoint>,
    /// The connections that were let in.
    pub(crate) connections: Vec<Connection>,
    /// The number of connections that were refused or timed out.
    pub(crate) refused: usize,
}

impl Crowd {
    /// Opens connections from a number of sockets of one address. Each connection sends a PING
    /// after this silence.
    pub(crate) async fn open(
        login: &Login,
        source: IpAddr,
        (sockets, count): (usize, usize),
        ping: Duration,
    ) -> Result<Self> {
        let endpoints: Vec<_> = (0..sockets).map(|_| endpoint(source)).collect::<Result<_>>()?;
        let config = login.of_newcomer().config(Some(ping));
        let permits = Arc::new(Semaphore::new(HANDSHAKES));
        let mut tasks = JoinSet::new();
        for endpoint in endpoints.iter().cycle().take(count) {
            let (endpoint, config) = (endpoint.clone(), config.clone());
            let (permits, address) = (Arc::clone(&permits), login.address);
            tasks.spawn(async move {
                let _permit = permits.acquire().await.ok()?;
                let connecting = endpoint.connect_with(config, address, "localhost").ok()?;
                timeout(HANDSHAKE_TIMEOUT, connecting).await.ok()?.ok()
            });
        }
        let connections: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        let refused = count - connections.len();
        Ok(Self { endpoints, connections, refused })
    }

    /// The number of connections that the proxy has not closed.
    pub(crate) fn alive(&self) -> usize {
        self.connections.iter().filter(|connection| connection.close_reason().is_none()).count()
    }

    /// Closes all connections, and waits until the proxy was told.
    pub(crate) async fn leave(self) {
        for connection in &self.connections {
            connection.close(0x100_u32.into(), b"");
        }
        drop(self.connections);
        for endpoint in &self.endpoints {
            timeout(HANDSHAKE_TIMEOUT, endpoint.wait_idle()).await.ok();
        }
    }
}

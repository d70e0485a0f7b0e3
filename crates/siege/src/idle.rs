//! A crowd of connections that stay open and ask for nothing.

use std::{iter, net::IpAddr, sync::Arc, time::Duration};

use anyhow::Result;
use clap::Args;
use quinn::{Connection, Endpoint};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use crate::{
    client::{Login, endpoint},
    user,
};

/// The silence after which a connection of a crowd sends a PING, unless an attack needs another one.
pub(crate) const PING: Duration = Duration::from_secs(10);

/// The number of handshakes that are in progress at the same time.
const HANDSHAKES: usize = 64;

/// The longest time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How many connections, and from where.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Sources {
    /// Number of prefixes from which idle connections without a token come, 1 to 50
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=50))]
    prefixes: u8,
    /// Number of sockets of each prefix that these connections share
    #[arg(long, default_value_t = 10)]
    sockets: usize,
}

impl Sources {
    /// An address of each socket: that of the attacker, and others that no user has.
    pub(crate) fn addresses(self) -> impl Iterator<Item = IpAddr> {
        let others = (1..self.prefixes).map(|index| [127, 0, 100 + index, 1].into());
        let prefixes = iter::once(user::ADDRESSES[0]).chain(others);
        prefixes.flat_map(move |address| iter::repeat_n(address, self.sockets))
    }
}

/// Connections without a request.
pub(crate) struct Crowd {
    endpoints: Vec<Endpoint>,
    /// The connections that were let in.
    pub(crate) connections: Vec<Connection>,
    /// The number of connections that were refused or timed out.
    pub(crate) refused: usize,
}

impl Crowd {
    /// Opens connections from a socket of each of these addresses in turn. Each connection sends a PING after this
    /// silence.
    pub(crate) async fn open(
        login: &Login,
        addresses: impl Iterator<Item = IpAddr>,
        count: usize,
        ping: Duration,
    ) -> Result<Self> {
        let endpoints: Vec<_> = addresses.map(endpoint).collect::<Result<_>>()?;
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

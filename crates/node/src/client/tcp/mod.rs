//! TCP connections of local programs, each of which gets a request stream through the tunnel.

use std::net::SocketAddr;

use super::{Client, FlowConfig};

/// A way in which local programs give TCP connections to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpService {
    /// Every connection to a local address goes to one target.
    Forward {
        /// The local address.
        listen: SocketAddr,
        /// The target, and how urgent its flows are.
        target: FlowConfig,
    },
    /// A proxy for local programs, which speaks SOCKS5 (RFC 1928) and HTTP/1.1 (RFC 9110 §9.3.6 and
    /// RFC 9112 §3.2.2).
    Proxy {
        /// The local address.
        listen: SocketAddr,
        /// What programs have to show. `None`: nothing.
        credentials: Option<Credentials>,
    },
    /// The standard input and output of the process are one connection to a target. The client ends
    /// with it.
    Stdio {
        /// The target, and how urgent its flow is.
        target: FlowConfig,
    },
}

/// A user and a password, which programs show to the local proxy. They are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name: 1 to 255 bytes without a colon.
    pub user: String,
    /// The password: 1 to 255 bytes.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

impl Client {
    /// Adds a way in which local programs give TCP connections to this client, before it is first
    /// polled. The client must have the task [`Task::Forward`](super::Task::Forward).
    pub fn add_tcp_service(&mut self, service: TcpService) {
        self.tcp_services.push(service);
    }
}

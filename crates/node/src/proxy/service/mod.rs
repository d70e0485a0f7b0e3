//! What a flow is for: UDP payloads, or one TCP connection. Each service has a file of its own; the life of a flow is
//! the same for all.

pub(super) mod race;
pub(super) mod tcp;
pub(super) mod udp;

use std::net::SocketAddr;

pub(super) use self::{
    race::{Attempt, Further, LookUp, Race},
    tcp::Tcp,
    udp::Udp,
};
use super::users::EachWay;

/// What a granted flow carries.
#[derive(Debug)]
pub(super) enum Service {
    Udp(Udp),
    Tcp(Box<Tcp>),
}

impl Service {
    /// The memory of an idle flow of UDP payloads in bytes, with its socket.
    pub(super) const UDP_MEMORY: usize = 3300;

    /// The memory of an idle TCP connection in bytes, with its request stream and its socket.
    pub(super) const TCP_MEMORY: usize = 4000;

    pub(super) fn target(&self) -> SocketAddr {
        match self {
            Self::Udp(udp) => udp.target,
            Self::Tcp(tcp) => tcp.target,
        }
    }

    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Udp(_) => Self::UDP_MEMORY,
            Self::Tcp(tcp) => Self::TCP_MEMORY + tcp.splice.socket.unwritten(),
        }
    }

    /// The bytes that a TCP connection has carried. `None`: the meter knows those of UDP payloads.
    pub(super) fn tcp_bytes(&self) -> Option<EachWay> {
        match self {
            Self::Udp(_) => None,
            Self::Tcp(tcp) => {
                Some(EachWay { to_target: tcp.splice.to_tcp, to_client: tcp.splice.from_tcp })
            }
        }
    }
}

//! TCP connections: what a node asks of them and what it is told, and how one travels through a tunnel.

mod edge;
mod framing;
mod socket;
mod splice;

pub use self::edge::{ListenerId, TcpAddresses, TcpId, TcpInput, TcpOutput};
pub(crate) use self::{
    framing::{Form, Next},
    socket::Socket,
    splice::{Outcome, Splice, TunnelStream},
};

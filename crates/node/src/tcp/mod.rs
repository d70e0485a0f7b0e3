//! TCP connections: what a node asks of them and what it is told, and how one travels through a
//! tunnel.

mod edge;

pub use self::edge::{ListenerId, TcpId, TcpInput, TcpOutput};

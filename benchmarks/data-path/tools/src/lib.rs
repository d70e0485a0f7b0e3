//! The load generator and the sink of the benchmark.
#![expect(clippy::disallowed_methods, reason = "it measures with the real clock")]

pub mod connect_udp;
pub mod echo;
pub mod ends;
pub mod kernel;
pub mod packets;
pub mod pause;
pub mod tls;
pub mod tunnel;

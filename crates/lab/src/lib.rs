//! A laboratory in virtual time: hosts and the links between them. Every node runs the same code as
//! in production.
//!
//! A [`World`] connects hosts, each with its [`Node`](tandem_node::Node), by
//! [paths](tandem_netem::Path) of emulated links, and runs them in virtual time with a resolution
//! of one nanosecond. The same seed gives the same packets at the same times.

pub mod body;
mod delays;
pub mod endpoints;
pub mod files;
mod host;
mod network;
mod sockets;
mod tcp;
mod tls;
pub mod trace;
mod world;

pub use body::Body;
pub use files::{Contents, FileSet};
pub use host::{Handle, HostId};
pub use network::{NetworkStats, PathId, SMALL_PACKET};
/// The types from which a world and its links are made.
pub use tandem_netem::{LinkConfig, LossModel, QueueConfig, QueueLimit, Reorder, Seed};
/// The types from which PEPs are made.
pub use tandem_pep::{Config as PepConfig, Servers as PepServers, TcpForm};
pub use tandem_wire::{PepId, PepKey};
pub use tls::TestCertificate;
pub use trace::{Trace, TraceDigest};
pub use world::{NameAnswer, PepNumber, PepPlace, World};

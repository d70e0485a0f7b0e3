//! Virtual time: hosts, links, losses and queues in which every node runs as in production.
//!
//! Two layers. A [`Path`] is a pure state machine of links in sequence; it knows no host and no
//! clock, so that an emulator on real sockets can drive it too. A [`World`] connects hosts, each
//! with its [`Node`](tandem_node::Node), by paths and runs them in virtual time with nanosecond
//! steps: the same seed gives the same packets at the same times.

pub mod body;
mod delays;
pub mod endpoints;
pub mod figure;
pub mod files;
mod host;
mod ideal;
mod network;
pub mod plan;
pub mod report;
pub mod run;
mod sha256;
mod sockets;
pub mod summary;
pub mod sweep;
mod tls;
pub mod trace;
mod world;

pub use body::Body;
pub use files::{Contents, FileSet};
pub use host::{Handle, HostId};
pub use ideal::ideal_completion;
pub use network::{NetworkStats, PathId, SMALL_PACKET};
pub use tandem_netem::{
    BrokenRule, Capacity, LinkConfig, LinkStats, LossAt, LossModel, OPPORTUNITY, Outages, Packet,
    ParseLossError, ParseOutagesError, ParseQueueError, Path, QueueConfig, QueueLimit, RateTrace,
    RateTraceError, Reorder, Seed, Sojourns, SyntheticError, SyntheticTrace, TRACE_OVERHEAD,
    TraceSummary, Traffic, UDP_IP_OVERHEAD, Violation, Violations,
};
pub use tls::TestCertificate;
pub use trace::{Trace, TraceDigest};
pub use world::{NameAnswer, World};

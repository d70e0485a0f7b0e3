//! Virtual time: hosts, links, losses and queues in which every node runs as in production.
//!
//! Two layers. A [`Path`] is a pure state machine of links in sequence; it knows no host and no
//! clock, so that an emulator on real sockets can drive it too. A [`World`] connects hosts, each
//! with its [`Node`](tandem_node::Node), by paths and runs them in virtual time with nanosecond
//! steps: the same seed gives the same packets at the same times.

mod agenda;
pub mod body;
mod delays;
pub mod endpoints;
pub mod figure;
pub mod files;
mod host;
mod ideal;
mod link;
mod loss;
mod network;
mod packet;
mod path;
pub mod plan;
mod queue;
mod rate_trace;
pub mod report;
pub mod run;
mod seed;
mod sha256;
mod sockets;
pub mod summary;
pub mod sweep;
mod synthetic;
mod tls;
pub mod trace;
mod trace_summary;
mod verifier;
mod world;

pub use body::Body;
pub use files::{Contents, FileSet};
pub use host::{Handle, HostId};
pub use ideal::ideal_completion;
pub use link::{
    Capacity, LinkConfig, LinkStats, Outages, ParseOutagesError, Reorder, Sojourns, Traffic,
};
pub use loss::{LossAt, LossModel, ParseLossError};
pub use network::{NetworkStats, PathId, SMALL_PACKET};
pub use packet::{Packet, UDP_IP_OVERHEAD};
pub use path::Path;
pub use queue::{ParseQueueError, QueueConfig, QueueLimit};
pub use rate_trace::{OPPORTUNITY, RateTrace, RateTraceError, TRACE_OVERHEAD};
pub use seed::Seed;
pub use synthetic::{SyntheticError, SyntheticTrace};
pub use tls::TestCertificate;
pub use trace::{Trace, TraceDigest};
pub use trace_summary::TraceSummary;
pub use verifier::{BrokenRule, Violation, Violations};
pub use world::{NameAnswer, World};

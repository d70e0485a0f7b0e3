//! Proxy, client and origin as sans-IO state machines.
//!
//! See [`node`] for the edge; `docs/design/architecture.md` for the modules and the path of a packet.

mod beside;
pub mod buffers;
mod carrier;
mod cause;
pub mod client;
pub mod concealed;
mod debts;
pub mod error;
mod fields;
mod guesses;
mod h3;
mod hand_over;
mod impossible;
pub mod limits;
pub mod mode;
pub mod node;
pub mod origin;
mod os_error;
pub mod password;
mod path_report;
mod prefix;
pub mod proxy;
pub mod quic;
mod race;
mod reason;
pub mod rounds;
pub mod seldom;
mod server;
mod serves;
mod service;
mod spare;
pub mod stats;
pub mod status;
pub mod tcp;
mod timers;
pub mod tls;
mod token;
pub mod tunnel;
pub mod upstream;

pub use cause::Cause;
pub use client::{Client, ClientConfig};
pub use hand_over::BusyNodes;
pub use node::{Event, Input, Node, Output};
pub use origin::{Origin, OriginConfig};
pub use os_error::OsError;
pub use path_report::PathReport;
pub use proxy::{Proxy, ProxyConfig};
pub use serves::Serves;
pub use stats::{ConnectionStats, Stats};
use tandem_transport::arrived;
#[cfg(any(test, fuzzing))]
use tandem_transport::script;
pub use tandem_transport::seal;
pub use tandem_wire::StrangerText;

/// Returns the time at which a unit test begins.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn test_start() -> std::time::Instant {
    std::time::Instant::now()
}

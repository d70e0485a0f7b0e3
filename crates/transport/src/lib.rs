//! A sealed transport for datagrams beside a QUIC connection, as a pure state machine.

#![forbid(unsafe_code)]

mod ack_policy;
#[doc(hidden)]
pub mod arrived;
mod ecn;
mod fates;
mod frame;
mod pacer;
mod protection;
mod received;
mod recovery;
mod reordering;
mod rtt;
#[doc(hidden)]
pub mod script;
pub mod seal;
mod sent;
mod skipped;
mod transport;

pub use fates::{Fates, Source, Tag};
pub use frame::{ACK_RANGES_MAX, Violation};
pub use protection::{Protection, Sealed};
pub use received::Ecn;
pub use recovery::RecoveryCounts;
pub use rtt::MAX_ACK_DELAY;
pub use sent::{DATAGRAMS_MAX, PACKETS_MAX};
pub use transport::{
    CloseReason, Config, ControllerOfEngine, Counts, Datagrams, DropCause, PACKET_SIZE_MIN,
    Transmit, Transport,
};

/// Runs the example of the page that the registry shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Returns the time at which a unit test begins.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn test_start() -> std::time::Instant {
    std::time::Instant::now()
}

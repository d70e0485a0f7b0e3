//! Emulated network links as a pure state machine, without hosts, sockets or a clock.
//!
//! A [`Path`] is one direction between two hosts: [links](LinkConfig) in sequence. Each link has a
//! bottleneck with a constant rate or a recorded [`RateTrace`], a [queue](QueueConfig) in front of
//! it, a [loss model](LossModel), a delay, jitter, reordering, duplication, [outages](Outages) and
//! an MTU. Packets and time go in; packets and the time of the next event come out. A simulator
//! with virtual time can drive it, and so can an emulator between real sockets. The caller decides
//! what a [`Packet`] contains.
//!
//! Every random choice follows from a [`Seed`], by generators that are fixed by publication: the
//! same seed, links and packets give the same result in every version and on every machine.
//! [`Path::verify`] checks everything that the links do against rules that are written down a
//! second time, independently of the code that they check.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use tandem_netem::{LinkConfig, LossModel, Packet, Path, QueueConfig, Seed};
//! use tandem_units::Rate;
//!
//! let link = LinkConfig {
//!     capacity: Rate::from_mbps(10).into(),
//!     queue: "10packets".parse::<QueueConfig>()?,
//!     loss: "bursts:5%,4".parse::<LossModel>()?,
//!     delay: Duration::from_millis(20),
//!     ..LinkConfig::default()
//! };
//! let start = Instant::now(); // or any other instant: the path never reads the clock
//! let mut path = Path::new(start, vec![link], Seed(1));
//! for number in 0..20 {
//!     path.push(start, Packet::udp(1222, number)); // 1250 bytes with headers: 1 ms each
//! }
//! let mut last = start;
//! while let Some(event) = path.next_event() {
//!     while let Some((arrival, _packet)) = path.pop(event) {
//!         last = arrival;
//!     }
//! }
//! let stats = path.stats()[0];
//! assert_eq!(stats.entered.packets, 20);
//! assert_eq!(stats.dropped_queue.packets, 9); // 10 packets wait, and 1 is in transmission
//! assert_eq!(stats.delivered.packets + stats.dropped_loss.packets, 11);
//! assert!(last <= start + Duration::from_millis(20 + 11));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agenda;
mod duration_histogram;
mod ideal;
mod link;
mod loss;
mod packet;
mod path;
mod queue;
mod rate_trace;
mod seed;
mod synthetic;
mod trace_summary;
mod verifier;

pub use agenda::Agenda;
pub use duration_histogram::DurationHistogram;
pub use ideal::{ideal_completion, ideal_completion_over};
pub use link::{Capacity, LinkConfig, LinkStats, Outages, ParseOutagesError, Reorder, Traffic};
pub use loss::{LossAt, LossModel, ParseLossError};
pub use packet::{Packet, UDP_IP_OVERHEAD};
pub use path::Path;
pub use queue::{ParseQueueError, QueueConfig, QueueLimit};
pub use rate_trace::{OPPORTUNITY, RateTrace, RateTraceError, TRACE_OVERHEAD};
pub use seed::{Seed, SplitMix64};
pub use synthetic::{SyntheticError, SyntheticTrace};
pub use trace_summary::TraceSummary;
pub use verifier::{BrokenRule, Violation, Violations};

/// Some instant; no test depends on its value.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "there is no other way to get an instant")]
fn base_instant() -> std::time::Instant {
    std::time::Instant::now()
}

/// Runs the example of the page that the registry shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

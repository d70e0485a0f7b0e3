//! A sealed transport for datagrams beside a QUIC connection, as a pure state machine: it has no socket, no clock and
//! no randomness but its seed. The layout of packets is in `docs/design/wire.md`, "Sealed transport";
//! `docs/design/sealed-transport.md` compares it with RFC 9000, 9001 and 9002 point by point.
//!
//! | file | contents |
//! | --- | --- |
//! | `transport/` | [`Transport`]: one end; `receive` (packets in), `transmit` (packets out) |
//! | `fates` | [`Source`] and [`Fates`]: the owner's queue, and what it hears of datagrams |
//! | `protection` | [`Protection`], and [`Sealed`], that of the protocol |
//! | `seal/` | sealed packets: keys, header protection, packet numbers, each packet once |
//! | `frame` | the frames of a packet, and what a peer must not send ([`Violation`]) |
//! | `received` | which packets have arrived, in ranges; ECN counts |
//! | `ack_policy`, `flood` | when an acknowledgement is due, and when packets come so fast that it waits |
//! | `recovery` | loss detection and congestion control |
//! | `sent` | the ring of sent packets |
//! | `rtt`, `reordering` | the RTT, and how late a packet may be |
//! | `mtu` | the largest packet that the path carries |
//! | `pacer`, `ecn`, `skipped` | pacing; marks and their validation; packet numbers that are skipped |
//!
//! # Rules for an owner
//!
//! - After each call, and after each new datagram in its queue, it calls [`Transport::poll_transmit`] until that
//!   returns `None`, and [`Transport::handle_timeout`] at [`Transport::next_timeout`].
//! - It tells when packets may leave at all ([`Transport::set_may_send`]): the QUIC connection validates addresses.
//! - When [`Transport::closed`] has a reason, it sends datagrams in another form. All fates have been told.
//! - Datagrams that are larger than [`Transport::datagram_max`] never leave; it takes them out of its queue.
//!
//! No packet is allocated for: datagrams are written into the buffer of the batch and encrypted there, and are
//! decrypted in the buffer that they came in.

#![forbid(unsafe_code)]

// The model is built of what the tests of the whole crate have.
#[cfg(any(test, fuzzing))]
extern crate self as tandem_transport;

mod ack_policy;
#[doc(hidden)]
pub mod arrived;
mod ecn;
mod fates;
mod flood;
mod frame;
#[cfg(any(test, fuzzing))]
#[expect(clippy::indexing_slicing, reason = "a panic is how a model fails")]
pub mod model;
mod mtu;
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

pub use ack_policy::AckWait;
pub use fates::{Fates, Source, Tag};
#[doc(hidden)]
pub use flood::Flood;
pub use frame::{ACK_RANGES_MAX, Violation};
pub use protection::{Protection, Sealed};
pub use received::Ecn;
pub use recovery::RecoveryCounts;
pub use rtt::MAX_ACK_DELAY;
pub use sent::{DATAGRAMS_MAX, PACKETS_MAX};
pub use transport::{
    CloseReason, Config, Counts, Datagrams, DropCause, PACKET_SIZE_MIN, PacketCounts, Transmit,
    Transport,
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

//! Congestion controllers as pure state machines, and one adapter that makes noq drive them.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `algorithm` | the trait [`Algorithm`] and its events |
//! | `bbr1` | [`Bbr1`], the default |
//! | `new_reno` | [`NewReno`], RFC 9002 |
//! | `off` | [`Off`], no congestion control |
//! | `delivery_rate` | [`DeliveryRate`], what rate-based controllers measure |
//! | `factor` | [`Factor`], of rates and bytes, in thousandths |
//! | `tecc` | [`Tecc`], which follows the reports of a tunnel |
//! | `name` | [`ControllerName`], [`ControllerConfig`]: which controller a connection gets |
//! | `noq` | [`factory`], [`Adapter`]: the way into noq |
//!
//! A new controller is one file that implements [`Algorithm`], a variant of [`ControllerName`] and
//! an arm in [`factory`].
//!
//! # A server of yours that follows tunnels
//!
//! Any server on noq, or on noq-proto, can be an origin that cooperates with tunnels (TECC). For each
//! connection:
//!
//! 1. make a [`Feedback`], and give `factory(&ControllerName::Tecc.into(), feedback.clone())` to the
//!    connection's `TransportConfig::congestion_controller_factory`, with a `packet_threshold` of 1000
//!    and a `time_threshold` of 1.75, since what the tunnel repairs comes late;
//! 2. agree with the client on how reports come: a field of its request, datagrams, a stream;
//! 3. for each that comes, `feedback.apply(now, &TunnelInfo::decode(bytes)?)`.
//!
//! While reports come the sender follows them; without them it is [`Bbr1`]. A complete server is in
//! `examples/origin_on_noq.rs`; how to be a client that has reports, in `tandem-net`.

mod algorithm;
mod bbr1;
mod delivery_rate;
mod factor;
mod max_filter;
mod name;
mod new_reno;
mod noq;
mod off;
mod random;
mod tecc;

pub use algorithm::{Ack, AcksEnd, Algorithm, CongestionEvent, CongestionSignal, Lost, Sent};
pub use bbr1::{Bbr1, Bbr1Config, Flavor};
pub use delivery_rate::{DeliveryRate, RateSample};
pub use factor::Factor;
pub use name::{ControllerConfig, ControllerName, UnknownController};
pub use new_reno::NewReno;
pub use noq::{Adapter, Factory, factory};
pub use off::Off;
pub use tandem_wire::TunnelInfo;
pub use tecc::{
    Applied, Feedback, Leg, RetransmissionUnits, Tecc, TeccConfig, TeccConfigError, WindowRtt,
};

/// The time at which a unit test begins.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn test_start() -> std::time::Instant {
    std::time::Instant::now()
}

//! Congestion controllers as pure state machines, and one adapter that makes noq drive them.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `algorithm` | the trait [`Algorithm`] and its events |
//! | `bbr1` | [`Bbr1`], the default |
//! | `new_reno` | [`NewReno`], RFC 9002 |
//! | `off` | [`Off`], no congestion control |
//! | `delivery_rate` | [`DeliveryRate`], what rate-based controllers measure |
//! | `delivery` | [`Deliveries`], what became of each datagram |
//! | `tecc` | [`Tecc`], which follows the reports of a tunnel |
//! | `name` | [`ControllerName`], [`ControllerConfig`]: which controller a connection gets |
//! | `noq` | [`factory`], [`tracking`], [`Adapter`]: the way into noq |
//!
//! A new controller is one file that implements [`Algorithm`], a variant of [`ControllerName`] and
//! an arm in [`factory`].

mod algorithm;
mod bbr1;
mod delivery;
mod delivery_rate;
mod max_filter;
mod name;
mod new_reno;
mod noq;
mod off;
mod random;
mod tecc;

pub use algorithm::{Ack, AcksEnd, Algorithm, CongestionEvent, CongestionSignal, Lost, Sent};
pub use bbr1::{Bbr1, Bbr1Config, Standstill};
pub use delivery::{DatagramId, Deliveries, Delivery};
pub use delivery_rate::{DeliveryRate, RateSample};
pub use name::{ControllerConfig, ControllerName, UnknownController};
pub use new_reno::NewReno;
pub use noq::{Adapter, Factory, factory, tracking};
pub use off::Off;
pub use tecc::{
    Applied, Factor, Feedback, Leg, RetransmissionUnits, Tecc, TeccConfig, TeccConfigError,
    WindowRtt,
};

/// The time at which a unit test begins.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn test_start() -> std::time::Instant {
    std::time::Instant::now()
}

//! Congestion controllers as pure state machines, and one adapter that makes noq drive them.
//!
//! | file | contents |
//! | --- | --- |
//! | `algorithm` | the trait [`Algorithm`] and its events |
//! | `bbr1` | [`Bbr1`], the default |
//! | `new_reno` | [`NewReno`], RFC 9002 |
//! | `off` | [`Off`], no congestion control |
//! | `delivery_rate` | [`DeliveryRate`], the delivery-rate samples of rate-based controllers |
//! | `factor` | [`Factor`], a factor in thousandths for rates and byte counts |
//! | `segments` | [`Feedback`]: what segments of the path, tunnels and PEPs, say to a controller |
//! | `tecc` | [`Tecc`], which follows the reports of a tunnel |
//! | `mdcc` | [`Mdcc`], which hears from PEPs which packets have passed them |
//! | `cubic` | the window of CUBIC, RFC 9438, as a part of controllers |
//! | `name` | [`ControllerName`], [`ControllerConfig`]: which controller a connection gets |
//! | `build` | [`ControllerConfig::build`]: a controller for a sender without noq |
//! | `noq` | `factory`, `Adapter`: the way into noq, with the feature `noq`, which is on by default |
//!
//! A new controller is one file that implements [`Algorithm`], a variant of [`ControllerName`], and
//! an arm in [`ControllerConfig::build`] and in `factory`.
//!
//! # Your own server as an origin that follows tunnels
//!
//! Any server on noq, or on noq-proto, can be an origin that cooperates with tunnels as in the
//! paper TECC (Towards Efficient QUIC Tunneling via Collaborative Transmission Control, NSDI '24).
//! Do this for each connection:
//!
//! 1. Create a [`Feedback`], and give `factory(&ControllerName::Tecc.into(), feedback.clone())` to
//!    `TransportConfig::congestion_controller_factory`. Set the loss-detection thresholds to a
//!    `packet_threshold` of 1000 and a `time_threshold` of 1.75, because packets that the tunnel
//!    repairs arrive late. Connections without a tunnel are slower with them. Clients of ours list
//!    `TunnelInfo::ALPN` in their `ClientHello` if they will send reports, and
//!    `noq_proto::Incoming::decrypt` shows it before a server accepts a connection.
//! 2. Agree with the client on the way that reports take: a field of its request, datagrams or a
//!    stream.
//! 3. Call `feedback.apply(now, &TunnelInfo::decode(bytes)?)` for each report that arrives.
//!
//! The sender follows reports while they arrive; without them it behaves as [`Bbr1`]. A complete
//! server is in `examples/origin_on_noq.rs`. The crate `tandem-net` shows the client's side.

mod algorithm;
mod bbr1;
mod build;
mod cubic;
mod delivery_rate;
mod factor;
mod max_filter;
mod mdcc;
mod name;
mod new_reno;
#[cfg(feature = "noq")]
mod noq;
mod off;
mod random;
mod segments;
mod tecc;

pub use algorithm::{Ack, AcksEnd, Algorithm, CongestionEvent, CongestionSignal, Lost, Sent};
pub use bbr1::{Bbr1, Bbr1Config, Flavor};
pub use delivery_rate::{DeliveryRate, RateSample};
pub use factor::Factor;
pub use mdcc::{Mdcc, MdccConfig};
pub use name::{ControllerConfig, ControllerName, UnknownController};
pub use new_reno::NewReno;
#[cfg(feature = "noq")]
pub use noq::{Adapter, Factory, factory};
pub use off::Off;
pub use segments::{
    Applied, Bottleneck, Domain, DomainRtt, DomainStats, Feedback, Losses, Passed, Place, Report,
};
pub use tandem_wire::TunnelInfo;
pub use tecc::{Leg, RetransmissionUnits, Tecc, TeccConfig, TeccConfigError, WindowRtt};

/// Returns the time at which a unit test begins.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
fn test_start() -> std::time::Instant {
    std::time::Instant::now()
}

//! Types for quantities with a unit, so that no public field or argument is a plain number.
//!
//! k, M and G are powers of 1000; Ki, Mi and Gi are powers of 1024. All values are integers, so the
//! same text gives the same value on every machine. Every type parses and prints a text form, which
//! configuration files and JSON (serde) also use. A printed value parses to itself.
//!
//! ```
//! use tandem_units::{ByteCount, Rate};
//!
//! let rate: Rate = "50 Mbit/s".parse()?;
//! assert_eq!(rate.time_to_send(ByteCount::new(1250)).as_micros(), 200);
//! # Ok::<(), tandem_units::ParseUnitError>(())
//! ```

mod byte_count;
mod decimal;
mod error;
mod human_duration;
mod rate;
mod ratio;

pub use byte_count::ByteCount;
pub use error::ParseUnitError;
pub use human_duration::HumanDuration;
pub use rate::Rate;
pub use ratio::Ratio;

/// Runs the example of the page that the registry shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Quantities as types, so that no public field or argument is a bare number with a unit.
//!
//! k, M and G are powers of 1000; Ki, Mi and Gi are powers of 1024. Everything is an integer: the
//! same text gives the same bits on every machine. Every type parses and prints the text that it
//! also has in configuration files and JSON (serde), and the two directions agree.
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

//! The controller [`Tecc`](tandem_congestion::Tecc): Algorithm 1 against calculated values, its
//! bounds, and arbitrary sequences of events.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a wrong index or a missing value fails the test"
)]

mod algorithm;
mod any_order;
mod bounds;
mod path;

//! What [`Tecc`](tandem_congestion::Tecc) makes of reports: Algorithm 1 by hand, and its bounds.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what is wrong here fails the test"
)]

mod algorithm;
mod any_order;
mod bounds;
mod path;

//! Tests of TCP connections through tunnels: their bytes and their ends, slow readers, failures,
//! delays and shares. Every test runs twice, and both runs must be the same packet by packet and byte
//! by byte.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "an error here fails the test")]

mod bed;
mod ends;
mod failures;
mod household;
mod networks;
mod refusals;
#[path = "../tunnel/scenario.rs"]
#[expect(dead_code, reason = "the tests of downloads use all of it")]
mod scenario;
mod shares;
mod slow;
mod times;
mod waits;
mod windows;

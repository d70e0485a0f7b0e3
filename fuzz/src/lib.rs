//! The common parts of the fuzz targets.

pub mod bed;
pub mod client_bed;
pub mod client_steps;
pub mod input;
pub mod null_crypto;
pub mod raw_client;
pub mod raw_server;

use bytes::Bytes;

/// Splits bytes into pieces of these lengths, which are repeated as often as necessary. Without
/// lengths there is one piece.
pub fn split(data: &[u8], lengths: &[u8]) -> Vec<Bytes> {
    let mut rest = Bytes::copy_from_slice(data);
    let mut pieces = Vec::new();
    for &length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        // A piece has at least one byte, so that the loop ends.
        pieces.push(rest.split_to(usize::from(length).clamp(1, rest.len())));
    }
    pieces.push(rest);
    pieces
}

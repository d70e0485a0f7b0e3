//! What several fuzz targets need.

use bytes::Bytes;

/// The same bytes in pieces of these lengths, over and over; in one piece without lengths.
pub fn split(data: &[u8], lengths: &[u8]) -> Vec<Bytes> {
    let mut rest = Bytes::copy_from_slice(data);
    let mut pieces = Vec::new();
    for &length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        // At least one byte, or it would not end.
        pieces.push(rest.split_to(usize::from(length).clamp(1, rest.len())));
    }
    pieces.push(rest);
    pieces
}

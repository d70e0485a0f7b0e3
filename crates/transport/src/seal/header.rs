//! The header of a sealed packet and its protection.

use ring::aead::quic;

use super::{PACKET_NUMBER_LEN, PACKET_NUMBER_MAX, TAG_LEN};

/// The bits of the first byte that are never masked: a short header (0x80 is clear) and QUIC's
/// fixed bit ([RFC 9000 §17.3.1]).
///
/// [RFC 9000 §17.3.1]: https://www.rfc-editor.org/rfc/rfc9000#section-17.3.1
const FIXED_BIT: u8 = 0x40;

/// The bits of the first byte that are masked. RFC 9001 §5.4.1 masks the reserved bits, the key
/// phase and the length of the packet number. Here the mask covers the spin bit too: it is not
/// used, and then it should be random (RFC 9000 §17.4).
const MASKED_BITS: u8 = 0x3f;

/// The key phase, before its protection.
const KEY_PHASE_BIT: u8 = 0x04;

/// The length of the packet number, before its protection: one less than the bytes that it has.
const PACKET_NUMBER_LEN_BITS: u8 = 0x03;

const _: () = assert!(PACKET_NUMBER_LEN_BITS as usize == PACKET_NUMBER_LEN - 1);

/// The length in bytes of the ciphertext from which the mask follows (RFC 9001 §5.4.3). The tag
/// alone has as many.
const SAMPLE_LEN: usize = TAG_LEN;

/// How many packet numbers look alike on the wire.
const TRUNCATED_NUMBERS: u64 = 1 << (8 * PACKET_NUMBER_LEN);

/// Writes the unprotected header of a packet. `header` has the length of a header with this ID. `None`: it has not.
pub(super) fn encode(header: &mut [u8], id: &[u8], number: u64, generation: u64) -> Option<()> {
    let [.., a, b, c, d] = number.to_be_bytes();
    let (first, rest) = header.split_first_mut()?;
    let (place, truncated) = rest.split_last_chunk_mut()?;
    if place.len() != id.len() {
        return None;
    }
    *first = first_byte(generation);
    place.copy_from_slice(id);
    *truncated = [a, b, c, d];
    Some(())
}

/// Returns the unprotected first byte of every packet of a generation. The spin bit and the reserved
/// bits are clear.
pub(super) const fn first_byte(generation: u64) -> u8 {
    let key_phase = if generation % 2 == 1 { KEY_PHASE_BIT } else { 0 };
    FIXED_BIT | key_phase | PACKET_NUMBER_LEN_BITS
}

/// Returns the packet number whose last bytes are in a header. `expected` is the number of the packet that
/// follows the highest one. Source: [RFC 9000 A.3].
///
/// [RFC 9000 A.3]: https://www.rfc-editor.org/rfc/rfc9000#section-a.3
pub(super) const fn packet_number(truncated: [u8; PACKET_NUMBER_LEN], expected: u64) -> u64 {
    let truncated = u32::from_be_bytes(truncated) as u64;
    // Nothing follows the largest number.
    let expected = if expected > PACKET_NUMBER_MAX { PACKET_NUMBER_MAX } else { expected };
    let candidate = (expected & !(TRUNCATED_NUMBERS - 1)) | truncated;
    if candidate + TRUNCATED_NUMBERS / 2 <= expected
        && candidate + TRUNCATED_NUMBERS <= PACKET_NUMBER_MAX
    {
        candidate + TRUNCATED_NUMBERS
    } else if candidate > expected + TRUNCATED_NUMBERS / 2 && candidate >= TRUNCATED_NUMBERS {
        candidate - TRUNCATED_NUMBERS
    } else {
        candidate
    }
}

/// The protection of headers, which hides the key phase and the packet number ([RFC 9001 §5.4]).
/// Its key is the same for all generations.
///
/// [RFC 9001 §5.4]: https://www.rfc-editor.org/rfc/rfc9001#section-5.4
pub(super) struct HeaderProtection(quic::HeaderProtectionKey);

impl HeaderProtection {
    pub(super) const fn new(key: quic::HeaderProtectionKey) -> Self {
        Self(key)
    }

    /// Protects the header of a packet, which has this length, or removes its protection: the mask is the same.
    /// Returns the header and the ciphertext with its tag, or `None` if the packet is too short.
    pub(super) fn toggle<'a>(
        &self,
        packet: &'a mut [u8],
        header_len: usize,
    ) -> Option<(&'a mut [u8], &'a mut [u8])> {
        let (header, sealed) = packet.split_at_mut_checked(header_len)?;
        // The sample starts 4 bytes after the start of the packet number (RFC 9001 §5.4.2), which
        // is where the packet number ends.
        let sample = sealed.first_chunk::<SAMPLE_LEN>()?;
        let mask = self.0.new_mask(sample).expect("the sample has the length of a block");
        let [mask_of_first, mask_of_number @ ..] = mask;
        *header.first_mut()? ^= mask_of_first & MASKED_BITS;
        let number = header.last_chunk_mut()?;
        *number = (u32::from_ne_bytes(*number) ^ u32::from_ne_bytes(mask_of_number)).to_ne_bytes();
        Some((header, sealed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reconstructed(number: u64, expected: u64) -> u64 {
        let mut header = [0; 13];
        encode(&mut header, &[7; 8], number, 0).unwrap();
        packet_number(*header.last_chunk().unwrap(), expected)
    }

    #[test]
    fn a_header_has_the_id_of_the_receiver_whatever_its_length() {
        for len in [0, 8, 12, 20] {
            let id = vec![9; len];
            let mut header = vec![0; 1 + len + PACKET_NUMBER_LEN];
            encode(&mut header, &id, 0x0102_0304_0506, 1).unwrap();
            assert_eq!(header, [&[0x47], &id[..], &[3, 4, 5, 6]].concat(), "{len} bytes");
            assert_eq!(encode(&mut header, &[9; 5], 0, 0), None, "{len} bytes");
        }
    }

    #[test]
    fn the_first_byte_is_that_of_a_short_header_with_the_key_phase() {
        for (generation, expected) in [(0, 0x43), (1, 0x47), (2, 0x43), (u64::MAX, 0x47)] {
            assert_eq!(first_byte(generation), expected, "generation {generation}");
        }
    }

    #[test]
    fn packet_numbers_are_the_nearest_to_the_expected_one() {
        const HALF: u64 = 1 << 31;
        for (number, expected) in [
            (0, 0),
            // Numbers below 0 do not exist.
            ((1 << 32) - 1, 0),
            (HALF, HALF),
            ((1 << 32) - 1, 1 << 32),
            (1 << 32, (1 << 32) - 1),
            ((1 << 32) + 7, (1 << 32) - 7),
            // Of two that are equally near, it is the higher one.
            ((1 << 40) + HALF, 1 << 40),
            ((1 << 40) + 2 * HALF, (1 << 40) + HALF),
            ((1 << 40) + 1, (1 << 40) + HALF),
            (PACKET_NUMBER_MAX, PACKET_NUMBER_MAX),
            (PACKET_NUMBER_MAX, PACKET_NUMBER_MAX + 1),
            (PACKET_NUMBER_MAX - HALF + 1, PACKET_NUMBER_MAX + 1),
            // Numbers above the largest do not exist.
            (PACKET_NUMBER_MAX - (1 << 32) + 1, PACKET_NUMBER_MAX + 1),
        ] {
            assert_eq!(reconstructed(number, expected), number, "expected {expected}");
        }
    }

    #[test]
    fn a_packet_number_that_is_too_far_away_becomes_another_one() {
        let (expected, half) = (1 << 40, 1 << 31);
        assert_eq!(reconstructed(expected + half + 1, expected), expected + half + 1 - (1 << 32));
        assert_eq!(reconstructed(expected - half, expected), expected - half + (1 << 32));
    }

    proptest! {
        #[test]
        fn no_packet_number_is_above_the_largest(
            truncated: u32,
            expected in prop_oneof![0..=1_u64 << 33, (1_u64 << 62) - (1 << 33)..=1 << 62],
        ) {
            let number = reconstructed(truncated.into(), expected);
            prop_assert!(number <= PACKET_NUMBER_MAX);
            prop_assert_eq!(number % TRUNCATED_NUMBERS, u64::from(truncated));
        }

        #[test]
        fn packet_numbers_within_half_a_range_are_found(
            expected in 0..=PACKET_NUMBER_MAX + 1,
            distance in -(1_i64 << 31) + 1..=1 << 31,
        ) {
            let number = expected.saturating_add_signed(distance).min(PACKET_NUMBER_MAX);
            prop_assert_eq!(reconstructed(number, expected), number);
        }
    }
}

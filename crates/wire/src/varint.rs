use std::fmt;

use bytes::{Buf, BufMut};

use crate::DecodeError;

/// A variable-length integer, from 0 to 2^62 - 1 ([RFC 9000 §16]).
///
/// [RFC 9000 §16]: https://www.rfc-editor.org/rfc/rfc9000#section-16
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarInt(u64);

impl VarInt {
    /// The largest value, 2^62 - 1.
    pub const MAX: u64 = (1 << 62) - 1;

    /// The length of the longest encoding in bytes.
    pub(crate) const LEN_MAX: usize = 8;

    /// Creates an integer from a value that always fits; usable in constants.
    pub const fn from_u32(value: u32) -> Self {
        Self(value as u64)
    }

    /// Creates an integer from `value`; a value above [`Self::MAX`] becomes [`Self::MAX`].
    pub const fn saturating_from(value: u64) -> Self {
        Self(if value <= Self::MAX { value } else { Self::MAX })
    }

    /// Creates an integer from the length, in bytes, of something in memory.
    pub(crate) const fn from_len(len: usize) -> Self {
        Self::saturating_from(len as u64) // no memory has 2^62 bytes
    }

    /// Returns the value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Takes one integer off the front of `data`, in any of its encodings. QUIC does not require
    /// the shortest one.
    ///
    /// # Errors
    ///
    /// [`DecodeError::VarIntTruncated`] if `data` ends inside the integer.
    pub fn decode(data: &mut impl Buf) -> Result<Self, DecodeError> {
        if !data.has_remaining() {
            return Err(DecodeError::VarIntTruncated);
        }
        let first = data.get_u8();
        let more = Self::len_from(first) - 1;
        if data.remaining() < more {
            return Err(DecodeError::VarIntTruncated);
        }
        let mut value = u64::from(first & 0x3f);
        for _ in 0..more {
            value = value << 8 | u64::from(data.get_u8());
        }
        Ok(Self(value))
    }

    /// Appends the shortest encoding to `out`.
    pub fn encode(self, out: &mut impl BufMut) {
        let Self(value) = self;
        match self.encoded_len() {
            1 => out.put_uint(value, 1),
            2 => out.put_uint(0b01 << 14 | value, 2),
            4 => out.put_uint(0b10 << 30 | value, 4),
            _ => out.put_uint(0b11 << 62 | value, 8),
        }
    }

    /// Returns the length in bytes of an encoding that begins with this byte: 1, 2, 4 or 8.
    pub const fn len_from(first: u8) -> usize {
        1 << (first >> 6)
    }

    /// Returns the length of the shortest encoding in bytes: 1, 2, 4 or 8.
    pub const fn encoded_len(self) -> usize {
        match self.0 {
            0..=0x3f => 1,
            0x40..=0x3fff => 2,
            0x4000..=0x3fff_ffff => 4,
            _ => 8,
        }
    }
}

impl From<u32> for VarInt {
    fn from(value: u32) -> Self {
        Self::from_u32(value)
    }
}

impl TryFrom<u64> for VarInt {
    type Error = VarIntRangeError;

    fn try_from(value: u64) -> Result<Self, VarIntRangeError> {
        if value <= Self::MAX { Ok(Self(value)) } else { Err(VarIntRangeError(value)) }
    }
}

impl From<VarInt> for u64 {
    fn from(value: VarInt) -> Self {
        value.get()
    }
}

impl fmt::Display for VarInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The error for a number above 2^62 - 1, which has no variable-length encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is above 2^62 - 1, the largest variable-length integer")]
pub struct VarIntRangeError(pub u64);

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn varint_lengths_change_at_the_boundaries() {
        // RFC 9000 §16, Table 4: the last value of each length.
        for (last, len) in [(63, 1), (16_383, 2), ((1 << 30) - 1, 4), (VarInt::MAX, 8)] {
            let varint = VarInt::try_from(last).unwrap();
            let mut bytes = BytesMut::new();
            varint.encode(&mut bytes);
            assert_eq!(bytes.len(), len, "length of {last}");
            assert_eq!(VarInt::decode(&mut bytes), Ok(varint), "round trip of {last}");
            let next = VarInt::try_from(last + 1).map_or(usize::MAX, VarInt::encoded_len);
            assert!(next > len, "length of {last} + 1");
        }
    }

    #[test]
    fn the_examples_of_the_rfc_decode() {
        // The examples of RFC 9000 §A.1.
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            let mut data = bytes;
            assert_eq!(VarInt::decode(&mut data).map(VarInt::get), Ok(value), "{bytes:02x?}");
            assert_eq!(data, &[] as &[u8], "{bytes:02x?}");
        }
    }

    #[test]
    fn a_truncated_integer_is_an_error() {
        for bytes in [&[][..], &[0x40], &[0x80, 0, 0], &[0xc0, 0, 0, 0, 0, 0, 0]] {
            let mut data = bytes;
            assert_eq!(VarInt::decode(&mut data), Err(DecodeError::VarIntTruncated), "{bytes:?}");
        }
    }

    #[test]
    fn numbers_from_2_62_are_refused() {
        assert_eq!(VarInt::try_from(1_u64 << 62), Err(VarIntRangeError(1 << 62)));
        assert_eq!(VarInt::saturating_from(u64::MAX).get(), VarInt::MAX);
    }

    proptest! {
        #[test]
        fn an_encoded_integer_decodes_to_itself(value in 0..=VarInt::MAX, shift in 0_u32..62) {
            let varint = VarInt::try_from(value >> shift).unwrap();
            let mut bytes = BytesMut::new();
            varint.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), varint.encoded_len());
            prop_assert_eq!(VarInt::decode(&mut bytes), Ok(varint));
            prop_assert!(bytes.is_empty());
        }
    }
}

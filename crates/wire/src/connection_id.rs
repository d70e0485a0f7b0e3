//! QUIC connection IDs and stateless reset tokens, which QUIC-aware proxying tells to a proxy
//! ([draft-ietf-masque-quic-proxy]).
//!
//! [draft-ietf-masque-quic-proxy]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08

use std::{fmt, ops::Deref};

use bytes::Bytes;
use subtle::ConstantTimeEq;

/// A connection ID of QUIC version 1: 0 to 20 bytes ([RFC 9000 §17.2]).
///
/// The order is that of the bytes as a slice, so that an ID stands directly before those that it is
/// a prefix of.
///
/// [RFC 9000 §17.2]: https://www.rfc-editor.org/rfc/rfc9000#section-17.2
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    // The bytes from `len` on are zero. The derived order and equality need that.
    bytes: [u8; Self::LEN_MAX],
    len: u8,
}

/// The error for bytes that are too many for a [`ConnectionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a connection ID has {len} bytes; at most {max} are allowed", max = ConnectionId::LEN_MAX)]
pub struct ConnectionIdTooLong {
    /// The number of bytes.
    pub len: usize,
}

impl ConnectionId {
    /// The length of the longest connection ID in bytes.
    pub const LEN_MAX: usize = 20;

    /// Returns the bytes.
    #[expect(clippy::missing_panics_doc, reason = "the length is at most LEN_MAX")]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).expect("the length is at most LEN_MAX")
    }

    /// Whether packets with short headers cannot have both connection IDs on one UDP 4-tuple,
    /// because such a header does not say how long its connection ID is ([draft §5.8]). The empty ID
    /// conflicts with all IDs.
    ///
    /// [draft §5.8]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-5.8
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.starts_with(other) || other.starts_with(self)
    }
}

impl TryFrom<&[u8]> for ConnectionId {
    type Error = ConnectionIdTooLong;

    fn try_from(slice: &[u8]) -> Result<Self, ConnectionIdTooLong> {
        let too_long = ConnectionIdTooLong { len: slice.len() };
        let len = u8::try_from(slice.len()).map_err(|_| too_long)?;
        let mut bytes = [0; Self::LEN_MAX];
        bytes.get_mut(..slice.len()).ok_or(too_long)?.copy_from_slice(slice);
        Ok(Self { bytes, len })
    }
}

impl Deref for ConnectionId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// The form that capsules need.
impl From<ConnectionId> for Bytes {
    fn from(id: ConnectionId) -> Self {
        Self::copy_from_slice(&id)
    }
}

/// Hexadecimal digits, two for each byte.
impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionId({self})")
    }
}

/// The stateless reset token of a connection ID: 16 bytes, which end a connection if they are sent
/// to its peer ([RFC 9000 §10.3]). They are secret, so that [`fmt::Debug`] hides them.
///
/// [RFC 9000 §10.3]: https://www.rfc-editor.org/rfc/rfc9000#section-10.3
#[derive(Clone, Copy)]
pub struct ResetToken([u8; Self::LEN]);

impl ResetToken {
    /// The length of a token in bytes.
    pub const LEN: usize = 16;

    /// Creates a token.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the secret bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl PartialEq for ResetToken {
    fn eq(&self, other: &Self) -> bool {
        // RFC 9000 §10.3.1: "endpoints MUST perform the comparison without leaking information
        // about the value of the token."
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for ResetToken {}

impl fmt::Debug for ResetToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(bytes: &[u8]) -> ConnectionId {
        ConnectionId::try_from(bytes).unwrap()
    }

    #[test]
    fn an_id_has_at_most_20_bytes() {
        for len in [0, 1, 20] {
            let bytes = vec![7; len];
            assert_eq!(id(&bytes).as_slice(), bytes, "{len}");
        }
        for len in [21, 255, 256, 276] {
            let refused = ConnectionId::try_from(&vec![7; len][..]);
            assert_eq!(refused, Err(ConnectionIdTooLong { len }), "{len}");
        }
    }

    #[test]
    fn ids_are_printed_as_hexadecimal_digits_and_tokens_not_at_all() {
        assert_eq!(id(&[0x00, 0x2e, 0xff]).to_string(), "002eff");
        assert_eq!(format!("{:?}", id(&[0x0a])), "ConnectionId(0a)");
        assert_eq!(ConnectionId::default().to_string(), "");
        assert_eq!(format!("{:?}", ResetToken::new([0xab; 16])), "ResetToken(..)");
    }

    #[test]
    fn ids_conflict_if_one_is_a_prefix_of_the_other() {
        for (first, second, is_conflict) in [
            (&[][..], &[][..], true),
            (&[], &[1], true),
            (&[1], &[1], true),
            (&[1], &[1, 2], true),
            (&[1], &[1, 0], true),
            (&[0], &[0, 0], true),
            (&[1], &[2], false),
            (&[1, 2], &[2], false),
            (&[1, 2], &[1, 3], false),
            (&[1; 20], &[1; 20], true),
            (&[1; 19], &[1; 20], true),
        ] {
            let (first, second) = (id(first), id(second));
            assert_eq!(first.conflicts_with(&second), is_conflict, "{first} {second}");
            assert_eq!(second.conflicts_with(&first), is_conflict, "{second} {first}");
        }
    }

    #[test]
    fn tokens_are_equal_if_all_bytes_are() {
        let token = ResetToken::new([7; 16]);
        assert_eq!(token, ResetToken::new(*token.as_bytes()));
        for place in 0..16 {
            let mut other = [7; 16];
            other[place] = 8;
            assert_ne!(token, ResetToken::new(other), "{place}");
        }
    }

    /// Short IDs of few different bytes, so that many pairs have a common prefix.
    fn similar() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0..2_u8, 0..=4)
    }

    proptest! {
        #[test]
        fn ids_compare_as_slices(first in similar(), second in similar()) {
            let ids = (id(&first), id(&second));
            prop_assert_eq!(ids.0.cmp(&ids.1), first.cmp(&second));
            prop_assert_eq!(ids.0 == ids.1, first == second);
            let is_prefix = first.iter().zip(&second).all(|(a, b)| a == b);
            prop_assert_eq!(ids.0.conflicts_with(&ids.1), is_prefix);
        }
    }
}

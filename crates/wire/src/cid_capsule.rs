//! The capsules with which a client and a proxy agree on QUIC connection IDs
//! ([draft-ietf-masque-quic-proxy §5]).
//!
//! [draft-ietf-masque-quic-proxy §5]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-5

use std::fmt;

use bytes::{Buf, BufMut, Bytes};

use crate::{ResetToken, VarInt, encode_capsule};

/// The length of the longest connection ID in a capsule in bytes. QUIC version 1 has at most
/// [`ConnectionId::LEN_MAX`](crate::ConnectionId::LEN_MAX), but other versions may have more.
const CID_LEN_MAX: usize = 255;

/// A capsule that registers, acknowledges or closes a connection ID of a proxied QUIC connection.
///
/// A connection ID (`cid`) or virtual connection ID (`vcid`) has 0 to 255 bytes here, because the
/// draft permits IDs of all versions of QUIC. The receiver checks whether it can use them; see
/// [`ConnectionId`](crate::ConnectionId). An ID with more than 255 bytes encodes to a capsule that
/// decoders refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CidCapsule {
    /// `REGISTER_CLIENT_CID`: the client tells an ID that it has chosen (§5.1).
    RegisterClient {
        /// [`CidReason::DEFAULT`], or why the client cannot use the virtual ID that the proxy has
        /// chosen for this ID before.
        reason: CidReason,
        /// The client's ID.
        cid: Bytes,
    },
    /// `REGISTER_TARGET_CID`: the client tells an ID that the target has chosen (§5.2).
    RegisterTarget {
        /// [`CidReason::DEFAULT`], unless an extension has another reason.
        reason: CidReason,
        /// The target's ID.
        cid: Bytes,
        /// The token of the target for this ID.
        reset_token: Option<ResetToken>,
    },
    /// `ACK_CLIENT_CID`: the proxy has mapped an ID of the client (§5.3).
    AckClient {
        /// The client's ID.
        cid: Bytes,
        /// The ID that replaces it in packets that the proxy forwards to the client. It is empty
        /// if there is no forwarded mode.
        vcid: Bytes,
    },
    /// `ACK_CLIENT_VCID`: the client takes packets with a virtual ID (§5.5).
    AckClientVcid {
        /// The client's ID.
        cid: Bytes,
        /// The virtual ID that the proxy has chosen for it.
        vcid: Bytes,
        /// A token that the client may send to the proxy to stop the forwarding of packets with this
        /// virtual ID.
        reset_token: Option<ResetToken>,
    },
    /// `ACK_TARGET_CID`: the proxy has mapped an ID of the target (§5.4).
    AckTarget {
        /// The target's ID.
        cid: Bytes,
        /// The ID that replaces it in packets that the client forwards through the proxy. It is
        /// empty if there is no forwarded mode.
        vcid: Bytes,
        /// The token with which the proxy may end the connection if it has forgotten the mapping.
        reset_token: Option<ResetToken>,
    },
    /// `CLOSE_CLIENT_CID`: the client retires one of its IDs, or the proxy rejects its registration
    /// (§5.6).
    CloseClient {
        /// Why the ID is retired or rejected.
        reason: CidReason,
        /// The client's ID.
        cid: Bytes,
    },
    /// `CLOSE_TARGET_CID`: the client retires an ID of the target, or the proxy rejects its
    /// registration (§5.6).
    CloseTarget {
        /// Why the ID is retired or rejected.
        reason: CidReason,
        /// The target's ID.
        cid: Bytes,
    },
    /// `MAX_CONNECTION_IDS`: the proxy permits this many registrations since the stream began
    /// (§5.7).
    ///
    /// All registrations of both kinds count together, also repeated and rejected ones. Without this
    /// capsule 2 are permitted, so that the largest sequence number is 1. The receiver checks that
    /// the number is larger than 2 and than each earlier one.
    MaxConnectionIds(VarInt),
}

/// The field Reason: why a connection ID is registered, rejected or closed ([§11.4]). There may be
/// other reasons than the constants, because extensions can register more.
///
/// [§11.4]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-11.4
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CidReason(pub VarInt);

/// The type of a [`CidCapsule`]. The values are those of the draft ([§11.5]), which are
/// provisional and change with its format.
///
/// [§11.5]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-11.5
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CidCapsuleType {
    /// The type of [`CidCapsule::RegisterClient`].
    RegisterClient = 0x00ff_e700,
    /// The type of [`CidCapsule::RegisterTarget`].
    RegisterTarget = 0x00ff_e701,
    /// The type of [`CidCapsule::AckClient`].
    AckClient = 0x00ff_e702,
    /// The type of [`CidCapsule::AckClientVcid`].
    AckClientVcid = 0x00ff_e703,
    /// The type of [`CidCapsule::AckTarget`].
    AckTarget = 0x00ff_e704,
    /// The type of [`CidCapsule::CloseClient`].
    CloseClient = 0x00ff_e705,
    /// The type of [`CidCapsule::CloseTarget`].
    CloseTarget = 0x00ff_e706,
    /// The type of [`CidCapsule::MaxConnectionIds`].
    MaxConnectionIds = 0x00ff_e707,
}

/// The reason why the value of a [`CidCapsule`] is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidCapsuleError {
    /// The value ends inside one of its fields.
    #[error("the value ends inside a field")]
    Truncated,
    /// Bytes follow the last field.
    #[error("{len} bytes follow the last field")]
    TrailingBytes {
        /// The number of these bytes.
        len: usize,
    },
    /// A connection ID is longer than that of any version of QUIC.
    #[error("a connection ID has {len} bytes; at most {CID_LEN_MAX} are allowed")]
    CidTooLong {
        /// The length of the ID in bytes.
        len: u64,
    },
    /// A stateless reset token has a wrong length.
    #[error("a stateless reset token has {len} bytes; allowed: 0, {}", ResetToken::LEN)]
    ResetTokenLength {
        /// The length of the token in bytes.
        len: u64,
    },
    /// The value is longer than any value of its type.
    #[error("the value has {len} bytes; at most {len_max} are possible")]
    ValueTooLong {
        /// The length of the value in bytes.
        len: u64,
        /// The length of the longest value of this type in bytes.
        len_max: usize,
    },
}

impl CidReason {
    /// Nothing is wrong: an ID is new, or no longer needed.
    pub const DEFAULT: Self = Self(VarInt::from_u32(0x00));
    /// The connection ID or virtual connection ID is too short.
    pub const TOO_SHORT: Self = Self(VarInt::from_u32(0x01));
    /// The connection ID or virtual connection ID conflicts with one in use; see
    /// [`ConnectionId::conflicts_with`](crate::ConnectionId::conflicts_with).
    pub const CONFLICT: Self = Self(VarInt::from_u32(0x02));
}

/// The name in the draft, or else the number.
impl fmt::Display for CidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DEFAULT => f.pad("DEFAULT"),
            Self::TOO_SHORT => f.pad("TOO_SHORT"),
            Self::CONFLICT => f.pad("CONFLICT"),
            Self(number) => write!(f, "{:#x}", number.get()),
        }
    }
}

impl CidCapsuleType {
    /// Every type.
    pub const ALL: [Self; 8] = [
        Self::RegisterClient,
        Self::RegisterTarget,
        Self::AckClient,
        Self::AckClientVcid,
        Self::AckTarget,
        Self::CloseClient,
        Self::CloseTarget,
        Self::MaxConnectionIds,
    ];

    /// Returns the type that has this number, if there is one.
    pub fn from_varint(capsule_type: VarInt) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.get() == capsule_type)
    }

    /// Returns the number of the type.
    pub const fn get(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    /// Returns the length of the longest value of this type in bytes. The longest encoding of each
    /// integer counts, because a sender may choose any.
    pub const fn value_len_max(self) -> usize {
        const REASON: usize = VarInt::LEN_MAX;
        const CID: usize = VarInt::LEN_MAX + CID_LEN_MAX;
        const RESET_TOKEN: usize = VarInt::LEN_MAX + ResetToken::LEN;
        match self {
            Self::RegisterClient | Self::CloseClient | Self::CloseTarget => REASON + CID_LEN_MAX,
            Self::RegisterTarget => REASON + CID + RESET_TOKEN,
            Self::AckClient => CID + CID,
            Self::AckClientVcid | Self::AckTarget => CID + CID + RESET_TOKEN,
            Self::MaxConnectionIds => VarInt::LEN_MAX,
        }
    }
}

impl CidCapsule {
    /// Returns the capsule's type.
    pub const fn capsule_type(&self) -> CidCapsuleType {
        match self {
            Self::RegisterClient { .. } => CidCapsuleType::RegisterClient,
            Self::RegisterTarget { .. } => CidCapsuleType::RegisterTarget,
            Self::AckClient { .. } => CidCapsuleType::AckClient,
            Self::AckClientVcid { .. } => CidCapsuleType::AckClientVcid,
            Self::AckTarget { .. } => CidCapsuleType::AckTarget,
            Self::CloseClient { .. } => CidCapsuleType::CloseClient,
            Self::CloseTarget { .. } => CidCapsuleType::CloseTarget,
            Self::MaxConnectionIds(_) => CidCapsuleType::MaxConnectionIds,
        }
    }

    /// Decodes a capsule's value. The IDs are shared, not copied.
    ///
    /// # Errors
    ///
    /// The value does not have the format of its type.
    pub fn decode(capsule_type: CidCapsuleType, mut value: Bytes) -> Result<Self, CidCapsuleError> {
        let fields = &mut value;
        let capsule = match capsule_type {
            CidCapsuleType::RegisterClient => {
                Self::RegisterClient { reason: take_reason(fields)?, cid: take_last_cid(fields)? }
            }
            CidCapsuleType::RegisterTarget => Self::RegisterTarget {
                reason: take_reason(fields)?,
                cid: take_cid(fields)?,
                reset_token: take_reset_token(fields)?,
            },
            CidCapsuleType::AckClient => {
                Self::AckClient { cid: take_cid(fields)?, vcid: take_cid(fields)? }
            }
            CidCapsuleType::AckClientVcid => Self::AckClientVcid {
                cid: take_cid(fields)?,
                vcid: take_cid(fields)?,
                reset_token: take_reset_token(fields)?,
            },
            CidCapsuleType::AckTarget => Self::AckTarget {
                cid: take_cid(fields)?,
                vcid: take_cid(fields)?,
                reset_token: take_reset_token(fields)?,
            },
            CidCapsuleType::CloseClient => {
                Self::CloseClient { reason: take_reason(fields)?, cid: take_last_cid(fields)? }
            }
            CidCapsuleType::CloseTarget => {
                Self::CloseTarget { reason: take_reason(fields)?, cid: take_last_cid(fields)? }
            }
            CidCapsuleType::MaxConnectionIds => Self::MaxConnectionIds(take_integer(fields)?),
        };
        // RFC 9297 §3.3: a capsule's payload "MUST contain exactly the fields identified in its
        // description."
        match value.len() {
            0 => Ok(capsule),
            len => Err(CidCapsuleError::TrailingBytes { len }),
        }
    }

    /// Appends the whole capsule to `out`: its type, the length of its value, and its value.
    pub fn encode(&self, out: &mut impl BufMut) {
        let mut value = Vec::new();
        match self {
            Self::RegisterClient { reason, cid }
            | Self::CloseClient { reason, cid }
            | Self::CloseTarget { reason, cid } => {
                reason.0.encode(&mut value);
                value.put_slice(cid);
            }
            Self::RegisterTarget { reason, cid, reset_token } => {
                reason.0.encode(&mut value);
                put_with_length(cid, &mut value);
                put_reset_token(reset_token.as_ref(), &mut value);
            }
            Self::AckClient { cid, vcid } => {
                put_with_length(cid, &mut value);
                put_with_length(vcid, &mut value);
            }
            Self::AckClientVcid { cid, vcid, reset_token }
            | Self::AckTarget { cid, vcid, reset_token } => {
                put_with_length(cid, &mut value);
                put_with_length(vcid, &mut value);
                put_reset_token(reset_token.as_ref(), &mut value);
            }
            Self::MaxConnectionIds(count) => count.encode(&mut value),
        }
        encode_capsule(self.capsule_type().get(), &value, out);
    }
}

fn take_integer(fields: &mut Bytes) -> Result<VarInt, CidCapsuleError> {
    VarInt::decode(fields).map_err(|_| CidCapsuleError::Truncated)
}

fn take_reason(fields: &mut Bytes) -> Result<CidReason, CidCapsuleError> {
    take_integer(fields).map(CidReason)
}

fn take(len: VarInt, fields: &mut Bytes) -> Result<Bytes, CidCapsuleError> {
    match usize::try_from(len.get()) {
        Ok(len) if len <= fields.len() => Ok(fields.split_to(len)),
        Ok(_) | Err(_) => Err(CidCapsuleError::Truncated),
    }
}

/// Takes an ID that has a length before it.
fn take_cid(fields: &mut Bytes) -> Result<Bytes, CidCapsuleError> {
    let len = take_integer(fields)?;
    if len.get() > CID_LEN_MAX as u64 {
        return Err(CidCapsuleError::CidTooLong { len: len.get() });
    }
    take(len, fields)
}

/// Takes an ID that is the rest of the value.
fn take_last_cid(fields: &mut Bytes) -> Result<Bytes, CidCapsuleError> {
    let len = fields.len();
    if len > CID_LEN_MAX {
        return Err(CidCapsuleError::CidTooLong { len: len as u64 });
    }
    Ok(fields.split_to(len))
}

fn take_reset_token(fields: &mut Bytes) -> Result<Option<ResetToken>, CidCapsuleError> {
    let len = take_integer(fields)?;
    let mut token = [0; ResetToken::LEN];
    match len.get() {
        // The draft's §5.4 and §5.5: the receiver of "a zero-length stateless reset token MUST
        // ignore it".
        0 => return Ok(None),
        len if len == ResetToken::LEN as u64 => {}
        len => return Err(CidCapsuleError::ResetTokenLength { len }),
    }
    take(len, fields)?.copy_to_slice(&mut token);
    Ok(Some(ResetToken::new(token)))
}

fn put_with_length(field: &[u8], value: &mut Vec<u8>) {
    VarInt::from_len(field.len()).encode(value);
    value.put_slice(field);
}

fn put_reset_token(token: Option<&ResetToken>, value: &mut Vec<u8>) {
    put_with_length(token.map_or(&[], |token| token.as_bytes()), value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKEN: [u8; 16] = *b"0123456789abcdef";

    fn bytes(data: &'static [u8]) -> Bytes {
        Bytes::from_static(data)
    }

    fn register_client(reason: CidReason, cid: &'static [u8]) -> CidCapsule {
        CidCapsule::RegisterClient { reason, cid: bytes(cid) }
    }

    #[test]
    fn capsules_have_the_format_of_the_draft() {
        let reset_token = Some(ResetToken::new(TOKEN));
        let (reason, other) = (CidReason::DEFAULT, CidReason(VarInt::from_u32(15_293)));
        for (capsule, header, value) in [
            (register_client(CidReason::DEFAULT, b""), [0x80, 0xff, 0xe7, 0x00, 1], &b"\0"[..]),
            (register_client(CidReason::DEFAULT, b"ab"), [0x80, 0xff, 0xe7, 0x00, 3], b"\0ab"),
            (register_client(CidReason::TOO_SHORT, b"a"), [0x80, 0xff, 0xe7, 0x00, 2], b"\x01a"),
            (register_client(other, b"a"), [0x80, 0xff, 0xe7, 0x00, 3], b"\x7b\xbda"),
            (
                CidCapsule::RegisterTarget { reason, cid: bytes(b"ab"), reset_token },
                [0x80, 0xff, 0xe7, 0x01, 21],
                b"\0\x02ab\x100123456789abcdef",
            ),
            (
                CidCapsule::RegisterTarget { reason: other, cid: bytes(b""), reset_token: None },
                [0x80, 0xff, 0xe7, 0x01, 4],
                b"\x7b\xbd\0\0",
            ),
            (
                CidCapsule::AckClient { cid: bytes(b"ab"), vcid: bytes(b"c") },
                [0x80, 0xff, 0xe7, 0x02, 5],
                b"\x02ab\x01c",
            ),
            (
                CidCapsule::AckClientVcid {
                    cid: bytes(b"a"),
                    vcid: bytes(b"b"),
                    reset_token: None,
                },
                [0x80, 0xff, 0xe7, 0x03, 5],
                b"\x01a\x01b\0",
            ),
            (
                CidCapsule::AckTarget { cid: bytes(b"a"), vcid: bytes(b"b"), reset_token },
                [0x80, 0xff, 0xe7, 0x04, 21],
                b"\x01a\x01b\x100123456789abcdef",
            ),
            (
                CidCapsule::CloseClient { reason: CidReason::CONFLICT, cid: bytes(b"ab") },
                [0x80, 0xff, 0xe7, 0x05, 3],
                b"\x02ab",
            ),
            (
                CidCapsule::CloseTarget { reason, cid: bytes(b"ab") },
                [0x80, 0xff, 0xe7, 0x06, 3],
                b"\0ab",
            ),
            (
                CidCapsule::MaxConnectionIds(VarInt::from_u32(64)),
                [0x80, 0xff, 0xe7, 0x07, 2],
                &[0x40, 0x40],
            ),
        ] {
            let mut encoded = Vec::new();
            capsule.encode(&mut encoded);
            assert_eq!(encoded, [&header, value].concat(), "{capsule:?}");
            let decoded = CidCapsule::decode(capsule.capsule_type(), bytes(value));
            assert_eq!(decoded, Ok(capsule));
        }
    }

    #[test]
    fn integers_may_have_any_encoding() {
        let value = b"\x40\x01a\x80\0\0\x01b\xc0\0\0\0\0\0\0\x100123456789abcdef";
        let (cid, vcid) = (bytes(b"a"), bytes(b"b"));
        assert_eq!(
            CidCapsule::decode(CidCapsuleType::AckTarget, bytes(value)),
            Ok(CidCapsule::AckTarget { cid, vcid, reset_token: Some(ResetToken::new(TOKEN)) })
        );
        let value = b"\x80\0\0\x02ab";
        assert_eq!(
            CidCapsule::decode(CidCapsuleType::RegisterClient, bytes(value)),
            Ok(register_client(CidReason::CONFLICT, b"ab"))
        );
    }

    #[test]
    fn malformed_values_are_refused_by_cause() {
        const LONG: &[u8] = &[7; 257]; // a reason and an ID
        let trailing = |len| CidCapsuleError::TrailingBytes { len };
        for (capsule_type, value, error) in [
            (CidCapsuleType::RegisterClient, LONG, CidCapsuleError::CidTooLong { len: 256 }),
            (CidCapsuleType::CloseTarget, LONG, CidCapsuleError::CidTooLong { len: 256 }),
            (CidCapsuleType::RegisterClient, b"", CidCapsuleError::Truncated),
            (CidCapsuleType::CloseClient, b"\x40", CidCapsuleError::Truncated),
            (CidCapsuleType::CloseTarget, b"", CidCapsuleError::Truncated),
            (CidCapsuleType::RegisterTarget, b"", CidCapsuleError::Truncated),
            (CidCapsuleType::RegisterTarget, b"\0", CidCapsuleError::Truncated),
            (CidCapsuleType::RegisterTarget, b"\0\x01", CidCapsuleError::Truncated),
            (CidCapsuleType::RegisterTarget, b"\0\x01a", CidCapsuleError::Truncated),
            (CidCapsuleType::RegisterTarget, b"\0\x01a\x10123", CidCapsuleError::Truncated),
            (CidCapsuleType::RegisterTarget, b"\0\x01a\0a", trailing(1)),
            (
                CidCapsuleType::RegisterTarget,
                b"\0\x01a\x0f0123456789abcde",
                CidCapsuleError::ResetTokenLength { len: 15 },
            ),
            (
                CidCapsuleType::AckTarget,
                b"\0\0\x110123456789abcdefg",
                CidCapsuleError::ResetTokenLength { len: 17 },
            ),
            (CidCapsuleType::AckClient, b"\x01a", CidCapsuleError::Truncated),
            (CidCapsuleType::AckClient, b"\x01a\x02b", CidCapsuleError::Truncated),
            (CidCapsuleType::AckClient, b"\x01a\x01b\0", trailing(1)),
            (CidCapsuleType::AckClient, b"\x41\0", CidCapsuleError::CidTooLong { len: 256 }),
            (
                CidCapsuleType::AckClient,
                b"\0\xff\xff\xff\xff\xff\xff\xff\xff",
                CidCapsuleError::CidTooLong { len: VarInt::MAX },
            ),
            (CidCapsuleType::AckClientVcid, b"\x01a\x01b", CidCapsuleError::Truncated),
            (CidCapsuleType::MaxConnectionIds, b"", CidCapsuleError::Truncated),
            (CidCapsuleType::MaxConnectionIds, b"\x40", CidCapsuleError::Truncated),
            (CidCapsuleType::MaxConnectionIds, b"\x01\x01", trailing(1)),
        ] {
            let refused = CidCapsule::decode(capsule_type, bytes(value));
            assert_eq!(refused, Err(error), "{capsule_type:?} {value:02x?}");
        }
    }

    #[test]
    fn the_longest_values_decode_and_longer_ones_never_do() {
        let reason = vec![0xff; 8];
        let id = |len: usize| [&[0xc0, 0, 0, 0, 0, 0, 0, 255][..], &vec![7; len]].concat();
        let token = [&[0xc0, 0, 0, 0, 0, 0, 0, 16][..], &TOKEN].concat();
        let longest = |capsule_type| match capsule_type {
            CidCapsuleType::RegisterClient
            | CidCapsuleType::CloseClient
            | CidCapsuleType::CloseTarget => [reason.clone(), vec![7; 255]].concat(),
            CidCapsuleType::RegisterTarget => [reason.clone(), id(255), token.clone()].concat(),
            CidCapsuleType::AckClient => [id(255), id(255)].concat(),
            CidCapsuleType::AckClientVcid | CidCapsuleType::AckTarget => {
                [id(255), id(255), token.clone()].concat()
            }
            CidCapsuleType::MaxConnectionIds => vec![0xff; 8],
        };
        for capsule_type in CidCapsuleType::ALL {
            let mut value = longest(capsule_type);
            assert_eq!(value.len(), capsule_type.value_len_max(), "{capsule_type:?}");
            let decoded = CidCapsule::decode(capsule_type, value.clone().into());
            assert_eq!(decoded.map(|it| it.capsule_type()), Ok(capsule_type));
            value.push(7);
            assert!(CidCapsule::decode(capsule_type, value.into()).is_err(), "{capsule_type:?}");
        }
    }

    #[test]
    fn types_are_found_by_their_number() {
        for capsule_type in CidCapsuleType::ALL {
            assert_eq!(CidCapsuleType::from_varint(capsule_type.get()), Some(capsule_type));
        }
        for number in [0, 0x00ff_e600, 0x00ff_e6ff, 0x00ff_e708] {
            assert_eq!(CidCapsuleType::from_varint(VarInt::from_u32(number)), None, "{number:x}");
        }
    }

    #[test]
    fn reasons_print_their_name_or_number() {
        for (number, name) in
            [(0x00, "DEFAULT"), (0x01, "TOO_SHORT"), (0x02, "CONFLICT"), (0x21, "0x21")]
        {
            assert_eq!(CidReason(VarInt::from_u32(number)).to_string(), name);
        }
        assert_eq!(CidReason::default(), CidReason::DEFAULT);
    }

    proptest! {
        #[test]
        fn any_value_decodes_to_what_encodes_to_an_equal_one(
            capsule_type in prop::sample::select(CidCapsuleType::ALL.to_vec()),
            value: Vec<u8>,
        ) {
            let Ok(capsule) = CidCapsule::decode(capsule_type, value.clone().into()) else {
                return Ok(());
            };
            let mut encoded = Vec::new();
            capsule.encode(&mut encoded);
            let mut rest = Bytes::from(encoded);
            prop_assert_eq!(VarInt::decode(&mut rest), Ok(capsule_type.get()));
            prop_assert_eq!(VarInt::decode(&mut rest).map(VarInt::get), Ok(rest.len() as u64));
            prop_assert!(rest.len() <= value.len(), "the shortest integers are never longer");
            prop_assert_eq!(CidCapsule::decode(capsule_type, rest), Ok(capsule));
        }
    }
}

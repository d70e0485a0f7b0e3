//! Capsules, which are carried on a request stream ([RFC 9297 §3.2]).
//!
//! [RFC 9297 §3.2]: https://www.rfc-editor.org/rfc/rfc9297#section-3.2

use bytes::{BufMut, Bytes};

use crate::chunks::{Chunks, HeaderBuffer, ValueBuffer};
use crate::repair::{CAPSULE_TYPE_LIMIT, CAPSULE_TYPE_LIMIT_OF_CONTEXT};
use crate::{
    CidCapsule, CidCapsuleError, CidCapsuleType, DecodeError, RetransmissionLimit, VarInt,
};

/// The type of the DATAGRAM capsule ([RFC 9297 §3.5]).
///
/// [RFC 9297 §3.5]: https://www.rfc-editor.org/rfc/rfc9297#section-3.5
pub const CAPSULE_TYPE_DATAGRAM: VarInt = VarInt::from_u32(0x00);

/// The type of the capsule with which a proxy of ours says why a flow ends; its value is that of a
/// `Proxy-Status` field. RFC 9114 §4.4 permits no trailer section on the stream of a CONNECT request.
pub const CAPSULE_TYPE_PROXY_STATUS: VarInt = VarInt::from_u32(0x1ad5_c09e);

/// The longest value of a [`CAPSULE_TYPE_PROXY_STATUS`] capsule in bytes. A longer one is skipped.
pub const PROXY_STATUS_MAX: usize = 1024;

/// The type of the capsule with which a client of ours changes how a flow is repaired; its value is
/// that of a `tandem-repair` field ([`RepairField`](crate::RepairField)).
pub const CAPSULE_TYPE_REPAIR: VarInt = VarInt::from_u32(0x1ad5_c09f);

/// The longest value of a [`CAPSULE_TYPE_REPAIR`] capsule in bytes. A longer one is skipped.
pub const REPAIR_MAX: usize = 256;

/// The longest value in bytes of a capsule that a service has of its own
/// ([`CapsuleDecoder::with_own`]). A longer one is skipped.
pub const OWN_CAPSULE_MAX: usize = 1024;

/// One capsule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capsule {
    /// The payload of an HTTP Datagram; see [`split_context_id`](crate::split_context_id).
    Datagram(Bytes),
    /// The limit of retransmissions of lost HTTP Datagrams.
    RetransmissionLimit(RetransmissionLimit),
    /// The value of a `Proxy-Status` field, which says why the flow ends.
    ProxyStatus(Bytes),
    /// The value of a `tandem-repair` field: how a flow is repaired from now on.
    Repair(Bytes),
    /// A connection ID of a proxied QUIC connection is registered, acknowledged or closed.
    Cid(CidCapsule),
    /// A capsule that only the flow's service can read.
    Own(OwnCapsule),
    /// A capsule of another type. The decoder skips its value, which may have any length.
    Unknown {
        /// The capsule's type.
        capsule_type: VarInt,
        /// The length of its value in bytes.
        len: u64,
    },
}

/// A capsule that only the service can read for which its request stream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCapsule {
    /// The capsule's type.
    pub capsule_type: VarInt,
    /// Its value, of at most [`OWN_CAPSULE_MAX`] bytes.
    pub value: Bytes,
}

/// Decodes capsules from a stream of bytes that arrives in arbitrary pieces.
///
/// It keeps at most `max_value_len` bytes of an unfinished capsule, or 1024 if that is more. After an error it returns
/// the same error at every call.
#[derive(Debug)]
pub struct CapsuleDecoder {
    max_value_len: usize,
    own: &'static [VarInt],
    chunks: Chunks,
    state: CapsuleState,
}

#[derive(Debug)]
enum CapsuleState {
    Header(HeaderBuffer),
    Value { kind: Kind, value: ValueBuffer },
    Skip { remaining: u64 },
    Failed(DecodeError),
}

/// A type of capsule whose value is decoded as a whole.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Datagram,
    Limit(VarInt),
    ProxyStatus,
    Repair,
    Cid(CidCapsuleType),
    Own(VarInt),
}

impl Kind {
    fn decode(self, value: Bytes) -> Result<Capsule, CidCapsuleError> {
        let len = value.len() as u64;
        Ok(match self {
            Self::Datagram => Capsule::Datagram(value),
            // The type is provisional, so a value of another format may belong to another
            // extension.
            Self::Limit(capsule_type) => match RetransmissionLimit::decode(capsule_type, value) {
                Some(limit) => Capsule::RetransmissionLimit(limit),
                None => Capsule::Unknown { capsule_type, len },
            },
            Self::ProxyStatus => Capsule::ProxyStatus(value),
            Self::Repair => Capsule::Repair(value),
            Self::Cid(capsule_type) => Capsule::Cid(CidCapsule::decode(capsule_type, value)?),
            Self::Own(capsule_type) => Capsule::Own(OwnCapsule { capsule_type, value }),
        })
    }
}

impl CapsuleDecoder {
    /// Creates a decoder at the beginning of a stream. It accepts DATAGRAM capsules whose value has
    /// at most `max_value_len` bytes.
    pub fn new(max_value_len: usize) -> Self {
        Self {
            max_value_len,
            own: &[],
            chunks: Chunks::default(),
            state: CapsuleState::Header(HeaderBuffer::default()),
        }
    }

    /// Also returns the values of capsules of these types, which the decoder does not know itself, as they are.
    #[must_use]
    pub const fn with_own(mut self, own: &'static [VarInt]) -> Self {
        self.own = own;
        self
    }

    /// Adds bytes from the stream. The caller has to call [`next`](Self::next) until it returns
    /// `None` before the following push; otherwise the bytes accumulate.
    pub fn push(&mut self, data: Bytes) {
        self.chunks.push(data);
    }

    /// Bytes of memory that an incomplete capsule takes.
    pub fn memory(&self) -> usize {
        match &self.state {
            CapsuleState::Value { value, .. } => value.memory(),
            CapsuleState::Header(_) | CapsuleState::Skip { .. } | CapsuleState::Failed(_) => 0,
        }
    }

    /// Returns the next capsule, or `None` if the decoder needs more bytes.
    ///
    /// An unknown capsule is returned when its header is complete; its value may still be arriving.
    ///
    /// # Errors
    ///
    /// [`DecodeError::DatagramCapsuleTooLong`] if a DATAGRAM capsule is above the limit, and
    /// [`DecodeError::CidCapsuleMalformed`] if a capsule with a connection ID is malformed.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator ends with None, but this decoder goes on"
    )]
    pub fn next(&mut self) -> Result<Option<Capsule>, DecodeError> {
        loop {
            match &mut self.state {
                CapsuleState::Header(header) => {
                    let Some((capsule_type, len)) = header.fill(&mut self.chunks) else {
                        return Ok(None);
                    };
                    if let Some(capsule) = self.begin(capsule_type, len.get())? {
                        return Ok(Some(capsule));
                    }
                }
                CapsuleState::Value { kind, value } => {
                    let Some(value) = value.fill(&mut self.chunks) else {
                        return Ok(None);
                    };
                    let decoded = kind.decode(value);
                    self.state = CapsuleState::Header(HeaderBuffer::default());
                    return decoded.map(Some).map_err(|error| self.fail(error.into()));
                }
                CapsuleState::Skip { remaining: 0 } => {
                    self.state = CapsuleState::Header(HeaderBuffer::default());
                }
                CapsuleState::Skip { remaining } => match self.chunks.take_piece(*remaining) {
                    Some(piece) => *remaining -= piece.len() as u64,
                    None => return Ok(None),
                },
                CapsuleState::Failed(error) => return Err(error.clone()),
            }
        }
    }

    /// Checks that the stream ends between two capsules. The caller calls it when the stream has
    /// ended and [`next`](Self::next) returns `None`.
    ///
    /// # Errors
    ///
    /// [`DecodeError::CapsuleTruncated`] if the stream ends inside a capsule.
    pub fn finish(&self) -> Result<(), DecodeError> {
        // RFC 9297 §3.3: "If the receive side of a stream carrying Capsules is terminated cleanly
        // [...] and the last Capsule on the stream was truncated, this MUST be treated as if it
        // were a malformed or incomplete message."
        match &self.state {
            CapsuleState::Header(header) if header.is_empty() && self.chunks.is_empty() => Ok(()),
            CapsuleState::Skip { remaining: 0 } if self.chunks.is_empty() => Ok(()),
            CapsuleState::Failed(error) => Err(error.clone()),
            CapsuleState::Header(_) | CapsuleState::Value { .. } | CapsuleState::Skip { .. } => {
                Err(DecodeError::CapsuleTruncated)
            }
        }
    }

    /// Begins the value of a capsule. Returns the capsule if its value is skipped.
    fn begin(&mut self, capsule_type: VarInt, len: u64) -> Result<Option<Capsule>, DecodeError> {
        match self.to_decode(capsule_type, len) {
            Ok(Some((kind, len))) => {
                self.state = CapsuleState::Value { kind, value: ValueBuffer::new(len) };
                Ok(None)
            }
            Ok(None) => {
                // RFC 9297 §3.2: "Endpoints that receive a Capsule with an unknown Capsule Type MUST
                // silently drop that Capsule and skip over it to parse the next Capsule."
                self.state = CapsuleState::Skip { remaining: len };
                Ok(Some(Capsule::Unknown { capsule_type, len }))
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Returns how a value is decoded, and its length in bytes, or `None` if it is skipped.
    fn to_decode(
        &self,
        capsule_type: VarInt,
        len: u64,
    ) -> Result<Option<(Kind, usize)>, DecodeError> {
        let up_to = |len_max: usize| usize::try_from(len).ok().filter(|&len| len <= len_max);
        let (kind, len) = match capsule_type {
            // RFC 9297 §3.5: "If an incoming DATAGRAM Capsule has a length that is known to be so
            // large as to not be usable, the implementation SHOULD discard the Capsule without
            // buffering its contents into memory." RFC 9298 §5 requires that the stream is aborted.
            CAPSULE_TYPE_DATAGRAM => {
                let len_max = self.max_value_len;
                let too_long = DecodeError::DatagramCapsuleTooLong { len, len_max };
                (Kind::Datagram, Some(up_to(len_max).ok_or(too_long)?))
            }
            CAPSULE_TYPE_LIMIT | CAPSULE_TYPE_LIMIT_OF_CONTEXT => {
                let len_max = RetransmissionLimit::LEN_MAX.min(self.max_value_len);
                (Kind::Limit(capsule_type), up_to(len_max).filter(|&len| len > 0))
            }
            CAPSULE_TYPE_PROXY_STATUS => (Kind::ProxyStatus, up_to(PROXY_STATUS_MAX)),
            CAPSULE_TYPE_REPAIR => (Kind::Repair, up_to(REPAIR_MAX)),
            own if self.own.contains(&own) => (Kind::Own(own), up_to(OWN_CAPSULE_MAX)),
            _ => {
                let Some(capsule_type) = CidCapsuleType::from_varint(capsule_type) else {
                    return Ok(None);
                };
                let len_max = capsule_type.value_len_max();
                let too_long = CidCapsuleError::ValueTooLong { len, len_max };
                (Kind::Cid(capsule_type), Some(up_to(len_max).ok_or(too_long)?))
            }
        };
        Ok(len.map(|len| (kind, len)))
    }

    fn fail(&mut self, error: DecodeError) -> DecodeError {
        self.state = CapsuleState::Failed(error.clone());
        error
    }
}

/// Appends a capsule to `out`.
pub fn encode_capsule(capsule_type: VarInt, value: &[u8], out: &mut impl BufMut) {
    capsule_type.encode(out);
    VarInt::from_len(value.len()).encode(out);
    out.put_slice(value);
}

/// Length in bytes of a DATAGRAM capsule with a payload of `payload_len` bytes.
pub const fn datagram_capsule_len(context_id: VarInt, payload_len: usize) -> usize {
    let value_len = context_id.encoded_len() + payload_len;
    CAPSULE_TYPE_DATAGRAM.encoded_len() + VarInt::from_len(value_len).encoded_len() + value_len
}

/// Appends a DATAGRAM capsule with a Context ID and a payload of CONNECT-UDP to `out` ([RFC 9298
/// §5]).
///
/// [RFC 9298 §5]: https://www.rfc-editor.org/rfc/rfc9298#section-5
pub fn encode_datagram_capsule(context_id: VarInt, payload: &[u8], out: &mut impl BufMut) {
    CAPSULE_TYPE_DATAGRAM.encode(out);
    VarInt::from_len(context_id.encoded_len() + payload.len()).encode(out);
    context_id.encode(out);
    out.put_slice(payload);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::{CidReason, Code, ErrorScope, ResetToken};

    const LEN_MAX: usize = 100;

    /// Returns all capsules of a stream that arrives in `pieces`, and the result at its end.
    fn decode_all(pieces: &[Bytes]) -> (Vec<Capsule>, Result<(), DecodeError>) {
        let mut decoder = CapsuleDecoder::new(LEN_MAX);
        let mut capsules = Vec::new();
        for piece in pieces {
            decoder.push(piece.clone());
            loop {
                match decoder.next() {
                    Ok(Some(capsule)) => capsules.push(capsule),
                    Ok(None) => break,
                    Err(error) => return (capsules, Err(error)),
                }
            }
        }
        (capsules, decoder.finish())
    }

    fn datagram(payload: &'static [u8]) -> Capsule {
        Capsule::Datagram(Bytes::from_static(payload))
    }

    fn unknown(capsule_type: u32, len: u64) -> Capsule {
        Capsule::Unknown { capsule_type: VarInt::from_u32(capsule_type), len }
    }

    #[test]
    fn capsules_decode() {
        for (data, capsules) in [
            (&[][..], vec![]),
            (&[0, 0], vec![datagram(&[])]),
            (&[0, 2, 0, 9], vec![datagram(&[0, 9])]),
            (&[0x40, 0, 0x40, 1, 7], vec![datagram(&[7])]),
            (&[0x17, 2, 0, 2, 0, 1, 5], vec![unknown(0x17, 2), datagram(&[5])]),
            (&[0x17, 0, 0, 1, 5], vec![unknown(0x17, 0), datagram(&[5])]),
            (
                &[0x9a, 0xd5, 0xc0, 0x9e, 2, b'a', b'b', 0, 0],
                vec![Capsule::ProxyStatus(Bytes::from_static(b"ab")), datagram(&[])],
            ),
            (&[0x9a, 0xd5, 0xc0, 0x9e, 0], vec![Capsule::ProxyStatus(Bytes::new())]),
            (
                &[0x9a, 0xd5, 0xc0, 0x9f, 2, b'1', b';', 0, 0],
                vec![Capsule::Repair(Bytes::from_static(b"1;")), datagram(&[])],
            ),
        ] {
            let (decoded, end) = decode_all(&[Bytes::from_static(data)]);
            assert_eq!(decoded, capsules, "{data:02x?}");
            assert_eq!(end, Ok(()), "{data:02x?}");
        }
    }

    #[test]
    fn a_malformed_capsule_with_a_connection_id_is_an_error_of_its_stream() {
        let too_long = CidCapsuleError::ValueTooLong { len: 264, len_max: 263 };
        for (data, error) in [
            (&[0x80, 0xff, 0xe7, 0x05, 0x41, 0x08][..], too_long), // before any byte of the value
            (&[0x80, 0xff, 0xe7, 0x01, 0], CidCapsuleError::Truncated),
            (&[0x80, 0xff, 0xe7, 0x02, 3, 0, 0, 0], CidCapsuleError::TrailingBytes { len: 1 }),
        ] {
            let mut decoder = CapsuleDecoder::new(LEN_MAX);
            decoder.push(Bytes::from_static(data));
            let error = DecodeError::CidCapsuleMalformed(error);
            assert_eq!(decoder.next(), Err(error.clone()), "{data:02x?}");
            decoder.push(Bytes::from_static(&[0, 0]));
            assert_eq!(decoder.next(), Err(error.clone()), "{data:02x?}");
            assert_eq!((error.code(), error.scope()), (Code::H3_MESSAGE_ERROR, ErrorScope::Stream));
        }
    }

    #[test]
    fn an_unfinished_capsule_with_a_connection_id_takes_no_more_than_its_longest_value() {
        let mut decoder = CapsuleDecoder::new(LEN_MAX);
        decoder.push(Bytes::from_static(&[0x80, 0xff, 0xe7, 0x04, 0x42, 0x26])); // 550 bytes
        for _ in 1..550 {
            decoder.push(Bytes::from_static(&[0]));
            assert_eq!(decoder.next(), Ok(None));
        }
        assert!(decoder.memory() <= 1024, "{}", decoder.memory());
        assert_eq!(decoder.finish(), Err(DecodeError::CapsuleTruncated));
    }

    #[test]
    fn a_proxy_status_that_is_too_long_is_skipped() {
        for (len, is_read) in [(PROXY_STATUS_MAX, true), (PROXY_STATUS_MAX + 1, false)] {
            let mut data = Vec::new();
            encode_capsule(CAPSULE_TYPE_PROXY_STATUS, &vec![b'a'; len], &mut data);
            let (decoded, end) = decode_all(&[data.into()]);
            let is_status =
                matches!(&decoded[..], [Capsule::ProxyStatus(value)] if value.len() == len);
            assert_eq!((decoded.len(), is_status, end), (1, is_read, Ok(())), "{len}");
        }
    }

    #[test]
    fn capsules_of_a_service_are_passed_on_as_they_are_and_those_that_are_too_long_are_skipped() {
        const OWN: VarInt = VarInt::from_u32(0x17);
        let mut data = Vec::new();
        for (capsule_type, len) in
            [(0x17, 0), (0x17, OWN_CAPSULE_MAX), (0x17, OWN_CAPSULE_MAX + 1), (0x18, 3)]
        {
            encode_capsule(VarInt::from_u32(capsule_type), &vec![7; len], &mut data);
        }
        let mut decoder = CapsuleDecoder::new(LEN_MAX).with_own(&[OWN]);
        let mut capsules = Vec::new();
        for piece in data.chunks(100) {
            decoder.push(Bytes::copy_from_slice(piece));
            while let Some(capsule) = decoder.next().unwrap() {
                capsules.push(capsule);
            }
            assert!(decoder.memory() <= 2 * OWN_CAPSULE_MAX);
        }
        let own =
            |len| Capsule::Own(OwnCapsule { capsule_type: OWN, value: Bytes::from(vec![7; len]) });
        let skipped = unknown(0x17, OWN_CAPSULE_MAX as u64 + 1);
        assert_eq!(capsules, [own(0), own(OWN_CAPSULE_MAX), skipped, unknown(0x18, 3)]);
        assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn a_stream_that_ends_inside_a_capsule_is_an_error() {
        for data in [&[0][..], &[0x40], &[0, 1], &[0, 2, 1], &[0x17, 2, 1], &[0, 1, 5, 0x17]] {
            let (_, end) = decode_all(&[Bytes::from_static(data)]);
            assert_eq!(end, Err(DecodeError::CapsuleTruncated), "{data:02x?}");
        }
    }

    #[test]
    fn a_datagram_may_have_the_limit_but_not_more() {
        for (len, is_taken) in [(LEN_MAX, true), (LEN_MAX + 1, false)] {
            let mut data = Vec::new();
            encode_capsule(CAPSULE_TYPE_DATAGRAM, &vec![0; len], &mut data);
            let (_, end) = decode_all(&[data.into()]);
            assert_eq!(end.is_ok(), is_taken, "{len}");
        }
    }

    #[test]
    fn an_error_stays() {
        let mut decoder = CapsuleDecoder::new(LEN_MAX);
        decoder.push(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]));
        let error = decoder.next().expect_err("2^62 - 1 bytes");
        assert_eq!(
            error,
            DecodeError::DatagramCapsuleTooLong { len: VarInt::MAX, len_max: LEN_MAX }
        );
        decoder.push(Bytes::from_static(&[0, 0]));
        assert_eq!(decoder.next(), Err(error.clone()));
        assert_eq!(decoder.finish(), Err(error));
    }

    #[test]
    fn an_unknown_capsule_of_any_length_is_skipped_and_not_kept() {
        let mut decoder = CapsuleDecoder::new(LEN_MAX);
        decoder.push(Bytes::from_static(&[0x17, 0x80, 0x0f, 0x42, 0x40])); // 1 000 000 bytes
        assert_eq!(decoder.next(), Ok(Some(unknown(0x17, 1_000_000))));
        for _ in 0..1000 {
            decoder.push(Bytes::from_static(&[0; 1000]));
            assert_eq!(decoder.next(), Ok(None));
            assert!(decoder.chunks.is_empty());
        }
        assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn a_datagram_in_one_piece_is_shared_and_not_copied() {
        let data = Bytes::from_static(&[0, 2, 0, 9]);
        let mut decoder = CapsuleDecoder::new(LEN_MAX);
        decoder.push(data.clone());
        let Ok(Some(Capsule::Datagram(payload))) = decoder.next() else { panic!("no datagram") };
        assert_eq!(payload.as_ptr(), data.slice(2..).as_ptr());
    }

    /// A capsule of any type, with IDs of all lengths that the draft permits.
    fn cid_capsule() -> impl Strategy<Value = CidCapsule> {
        let id = || prop::collection::vec(any::<u8>(), 0..=255).prop_map(Bytes::from);
        let token = || prop::option::of(any::<[u8; 16]>().prop_map(ResetToken::new));
        let integer = || (0..=VarInt::MAX).prop_map(VarInt::saturating_from);
        let reason = || integer().prop_map(CidReason);
        prop_oneof![
            (reason(), id()).prop_map(|(reason, cid)| CidCapsule::RegisterClient { reason, cid }),
            (reason(), id(), token()).prop_map(|(reason, cid, reset_token)| {
                CidCapsule::RegisterTarget { reason, cid, reset_token }
            }),
            (id(), id()).prop_map(|(cid, vcid)| CidCapsule::AckClient { cid, vcid }),
            (id(), id(), token()).prop_map(|(cid, vcid, reset_token)| {
                CidCapsule::AckClientVcid { cid, vcid, reset_token }
            }),
            (id(), id(), token()).prop_map(|(cid, vcid, reset_token)| {
                CidCapsule::AckTarget { cid, vcid, reset_token }
            }),
            (reason(), id()).prop_map(|(reason, cid)| CidCapsule::CloseClient { reason, cid }),
            (reason(), id()).prop_map(|(reason, cid)| CidCapsule::CloseTarget { reason, cid }),
            integer().prop_map(CidCapsule::MaxConnectionIds),
        ]
    }

    proptest! {
        #[test]
        fn capsules_with_connection_ids_decode_to_themselves_wherever_they_are_split(
            capsules in prop::collection::vec(cid_capsule(), 1..=2),
        ) {
            let mut data = Vec::new();
            for capsule in &capsules {
                capsule.encode(&mut data);
            }
            let capsules: Vec<_> = capsules.into_iter().map(Capsule::Cid).collect();
            for cut in 0..=data.len() {
                let (first, second) = data.split_at(cut);
                let pieces = [first, second].map(Bytes::copy_from_slice);
                prop_assert_eq!(decode_all(&pieces), (capsules.clone(), Ok(())));
            }
            let single: Vec<_> = data.chunks(1).map(Bytes::copy_from_slice).collect();
            prop_assert_eq!(decode_all(&single), (capsules, Ok(())));
        }

        #[test]
        fn encoded_capsules_decode_to_themselves_however_they_are_split(
            values: Vec<(u32, Vec<u8>)>,
            splits: Vec<Index>,
        ) {
            let mut data = Vec::new();
            let mut capsules = Vec::new();
            for (capsule_type, value) in values {
                let capsule_type = VarInt::from_u32(capsule_type % 4);
                let mut value = value;
                value.truncate(LEN_MAX);
                encode_capsule(capsule_type, &value, &mut data);
                capsules.push(if capsule_type == CAPSULE_TYPE_DATAGRAM {
                    Capsule::Datagram(value.into())
                } else {
                    Capsule::Unknown { capsule_type, len: value.len() as u64 }
                });
            }
            prop_assert_eq!(decode_all(&split(&data, &splits)), (capsules, Ok(())));
        }

        #[test]
        fn any_bytes_give_the_same_capsules_however_they_are_split(data: Vec<u8>, splits: Vec<Index>) {
            let whole = decode_all(&[Bytes::copy_from_slice(&data)]);
            prop_assert_eq!(decode_all(&split(&data, &splits)), whole);
        }

        #[test]
        fn a_datagram_capsule_holds_the_context_id_and_the_payload(id: u32, payload: Vec<u8>) {
            let mut data = Vec::new();
            encode_datagram_capsule(VarInt::from_u32(id), &payload, &mut data);
            let mut decoder = CapsuleDecoder::new(payload.len() + 8);
            decoder.push(data.into());
            let Ok(Some(Capsule::Datagram(value))) = decoder.next() else { panic!("no datagram") };
            let expected = (VarInt::from_u32(id), Bytes::from(payload));
            prop_assert_eq!(crate::split_context_id(value), Ok(expected));
        }
    }

    fn split(data: &[u8], splits: &[Index]) -> Vec<Bytes> {
        let mut cuts: Vec<usize> = splits.iter().map(|split| split.index(data.len() + 1)).collect();
        cuts.extend([0, data.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|cut| Bytes::copy_from_slice(&data[cut[0]..cut[1]])).collect()
    }
}

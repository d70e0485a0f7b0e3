use bytes::{BufMut, Bytes, BytesMut};

use crate::{DecodeError, VarInt};

/// The Context ID of plain UDP payloads ([RFC 9298 §4]).
///
/// [RFC 9298 §4]: https://www.rfc-editor.org/rfc/rfc9298#section-4
pub const CONTEXT_ID_UDP: VarInt = VarInt::from_u32(0);

/// The length of the longest UDP payload in bytes: 65535 minus the UDP header ([RFC 9298 §5]).
///
/// [RFC 9298 §5]: https://www.rfc-editor.org/rfc/rfc9298#section-5
pub const MAX_UDP_PAYLOAD: usize = 65_527;

/// The data of a QUIC DATAGRAM frame: an HTTP/3 Datagram ([RFC 9297 §2.1]) whose payload begins
/// with the Context ID of CONNECT-UDP ([RFC 9298 §5]).
///
/// [RFC 9297 §2.1]: https://www.rfc-editor.org/rfc/rfc9297#section-2.1
/// [RFC 9298 §5]: https://www.rfc-editor.org/rfc/rfc9298#section-5
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpDatagram {
    /// The request stream that the datagram belongs to.
    pub quarter_stream_id: QuarterStreamId,
    /// The Context ID, which determines the format of the payload; 0 is [`CONTEXT_ID_UDP`].
    pub context_id: VarInt,
    /// The bytes after the two IDs.
    pub payload: Bytes,
}

impl HttpDatagram {
    /// Decodes a QUIC DATAGRAM frame's data. The payload is shared, not copied.
    ///
    /// # Errors
    ///
    /// The data is too short for the two IDs, or the Quarter Stream ID is above 2^60 - 1.
    pub fn decode(mut data: Bytes) -> Result<Self, DecodeError> {
        // RFC 9297 §2.1: "Receipt of a QUIC DATAGRAM frame whose payload is too short to allow
        // parsing the Quarter Stream ID field MUST be treated as an HTTP/3 connection error of type
        // H3_DATAGRAM_ERROR (0x33)."
        let quarter_stream_id =
            VarInt::decode(&mut data).map_err(|_| DecodeError::NoQuarterStreamId)?.try_into()?;
        let (context_id, payload) = split_context_id(data)?;
        Ok(Self { quarter_stream_id, context_id, payload })
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        out.reserve(self.encoded_len());
        self.put(out);
    }

    /// Returns the encoding, in one allocation of exactly its length.
    pub fn encode_to_bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.encoded_len());
        self.put(&mut out);
        out.into()
    }

    /// Returns the number of bytes that the two IDs take in a QUIC DATAGRAM frame.
    pub const fn overhead(quarter_stream_id: QuarterStreamId, context_id: VarInt) -> usize {
        quarter_stream_id.0.encoded_len() + context_id.encoded_len()
    }

    fn encoded_len(&self) -> usize {
        Self::overhead(self.quarter_stream_id, self.context_id) + self.payload.len()
    }

    /// Appends the two IDs to `out`. The caller appends the payload.
    pub fn encode_ids(
        quarter_stream_id: QuarterStreamId,
        context_id: VarInt,
        out: &mut impl BufMut,
    ) {
        quarter_stream_id.0.encode(out);
        context_id.encode(out);
    }

    fn put(&self, out: &mut impl BufMut) {
        Self::encode_ids(self.quarter_stream_id, self.context_id, out);
        out.put_slice(&self.payload);
    }
}

/// Splits the payload of an HTTP Datagram that arrived in a DATAGRAM capsule into its Context ID
/// and the rest. The rest is shared, not copied.
///
/// # Errors
///
/// [`DecodeError::NoContextId`] if the payload ends inside the Context ID.
pub fn split_context_id(mut payload: Bytes) -> Result<(VarInt, Bytes), DecodeError> {
    let context_id = VarInt::decode(&mut payload).map_err(|_| DecodeError::NoContextId)?;
    Ok((context_id, payload))
}

/// A client-initiated bidirectional stream's ID divided by four, at most 2^60 - 1
/// ([RFC 9297 §2.1]).
///
/// [RFC 9297 §2.1]: https://www.rfc-editor.org/rfc/rfc9297#section-2.1
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuarterStreamId(VarInt);

impl QuarterStreamId {
    const MAX: u64 = (1 << 60) - 1;

    /// Creates the Quarter Stream ID of the stream with this ID. Returns `None` unless the stream
    /// is client-initiated and bidirectional, that is, its ID is divisible by four.
    pub const fn from_stream_id(stream_id: u64) -> Option<Self> {
        if stream_id > VarInt::MAX || !stream_id.is_multiple_of(4) {
            return None;
        }
        Some(Self(VarInt::saturating_from(stream_id / 4)))
    }

    /// Returns the ID of the stream.
    pub const fn stream_id(self) -> u64 {
        self.0.get() * 4
    }
}

impl TryFrom<VarInt> for QuarterStreamId {
    type Error = DecodeError;

    fn try_from(value: VarInt) -> Result<Self, DecodeError> {
        // RFC 9297 §2.1: "Receipt of an HTTP/3 Datagram that includes a larger value MUST be
        // treated as an HTTP/3 connection error of type H3_DATAGRAM_ERROR".
        if value.get() > Self::MAX {
            return Err(DecodeError::QuarterStreamIdTooLarge(value));
        }
        Ok(Self(value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn datagrams_decode() {
        for (data, stream_id, context_id, payload) in [
            (&[0, 0][..], 0, 0, &[][..]),
            (&[1, 0, 7, 8], 4, 0, &[7, 8]),
            (&[0x40, 1, 0x40, 2, 9], 4, 2, &[9]),
        ] {
            let datagram = HttpDatagram::decode(Bytes::from_static(data)).unwrap();
            assert_eq!(datagram.quarter_stream_id.stream_id(), stream_id, "{data:?}");
            assert_eq!(datagram.context_id.get(), context_id, "{data:?}");
            assert_eq!(datagram.payload, payload, "{data:?}");
        }
    }

    #[test]
    fn short_datagrams_and_large_stream_ids_are_errors() {
        let too_large = VarInt::try_from(1_u64 << 60).unwrap();
        for (data, error) in [
            (&[][..], DecodeError::NoQuarterStreamId),
            (&[0x40], DecodeError::NoQuarterStreamId),
            (&[0], DecodeError::NoContextId),
            (&[0, 0x80, 0, 0], DecodeError::NoContextId),
            (&[0xd0, 0, 0, 0, 0, 0, 0, 0, 0], DecodeError::QuarterStreamIdTooLarge(too_large)),
        ] {
            assert_eq!(HttpDatagram::decode(Bytes::from_static(data)), Err(error), "{data:?}");
        }
    }

    #[test]
    fn only_client_initiated_bidirectional_streams_have_a_quarter() {
        for (stream_id, quarter) in [
            (0, Some(0)),
            (1, None),
            (2, None),
            (4, Some(1)),
            (VarInt::MAX - 3, Some((1 << 60) - 1)),
            (VarInt::MAX + 1, None),
            (u64::MAX, None),
        ] {
            let id = QuarterStreamId::from_stream_id(stream_id);
            assert_eq!(id.map(|id| id.0.get()), quarter, "{stream_id}");
            assert_eq!(id.map_or(stream_id, QuarterStreamId::stream_id), stream_id);
        }
    }

    proptest! {
        #[test]
        fn an_encoded_datagram_decodes_to_itself(
            quarter in 0_u64..1 << 60,
            context_id in 0..=VarInt::MAX,
            payload: Vec<u8>,
        ) {
            let datagram = HttpDatagram {
                quarter_stream_id: QuarterStreamId::from_stream_id(quarter * 4).unwrap(),
                context_id: VarInt::try_from(context_id).unwrap(),
                payload: payload.into(),
            };
            let mut out = BytesMut::new();
            datagram.encode(&mut out);
            prop_assert_eq!(&out, &datagram.encode_to_bytes());
            let overhead = HttpDatagram::overhead(datagram.quarter_stream_id, datagram.context_id);
            prop_assert_eq!(out.len(), overhead + datagram.payload.len());
            prop_assert_eq!(HttpDatagram::decode(out.freeze()), Ok(datagram));
        }
    }
}

//! The wire formats for the retransmission of lost HTTP Datagrams: Tandem's own extension with
//! sequence numbers (`docs/design/wire.md`), and that of draft-yang-masque-dgram-retrans.

use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

use bytes::{BufMut, Bytes};
use http::HeaderValue;
use serde_with::{DeserializeFromStr, SerializeDisplay};
use sfv::{ItemSerializer, key_ref, token_ref};

use crate::{
    DecodeError, StrangerText, VarInt,
    integer_item::{FieldError, VERSION, Versioned, integer},
};

/// The type of the draft's capsule `SET_H3_DGRAM_RETX_LIMIT` for one context.
pub(crate) const CAPSULE_TYPE_LIMIT_OF_CONTEXT: VarInt = VarInt::from_u32(0xba);
/// The type of the draft's capsule `SET_H3_DGRAM_RETX_LIMIT` for all contexts.
pub(crate) const CAPSULE_TYPE_LIMIT: VarInt = VarInt::from_u32(0xbb);

/// A UDP payload with the numbers that its repair needs. This format follows the Context ID of an
/// HTTP Datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequenced {
    /// The sequence number, which counts the payloads of a flow in one direction from 0. A
    /// retransmission has the number of the lost payload.
    pub sequence: VarInt,
    /// The repair floor: the lowest sequence number that the sender still repairs, at most
    /// `sequence`.
    pub floor: VarInt,
    /// The UDP payload.
    pub payload: Bytes,
}

impl Sequenced {
    /// Decodes the bytes that follow the Context ID. The payload is shared, not copied.
    ///
    /// # Errors
    ///
    /// The bytes end inside the numbers, or the repair floor would be negative.
    pub fn decode(mut data: Bytes) -> Result<Self, DecodeError> {
        let sequence = VarInt::decode(&mut data).map_err(|_| DecodeError::NoSequenceNumber)?;
        let distance = VarInt::decode(&mut data).map_err(|_| DecodeError::NoSequenceNumber)?;
        let floor = sequence
            .get()
            .checked_sub(distance.get())
            .ok_or(DecodeError::RepairFloor { sequence, distance })?;
        Ok(Self { sequence, floor: VarInt::saturating_from(floor), payload: data })
    }

    /// Appends the two numbers and the payload to `out`. The floor is encoded as its distance from
    /// the sequence number, which is short.
    pub fn encode(&self, out: &mut impl BufMut) {
        self.sequence.encode(out);
        self.distance().encode(out);
        out.put_slice(&self.payload);
    }

    /// Returns the length of the two encoded numbers in bytes.
    pub const fn overhead(&self) -> usize {
        self.sequence.encoded_len() + self.distance().encoded_len()
    }

    const fn distance(&self) -> VarInt {
        VarInt::saturating_from(self.sequence.get().saturating_sub(self.floor.get()))
    }
}

/// The draft's capsule `SET_H3_DGRAM_RETX_LIMIT`. It limits the number of retransmissions of each
/// lost HTTP Datagram by the receiver of the capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetransmissionLimit {
    /// The context to which the limit applies; `None` stands for all contexts.
    pub context_id: Option<VarInt>,
    /// The largest number of retransmissions.
    pub limit: VarInt,
}

impl RetransmissionLimit {
    /// The length of the longest value in bytes.
    pub(crate) const LEN_MAX: usize = 2 * VarInt::LEN_MAX;

    /// Returns the capsule's type.
    pub const fn capsule_type(self) -> VarInt {
        match self.context_id {
            Some(_) => CAPSULE_TYPE_LIMIT_OF_CONTEXT,
            None => CAPSULE_TYPE_LIMIT,
        }
    }

    /// Decodes a capsule's value. Returns `None` if the capsule has another type, or if the fields
    /// do not fill the value exactly.
    pub fn decode(capsule_type: VarInt, mut value: Bytes) -> Option<Self> {
        let context_id = match capsule_type {
            CAPSULE_TYPE_LIMIT_OF_CONTEXT => Some(VarInt::decode(&mut value).ok()?),
            CAPSULE_TYPE_LIMIT => None,
            _ => return None,
        };
        let limit = VarInt::decode(&mut value).ok()?;
        value.is_empty().then_some(Self { context_id, limit })
    }

    /// Appends the whole capsule to `out`.
    pub fn encode(self, out: &mut impl BufMut) {
        let context_len = self.context_id.map_or(0, VarInt::encoded_len);
        self.capsule_type().encode(out);
        VarInt::from_len(context_len + self.limit.encoded_len()).encode(out);
        if let Some(context_id) = self.context_id {
            context_id.encode(out);
        }
        self.limit.encode(out);
    }
}

/// The order in which the egress of a tunnel releases payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub enum Order {
    /// The egress releases payloads in the order of their arrival.
    #[default]
    Off,
    /// The egress holds back a payload only if it is too far ahead of a missing one.
    Window,
    /// The egress releases payloads in the order in which they were sent.
    Ordered,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 3] = [Self::Off, Self::Window, Self::Ordered];

    /// Returns the name that field values, command lines and configuration files use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Window => "window",
            Self::Ordered => "ordered",
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Order {
    type Err = UnknownOrder;

    fn from_str(name: &str) -> Result<Self, UnknownOrder> {
        let order = Self::ALL.into_iter().find(|order| order.as_str() == name);
        order.ok_or_else(|| UnknownOrder { seen: name.into() })
    }
}

/// The error for a text that is not the name of an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen:?} is not an order; allowed: off, window, ordered")]
pub struct UnknownOrder {
    /// The text.
    pub seen: StrangerText,
}

/// Tandem's own header field `tandem-repair` of a request, and of the response that grants it. Its
/// value is a structured Integer, the version, with parameters ([RFC 9651 §3.3]).
///
/// [RFC 9651 §3.3]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairField {
    /// The parameter `context`, 1 to 2^30 - 1: the Context ID of the [`Sequenced`] payloads that
    /// the sender of the field sends. It is even in a client's field and odd in a proxy's (RFC 9298
    /// §4).
    pub context_id: VarInt,
    /// The parameter `deadline`, 1 ms to 60 s: the proxy repairs no payload that is older.
    pub deadline: Option<Duration>,
    /// The parameter `limit`: the largest number of retransmissions of a payload by the proxy.
    pub limit: Option<u8>,
    /// The parameter `order`: the order in which the proxy releases payloads to the target.
    pub order: Order,
}

impl RepairField {
    /// The field's name.
    pub const NAME: &str = "tandem-repair";

    /// The deadlines that are allowed: the field counts milliseconds, and no payload is worth a repair
    /// after a minute.
    pub const DEADLINE: RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_secs(60);

    /// Creates a field for sequenced payloads with this Context ID, without a deadline, a limit or
    /// an order.
    pub const fn new(context_id: VarInt) -> Self {
        Self { context_id, deadline: None, limit: None, order: Order::Off }
    }

    /// Encodes the field's value.
    #[expect(clippy::missing_panics_doc, reason = "the encoded value is printable ASCII")]
    pub fn encode(&self) -> HeaderValue {
        let mut item = ItemSerializer::new()
            .bare_item(sfv::Integer::from(VERSION))
            .parameter(key_ref("context"), integer(self.context_id.get()));
        if let Some(deadline) = self.deadline {
            item = item.parameter(key_ref("deadline"), integer(millis(deadline)));
        }
        if let Some(limit) = self.limit {
            item = item.parameter(key_ref("limit"), integer(limit.into()));
        }
        match self.order {
            Order::Off => {}
            Order::Window => item = item.parameter(key_ref("order"), token_ref("window")),
            Order::Ordered => item = item.parameter(key_ref("order"), token_ref("ordered")),
        }
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Parses a field's value. Unknown parameters are ignored, and an unknown order is
    /// [`Order::Off`].
    ///
    /// # Errors
    ///
    /// The value is not an Integer, has another version, or has a parameter out of range.
    pub fn parse(value: &str) -> Result<Self, FieldError> {
        let field = Versioned::parse(value)?;
        let (name, allowed) = ("context", "1 to 2^30 - 1");
        let context_id = field.number(name, 1..=(1 << 30) - 1, allowed)?;
        let context_id = context_id.ok_or(FieldError::Parameter { name, allowed })?;
        let (shortest, longest) = (millis(*Self::DEADLINE.start()), millis(*Self::DEADLINE.end()));
        let deadline = field.number("deadline", shortest..=longest, "1 to 60000 ms")?;
        let limit = field.number("limit", 0..=255, "0 to 255")?;
        Ok(Self {
            context_id: VarInt::saturating_from(context_id),
            deadline: deadline.map(Duration::from_millis),
            limit: limit.and_then(|limit| u8::try_from(limit).ok()),
            order: field.token("order").unwrap_or_default().parse().unwrap_or_default(),
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sequenced_payloads_decode() {
        for (data, sequence, floor, payload) in [
            (&[0, 0][..], 0, 0, &[][..]),
            (&[9, 2, 7], 9, 7, &[7]),
            (&[0x41, 0, 0x40, 0x80, 1, 2], 256, 128, &[1, 2]),
        ] {
            let sequenced = Sequenced::decode(Bytes::from_static(data)).unwrap();
            let numbers = (sequenced.sequence.get(), sequenced.floor.get());
            assert_eq!(numbers, (sequence, floor), "{data:?}");
            assert_eq!(sequenced.payload, payload, "{data:?}");
        }
    }

    #[test]
    fn truncated_numbers_and_negative_floors_are_errors() {
        let floor = DecodeError::RepairFloor {
            sequence: VarInt::from_u32(1),
            distance: VarInt::from_u32(2),
        };
        for (data, error) in [
            (&[][..], DecodeError::NoSequenceNumber),
            (&[0x40], DecodeError::NoSequenceNumber),
            (&[1], DecodeError::NoSequenceNumber),
            (&[1, 0x80, 0], DecodeError::NoSequenceNumber),
            (&[1, 2, 0], floor),
        ] {
            assert_eq!(Sequenced::decode(Bytes::from_static(data)), Err(error), "{data:?}");
        }
    }

    #[test]
    fn limits_decode_if_their_fields_fill_the_value() {
        let limit = |context_id: Option<u32>, limit: u32| {
            let context_id = context_id.map(VarInt::from_u32);
            Some(RetransmissionLimit { context_id, limit: VarInt::from_u32(limit) })
        };
        for (capsule_type, value, expected) in [
            (0xba, &[0, 3][..], limit(Some(0), 3)),
            (0xbb, &[3], limit(None, 3)),
            (0xbb, &[0x40, 3], limit(None, 3)),
            (0xbb, &[3, 0], None),
            (0xbb, &[], None),
            (0xba, &[3], None),
            (0xbc, &[3], None),
        ] {
            let capsule_type = VarInt::from_u32(capsule_type);
            let decoded = RetransmissionLimit::decode(capsule_type, Bytes::from_static(value));
            assert_eq!(decoded, expected, "{capsule_type} {value:?}");
        }
    }

    #[test]
    fn fields_parse_or_are_refused_with_the_reason() {
        let plain = RepairField::new(VarInt::from_u32(2));
        let parameter = |name, allowed| Err(FieldError::Parameter { name, allowed });
        for (value, expected) in [
            ("1;context=2", Ok(plain)),
            ("1;context=2;unknown=x;order=later", Ok(plain)),
            ("1;context=2;limit=0", Ok(RepairField { limit: Some(0), ..plain })),
            ("1;context=2;order=ordered", Ok(RepairField { order: Order::Ordered, ..plain })),
            (
                "1;context=2;deadline=150",
                Ok(RepairField { deadline: Some(Duration::from_millis(150)), ..plain }),
            ),
            ("2;context=2", Err(FieldError::Version(2))),
            ("1", parameter("context", "1 to 2^30 - 1")),
            ("1;context=0", parameter("context", "1 to 2^30 - 1")),
            ("1;context=-1", parameter("context", "1 to 2^30 - 1")),
            ("1;context=999999999999999", parameter("context", "1 to 2^30 - 1")),
            ("1;context=2;deadline=0", parameter("deadline", "1 to 60000 ms")),
            ("1;context=2;deadline=1.5", parameter("deadline", "1 to 60000 ms")),
            ("1;context=2;limit=256", parameter("limit", "0 to 255")),
        ] {
            assert_eq!(RepairField::parse(value), expected, "{value}");
        }
        for value in ["", "?1", "1;;", "\u{e4}", "1, 2"] {
            let error = RepairField::parse(value).expect_err(value);
            assert!(matches!(error, FieldError::Syntax(_)), "{value}: {error}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_payload_decodes_to_itself(
            sequence in 0..=VarInt::MAX,
            distance in 0..=VarInt::MAX,
            payload: Vec<u8>,
        ) {
            let sequenced = Sequenced {
                sequence: VarInt::try_from(sequence).unwrap(),
                floor: VarInt::try_from(sequence.saturating_sub(distance)).unwrap(),
                payload: payload.into(),
            };
            let mut out = BytesMut::new();
            sequenced.encode(&mut out);
            prop_assert_eq!(out.len(), sequenced.overhead() + sequenced.payload.len());
            prop_assert_eq!(Sequenced::decode(out.freeze()), Ok(sequenced));
        }

        #[test]
        fn encoded_fields_parse_to_themselves(
            context_id in 1_u32..1 << 30,
            deadline in prop::option::of(1_u64..=60_000),
            limit: Option<u8>,
            order in prop::sample::select(Order::ALL.to_vec()),
        ) {
            let deadline = deadline.map(Duration::from_millis);
            let context_id = VarInt::from_u32(context_id);
            let field = RepairField { context_id, deadline, limit, order };
            let value = field.encode();
            prop_assert_eq!(RepairField::parse(value.to_str().unwrap()), Ok(field));
        }
    }
}

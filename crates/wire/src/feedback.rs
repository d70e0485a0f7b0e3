//! The negotiation of reports: client and proxy agree that the proxy reports on a flow
//! (`docs/design/wire.md`).

use std::ops::RangeInclusive;

use http::HeaderValue;
use sfv::{ItemSerializer, key_ref};

use crate::{
    VarInt,
    integer_item::{FieldError, VERSION, Versioned, integer},
};

/// Tandem's own header field `tandem-feedback` of a request, and of the response that grants it.
/// Its value is a structured Integer, the version, with parameters ([RFC 9651 §3.3]).
///
/// [RFC 9651 §3.3]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedbackField {
    /// The client requests reports.
    Request {
        /// The parameter `weight`, 1 to 64: the weight of the flow's share of the tunnel among
        /// flows of the same urgency. It is 1 if the parameter is absent.
        weight: u8,
    },
    /// The proxy agrees to send reports.
    Grant {
        /// The parameter `context`: the Context ID of HTTP Datagrams that carry a report; odd
        /// (RFC 9298 §4), 1 to 2^30 - 1.
        context_id: VarInt,
    },
}

impl FeedbackField {
    /// The field's name.
    pub const NAME: &str = "tandem-feedback";

    /// The largest weight.
    pub const WEIGHT_MAX: u8 = 64;

    /// The weights that are allowed.
    pub const WEIGHT: RangeInclusive<u8> = 1..=Self::WEIGHT_MAX;

    /// Encodes the field's value.
    #[expect(clippy::missing_panics_doc, reason = "the encoded value is printable ASCII")]
    pub fn encode(&self) -> HeaderValue {
        let item = ItemSerializer::new().bare_item(sfv::Integer::from(VERSION));
        let item = match *self {
            Self::Request { weight: 1 } => item,
            Self::Request { weight } => item.parameter(key_ref("weight"), integer(weight.into())),
            Self::Grant { context_id } => {
                item.parameter(key_ref("context"), integer(context_id.get()))
            }
        };
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Parses the value of a request's field. Unknown parameters are ignored.
    ///
    /// # Errors
    ///
    /// The value is not an Integer, has another version, or has a parameter out of range.
    pub fn parse_request(value: &str) -> Result<Self, FieldError> {
        let range = u64::from(*Self::WEIGHT.start())..=u64::from(*Self::WEIGHT.end());
        let weight = Versioned::parse(value)?.number("weight", range, "1 to 64")?.unwrap_or(1);
        Ok(Self::Request { weight: u8::try_from(weight).unwrap_or(Self::WEIGHT_MAX) })
    }

    /// Parses the value of a grant's field. Unknown parameters are ignored.
    ///
    /// # Errors
    ///
    /// The value is not an Integer, has another version, or has no allowed `context`.
    pub fn parse_grant(value: &str) -> Result<Self, FieldError> {
        let (name, allowed) = ("context", "odd, 1 to 2^30 - 1");
        let id = Versioned::parse(value)?.number(name, 1..=(1 << 30) - 1, allowed)?;
        let id = id.filter(|id| id % 2 == 1).ok_or(FieldError::Parameter { name, allowed })?;
        Ok(Self::Grant { context_id: VarInt::saturating_from(id) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_parse_and_encode_to_themselves() {
        for (text, weight) in [("1", 1), ("1;weight=64", 64), ("1;weight=2;later=?1", 2)] {
            let field = FeedbackField::Request { weight };
            assert_eq!(FeedbackField::parse_request(text), Ok(field), "{text}");
            let encoded = field.encode();
            assert_eq!(FeedbackField::parse_request(encoded.to_str().unwrap()), Ok(field));
        }
        let field = FeedbackField::Grant { context_id: VarInt::from_u32(3) };
        assert_eq!(FeedbackField::parse_grant("1;context=3"), Ok(field));
        assert_eq!(field.encode(), "1;context=3");
    }

    #[test]
    fn malformed_parameters_are_refused_by_name() {
        for text in ["1;weight=0", "1;weight=65", "1;weight=-1", "1;weight=x", "1;weight=1.5"] {
            let error = FeedbackField::parse_request(text).unwrap_err().to_string();
            assert!(error.contains("weight"), "{text}: {error}");
        }
        for text in ["1", "1;context=0", "1;context=2", "1;context=1073741824", "1;context=x"] {
            let error = FeedbackField::parse_grant(text).unwrap_err().to_string();
            assert!(error.contains("context"), "{text}: {error}");
        }
        for text in ["", "x", "2", "1, 1", "?1"] {
            assert!(FeedbackField::parse_request(text).is_err(), "{text}");
            assert!(FeedbackField::parse_grant(text).is_err(), "{text}");
        }
    }
}

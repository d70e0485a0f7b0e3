//! How client and proxy agree that the proxy reports on a flow (`docs/wire.md`).

use http::HeaderValue;
use sfv::{ItemSerializer, key_ref};

use crate::{
    VarInt,
    integer_item::{integer, parse_integer},
};

/// Our own field `tandem-feedback`, of a request and of the grant that agrees: an Integer, the
/// version, with parameters ([RFC 9651 §3.3]).
///
/// [RFC 9651 §3.3]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedbackField {
    /// The client wants reports.
    Request {
        /// `weight`, 1 to 64: the flow's share of the tunnel among flows that are as urgent; 1 if it is
        /// not said.
        weight: u8,
    },
    /// The proxy sends them.
    Grant {
        /// `context`: the Context ID of HTTP Datagrams that hold a report; odd (RFC 9298 §4).
        context_id: VarInt,
    },
}

/// Why a `tandem-feedback` field is ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedbackFieldError {
    /// No Item of the type Integer.
    #[error("not a structured Integer: {0}")]
    Syntax(String),
    /// Another version.
    #[error("version {0}; allowed: 1")]
    Version(i64),
    /// A parameter with a value that is not allowed.
    #[error("parameter {name} is missing or not allowed; allowed: {allowed}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
}

impl FeedbackField {
    /// The field's name.
    pub const NAME: &str = "tandem-feedback";

    /// The largest weight.
    pub const WEIGHT_MAX: u8 = 64;

    const VERSION: u32 = 1;

    /// Encodes the field's value.
    #[expect(clippy::missing_panics_doc, reason = "what is encoded is printable ASCII")]
    pub fn encode(&self) -> HeaderValue {
        let item = ItemSerializer::new().bare_item(sfv::Integer::from(Self::VERSION));
        let item = match *self {
            Self::Request { weight: 1 } => item,
            Self::Request { weight } => item.parameter(key_ref("weight"), integer(weight.into())),
            Self::Grant { context_id } => {
                item.parameter(key_ref("context"), integer(context_id.get()))
            }
        };
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Reads the value of a request's field. Unknown parameters are ignored.
    pub fn parse_request(value: &str) -> Result<Self, FeedbackFieldError> {
        let weight = parse_parameter(value, "weight", 1..=Self::WEIGHT_MAX.into());
        let weight = weight.and_then(|weight| match weight {
            None => Ok(1),
            Some(Ok(weight)) => Ok(weight),
            Some(Err(())) => {
                Err(FeedbackFieldError::Parameter { name: "weight", allowed: "1 to 64" })
            }
        });
        let weight = u8::try_from(weight?).unwrap_or(Self::WEIGHT_MAX);
        Ok(Self::Request { weight })
    }

    /// Reads the value of a grant's field. Unknown parameters are ignored.
    pub fn parse_grant(value: &str) -> Result<Self, FeedbackFieldError> {
        match parse_parameter(value, "context", 1..=(1 << 30) - 1)? {
            Some(Ok(id)) if id % 2 == 1 => {
                Ok(Self::Grant { context_id: VarInt::saturating_from(id) })
            }
            _ => Err(FeedbackFieldError::Parameter {
                name: "context",
                allowed: "odd, 1 to 2^30 - 1",
            }),
        }
    }
}

/// A parameter that is a number within a range, if it is there.
fn parse_parameter(
    value: &str,
    name: &str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<Result<u64, ()>>, FeedbackFieldError> {
    let (version, params) = parse_integer(value).map_err(FeedbackFieldError::Syntax)?;
    if version != i64::from(FeedbackField::VERSION) {
        return Err(FeedbackFieldError::Version(version));
    }
    Ok(params.get(name).map(|value| {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_encode_to_the_same() {
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
    fn what_is_absurd_is_refused_by_name() {
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

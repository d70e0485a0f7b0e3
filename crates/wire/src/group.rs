//! The negotiation of a group of request streams that share one UDP socket of a proxy
//! (`docs/design/wire.md`).

use http::HeaderValue;
use sfv::{ItemSerializer, key_ref};

use crate::{
    StrangerText, VarInt,
    integer_item::{integer, parse_integer},
};

/// Tandem's own header field `tandem-group` of a request, and of the response that grants it. Its
/// value is a structured Integer, the number of request streams that carry a flow's payloads
/// ([RFC 9651 §3.3]).
///
/// [RFC 9651 §3.3]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupField {
    /// The number of streams of the group, including the first one: 1 to [`Self::STREAMS_MAX`].
    pub streams: u8,
    /// The parameter `first`: the ID of the request stream whose socket this request shares; a
    /// multiple of 4 below 2^30. It is `None` in the first request and in its response.
    pub first: Option<VarInt>,
}

/// The reason why a `tandem-group` field is ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupFieldError {
    /// The value is not an Item of the type Integer.
    #[error("not a structured Integer: {0}")]
    Syntax(StrangerText),
    /// The number of streams is out of range.
    #[error("tandem-group = {0}; allowed: 1 to {max}", max = GroupField::STREAMS_MAX)]
    Streams(i64),
    /// The parameter `first` is not the ID of a request stream.
    #[error("parameter first is not the ID of a request stream: a multiple of 4 below 2^30")]
    First,
}

impl GroupField {
    /// The field's name.
    pub const NAME: &str = "tandem-group";

    /// The largest number of streams of one group.
    pub const STREAMS_MAX: u8 = 16;

    /// Encodes the field's value.
    #[expect(clippy::missing_panics_doc, reason = "the encoded value is printable ASCII")]
    pub fn encode(&self) -> HeaderValue {
        let mut item = ItemSerializer::new().bare_item(sfv::Integer::from(self.streams));
        if let Some(first) = self.first {
            item = item.parameter(key_ref("first"), integer(first.get()));
        }
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Parses a field's value. Unknown parameters are ignored.
    ///
    /// # Errors
    ///
    /// The value is not an Integer, or the number of streams or `first` is out of range.
    pub fn parse(value: &str) -> Result<Self, GroupFieldError> {
        let (streams, params) = parse_integer(value).map_err(GroupFieldError::Syntax)?;
        let count = u8::try_from(streams).ok();
        let count = count.filter(|count| (1..=Self::STREAMS_MAX).contains(count));
        let first = match params.get("first") {
            None => None,
            Some(first) => {
                let id = first.as_integer().and_then(|id| u32::try_from(i64::from(id)).ok());
                // The IDs of client-initiated bidirectional streams are multiples of 4 (RFC 9000
                // §2.1).
                let id = id.filter(|id| id % 4 == 0 && *id < 1 << 30);
                Some(VarInt::from_u32(id.ok_or(GroupFieldError::First)?))
            }
        };
        Ok(Self { streams: count.ok_or(GroupFieldError::Streams(streams))?, first })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_parse() {
        let first = |id| Some(VarInt::from_u32(id));
        for (text, streams, of) in
            [("8", 8, None), ("1;first=0", 1, first(0)), ("16;first=400;later=?1", 16, first(400))]
        {
            assert_eq!(GroupField::parse(text), Ok(GroupField { streams, first: of }), "{text}");
        }
    }

    #[test]
    fn malformed_values_are_refused_by_name() {
        for (text, error) in [
            ("0", GroupFieldError::Streams(0)),
            ("17", GroupFieldError::Streams(17)),
            ("-1", GroupFieldError::Streams(-1)),
            ("8;first=2", GroupFieldError::First),
            ("8;first=-4", GroupFieldError::First),
            ("8;first=1073741824", GroupFieldError::First),
            ("8;first=a", GroupFieldError::First),
        ] {
            assert_eq!(GroupField::parse(text), Err(error), "{text}");
        }
        for text in ["", "a", "?1", "8, 9", "\"8\""] {
            let error = GroupField::parse(text);
            assert!(matches!(error, Err(GroupFieldError::Syntax(_))), "{text}: {error:?}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_field_parses_to_itself(
            streams in 1..=GroupField::STREAMS_MAX,
            first in proptest::option::of(0_u32..1 << 28),
        ) {
            let first = first.map(|number| VarInt::from_u32(4 * number));
            let field = GroupField { streams, first };
            let value = field.encode();
            prop_assert_eq!(GroupField::parse(value.to_str().unwrap()), Ok(field));
        }
    }
}

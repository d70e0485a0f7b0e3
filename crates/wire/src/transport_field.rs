//! The negotiation of the sealed transport: client and proxy agree that the datagrams of their connection travel beside
//! it, with acknowledgements of their own (`docs/design/wire.md`, "Sealed transport").

use http::HeaderValue;
use sfv::{ItemSerializer, key_ref};

use crate::integer_item::{FieldError, VERSION, Versioned};

/// The field `tandem-transport`: an Integer, the version, with the parameter `id`. See [RFC 9651 §3.3].
///
/// [RFC 9651 §3.3]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportField {
    /// The connection ID at which the sender of the field receives the packets of the transport. The sender has chosen
    /// it unpredictably.
    pub id: [u8; Self::ID_LEN],
}

impl TransportField {
    /// The field's name.
    pub const NAME: &str = "tandem-transport";

    /// The length of the connection ID in bytes.
    pub const ID_LEN: usize = 8;

    /// Encodes the field's value.
    #[expect(clippy::missing_panics_doc, reason = "the encoded value is printable ASCII")]
    pub fn encode(&self) -> HeaderValue {
        let item = ItemSerializer::new().bare_item(sfv::Integer::from(VERSION));
        let item = item.parameter(key_ref("id"), self.id.as_slice());
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Parses a field's value. Unknown parameters are ignored.
    ///
    /// # Errors
    ///
    /// The value is not an Integer, has another version, or has no `id` that is a Byte Sequence of [`Self::ID_LEN`]
    /// bytes.
    pub fn parse(value: &str) -> Result<Self, FieldError> {
        let (name, allowed) = ("id", "a Byte Sequence of 8 bytes");
        let field = Versioned::parse(value)?;
        let id = field.byte_sequence(name).and_then(|id| id.try_into().ok());
        Ok(Self { id: id.ok_or(FieldError::Parameter { name, allowed })? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_parse() {
        let field = TransportField { id: [0, 1, 2, 3, 4, 5, 6, 7] };
        for text in ["1;id=:AAECAwQFBgc=:", "1;later=?1;id=:AAECAwQFBgc=:;path=4"] {
            assert_eq!(TransportField::parse(text), Ok(field), "{text}");
        }
        assert_eq!(field.encode(), "1;id=:AAECAwQFBgc=:");
    }

    #[test]
    fn malformed_fields_are_refused_with_the_reason() {
        for text in ["1", "1;id", "1;id=7", "1;id=::", "1;id=:AAECAwQFBg==:", "1;id=:AAECAwQFBgcI:"]
        {
            let error = FieldError::Parameter { name: "id", allowed: "a Byte Sequence of 8 bytes" };
            assert_eq!(TransportField::parse(text), Err(error), "{text}");
        }
        for version in [-1, 0, 2] {
            let text = format!("{version};id=:AAECAwQFBgc=:");
            assert_eq!(TransportField::parse(&text), Err(FieldError::Version(version)), "{text}");
        }
        for text in ["", "?1", "1.0;id=:AAECAwQFBgc=:", "1;id=:AAEC", "1, 1", "\u{e4}"] {
            let error = TransportField::parse(text).expect_err(text);
            assert!(matches!(error, FieldError::Syntax(_)), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_field_parses_to_itself(id: [u8; TransportField::ID_LEN]) {
            let field = TransportField { id };
            let value = field.encode();
            prop_assert_eq!(TransportField::parse(value.to_str().unwrap()), Ok(field));
        }
    }
}

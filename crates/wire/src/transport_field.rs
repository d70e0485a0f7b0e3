//! The negotiation of the sealed transport: client and proxy agree that the datagrams of their connection travel beside
//! it, with acknowledgements of their own (`docs/design/wire.md`, "Sealed transport").

use http::HeaderValue;
use sfv::{ItemSerializer, key_ref};

use crate::{
    ConnectionId, ResetToken,
    integer_item::{FieldError, VERSION, Versioned},
};

/// The field `tandem-transport`: an Integer, the version, with parameters. See [RFC 9651 §3.3].
///
/// [RFC 9651 §3.3]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportField {
    /// The connection ID at which the sender of the field receives the packets of the transport. The sender has chosen
    /// it unpredictably.
    pub id: ConnectionId,
    /// The stateless reset token of this ID (RFC 9000 §10.3), if its sender, a server, has a secret for such tokens.
    pub reset: Option<ResetToken>,
}

impl TransportField {
    /// The field's name.
    pub const NAME: &str = "tandem-transport";

    /// Encodes the field's value.
    #[expect(clippy::missing_panics_doc, reason = "the encoded value is printable ASCII")]
    pub fn encode(&self) -> HeaderValue {
        let item = ItemSerializer::new().bare_item(sfv::Integer::from(VERSION));
        let mut item = item.parameter(key_ref("id"), self.id.as_slice());
        if let Some(reset) = &self.reset {
            item = item.parameter(key_ref("reset"), reset.as_bytes().as_slice());
        }
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Parses a field's value. Unknown parameters are ignored.
    ///
    /// # Errors
    ///
    /// The value is not an Integer, has another version, has no `id` that is a Byte Sequence of 8 to 20 bytes, or has a
    /// `reset` that is no Byte Sequence of 16 bytes.
    pub fn parse(value: &str) -> Result<Self, FieldError> {
        let (name, allowed) = ("reset", "a Byte Sequence of 16 bytes");
        let field = Versioned::parse(value)?;
        let reset = if field.has(name) {
            let token = field.byte_sequence(name).and_then(|token| token.try_into().ok());
            Some(ResetToken::new(token.ok_or(FieldError::Parameter { name, allowed })?))
        } else {
            None
        };
        Ok(Self { id: field.connection_id()?, reset })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_parse() {
        let id = ConnectionId::try_from(&[0, 1, 2, 3, 4, 5, 6, 7][..]).unwrap();
        let field = TransportField { id, reset: None };
        for text in ["1;id=:AAECAwQFBgc=:", "1;later=?1;id=:AAECAwQFBgc=:;path=4"] {
            assert_eq!(TransportField::parse(text), Ok(field), "{text}");
        }
        assert_eq!(field.encode(), "1;id=:AAECAwQFBgc=:");
        let field = TransportField { reset: Some(ResetToken::new([1; 16])), ..field };
        assert_eq!(field.encode(), "1;id=:AAECAwQFBgc=:;reset=:AQEBAQEBAQEBAQEBAQEBAQ==:");
    }

    #[test]
    fn malformed_fields_are_refused_with_the_reason() {
        let (long, id) = ("1;id=:AAECAwQFBgcICQoLDA0ODxAREhMU:", "1;id=:AAECAwQFBgc=:");
        for text in ["1", "1;id", "1;id=7", "1;id=::", "1;id=:AAECAwQFBg==:", long] {
            let allowed = "a Byte Sequence of 8 to 20 bytes";
            let error = FieldError::Parameter { name: "id", allowed };
            assert_eq!(TransportField::parse(text), Err(error), "{text}");
        }
        for reset in ["reset", "reset=7", "reset=::", "reset=:AQEBAQEBAQEBAQEBAQEB:"] {
            let text = format!("{id};{reset}");
            let allowed = "a Byte Sequence of 16 bytes";
            let error = FieldError::Parameter { name: "reset", allowed };
            assert_eq!(TransportField::parse(&text), Err(error), "{text}");
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
        fn an_encoded_field_parses_to_itself(
            id in prop::collection::vec(any::<u8>(), 8..=20),
            reset: Option<[u8; ResetToken::LEN]>,
        ) {
            let id = ConnectionId::try_from(&id[..]).unwrap();
            let field = TransportField { id, reset: reset.map(ResetToken::new) };
            let value = field.encode();
            prop_assert_eq!(TransportField::parse(value.to_str().unwrap()), Ok(field));
        }
    }
}

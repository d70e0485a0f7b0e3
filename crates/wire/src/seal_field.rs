//! The negotiation of sealed packets: client and proxy agree that the payloads of a flow travel
//! beside the tunnel's QUIC connection (`docs/design/wire.md`).

use http::HeaderValue;
use sfv::{ItemSerializer, key_ref};

use crate::{
    ConnectionId,
    integer_item::{FieldError, VERSION, Versioned},
};

/// Tandem's own header field `tandem-seal` of a request, and of the response that grants it. Its
/// value is a structured Integer, the version, with parameters ([RFC 9651 §3.3]).
///
/// [RFC 9651 §3.3]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealField {
    /// The parameter `id`: the connection ID at which the sender of the field receives the sealed
    /// packets of the flow. The sender has chosen it unpredictably. `None`: it only sends them, which is
    /// allowed to clients.
    pub id: Option<ConnectionId>,
}

impl SealField {
    /// The field's name.
    pub const NAME: &str = "tandem-seal";

    /// Encodes the field's value.
    #[expect(clippy::missing_panics_doc, reason = "the encoded value is printable ASCII")]
    pub fn encode(&self) -> HeaderValue {
        let mut item = ItemSerializer::new().bare_item(sfv::Integer::from(VERSION));
        if let Some(id) = &self.id {
            item = item.parameter(key_ref("id"), id.as_slice());
        }
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Parses a field's value. Unknown parameters are ignored.
    ///
    /// # Errors
    ///
    /// The value is not an Integer, has another version, or has an `id` that is no Byte Sequence of
    /// 8 to 20 bytes.
    pub fn parse(value: &str) -> Result<Self, FieldError> {
        let field = Versioned::parse(value)?;
        let id = if field.has("id") { Some(field.connection_id()?) } else { None };
        Ok(Self { id })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_parse() {
        let id = ConnectionId::try_from(&[0, 1, 2, 3, 4, 5, 6, 7][..]).unwrap();
        let field = SealField { id: Some(id) };
        for text in ["1;id=:AAECAwQFBgc=:", "1;later=?1;id=:AAECAwQFBgc=:;path=4"] {
            assert_eq!(SealField::parse(text), Ok(field), "{text}");
        }
        assert_eq!(field.encode(), "1;id=:AAECAwQFBgc=:");
        assert_eq!(SealField::parse("1;later"), Ok(SealField { id: None }));
        assert_eq!(SealField { id: None }.encode(), "1");
    }

    #[test]
    fn malformed_fields_are_refused_with_the_reason() {
        for text in [
            "1;id",
            "1;id=7",
            "1;id=?1",
            "1;id=AAECAwQFBgc",
            "1;id=\"AAECAwQFBgc=\"",
            "1;id=::",
            "1;id=:AAECAwQFBg==:",
            "1;id=:AAECAwQFBgcICQoLDA0ODxAREhMU:",
        ] {
            let allowed = "a Byte Sequence of 8 to 20 bytes";
            let error = FieldError::Parameter { name: "id", allowed };
            assert_eq!(SealField::parse(text), Err(error), "{text}");
        }
        for version in [-1, 0, 2] {
            let text = format!("{version};id=:AAECAwQFBgc=:");
            assert_eq!(SealField::parse(&text), Err(FieldError::Version(version)), "{text}");
        }
        for text in
            ["", "?1", "1.0;id=:AAECAwQFBgc=:", "1;id=:AAEC", "1, 1", "1;;", "1;ID=::", "\u{e4}"]
        {
            let error = SealField::parse(text).expect_err(text);
            assert!(matches!(error, FieldError::Syntax(_)), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_field_parses_to_itself(id in prop::collection::vec(any::<u8>(), 8..=20)) {
            let field = SealField { id: Some(ConnectionId::try_from(&id[..]).unwrap()) };
            let value = field.encode();
            prop_assert_eq!(SealField::parse(value.to_str().unwrap()), Ok(field));
        }
    }
}

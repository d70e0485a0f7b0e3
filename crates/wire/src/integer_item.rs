//! Tandem's own structured fields whose value is an Integer, the version, with parameters
//! ([RFC 9651 §3.3]).
//!
//! [RFC 9651 §3.3]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3

use std::ops::RangeInclusive;

use sfv::{Item, Parameters, Parser};

use crate::{ConnectionId, StrangerText};

/// The reason why one of Tandem's own fields is ignored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The value is not an Item of the type Integer.
    #[error("not a structured Integer: {0}")]
    Syntax(StrangerText),
    /// The field has an unknown version.
    #[error("version {0}; allowed: 1")]
    Version(i64),
    /// A parameter is missing or has a value that is not allowed.
    #[error("parameter {name} is missing or not allowed; allowed: {allowed}")]
    Parameter {
        /// The parameter's name.
        name: &'static str,
        /// The allowed values, in words.
        allowed: &'static str,
    },
}

/// The version of all of Tandem's own fields.
pub(crate) const VERSION: u32 = 1;

/// The parameters of a field whose version is [`VERSION`].
pub(crate) struct Versioned(Parameters);

impl Versioned {
    pub(crate) fn parse(value: &str) -> Result<Self, FieldError> {
        let (version, parameters) = parse_integer(value).map_err(FieldError::Syntax)?;
        if version != i64::from(VERSION) {
            return Err(FieldError::Version(version));
        }
        Ok(Self(parameters))
    }

    /// Returns a parameter that must be a number within `range`, or `None` if it is absent.
    pub(crate) fn number(
        &self,
        name: &'static str,
        range: RangeInclusive<u64>,
        allowed: &'static str,
    ) -> Result<Option<u64>, FieldError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        let number = number.filter(|number| range.contains(number));
        number.map(Some).ok_or(FieldError::Parameter { name, allowed })
    }

    /// Whether a parameter is present.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns a parameter if it is present and a Token.
    pub(crate) fn token(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_token().map(sfv::TokenRef::as_str)
    }

    /// Returns a parameter if it is present and a Byte Sequence.
    pub(crate) fn byte_sequence(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name)?.as_byte_sequence()
    }

    /// Returns the parameter `id`, which must be there and be a connection ID of 8 to 20 bytes. An ID of 8 bytes is
    /// hard to guess. In a fleet it has as many as a load balancer needs.
    pub(crate) fn connection_id(&self) -> Result<ConnectionId, FieldError> {
        const LEN_MIN: usize = 8;
        let bytes = self.byte_sequence("id").filter(|bytes| bytes.len() >= LEN_MIN);
        bytes.and_then(|bytes| ConnectionId::try_from(bytes).ok()).ok_or(FieldError::Parameter {
            name: "id",
            allowed: "a Byte Sequence of 8 to 20 bytes",
        })
    }
}

/// Parses a structured field that is an Item of the type Integer ([RFC 9651 §3.3.1]), and its
/// parameters. The error is a text for people.
///
/// [RFC 9651 §3.3.1]: https://www.rfc-editor.org/rfc/rfc9651#section-3.3.1
pub(crate) fn parse_integer(value: &str) -> Result<(i64, Parameters), StrangerText> {
    let item: Item = Parser::new(value).parse().map_err(|error: sfv::Error| error.to_string())?;
    let integer = item.bare_item.as_integer().ok_or("another type")?;
    Ok((integer.into(), item.params))
}

/// Creates a structured Integer. Structured fields have integers of at most 15 digits; a larger
/// value becomes the largest one.
pub(crate) fn integer(value: u64) -> sfv::Integer {
    sfv::Integer::try_from(value).unwrap_or(sfv::Integer::MAX)
}

//! Structured fields that CONNECT-UDP uses: `Proxy-Status` ([RFC 9209]) and `Capsule-Protocol`
//! ([RFC 9297 §3.4]).
//!
//! [RFC 9209]: https://www.rfc-editor.org/rfc/rfc9209
//! [RFC 9297 §3.4]: https://www.rfc-editor.org/rfc/rfc9297#section-3.4

use std::borrow::Cow;

use http::HeaderValue;
use sfv::{BareItem, Item, ItemSerializer, List, ListEntry, Parser, StringRef, TokenRef, key_ref};

/// The value of `Capsule-Protocol` that says yes.
pub const CAPSULE_PROTOCOL_TRUE: &str = "?1";

/// What one intermediary did to a response ([RFC 9209 §2]).
///
/// [RFC 9209 §2]: https://www.rfc-editor.org/rfc/rfc9209#section-2
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyStatus {
    /// Who it is: a host name or a nickname.
    pub name: String,
    /// An error type of [RFC 9209 §2.3], such as `dns_timeout`.
    ///
    /// [RFC 9209 §2.3]: https://www.rfc-editor.org/rfc/rfc9209#section-2.3
    pub error: Option<Cow<'static, str>>,
    /// Where the request went: an IP address with a port, or a name.
    pub next_hop: Option<String>,
    /// More, for people.
    pub details: Option<String>,
}

/// A field value that is not the structured field that it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StructuredFieldError {
    /// Not a list at all.
    #[error("not a structured list: {0}")]
    Syntax(String),
    /// A member of the list is not a string or token.
    #[error("a member of Proxy-Status is neither a string nor a token")]
    Name,
}

impl ProxyStatus {
    /// Encodes the status as the only member of a list, which looks like an item.
    ///
    /// In strings, characters outside of printable ASCII become "?". An error type that is no token
    /// is left out.
    #[expect(clippy::missing_panics_doc, reason = "what is encoded is printable ASCII")]
    pub fn encode(&self) -> HeaderValue {
        let name = printable(&self.name);
        let mut item = match TokenRef::from_str(&name) {
            Ok(token) => ItemSerializer::new().bare_item(token),
            Err(_) => ItemSerializer::new().bare_item(string(&name)),
        };
        if let Some(Ok(error)) = self.error.as_deref().map(TokenRef::from_str) {
            item = item.parameter(key_ref("error"), error);
        }
        if let Some(next_hop) = &self.next_hop {
            item = item.parameter(key_ref("next-hop"), string(&printable(next_hop)));
        }
        if let Some(details) = &self.details {
            item = item.parameter(key_ref("details"), string(&printable(details)));
        }
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Reads a field value; one status for each intermediary, the origin's side first.
    pub fn parse(value: &str) -> Result<Vec<Self>, StructuredFieldError> {
        let list: List = Parser::new(value)
            .parse()
            .map_err(|error| StructuredFieldError::Syntax(error.to_string()))?;
        list.into_iter().map(Self::from_member).collect()
    }

    /// RFC 9209 §2: a parameter of the wrong type is ignored, as an unknown one is.
    fn from_member(member: ListEntry) -> Result<Self, StructuredFieldError> {
        let ListEntry::Item(item) = member else {
            return Err(StructuredFieldError::Name);
        };
        let parameter = |key: &str| item.params.get(key).and_then(text);
        Ok(Self {
            name: text(&item.bare_item).ok_or(StructuredFieldError::Name)?,
            error: parameter("error").map(Cow::Owned),
            next_hop: parameter("next-hop"),
            details: parameter("details"),
        })
    }
}

/// Reads an Item field of type Boolean, such as `Capsule-Protocol`; parameters are ignored.
///
/// [RFC 9297 §3.4]: "any other value type MUST be handled as if the field were not present", so
/// all else is `None`.
///
/// [RFC 9297 §3.4]: https://www.rfc-editor.org/rfc/rfc9297#section-3.4
pub fn parse_boolean_item(value: &str) -> Option<bool> {
    let item: Item = Parser::new(value).parse().ok()?;
    item.bare_item.as_boolean()
}

fn text(item: &BareItem) -> Option<String> {
    match item {
        BareItem::String(string) => Some(string.as_str().to_owned()),
        BareItem::Token(token) => Some(token.as_str().to_owned()),
        _ => None,
    }
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect()
}

fn string(printable: &str) -> &StringRef {
    StringRef::from_str(printable).expect("every printable ASCII character is allowed")
}

//! The structured fields of CONNECT-UDP: `Proxy-Status` ([RFC 9209]) and `Capsule-Protocol`
//! ([RFC 9297 §3.4]).
//!
//! [RFC 9209]: https://www.rfc-editor.org/rfc/rfc9209
//! [RFC 9297 §3.4]: https://www.rfc-editor.org/rfc/rfc9297#section-3.4

use std::borrow::Cow;

use http::HeaderValue;
use sfv::{BareItem, Item, ItemSerializer, List, ListEntry, Parser, StringRef, TokenRef, key_ref};

use crate::StrangerText;

/// The value of `Capsule-Protocol` for true.
pub const CAPSULE_PROTOCOL_TRUE: &str = "?1";

/// One intermediary's handling of a response ([RFC 9209 §2]).
///
/// [RFC 9209 §2]: https://www.rfc-editor.org/rfc/rfc9209#section-2
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyStatus {
    /// The intermediary's name: a host name or a pseudonym.
    pub name: String,
    /// An error type of [RFC 9209 §2.3], such as `dns_timeout`.
    ///
    /// [RFC 9209 §2.3]: https://www.rfc-editor.org/rfc/rfc9209#section-2.3
    pub error: Option<Cow<'static, str>>,
    /// The next hop of the request: an IP address with a port, or a name.
    pub next_hop: Option<String>,
    /// Further details for people.
    pub details: Option<String>,
    /// The cause, where the error type does not tell it: the parameter [`ProxyStatus::CAUSE`], which is Tandem's own.
    pub cause: Option<Cow<'static, str>>,
}

/// The reason why a value of `Proxy-Status` cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StructuredFieldError {
    /// The value is not a structured List.
    #[error("not a structured list: {0}")]
    Syntax(StrangerText),
    /// A member of the list is not a string or token.
    #[error("a member of Proxy-Status is neither a string nor a token")]
    Name,
}

impl ProxyStatus {
    /// The parameter with the cause. Those who do not know it ignore it (RFC 9209 §2).
    pub const CAUSE: &'static str = "tandem-cause";

    /// Encodes the status as the only member of a List, which looks like an Item.
    ///
    /// In strings, characters outside of printable ASCII become "?". An error type that is not a
    /// token is left out.
    #[expect(clippy::missing_panics_doc, reason = "the encoded value is printable ASCII")]
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
        if let Some(Ok(cause)) = self.cause.as_deref().map(TokenRef::from_str) {
            item = item.parameter(key_ref(Self::CAUSE), cause);
        }
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Parses a field value. The result has one status for each intermediary; the one that is
    /// closest to the origin comes first.
    ///
    /// # Errors
    ///
    /// The value is not a List, or a member of it has no name.
    pub fn parse(value: &str) -> Result<Vec<Self>, StructuredFieldError> {
        let list: List = Parser::new(value)
            .parse()
            .map_err(|error| StructuredFieldError::Syntax(error.to_string().into()))?;
        list.into_iter().map(Self::from_member).collect()
    }

    /// Reads one member of the List. A parameter of the wrong type is ignored, like an unknown one
    /// (RFC 9209 §2).
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
            cause: parameter(Self::CAUSE).map(Cow::Owned),
        })
    }
}

/// Parses an Item of the type Boolean, such as `Capsule-Protocol`. Parameters are ignored.
///
/// All other values are `None`, because "any other value type MUST be handled as if the field were
/// not present" ([RFC 9297 §3.4]).
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn statuses_are_encoded() {
        let named = |name: &str| ProxyStatus { name: name.to_owned(), ..ProxyStatus::default() };
        for (status, value) in [
            (named("tandem"), "tandem"),
            (named("proxy.example.org:443"), "proxy.example.org:443"),
            (named("192.0.2.1"), "\"192.0.2.1\""),
            (named(""), "\"\""),
            (
                ProxyStatus { error: Some("dns_timeout".into()), ..named("a") },
                "a;error=dns_timeout",
            ),
            (ProxyStatus { error: Some("no token".into()), ..named("a") }, "a"),
            (
                ProxyStatus { next_hop: Some("192.0.2.6:443".to_owned()), ..named("a") },
                "a;next-hop=\"192.0.2.6:443\"",
            ),
            (
                ProxyStatus { details: Some("say \"\u{e4}\"\n".to_owned()), ..named("a") },
                "a;details=\"say \\\"?\\\"?\"",
            ),
            (ProxyStatus { cause: Some("month".into()), ..named("a") }, "a;tandem-cause=month"),
        ] {
            assert_eq!(status.encode(), value, "{status:?}");
        }
    }

    #[test]
    fn statuses_of_other_implementations_parse() {
        // The values are from RFC 9209 §2 and §2.1.1; the last one is from masque-go.
        let status =
            |name: &str, error: Option<&'static str>, next_hop: Option<&str>| ProxyStatus {
                name: name.to_owned(),
                error: error.map(Cow::Borrowed),
                next_hop: next_hop.map(str::to_owned),
                ..ProxyStatus::default()
            };
        for (value, statuses) in [
            ("", vec![]),
            (
                "revproxy1.example.net, ExampleCDN",
                vec![status("revproxy1.example.net", None, None), status("ExampleCDN", None, None)],
            ),
            (
                "ExampleCDN; error=http_protocol_error; next-hop=\"::1\"; x=1",
                vec![status("ExampleCDN", Some("http_protocol_error"), Some("::1"))],
            ),
            ("a; error=1", vec![status("a", None, None)]),
            (
                "\"example.org\";next-hop=\"192.0.2.6:443\"",
                vec![status("example.org", None, Some("192.0.2.6:443"))],
            ),
        ] {
            assert_eq!(ProxyStatus::parse(value), Ok(statuses), "{value}");
        }
    }

    #[test]
    fn a_value_that_is_not_a_list_of_names_is_an_error() {
        for value in ["a,", "\"a", "a;;", "\u{e4}"] {
            let error = ProxyStatus::parse(value);
            assert!(matches!(error, Err(StructuredFieldError::Syntax(_))), "{value}: {error:?}");
        }
        for value in ["1", "?1", "(a b)", ":YQ==:"] {
            assert_eq!(ProxyStatus::parse(value), Err(StructuredFieldError::Name), "{value}");
        }
    }

    #[test]
    fn only_booleans_are_booleans() {
        for (value, boolean) in [
            (CAPSULE_PROTOCOL_TRUE, Some(true)),
            ("?0", Some(false)),
            (" ?1;a=b ", Some(true)),
            ("1", None),
            ("true", None),
            ("?1, ?1", None),
            ("", None),
        ] {
            assert_eq!(parse_boolean_item(value), boolean, "{value}");
        }
    }

    proptest! {
        #[test]
        fn statuses_decode_to_themselves(
            name in "[ -~]{0,20}",
            error in proptest::option::of("[a-z][a-z_]{0,19}"),
            next_hop in proptest::option::of("[ -~]{0,20}"),
            details in proptest::option::of("[ -~]{0,20}"),
        ) {
            let error = error.map(Cow::Owned);
            let cause = error.clone();
            let status = ProxyStatus { name, error, next_hop, details, cause };
            let value = status.encode();
            prop_assert_eq!(ProxyStatus::parse(value.to_str().unwrap()), Ok(vec![status]));
        }

        #[test]
        fn no_status_panics(name: String, error: String, details: String) {
            let error = Some(Cow::Owned(error));
            let details = Some(details);
            let status = ProxyStatus { name, error, details, ..ProxyStatus::default() };
            prop_assert!(ProxyStatus::parse(status.encode().to_str().unwrap()).is_ok());
        }
    }
}

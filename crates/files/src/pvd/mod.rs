//! The configuration document of a proxy: the additional information of a provisioning domain (`PvD`,
//! [RFC 8801 §4.3]) with the keys of [draft-ietf-intarea-proxy-config], in JSON.
//!
//! A client takes it from the proxy that its user has named, and believes it no further: the identifier has to be the
//! name of that proxy, and only proxies of the same origin are used. The rules can only let less through the tunnel.
//!
//! [RFC 8801 §4.3]: https://www.rfc-editor.org/rfc/rfc8801#section-4.3
//! [draft-ietf-intarea-proxy-config]: https://datatracker.ietf.org/doc/draft-ietf-intarea-proxy-config/

mod proxies;
mod rules;

use std::{fmt, str::FromStr};

use serde_json::{Map, Value};
use tandem_node::client::rules::Rule;
use tandem_wire::{StrangerText, Template};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::setting::ValueError;

pub use tandem_node::proxy::PVD_PATH as PATH;

/// The most bytes of a document.
pub const LEN_MAX: usize = 64 * 1024;

/// The most proxies of a document.
pub const PROXIES_MAX: usize = 64;

/// The most rules of a document.
pub const RULES_MAX: usize = 1024;

/// What a document is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The host from which it came: a name, or an address without brackets. `None`: the user says that it is right.
    pub host: Option<&'a str>,
    /// The origins whose proxies may be used: the one from which the document came, and those that the user permits.
    pub origins: &'a [Origin],
    /// The present time.
    pub now: OffsetDateTime,
}

impl Expected<'_> {
    /// Whether a proxy at this place may be used.
    fn permits(&self, host: &str, port: u16) -> bool {
        let host = without_dot(host);
        self.origins.iter().any(|it| it.host.eq_ignore_ascii_case(host) && it.port == port)
    }
}

/// An https origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A name without a dot at its end, or an address without brackets.
    pub host: String,
    /// The UDP port.
    pub port: u16,
}

impl FromStr for Origin {
    type Err = ValueError;

    /// Parses `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`. The port of https is the default.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "HOST or HOST:PORT";
        let template = Template::default_for(text).map_err(|_| ValueError::Form { expected })?;
        Ok(Self::of(&template))
    }
}

impl Origin {
    /// That of a proxy.
    pub fn of(proxy: &Template) -> Self {
        Self { host: without_dot(proxy.host()).to_owned(), port: proxy.port() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A document, as far as this program understands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// When it is no longer valid.
    pub expires: OffsetDateTime,
    /// The proxy for UDP. `None`: the document names none that may be used.
    pub udp: Option<Template>,
    /// The rules, in their order. The last one may say what becomes of all other targets.
    pub rules: Vec<Rule>,
    /// What was left out, and why, for the user.
    pub left_out: Vec<StrangerText>,
}

/// Why a document is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PvdError {
    /// It is too long.
    #[error("it has more than {LEN_MAX} bytes")]
    TooLong,
    /// It is no JSON, or no object.
    #[error("it is not JSON of the right form: {0}")]
    Json(StrangerText),
    /// A key that each document has is not there, or its value has another type.
    #[error("it has no {key} that is {expected}")]
    Key {
        /// The key.
        key: &'static str,
        /// What its value has to be.
        expected: &'static str,
    },
    /// It is about another host.
    #[error("it is about {identifier}, not about {host}")]
    OtherIdentifier {
        /// Its identifier.
        identifier: StrangerText,
        /// The host that was asked.
        host: String,
    },
    /// It is no longer valid.
    #[error("it expired at {expires}")]
    Expired {
        /// When, as the document says it.
        expires: StrangerText,
    },
    /// A list is too long.
    #[error("its list {key} has {len} entries; {max} are allowed")]
    TooMany {
        /// The key.
        key: &'static str,
        /// The number of entries.
        len: usize,
        /// The largest number.
        max: usize,
    },
}

impl Document {
    /// Reads a document, which is for this host at this time.
    pub fn parse(text: &[u8], expected: Expected<'_>) -> Result<Self, PvdError> {
        let document = object(text)?;
        // The draft, §2: "PvD Additional Information is required to contain the "identifier", "expires", and
        // "prefixes" keys. For proxy PvDs as defined in this document, the "identifier" MUST match the hostname of the
        // HTTP proxy."
        let identifier = string(&document, "identifier")?;
        let is = |host: &str| without_dot(identifier).eq_ignore_ascii_case(without_dot(host));
        if let Some(host) = expected.host.filter(|host| !is(host)) {
            let host = host.to_owned();
            return Err(PvdError::OtherIdentifier { identifier: identifier.into(), host });
        }
        let expires = expires(&document)?;
        // "it MUST discard cached information if: The current time is beyond the "expires" value".
        if expires < expected.now {
            let expires = string(&document, "expires")?.into();
            return Err(PvdError::Expired { expires });
        }
        array(&document, "prefixes", usize::MAX)?;
        let mut left_out = Vec::new();
        let proxies = match document.get("proxies") {
            Some(_) => array(&document, "proxies", PROXIES_MAX)?,
            None => &[],
        };
        let proxies = proxies::Proxies::read(proxies, expected, &mut left_out);
        let matches = match document.get("proxy-match") {
            Some(_) => array(&document, "proxy-match", RULES_MAX)?,
            None => &[],
        };
        let rules = rules::read(matches, &proxies, &mut left_out);
        Ok(Self { expires, udp: proxies.udp, rules, left_out })
    }
}

/// Checks a document that an operator has written, of which the proxy adds the identifier and the end of its validity
/// if they are missing. Returns its members.
pub fn parse_own(text: &[u8]) -> Result<Map<String, Value>, PvdError> {
    let document = object(text)?;
    if document.contains_key("identifier") {
        string(&document, "identifier")?;
    }
    if document.contains_key("expires") {
        expires(&document)?;
    }
    array(&document, "proxies", PROXIES_MAX)?;
    if document.contains_key("proxy-match") {
        array(&document, "proxy-match", RULES_MAX)?;
    }
    Ok(document)
}

fn object(text: &[u8]) -> Result<Map<String, Value>, PvdError> {
    if text.len() > LEN_MAX {
        return Err(PvdError::TooLong);
    }
    match serde_json::from_slice(text) {
        Ok(Value::Object(document)) => Ok(document),
        Ok(_) => Err(PvdError::Json("no object".into())),
        Err(error) => Err(PvdError::Json(error.to_string().into())),
    }
}

fn string<'a>(document: &'a Map<String, Value>, key: &'static str) -> Result<&'a str, PvdError> {
    let text = document.get(key).and_then(Value::as_str);
    text.ok_or(PvdError::Key { key, expected: "a text" })
}

fn array<'a>(
    document: &'a Map<String, Value>,
    key: &'static str,
    max: usize,
) -> Result<&'a [Value], PvdError> {
    let list = document.get(key).and_then(Value::as_array);
    let list = list.ok_or(PvdError::Key { key, expected: "a list" })?;
    if list.len() > max {
        return Err(PvdError::TooMany { key, len: list.len(), max });
    }
    Ok(list)
}

fn expires(document: &Map<String, Value>) -> Result<OffsetDateTime, PvdError> {
    let expires = OffsetDateTime::parse(string(document, "expires")?, &Rfc3339);
    expires.map_err(|_| PvdError::Key { key: "expires", expected: "a time (RFC 3339)" })
}

/// A name without the dot at its end, which an identifier may have.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests;

//! Requests and responses as field sections ([RFC 9114 §4]), with the checks that the RFC requires.
//!
//! [RFC 9114 §4]: https://www.rfc-editor.org/rfc/rfc9114#section-4

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use crate::qpack::{FieldLine, decode_field_section, encode_field_section};
use crate::{DecodeError, StrangerText};

/// The header section of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// `:method`.
    pub method: Method,
    /// `:scheme`; it is absent only in CONNECT without `protocol`.
    pub scheme: Option<String>,
    /// `:authority`.
    pub authority: Option<String>,
    /// `:path` with the query; it is absent only in CONNECT without `protocol`.
    pub path: Option<String>,
    /// `:protocol`, which is allowed only with CONNECT ([RFC 9220 §3]).
    ///
    /// [RFC 9220 §3]: https://www.rfc-editor.org/rfc/rfc9220#section-3
    pub protocol: Option<String>,
    /// All other fields.
    pub headers: HeaderMap,
}

/// The header section of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    /// `:status`.
    pub status: StatusCode,
    /// All other fields.
    pub headers: HeaderMap,
}

/// The reason why a message is malformed ([RFC 9114 §4.1.2]).
///
/// [RFC 9114 §4.1.2]: https://www.rfc-editor.org/rfc/rfc9114#section-4.1.2
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// A field name is empty, or has an uppercase letter or another character that is not allowed.
    #[error("field name {0:?} is not a lower-case token")]
    Name(StrangerText),
    /// A field value has a control character.
    #[error("the value of {0} has a control character")]
    Value(HeaderName),
    /// The message has more field lines than a [`HeaderMap`] can hold.
    #[error("too many field lines")]
    TooManyLines,
    /// A field is specific to HTTP/1.1 connections.
    #[error("{0} is not allowed in HTTP/3")]
    ConnectionSpecific(HeaderName),
    /// TE has a value other than "trailers".
    #[error("te has a value other than \"trailers\"")]
    Te,
    /// A pseudo-header field is not defined for this kind of message.
    #[error("pseudo-header {0:?} is not allowed here")]
    PseudoHeaderUnknown(StrangerText),
    /// A pseudo-header field occurs twice.
    #[error("pseudo-header {0} occurs twice")]
    PseudoHeaderRepeated(&'static str),
    /// A pseudo-header field follows a regular field.
    #[error("pseudo-header {0:?} follows a regular field")]
    PseudoHeaderLate(StrangerText),
    /// A required pseudo-header field is missing.
    #[error("pseudo-header {0} is missing")]
    PseudoHeaderMissing(&'static str),
    /// A pseudo-header field is not allowed in a request with this method.
    #[error("pseudo-header {name} is not allowed with {method}")]
    PseudoHeaderWithMethod {
        /// The field.
        name: &'static str,
        /// The request's method.
        method: Method,
    },
    /// A pseudo-header field's value is not allowed.
    #[error("pseudo-header {name} has the value {value:?}")]
    PseudoHeaderValue {
        /// The field.
        name: &'static str,
        /// Its value.
        value: StrangerText,
    },
    /// Host and `:authority` differ.
    #[error("host is not the same as :authority")]
    HostMismatch,
}

const METHOD: &str = ":method";
const SCHEME: &str = ":scheme";
const AUTHORITY: &str = ":authority";
const PATH: &str = ":path";
const PROTOCOL: &str = ":protocol";
const STATUS: &str = ":status";

impl RequestHead {
    /// Encodes the request as a field section, pseudo-header fields first.
    pub fn encode(&self) -> Bytes {
        let pseudo_headers = [
            (METHOD, Some(self.method.as_str())),
            (SCHEME, self.scheme.as_deref()),
            (AUTHORITY, self.authority.as_deref()),
            (PATH, self.path.as_deref()),
            (PROTOCOL, self.protocol.as_deref()),
        ];
        let present = pseudo_headers.into_iter().filter_map(|(name, value)| Some((name, value?)));
        encode(present, &self.headers)
    }

    /// Decodes a field section of at most `max_size` bytes, counted as in [RFC 9114 §4.2.2].
    ///
    /// # Errors
    ///
    /// The field section is malformed or too large, or the request is malformed.
    ///
    /// [RFC 9114 §4.2.2]: https://www.rfc-editor.org/rfc/rfc9114#section-4.2.2
    pub fn decode(section: Bytes, max_size: u64) -> Result<Self, DecodeError> {
        let lines = decode_field_section(section, max_size)?;
        let (pseudo_headers, headers) =
            split_lines(lines, [METHOD, SCHEME, AUTHORITY, PATH, PROTOCOL])?;
        let [method, scheme, authority, path, protocol] = pseudo_headers;
        let method = method.ok_or(MessageError::PseudoHeaderMissing(METHOD))?;
        let head = Self {
            method: Method::from_bytes(&method).map_err(|_| value_error(METHOD, &method))?,
            scheme: scheme.map(|value| checked(SCHEME, &value, is_scheme)).transpose()?,
            authority: authority
                .map(|value| checked(AUTHORITY, &value, is_authority))
                .transpose()?,
            path: path.map(|value| checked(PATH, &value, is_path)).transpose()?,
            protocol: protocol.map(|value| checked(PROTOCOL, &value, is_token)).transpose()?,
            headers,
        };
        head.check()?;
        Ok(head)
    }

    /// Checks that the required pseudo-header fields are present and no others ([RFC 9114 §4.3.1],
    /// [RFC 9114 §4.4], [RFC 8441 §4]).
    ///
    /// [RFC 9114 §4.3.1]: https://www.rfc-editor.org/rfc/rfc9114#section-4.3.1
    /// [RFC 9114 §4.4]: https://www.rfc-editor.org/rfc/rfc9114#section-4.4
    /// [RFC 8441 §4]: https://www.rfc-editor.org/rfc/rfc8441#section-4
    fn check(&self) -> Result<(), MessageError> {
        let is_connect = self.method == Method::CONNECT;
        if self.protocol.is_some() && !is_connect {
            return Err(self.not_with_method(PROTOCOL));
        }
        if is_connect && self.protocol.is_none() {
            // RFC 9114 §4.4: "The :scheme and :path pseudo-header fields are omitted. The
            // :authority pseudo-header field contains the host and port to connect to".
            return match (&self.scheme, &self.path, &self.authority) {
                (Some(_), _, _) => Err(self.not_with_method(SCHEME)),
                (_, Some(_), _) => Err(self.not_with_method(PATH)),
                (_, _, None) => Err(MessageError::PseudoHeaderMissing(AUTHORITY)),
                (None, None, Some(authority)) if !has_port(authority) => {
                    Err(value_error(AUTHORITY, authority.as_bytes()))
                }
                (None, None, Some(_)) => self.check_host(),
            };
        }
        // RFC 9114 §4.3.1: "All HTTP/3 requests MUST include exactly one value for the :method,
        // :scheme, and :path pseudo-header fields, unless the request is a CONNECT request".
        // RFC 8441 §4: "On requests that contain the :protocol pseudo-header field, the :scheme
        // and :path pseudo-header fields of the target URI MUST also be included."
        let Some(scheme) = &self.scheme else {
            return Err(MessageError::PseudoHeaderMissing(SCHEME));
        };
        let Some(path) = &self.path else {
            return Err(MessageError::PseudoHeaderMissing(PATH));
        };
        // RFC 9114 §4.3.1: "URIs that do not contain a path component MUST include a value of /
        // (ASCII 0x2f). An OPTIONS request [...] MUST include a value of * (ASCII 0x2a)".
        let is_asterisk = path == "*" && self.method == Method::OPTIONS;
        if !path.starts_with('/') && !is_asterisk {
            return Err(value_error(PATH, path.as_bytes()));
        }
        // RFC 9114 §4.3.1: "If the :scheme pseudo-header field identifies a scheme that has a
        // mandatory authority component (including "http" and "https"), the request MUST contain
        // either an :authority pseudo-header field or a Host header field."
        let needs_authority =
            scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http");
        if needs_authority && self.authority.is_none() && !self.headers.contains_key(header::HOST) {
            return Err(MessageError::PseudoHeaderMissing(AUTHORITY));
        }
        self.check_host()
    }

    /// Checks Host against `:authority`. RFC 9114 §4.3.1: "If both fields are present, they MUST
    /// contain the same value." and "If these fields are present, they MUST NOT be empty."
    fn check_host(&self) -> Result<(), MessageError> {
        let mut hosts = self.headers.get_all(header::HOST).iter();
        let Some(host) = hosts.next() else { return Ok(()) };
        let is_same = self.authority.as_ref().is_none_or(|authority| authority == host);
        if hosts.next().is_some() || host.is_empty() || !is_same {
            return Err(MessageError::HostMismatch);
        }
        Ok(())
    }

    fn not_with_method(&self, name: &'static str) -> MessageError {
        MessageError::PseudoHeaderWithMethod { name, method: self.method.clone() }
    }
}

impl ResponseHead {
    /// Encodes the response as a field section, pseudo-header fields first.
    pub fn encode(&self) -> Bytes {
        encode([(STATUS, self.status.as_str())], &self.headers)
    }

    /// Decodes a field section of at most `max_size` bytes, counted as in [RFC 9114 §4.2.2].
    ///
    /// # Errors
    ///
    /// The field section is malformed or too large, or the response is malformed.
    ///
    /// [RFC 9114 §4.2.2]: https://www.rfc-editor.org/rfc/rfc9114#section-4.2.2
    pub fn decode(section: Bytes, max_size: u64) -> Result<Self, DecodeError> {
        let lines = decode_field_section(section, max_size)?;
        let ([status], headers) = split_lines(lines, [STATUS])?;
        // RFC 9114 §4.3.2: "This pseudo-header field MUST be included in all responses; otherwise,
        // the response is malformed".
        let value = status.ok_or(MessageError::PseudoHeaderMissing(STATUS))?;
        match StatusCode::from_bytes(&value) {
            // RFC 9114 §4.5: "HTTP/3 does not support [...] the 101 (Switching Protocols)
            // informational status code".
            Ok(StatusCode::SWITCHING_PROTOCOLS) | Err(_) => Err(value_error(STATUS, &value).into()),
            Ok(status) => Ok(Self { status, headers }),
        }
    }
}

/// Encodes the trailer section that follows a body ([RFC 9114 §4.1]).
///
/// [RFC 9114 §4.1]: https://www.rfc-editor.org/rfc/rfc9114#section-4.1
pub fn encode_trailers(trailers: &HeaderMap) -> Bytes {
    encode([], trailers)
}

/// Decodes the trailer section of at most `max_size` bytes that follows a body ([RFC 9114 §4.1]).
///
/// # Errors
///
/// The field section is malformed or too large, or has a pseudo-header field.
///
/// [RFC 9114 §4.1]: https://www.rfc-editor.org/rfc/rfc9114#section-4.1
pub fn decode_trailers(section: Bytes, max_size: u64) -> Result<HeaderMap, DecodeError> {
    let lines = decode_field_section(section, max_size)?;
    // RFC 9114 §4.3: "Pseudo-header fields MUST NOT appear in trailer sections."
    let ([], trailers) = split_lines(lines, [])?;
    Ok(trailers)
}

fn encode<'a>(
    pseudo_headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    headers: &'a HeaderMap,
) -> Bytes {
    let pseudo_headers =
        pseudo_headers.into_iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let headers = headers.iter().map(|(name, value)| (name.as_ref(), value.as_bytes()));
    encode_field_section(pseudo_headers.chain(headers))
}

/// Splits field lines into the allowed pseudo-header fields and the regular fields.
fn split_lines<const N: usize>(
    lines: Vec<FieldLine>,
    allowed: [&'static str; N],
) -> Result<([Option<Bytes>; N], HeaderMap), MessageError> {
    let mut pseudo_headers = [const { None }; N];
    let mut headers = HeaderMap::new();
    for FieldLine { name, value } in lines {
        if !name.starts_with(b":") {
            let (name, value) = regular_field(&name, &value)?;
            headers.try_append(name, value).map_err(|_| MessageError::TooManyLines)?;
            continue;
        }
        // RFC 9114 §4.3: "All pseudo-header fields MUST appear in the header section before
        // regular header fields."
        if !headers.is_empty() {
            return Err(MessageError::PseudoHeaderLate(StrangerText::from_bytes(&name)));
        }
        // RFC 9114 §4.3: "Endpoints MUST treat a request or response that contains undefined or
        // invalid pseudo-header fields as malformed."
        let slots = allowed.into_iter().zip(&mut pseudo_headers);
        let Some((known, slot)) = slots.into_iter().find(|(known, _)| known.as_bytes() == &*name)
        else {
            return Err(MessageError::PseudoHeaderUnknown(StrangerText::from_bytes(&name)));
        };
        if slot.replace(value).is_some() {
            return Err(MessageError::PseudoHeaderRepeated(known));
        }
    }
    Ok((pseudo_headers, headers))
}

fn regular_field(name: &[u8], value: &[u8]) -> Result<(HeaderName, HeaderValue), MessageError> {
    // RFC 9114 §4.2: "A request or response containing uppercase characters in field names MUST be
    // treated as malformed."
    let Ok(name) = HeaderName::from_lowercase(name) else {
        return Err(MessageError::Name(StrangerText::from_bytes(name)));
    };
    // RFC 9114 §4.2: "An endpoint MUST NOT generate an HTTP/3 field section containing
    // connection-specific fields; any message containing connection-specific fields MUST be
    // treated as malformed."
    if is_connection_specific(&name) {
        return Err(MessageError::ConnectionSpecific(name));
    }
    // RFC 9114 §4.2: TE "MAY be present in an HTTP/3 request header; when it is, it MUST NOT
    // contain any value other than "trailers"."
    if name == header::TE && value != b"trailers" {
        return Err(MessageError::Te);
    }
    match HeaderValue::from_bytes(value) {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(MessageError::Value(name)),
    }
}

/// Returns whether the field is connection-specific (RFC 9114 §4.2): RFC 9110 §7.6.1 lists these
/// fields.
fn is_connection_specific(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade"
    )
}

fn value_error(name: &'static str, value: &[u8]) -> MessageError {
    MessageError::PseudoHeaderValue { name, value: StrangerText::from_bytes(value) }
}

fn checked(
    name: &'static str,
    value: &[u8],
    is_allowed: fn(&str) -> bool,
) -> Result<String, MessageError> {
    match std::str::from_utf8(value) {
        Ok(text) if is_allowed(text) => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err(value_error(name, value)),
    }
}

/// Returns whether the text is a URI scheme (RFC 3986 §3.1).
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Returns whether the text is an authority. RFC 9114 §4.3.1: it "MUST NOT include the deprecated
/// userinfo subcomponent for URIs of scheme "http" or "https"." Tandem supports no other scheme.
fn is_authority(text: &str) -> bool {
    !text.contains('@') && text.parse::<Authority>().is_ok()
}

fn has_port(authority: &str) -> bool {
    authority.parse::<Authority>().is_ok_and(|authority| authority.port_u16().is_some())
}

/// Returns whether the text is visible ASCII without a fragment. The server interprets the path.
fn is_path(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

/// Returns whether the text is a token (RFC 9110 §5.6.2).
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests;

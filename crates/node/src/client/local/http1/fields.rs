//! The fields of a head: what they say about the message, and which ones are passed on.

use std::{borrow::Cow, collections::BTreeSet, str};

use bytes::{BufMut, BytesMut};
use httparse::{EMPTY_HEADER, Header};

/// Fields that end at the next hop, or that this client writes itself. RFC 9110 §7.6.1:
/// "intermediaries SHOULD remove or replace fields that are known to require removal before
/// forwarding, whether or not they appear as a connection-option".
const OURS: [&str; 12] = [
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authorization",
    "proxy-authenticate",
    "proxy-authentication-info",
    "content-length",
    "host",
];

/// Room for the fields of a head. The length of the head bounds their number.
pub(super) fn room(head: &[u8]) -> Vec<Header<'_>> {
    vec![EMPTY_HEADER; head.split(|&byte| byte == b'\n').count()]
}

/// A head whose first line has no byte above 0x7f. Programs send such bytes in URLs, where they should be
/// percent-encoded (RFC 3986 §2.1).
pub(super) fn with_ascii_line(head: &[u8]) -> Cow<'_, [u8]> {
    let end = head.iter().position(|&byte| byte == b'\n').unwrap_or(head.len());
    let (line, rest) = head.split_at(end);
    if line.is_ascii() {
        return Cow::Borrowed(head);
    }
    let mut encoded = Vec::with_capacity(head.len() + 2 * line.len());
    for &byte in line {
        if byte.is_ascii() {
            encoded.push(byte);
        } else {
            encoded.extend(format!("%{byte:02X}").into_bytes());
        }
    }
    encoded.extend_from_slice(rest);
    Cow::Owned(encoded)
}

/// How a head says where the body ends (RFC 9112 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    /// There is neither Content-Length nor Transfer-Encoding.
    Nothing,
    Length(u64),
    Chunked,
}

/// What is wrong with Content-Length and Transfer-Encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramingError {
    Malformed(&'static str),
    /// There is a transfer coding below "chunked" that this client does not know.
    UnknownCoding,
}

/// The fields of a head.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) headers: &'a [Header<'a>],
    /// The minor version of the message: 0 or 1.
    pub(super) minor: u8,
}

impl<'a> Fields<'a> {
    /// The values of all lines of a field. The name is in lower case.
    pub(super) fn values(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let is_named = move |header: &&Header<'_>| header.name.eq_ignore_ascii_case(name);
        self.headers.iter().filter(is_named).map(|header| header.value)
    }

    /// The members of all lines of a field that is a list. Empty members are left out (RFC 9110
    /// §5.6.1.2).
    fn members(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let split = |value: &'a [u8]| value.split(|&byte| byte == b',');
        let members = self.values(name).flat_map(split).map(<[u8]>::trim_ascii);
        members.filter(|member| !member.is_empty())
    }

    /// Whether `ConnectionField` has this option.
    pub(super) fn has_option(self, option: &str) -> bool {
        self.members("connection").any(|it| it.eq_ignore_ascii_case(option.as_bytes()))
    }

    /// Where the body ends (RFC 9112 §6.3).
    pub(super) fn framing(self) -> Result<BodyLength, FramingError> {
        match (self.is_chunked()?, self.length()?) {
            (false, None) => Ok(BodyLength::Nothing),
            (false, Some(length)) => Ok(BodyLength::Length(length)),
            // RFC 9112 §6.1: "A server or client that receives an HTTP/1.0 message containing a
            // Transfer-Encoding header field MUST treat the message as if the framing is faulty".
            (true, None) if self.minor == 0 => {
                Err(FramingError::Malformed("an HTTP/1.0 message has no Transfer-Encoding"))
            }
            (true, None) => Ok(BodyLength::Chunked),
            // RFC 9112 §6.1: "A server MAY reject a request that contains both Content-Length and
            // Transfer-Encoding". Such a message "ought to be handled as an error" (§6.3).
            (true, Some(_)) => {
                let words = "a message has either Content-Length or Transfer-Encoding, not both";
                Err(FramingError::Malformed(words))
            }
        }
    }

    /// Whether the transfer coding is "chunked". There may be no other one.
    fn is_chunked(self) -> Result<bool, FramingError> {
        if self.values("transfer-encoding").next().is_none() {
            return Ok(false);
        }
        let mut codings: Vec<_> = self.members("transfer-encoding").collect();
        let last = codings.pop().unwrap_or_default();
        let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
        // RFC 9112 §6.3: if "chunked" is not the final coding of a request, "the message body
        // length cannot be determined reliably; the server MUST respond with the 400 (Bad Request)
        // status code and then close the connection." §7.1: it is not applied more than once.
        if !is_chunked(last) || codings.iter().copied().any(is_chunked) {
            return Err(FramingError::Malformed(
                "Transfer-Encoding does not end in one \"chunked\"",
            ));
        }
        if codings.is_empty() { Ok(true) } else { Err(FramingError::UnknownCoding) }
    }

    /// RFC 9112 §6.3: an invalid Content-Length is an unrecoverable error, "unless the field value
    /// can be successfully parsed as a comma-separated list (Section 5.6.1 of \[HTTP\]), all values
    /// in the list are valid, and all values in the list are the same".
    fn length(self) -> Result<Option<u64>, FramingError> {
        let mut length = None;
        for value in self.values("content-length") {
            for member in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                let digits = str::from_utf8(member).ok();
                let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                let Some(number) = digits.and_then(|text| text.parse().ok()) else {
                    return Err(FramingError::Malformed("Content-Length is not a number"));
                };
                if length.is_some_and(|length| length != number) {
                    return Err(FramingError::Malformed("Content-Length has several values"));
                }
                length = Some(number);
            }
        }
        Ok(length)
    }

    /// Writes the fields that are passed on, but none with these names.
    ///
    /// RFC 9110 §7.6.1: "Intermediaries MUST parse a received Connection header field before a
    /// message is forwarded and, for each connection-option in this field, remove any header or
    /// trailer field(s) from the message with the same name as the connection-option, and then
    /// remove the Connection header field itself".
    pub(super) fn write_forwarded(self, except: &[&str], out: &mut BytesMut) {
        let options: BTreeSet<_> =
            self.members("connection").map(<[u8]>::to_ascii_lowercase).collect();
        for Header { name, value } in self.headers {
            let is_ours = OURS.iter().chain(except).any(|it| it.eq_ignore_ascii_case(name));
            let is_option = options.contains(&name.as_bytes().to_ascii_lowercase());
            if !is_ours && !is_option {
                write_field(name, value, out);
            }
        }
    }

    /// Writes `Via` and, to keep an upgrade, `Upgrade`, and the empty line that ends the head.
    ///
    /// RFC 9110 §7.6.3: "A proxy MUST send an appropriate Via header field" in each message that it
    /// forwards. It has the version of the received message.
    pub(super) fn write_end(self, connection: ConnectionField, out: &mut BytesMut) {
        write_field("Via", if self.minor == 0 { b"1.0 tandem" } else { b"1.1 tandem" }, out);
        match connection {
            ConnectionField::Persists => {}
            ConnectionField::Closes => write_field("Connection", b"close", out),
            ConnectionField::Upgrades => {
                write_field("Connection", b"Upgrade", out);
                for protocols in self.values("upgrade") {
                    write_field("Upgrade", protocols, out);
                }
            }
        }
        out.put_slice(b"\r\n");
    }
}

/// What a head that is passed on says about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionField {
    Persists,
    Closes,
    Upgrades,
}

pub(super) fn write_field(name: &str, value: &[u8], out: &mut BytesMut) {
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

/// Writes where the body ends.
pub(super) fn write_framing(framing: BodyLength, out: &mut BytesMut) {
    match framing {
        BodyLength::Nothing => {}
        BodyLength::Length(length) => {
            write_field("Content-Length", length.to_string().as_bytes(), out);
        }
        BodyLength::Chunked => write_field("Transfer-Encoding", b"chunked", out),
    }
}

//! The head of a response, and the head for the program.

use bytes::{BufMut, Bytes, BytesMut};
use httparse::{Error, ParserConfig, Status};

use super::{
    super::inbox::TooLong,
    body::{BodyRest, NO_BODY},
    fields::{BodyLength, ConnectionField, Fields, FramingError, room, write_framing},
    request::ProgramAsked,
};

/// A response that cannot be passed on, in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadResponse(pub(super) &'static str);

/// A response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) kind: ResponseKind,
    /// The head for the program.
    pub(super) head: Bytes,
    pub(super) body: BodyRest,
    /// Whether the program gets the body in chunks, if the target sends chunks.
    pub(super) is_chunked: bool,
    /// Whether the program's connection may have another request after this one.
    pub(super) persists: bool,
    /// Whether the target's connection may have another request after this one.
    pub(super) target_persists: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseKind {
    /// 1xx: another response follows.
    Interim,
    /// 101 (Switching Protocols).
    Switching,
    Final,
}

/// Checks the first line as soon as it has arrived. An incomplete one is not an error.
pub(super) fn check_line(line: &[u8]) -> Result<(), BadResponse> {
    httparse::Response::new(&mut []).parse(line).map(drop).map_err(malformed)
}

fn malformed(error: Error) -> BadResponse {
    BadResponse(match error {
        Error::HeaderName => "the name of a field of its response is malformed",
        Error::HeaderValue => "the value of a field of its response is malformed",
        Error::NewLine | Error::Status | Error::Token | Error::Version | Error::TooManyHeaders => {
            "its response does not begin as HTTP/1.1 does"
        }
    })
}

impl From<TooLong> for BadResponse {
    fn from(TooLong: TooLong) -> Self {
        Self("the head of its response is too long")
    }
}

impl From<FramingError> for BadResponse {
    fn from(error: FramingError) -> Self {
        Self(match error {
            FramingError::Malformed(words) => words,
            FramingError::UnknownCoding => "its response has a transfer coding besides chunked",
        })
    }
}

/// Reads a complete head.
pub(super) fn parse(head: &[u8], asked: ProgramAsked) -> Result<Response, BadResponse> {
    let mut headers = room(head);
    let mut response = httparse::Response::new(&mut headers);
    // RFC 9112 §5.1: "A proxy MUST remove any such whitespace from a response message before forwarding the message
    // downstream." It is between a field's name and its colon.
    let mut parser = ParserConfig::default();
    parser.allow_spaces_after_header_name_in_responses(true);
    let status = parser.parse_response(&mut response, head).map_err(malformed)?;
    let (Status::Complete(len), Some(code @ 100..), Some(minor)) =
        (status, response.code, response.version)
    else {
        return Err(malformed(Error::Status));
    };
    if len != head.len() {
        return Err(malformed(Error::NewLine));
    }
    let kind = match code {
        101 if asked.connection == ConnectionField::Upgrades => ResponseKind::Switching,
        101 => return Err(BadResponse("it changes to a protocol that was not requested")),
        100..200 => ResponseKind::Interim,
        _ => ResponseKind::Final,
    };
    let fields = Fields { headers: response.headers, minor };
    let (framing, body) = match code {
        // RFC 9110 §8.6: such a response has no Content-Length.
        100..200 | 204 => (BodyLength::Nothing, NO_BODY),
        _ => {
            let framing = fields.framing()?;
            let body = match framing {
                _ if asked.is_head || code == 304 => NO_BODY,
                BodyLength::Nothing => BodyRest::UntilEnd,
                BodyLength::Length(length) => BodyRest::Length(length),
                BodyLength::Chunked => BodyRest::ChunkSize,
            };
            (framing, body)
        }
    };
    // RFC 9112 §6.1: a response to HTTP/1.0 has no Transfer-Encoding. If its length is not known, it ends
    // when the connection ends. Connections of programs that speak HTTP/1.0 end after one response.
    let is_chunked = framing == BodyLength::Chunked && !asked.is_old;
    let persists = asked.connection != ConnectionField::Closes && body != BodyRest::UntilEnd;
    let target_persists = minor == 1 && !fields.has_option("close") && body != BodyRest::UntilEnd;
    let mut out = BytesMut::new();
    out.put_slice(
        format!("HTTP/1.1 {code} {}\r\n", response.reason.unwrap_or_default()).as_bytes(),
    );
    fields.write_forwarded(&[], &mut out);
    if framing != BodyLength::Chunked || is_chunked {
        write_framing(framing, &mut out);
    }
    let connection = match kind {
        ResponseKind::Switching => ConnectionField::Upgrades,
        ResponseKind::Final if !persists => ConnectionField::Closes,
        ResponseKind::Final | ResponseKind::Interim => ConnectionField::Persists,
    };
    fields.write_end(connection, &mut out);
    Ok(Response { kind, head: out.freeze(), body, is_chunked, persists, target_persists })
}

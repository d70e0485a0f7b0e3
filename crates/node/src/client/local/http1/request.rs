//! The head of a request: what the program wants, and the head for the target.

use std::str;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{BufMut, Bytes, BytesMut};
use http::StatusCode;
use httparse::{Error, Status};

use super::{
    super::{Password, Target},
    answer::Rejection,
    body::{BodyRest, NO_BODY},
    fields::{
        BodyLength, ConnectionField, Fields, FramingError, room, with_ascii_line, write_field,
        write_framing,
    },
};

const ORIGIN_FORM: &str = "this port is a proxy for the programs of this computer and serves no pages; \
     set it as a program's proxy, for example with http_proxy=http://ADDRESS and \
     https_proxy=http://ADDRESS, or with ALL_PROXY=socks5h://ADDRESS";

/// A request that may be passed on.
#[derive(Debug)]
pub(super) struct ProgramRequest {
    pub(super) target: Target,
    /// `None`: the program asked for a tunnel with CONNECT.
    pub(super) message: Option<Message>,
}

/// A request for a resource of the target.
#[derive(Debug)]
pub(super) struct Message {
    /// The head for the target.
    pub(super) head: Bytes,
    pub(super) body: BodyRest,
    pub(super) asked: ProgramAsked,
    /// Whether the program waits for 100 (Continue) before it sends the body.
    pub(super) expects: bool,
}

/// What a program asked for, as far as the response depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramAsked {
    /// Whether the response has no body, because the method is HEAD.
    pub(super) is_head: bool,
    /// Whether the program speaks HTTP/1.0, which has neither chunks nor 1xx responses.
    pub(super) is_old: bool,
    /// What becomes of the program's connection after the exchange.
    pub(super) connection: ConnectionField,
}

/// Checks the first line as soon as it has arrived. An incomplete one is not an error.
pub(super) fn check_line(line: &[u8]) -> Result<(), Rejection> {
    httparse::Request::new(&mut []).parse(&with_ascii_line(line)).map(drop).map_err(malformed)
}

/// The method of a head that may be malformed.
pub(super) fn is_head_method(head: &[u8]) -> bool {
    head.starts_with(b"HEAD ")
}

fn malformed(error: Error) -> Rejection {
    match error {
        Error::Version => Rejection::unsupported(
            StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            "a version of HTTP other than 1.0 and 1.1",
        ),
        Error::HeaderName => Rejection::malformed("the name of a field is malformed"),
        Error::HeaderValue => Rejection::malformed("the value of a field is malformed"),
        Error::NewLine | Error::Status | Error::Token | Error::TooManyHeaders => {
            Rejection::malformed(
                "it is neither SOCKS5 nor a request of HTTP/1.1; a program that speaks TLS to its \
             proxy must be set to http:// instead of https://",
            )
        }
    }
}

impl From<FramingError> for Rejection {
    fn from(error: FramingError) -> Self {
        match error {
            FramingError::Malformed(words) => Self::malformed(words),
            // RFC 9112 §6.1: "A server that receives a request message with a transfer coding it
            // does not understand SHOULD respond with 501 (Not Implemented)."
            FramingError::UnknownCoding => {
                Self::unsupported(StatusCode::NOT_IMPLEMENTED, "a transfer coding besides chunked")
            }
        }
    }
}

/// Reads a complete head.
pub(super) fn parse(head: &[u8], password: Option<&Password>) -> Result<ProgramRequest, Rejection> {
    let head = &*with_ascii_line(head);
    let mut headers = room(head);
    let mut request = httparse::Request::new(&mut headers);
    let status = request.parse(head).map_err(malformed)?;
    let (Status::Complete(len), Some(method), Some(uri), Some(minor)) =
        (status, request.method, request.path, request.version)
    else {
        return Err(malformed(Error::NewLine));
    };
    if len != head.len() {
        return Err(malformed(Error::NewLine));
    }
    let fields = Fields { headers: request.headers, minor };
    check_host(fields)?;
    let framing = fields.framing()?;
    if password.is_some_and(|password| !shows(fields, password)) {
        return Err(Rejection::unauthorized());
    }
    if method == "CONNECT" {
        // The body of a CONNECT request has no meaning, and could be taken for bytes of the tunnel.
        if !matches!(framing, BodyLength::Nothing | BodyLength::Length(0)) {
            return Err(Rejection::malformed("a CONNECT request has no body"));
        }
        // RFC 9110 §9.3.6: "There is no default port; a client MUST send the port number even if
        // the CONNECT request is based on a URI reference that contains an authority component with
        // an elided port".
        let target =
            Target::parse(uri, None).map_err(|error| Rejection::malformed(error.to_string()))?;
        return Ok(ProgramRequest { target, message: None });
    }
    let (target, path) = split_uri(uri)?;
    let message = rewrite(method, path, &target, fields, framing)?;
    Ok(ProgramRequest { target, message: Some(message) })
}

/// RFC 9112 §3.2: "A server MUST respond with a 400 (Bad Request) status code to any HTTP/1.1
/// request message that lacks a Host header field and to any request message that contains more
/// than one Host header field line or a Host header field with an invalid field value."
fn check_host(fields: Fields<'_>) -> Result<(), Rejection> {
    let mut values = fields.values("host");
    let (host, second) = (values.next(), values.next());
    let is_valid = |host: &[u8]| {
        host.is_empty()
            || str::from_utf8(host).is_ok_and(|host| Target::parse(host, Some(80)).is_ok())
    };
    match host {
        None if fields.minor == 0 => Ok(()),
        Some(host) if second.is_none() && is_valid(host) => Ok(()),
        None | Some(_) => Err(Rejection::malformed("the request needs one Host field with a host")),
    }
}

/// Whether the program shows the password in `Proxy-Authorization: Basic` (RFC 7617).
fn shows(fields: Fields<'_>, password: &Password) -> bool {
    let mut values = fields.values("proxy-authorization");
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let Some((scheme, shown)) = value.split_at_checked("Basic ".len()) else { return false };
    let Ok(shown) = BASE64_STANDARD.decode(shown.trim_ascii()) else { return false };
    let mut parts = shown.splitn(2, |&byte| byte == b':');
    let (user, shown) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    scheme.eq_ignore_ascii_case(b"Basic ") && password.is(user, shown)
}

/// Splits the absolute form (RFC 9112 §3.2.2) into the target and the origin form, which may still
/// lack the path.
fn split_uri(uri: &str) -> Result<(Target, &str), Rejection> {
    if uri.starts_with('/') || uri == "*" {
        return Err(Rejection::malformed(ORIGIN_FORM));
    }
    let Some((scheme, rest)) = uri.split_once("://") else {
        return Err(Rejection::malformed("the target of the request is not an http URL"));
    };
    // A WebSocket begins as a request for http (RFC 6455 §1.7), and some programs leave its scheme in the URL.
    if !["http", "ws"].iter().any(|it| scheme.eq_ignore_ascii_case(it)) {
        return Err(Rejection::malformed(
            "this port passes on only http URLs; for https, a program must ask for a tunnel with \
             CONNECT, as programs do when this port is set as their https_proxy",
        ));
    }
    if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains('#') {
        return Err(Rejection::malformed(
            "the URL of the request has a character that must be encoded",
        ));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // The user's own program has written the user information for the target. It is no part of what the target gets.
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let target = Target::parse(authority, Some(80))
        .map_err(|error| Rejection::malformed(error.to_string()))?;
    Ok((target, path))
}

/// Writes the head for the target, and says how the exchange goes on.
fn rewrite(
    method: &str,
    path: &str,
    target: &Target,
    fields: Fields<'_>,
    framing: BodyLength,
) -> Result<Message, Rejection> {
    let is_old = fields.minor == 0;
    // RFC 9112 §9.3: a proxy does not keep the connection of an HTTP/1.0 client.
    let connection = if is_old || fields.has_option("close") {
        ConnectionField::Closes
    } else if fields.has_option("upgrade") && fields.values("upgrade").next().is_some() {
        ConnectionField::Upgrades
    } else {
        ConnectionField::Persists
    };
    let mut head = BytesMut::new();
    head.put_slice(method.as_bytes());
    head.put_slice(b" ");
    // RFC 9112 §3.2.4: without path and query, the target of OPTIONS becomes "*".
    if !path.starts_with('/') {
        head.put_slice(if method == "OPTIONS" && path.is_empty() { b"*" } else { b"/" });
    }
    head.put_slice(path.as_bytes());
    head.put_slice(b" HTTP/1.1\r\n");
    // RFC 9112 §3.2.2: "the proxy MUST ignore the received Host header field (if any) and instead
    // replace it with the host information of the request-target."
    let authority = target.to_string();
    let host = authority.strip_suffix(":80").unwrap_or(&authority);
    write_field("Host", host.as_bytes(), &mut head);
    let left = max_forwards(method, fields)?;
    // RFC 9110 §10.1.1: an expectation in an HTTP/1.0 request is ignored.
    let except: &[&str] = match (is_old, left) {
        (false, None) => &[],
        (false, Some(_)) => &["max-forwards"],
        (true, None) => &["expect"],
        (true, Some(_)) => &["expect", "max-forwards"],
    };
    fields.write_forwarded(except, &mut head);
    if let Some(left) = left {
        write_field("Max-Forwards", left.to_string().as_bytes(), &mut head);
    }
    write_framing(framing, &mut head);
    fields.write_end(connection, &mut head);
    let body = match framing {
        BodyLength::Nothing => NO_BODY,
        BodyLength::Length(length) => BodyRest::Length(length),
        BodyLength::Chunked => BodyRest::ChunkSize,
    };
    let expects = !is_old && fields.values("expect").next().is_some();
    let asked = ProgramAsked { is_head: method == "HEAD", is_old, connection };
    Ok(Message { head: head.freeze(), body, asked, expects })
}

/// RFC 9110 §7.6.2: "Each intermediary that receives a TRACE or OPTIONS request containing a
/// Max-Forwards header field MUST check and update its value prior to forwarding the request."
/// Returns the new value, if there is one.
fn max_forwards(method: &str, fields: Fields<'_>) -> Result<Option<u32>, Rejection> {
    let value =
        fields.values("max-forwards").next().filter(|_| matches!(method, "TRACE" | "OPTIONS"));
    let Some(value) = value else { return Ok(None) };
    let number: Option<u32> = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    match number {
        Some(0) => Err(Rejection::last_hop()),
        Some(number) => Ok(Some(number - 1)),
        None => Err(Rejection::malformed("Max-Forwards is not a number")),
    }
}

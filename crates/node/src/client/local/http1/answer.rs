//! The answers that the client itself gives to a program, and the reasons for them.

use std::{borrow::Cow, fmt::Write as _};

use bytes::Bytes;
use http::StatusCode;
use tandem_wire::{ProxyStatus, StrangerText};

use super::super::{Fault, Refusal, Target, inbox::TooLong};
use crate::error::whole_seconds;

/// RFC 9110 §9.3.6: a server "MUST NOT send any Transfer-Encoding or Content-Length header fields in
/// a 2xx (Successful) response to CONNECT."
pub(super) const CONNECTED: Bytes =
    Bytes::from_static(b"HTTP/1.1 200 Connection established\r\n\r\n");

const NAME: &str = "tandem";

/// A request that is not passed on.
#[derive(Debug)]
pub(super) struct Rejection {
    status: StatusCode,
    words: Cow<'static, str>,
    pub(super) fault: Fault,
    /// Fields of the answer besides the usual ones, each with its line end.
    fields: Cow<'static, str>,
}

impl Rejection {
    pub(super) fn malformed(words: impl Into<Cow<'static, str>>) -> Self {
        let words = words.into();
        let fault = Fault::Malformed(StrangerText::new(&words));
        Self { status: StatusCode::BAD_REQUEST, words, fault, fields: "".into() }
    }

    pub(super) fn too_large(words: &'static str) -> Self {
        let (status, fault) = (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, Fault::TooLarge(words));
        Self { status, words: words.into(), fault, fields: "".into() }
    }

    pub(super) fn unsupported(status: StatusCode, words: &'static str) -> Self {
        Self { status, words: words.into(), fault: Fault::Unsupported(words), fields: "".into() }
    }

    /// RFC 9110 §7.6.2: a request whose Max-Forwards is 0 ends here. RFC 9110 §10.2.1: "An empty
    /// Allow field value indicates that the resource allows no methods".
    pub(super) fn last_hop() -> Self {
        let words = "the request says with Max-Forwards that it ends at this proxy";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self { fields: "Allow: \r\n".into(), ..Self::unsupported(status, words) }
    }

    /// RFC 9110 §15.5.8: "The proxy MUST send a Proxy-Authenticate header field".
    pub(super) const fn unauthorized() -> Self {
        Self {
            status: StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            words: Cow::Borrowed(
                "this port asks for a user and a password; give them in the proxy's URL, as in \
                 http://USER:PASSWORD@ADDRESS",
            ),
            fault: Fault::Unauthorized,
            fields: Cow::Borrowed("Proxy-Authenticate: Basic realm=\"tandem\"\r\n"),
        }
    }

    /// The target cannot be reached.
    pub(super) fn refused(refusal: &Refusal, target: Option<&Target>) -> Self {
        let target = target.map(ToString::to_string).unwrap_or_default();
        let status = ProxyStatus {
            name: NAME.to_owned(),
            error: refusal.error.clone(),
            next_hop: Some(target.clone()),
            details: Some(refusal.words.to_string()),
            cause: None,
        };
        let mut fields = b"Proxy-Status: ".to_vec();
        fields.extend(status.encode().as_bytes());
        fields.extend(b"\r\n");
        if let Some(wait) = refusal.retry_after {
            fields.extend(format!("Retry-After: {}\r\n", whole_seconds(wait)).as_bytes());
        }
        Self {
            status: refusal.status,
            words: format!("the tunnel cannot reach {target}: {}", refusal.words).into(),
            fault: Fault::Refused(refusal.words.clone()),
            fields: String::from_utf8_lossy(&fields).into_owned().into(),
        }
    }

    /// The target broke HTTP, or ended its connection too early.
    pub(super) fn of_target(words: &'static str) -> Self {
        Self {
            status: StatusCode::BAD_GATEWAY,
            words: format!("the target did not answer as HTTP requires: {words}").into(),
            fault: Fault::Target(words),
            fields: format!("Proxy-Status: {NAME};error=http_protocol_error\r\n").into(),
        }
    }

    /// The answer. It always ends the connection, because what follows a rejected request may not
    /// be what it seems. An answer to HEAD has no body.
    pub(super) fn answer(&self, is_head: bool) -> Bytes {
        let Self { status, words, fields, .. } = self;
        let reason = status.canonical_reason().unwrap_or_default();
        let body = format!("{NAME}: {words}.\n");
        let mut answer = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16());
        // The text contains words of others, which no browser may take for HTML.
        let written = write!(
            answer,
            "Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n{fields}\
             Connection: close\r\n\r\n{}",
            body.len(),
            if is_head { "" } else { &body },
        );
        debug_assert!(written.is_ok(), "a String takes every text");
        answer.into()
    }
}

impl From<TooLong> for Rejection {
    fn from(TooLong: TooLong) -> Self {
        Self::too_large("the head of the request is too long")
    }
}

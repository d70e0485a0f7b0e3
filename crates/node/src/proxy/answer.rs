//! The answers to requests.

use std::{io, net::SocketAddr, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tandem_wire::{CAPSULE_PROTOCOL_TRUE, ProxyStatus, ResponseHead};

use super::flow::End;
use crate::{
    Cause,
    error::{RequestError, target_error, whole_seconds},
    service::Service,
    tcp::Form,
    tunnel::CAPSULE_PROTOCOL,
};

/// The header field of RFC 9209 §2.
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// After which time a user who has reached a limit may try again. It is not known when something of the user will end;
/// a few seconds keep a program from asking without a pause.
const LIMIT_WAIT: Duration = Duration::from_secs(5);

/// The proxy's name for itself in `Proxy-Status`.
const NAME: &str = "tandem";

/// The answer that grants a flow. `headers` are the fields that the tunnel agreed on.
///
/// RFC 9298 §3.5: "any 2xx (Successful) HTTP status code, without any "Transfer-Encoding" or
/// "Content-Length" header fields".
pub(super) fn granted(target: SocketAddr, mut headers: HeaderMap) -> ResponseHead {
    let status = ProxyStatus {
        name: NAME.to_owned(),
        next_hop: Some(target.to_string()),
        ..ProxyStatus::default()
    };
    headers.insert(PROXY_STATUS, status.encode());
    ResponseHead { status: StatusCode::OK, headers }
}

/// The answer that grants a TCP connection.
pub(super) fn connected(target: SocketAddr, form: Form) -> ResponseHead {
    let mut headers = HeaderMap::new();
    if form == Form::Capsules {
        // RFC 9297 §3.4: the field says that the body consists of capsules.
        headers.insert(CAPSULE_PROTOCOL, HeaderValue::from_static(CAPSULE_PROTOCOL_TRUE));
    }
    granted(target, headers)
}

/// Says why the target of a granted flow cannot be reached (RFC 9209).
pub(super) fn unreachable(target: SocketAddr, error: io::ErrorKind) -> ProxyStatus {
    ProxyStatus {
        name: NAME.to_owned(),
        error: Some(target_error(error).into()),
        next_hop: Some(target.to_string()),
        details: Some(error.to_string()),
        cause: None,
    }
}

/// Says why the proxy ends a granted flow, whose user may not use it any longer.
pub(super) fn revoked(cause: Cause, end: &End) -> ProxyStatus {
    ProxyStatus {
        name: NAME.to_owned(),
        error: Some("http_request_denied".into()),
        details: Some(end.to_string()),
        cause: cause.name().map(Into::into),
        next_hop: None,
    }
}

/// The challenge for clients that know a user name and a password, which are the name of a token and the token
/// (RFC 7617 §2.1).
const BASIC: &str = "Basic realm=\"tandem\", charset=\"UTF-8\"";

/// The answer that refuses a request.
///
/// RFC 9297 §3.4: "The Capsule-Protocol header field MUST NOT be used on HTTP responses with a
/// status code that is both different from 101 (Switching Protocols) and outside the 2xx (Successful)
/// range."
pub(super) fn refused(error: &RequestError, service: Service) -> ResponseHead {
    let (mut status, error_type) = error.response();
    let mut headers = HeaderMap::new();
    let proxy_status = ProxyStatus {
        name: NAME.to_owned(),
        error: error_type.map(Into::into),
        details: Some(error.details()),
        cause: error.cause().and_then(Cause::name).map(Into::into),
        ..ProxyStatus::default()
    };
    headers.insert(PROXY_STATUS, proxy_status.encode());
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        let bearer = match error {
            // RFC 6750 §3.1: "The access token provided is expired, revoked, malformed, or invalid".
            RequestError::TokenExpired => {
                "Bearer realm=\"tandem\", error=\"invalid_token\", error_description=\"expired\""
            }
            _ => "Bearer realm=\"tandem\"",
        };
        let field = if service.is_resource() {
            status = StatusCode::UNAUTHORIZED;
            header::WWW_AUTHENTICATE
        } else {
            // RFC 9110 §15.5.8: "The proxy MUST send a Proxy-Authenticate header field".
            header::PROXY_AUTHENTICATE
        };
        for challenge in [BASIC, bearer] {
            headers.append(&field, HeaderValue::from_static(challenge));
        }
    }
    let wait = match error {
        RequestError::TooManyGuesses(wait) => Some(*wait),
        RequestError::UserLimit { refusal, .. } if refusal.may_pass_soon() => Some(LIMIT_WAIT),
        _ => None,
    };
    if let Some(wait) = wait {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
    }
    ResponseHead { status, headers }
}

//! What a program is told if the target of its connection cannot be reached.

use std::{borrow::Cow, time::Duration};

use http::StatusCode;
use tandem_wire::{ProxyStatus, StrangerText};

use crate::error::{ClientError, FlowError};

/// The replies of SOCKS5 (RFC 1928 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SocksReply {
    /// The connection is open.
    Succeeded = 0,
    /// The server has failed for another reason than the following ones.
    GeneralFailure = 1,
    /// A rule does not allow the connection.
    NotAllowed = 2,
    /// There is no route to the target.
    NetworkUnreachable = 3,
    /// The target cannot be reached, or its name has no address.
    HostUnreachable = 4,
    /// The target refused the connection.
    ConnectionRefused = 5,
    /// The target did not answer in time. RFC 1928 calls this reply "TTL expired".
    TtlExpired = 6,
    /// The command is not supported.
    CommandNotSupported = 7,
    /// The type of address is not supported.
    AddressTypeNotSupported = 8,
}

/// The reason why a target cannot be reached, as each protocol tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reply of SOCKS5.
    pub socks: SocksReply,
    /// The status code of HTTP.
    pub status: StatusCode,
    /// The error type of `Proxy-Status` (RFC 9209 §2.3), if there is one for the cause.
    pub error: Option<Cow<'static, str>>,
    /// The reason in words.
    pub words: StrangerText,
    /// The wait for which the tunnel's proxy asks before the next request.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// The refusal for an error type of RFC 9209 §2.3. Unknown ones are general failures.
    pub fn new(error: Cow<'static, str>, words: StrangerText) -> Self {
        let (socks, status) = match &*error {
            "dns_error" | "destination_not_found" => (SocksReply::HostUnreachable, 502),
            "dns_timeout" => (SocksReply::HostUnreachable, 504),
            "destination_unavailable" => (SocksReply::HostUnreachable, 503),
            "destination_ip_prohibited" | "http_request_denied" => (SocksReply::NotAllowed, 403),
            "destination_ip_unroutable" => (SocksReply::NetworkUnreachable, 502),
            "connection_refused" => (SocksReply::ConnectionRefused, 502),
            "connection_timeout" | "connection_read_timeout" | "connection_write_timeout" => {
                (SocksReply::TtlExpired, 504)
            }
            "connection_limit_reached" => (SocksReply::GeneralFailure, 503),
            _ => (SocksReply::GeneralFailure, 502),
        };
        Self { error: Some(error), ..Self::of(socks, status, words) }
    }

    fn of(socks: SocksReply, status: u16, words: StrangerText) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        Self { socks, status, error: None, words, retry_after: None }
    }

    /// The refusal for the answer of a proxy.
    fn answered(status: u16, proxy_status: Option<&StrangerText>, words: StrangerText) -> Self {
        // The proxy that is closest to the target comes first, and knows most.
        let statuses = proxy_status.and_then(|value| ProxyStatus::parse(value.unescaped()).ok());
        if let Some(error) = statuses.into_iter().flatten().find_map(|status| status.error) {
            let refusal = Self::new(error, words);
            if status != 429 {
                return refusal;
            }
            let (socks, status) = (SocksReply::GeneralFailure, StatusCode::TOO_MANY_REQUESTS);
            return Self { socks, status, ..refusal };
        }
        match status {
            // The program cannot know the token of the tunnel, so it is not asked for one by 407.
            401 | 403 | 407 => Self::of(SocksReply::NotAllowed, 403, words),
            429 => Self::of(SocksReply::GeneralFailure, 429, words),
            503 => Self::of(SocksReply::GeneralFailure, 503, words),
            504 => Self::of(SocksReply::TtlExpired, 504, words),
            _ => Self::of(SocksReply::GeneralFailure, 502, words),
        }
    }
}

impl From<&ClientError> for Refusal {
    fn from(error: &ClientError) -> Self {
        let words = error.to_string().into();
        match error {
            ClientError::Refused { status, proxy_status, retry_after, .. } => {
                let refusal = Self::answered(*status, proxy_status.as_ref(), words);
                Self { retry_after: *retry_after, ..refusal }
            }
            ClientError::Ruled { .. } => Self::new("http_request_denied".into(), words),
            ClientError::Direct(error) => match error.response() {
                (_, Some(kind)) => Self::new(kind.into(), words),
                (_, None) => Self::of(SocksReply::GeneralFailure, 503, words),
            },
            ClientError::NoAnswer { .. } => Self::of(SocksReply::GeneralFailure, 504, words),
            ClientError::Socket(_)
            | ClientError::NoStream { .. }
            | ClientError::Refusing { .. }
            | ClientError::ConnectionLost { .. }
            | ClientError::Resolve { .. }
            | ClientError::Interrupted => Self::of(SocksReply::GeneralFailure, 503, words),
            ClientError::FlowClosed { .. }
            | ClientError::Listen { .. }
            | ClientError::Stdio(_)
            | ClientError::Tls { .. }
            | ClientError::Unsupported { .. }
            | ClientError::LesserMode { .. }
            | ClientError::Status { .. }
            | ClientError::Redirected { .. }
            | ClientError::Body { .. }
            | ClientError::Protocol { .. } => Self::of(SocksReply::GeneralFailure, 502, words),
        }
    }
}

impl From<&FlowError> for Refusal {
    fn from(error: &FlowError) -> Self {
        let words = error.to_string().into();
        match error {
            FlowError::Target(_) => Self::of(SocksReply::HostUnreachable, 400, words),
            FlowError::TooLarge { .. }
            | FlowError::QueueFull
            | FlowError::NotOpen
            | FlowError::TooMany { .. } => Self::of(SocksReply::GeneralFailure, 503, words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_reply_and_a_status() {
        use SocksReply::*;
        let refused = |status, proxy_status: Option<&str>| ClientError::Refused {
            peer: "p.example".to_owned(),
            target: "t.example:80".into(),
            status,
            proxy_status: proxy_status.map(StrangerText::from),
            retry_after: None,
        };
        let typed = |status, error: &str| refused(status, Some(&format!("p;error={error}")));
        let timeout = Duration::from_secs(5);
        for (error, socks, status) in [
            (typed(502, "dns_error"), HostUnreachable, 502),
            (typed(504, "dns_timeout"), HostUnreachable, 504),
            (typed(502, "destination_unavailable"), HostUnreachable, 503),
            (typed(403, "destination_ip_prohibited"), NotAllowed, 403),
            (typed(502, "destination_ip_unroutable"), NetworkUnreachable, 502),
            (typed(502, "connection_refused"), ConnectionRefused, 502),
            (typed(504, "connection_timeout"), TtlExpired, 504),
            (typed(503, "connection_limit_reached"), GeneralFailure, 503),
            (typed(500, "proxy_internal_error"), GeneralFailure, 502),
            (typed(502, "an_error_of_the_future"), GeneralFailure, 502),
            (refused(502, Some("a, b;error=connection_refused")), ConnectionRefused, 502),
            (refused(403, None), NotAllowed, 403),
            (refused(407, Some("p;details=\"a valid token is required\"")), NotAllowed, 403),
            (refused(429, None), GeneralFailure, 429),
            (typed(429, "http_request_denied"), GeneralFailure, 429),
            (refused(401, None), NotAllowed, 403),
            (refused(504, Some("not a list;;")), TtlExpired, 504),
            (refused(200, None), GeneralFailure, 502),
            (ClientError::NoAnswer { peer: "p".to_owned(), timeout }, GeneralFailure, 504),
            (ClientError::Interrupted, GeneralFailure, 503),
        ] {
            let refusal = Refusal::from(&error);
            assert_eq!((refusal.socks, refusal.status.as_u16()), (socks, status), "{error}");
            assert_eq!(refusal.words, error.to_string().into());
        }
        let refusal = Refusal::from(&FlowError::TooMany { most: 7 });
        assert_eq!((refusal.socks, refusal.status.as_u16()), (GeneralFailure, 503));
    }
}

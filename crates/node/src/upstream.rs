//! The exchanges of a site with the HTTP server behind it, which the driver asks. The driver connects, and speaks
//! HTTP/1.1; the node decides what is passed on, and how much waits.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
pub use tandem_wire::{RequestHead, ResponseHead};

/// The name of an exchange. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeId(pub u64);

/// The body of a request that is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// There is none.
    None,
    /// It has this number of bytes.
    Sized(u64),
    /// It has a length that is not known.
    Unsized,
    /// The request is an extended CONNECT for a WebSocket ([RFC 9220]), whose bytes follow in both directions. The
    /// server is asked to upgrade a connection.
    ///
    /// [RFC 9220]: https://www.rfc-editor.org/rfc/rfc9220
    WebSocket,
}

/// What a node wants of the server behind its site.
#[derive(Debug)]
pub enum UpstreamOutput {
    /// Pass on a request. [`UpstreamInput::Head`] is the answer.
    Request {
        /// The name of the new exchange.
        exchange: ExchangeId,
        /// The request, which has an authority and an absolute path, and is CONNECT only for a WebSocket.
        head: Box<RequestHead>,
        /// The address of the client, if it is known.
        client: Option<IpAddr>,
        /// What follows.
        body: RequestBody,
    },
    /// Pass on the next bytes of a request's body. [`UpstreamInput::Taken`] is the answer.
    Body {
        /// The exchange.
        exchange: ExchangeId,
        /// The bytes.
        data: Bytes,
    },
    /// The body of a request is complete, or the client has closed its direction of a WebSocket.
    BodyEnd {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Read more of a response. [`UpstreamInput::Data`] is the answer, or [`UpstreamInput::End`].
    More {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Forget an exchange, which may be complete. There is no answer, and the node does not use its name again.
    Forget {
        /// The exchange.
        exchange: ExchangeId,
    },
}

/// What the server behind a site has said.
#[derive(Debug)]
pub enum UpstreamInput {
    /// An interim response, 103 (Early Hints). It has no fields that are about a connection.
    Interim {
        /// The exchange.
        exchange: ExchangeId,
        /// Its header section.
        head: Box<ResponseHead>,
    },
    /// The final response has begun. It has no fields that are about a connection. Its status is 200 for a WebSocket
    /// that is open, and for one that is refused it is none of success.
    Head {
        /// The exchange.
        exchange: ExchangeId,
        /// Its header section.
        head: Box<ResponseHead>,
    },
    /// Bytes of a request's body have been sent.
    Taken {
        /// The exchange.
        exchange: ExchangeId,
        /// Their number.
        bytes: usize,
    },
    /// The next bytes of a response, at least one.
    Data {
        /// The exchange.
        exchange: ExchangeId,
        /// The bytes.
        data: Bytes,
    },
    /// A response is complete.
    End {
        /// The exchange.
        exchange: ExchangeId,
        /// The trailer section, which has no fields that are about a connection; empty if there is none.
        trailers: Box<HeaderMap>,
    },
    /// An exchange has failed. Nothing more comes of it.
    Failed {
        /// The exchange.
        exchange: ExchangeId,
        /// The cause.
        error: UpstreamError,
    },
}

/// Why there is no answer, or no whole one, of the server behind a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// Its name has no address.
    #[error("the server behind the site has no address")]
    Unresolved,
    /// None of its addresses can be connected to.
    #[error("the server behind the site refuses connections")]
    Refused,
    /// It does not accept a connection in time.
    #[error("the server behind the site does not accept a connection in time")]
    ConnectTimeout,
    /// It has closed the connection before the whole answer.
    #[error("the server behind the site has closed the connection")]
    Closed,
    /// It says nothing for too long.
    #[error("the server behind the site does not answer in time")]
    Silent,
    /// Its response breaks the rules of HTTP, or is too large.
    #[error("the response of the server behind the site is malformed or has too many fields")]
    Malformed,
    /// It answers a request for a WebSocket as if it were another request.
    #[error("the server behind the site does not speak WebSocket at this path")]
    NoWebSocket,
    /// The client does not take what has come of the answer.
    #[error("the client does not take the response of the server behind the site")]
    Stalled,
    /// There are too many exchanges already.
    #[error("too many requests are being answered")]
    Busy,
}

impl UpstreamError {
    /// All errors.
    pub const ALL: [Self; 9] = [
        Self::Unresolved,
        Self::Refused,
        Self::ConnectTimeout,
        Self::Closed,
        Self::Silent,
        Self::Malformed,
        Self::NoWebSocket,
        Self::Stalled,
        Self::Busy,
    ];

    /// The status code with which a gateway says so (RFC 9110 §15.6), as RFC 9209 §2.3 recommends.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Unresolved
            | Self::Refused
            | Self::Closed
            | Self::Malformed
            | Self::NoWebSocket => StatusCode::BAD_GATEWAY,
            Self::ConnectTimeout | Self::Silent | Self::Stalled => StatusCode::GATEWAY_TIMEOUT,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The error type of `Proxy-Status` ([RFC 9209 §2.3]).
    ///
    /// [RFC 9209 §2.3]: https://www.rfc-editor.org/rfc/rfc9209#section-2.3
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Unresolved => "dns_error",
            Self::Refused => "connection_refused",
            Self::ConnectTimeout => "connection_timeout",
            Self::Closed => "connection_terminated",
            Self::Silent => "http_response_timeout",
            Self::Malformed => "http_protocol_error",
            Self::NoWebSocket => "http_upgrade_failed",
            Self::Stalled => "http_request_error",
            Self::Busy => "connection_limit_reached",
        }
    }
}

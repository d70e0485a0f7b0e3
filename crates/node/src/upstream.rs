//! The exchanges of a site with the HTTP server behind it, which the driver asks. The driver connects, and speaks
//! HTTP/1.1; the node decides what is passed on, and how much waits.

use std::net::IpAddr;

use bytes::Bytes;
use http::StatusCode;
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
}

/// What a node wants of the server behind its site.
#[derive(Debug)]
pub enum UpstreamOutput {
    /// Pass on a request. [`UpstreamInput::Head`] is the answer.
    Request {
        /// The name of the new exchange.
        exchange: ExchangeId,
        /// The request, which is not CONNECT, and has an authority and an absolute path.
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
    /// The body of a request is complete.
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
    /// The final response has begun. It has no fields that are about a connection.
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
    /// It cannot be connected to, or has closed the connection.
    #[error("the server behind the site cannot be reached")]
    Unreachable,
    /// It says nothing for too long.
    #[error("the server behind the site does not answer in time")]
    Silent,
    /// It does not speak HTTP/1.1, or its response is too large.
    #[error("the response of the server behind the site is malformed or has too many fields")]
    Malformed,
    /// There are too many exchanges already.
    #[error("too many requests are being answered")]
    Busy,
}

impl UpstreamError {
    /// The status code with which a gateway says so (RFC 9110 §15.6).
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Unreachable | Self::Malformed => StatusCode::BAD_GATEWAY,
            Self::Silent => StatusCode::GATEWAY_TIMEOUT,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

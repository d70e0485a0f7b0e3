//! Errors of a connection and of a request stream.

use tandem_wire::{Code, DecodeError, ErrorScope, StrangerText};

use super::Side;

/// A connection error, with the code that the RFC requires.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct ConnectionError {
    /// The code that the peer gets when the connection is closed.
    pub(crate) code: Code,
    /// The reason in words.
    pub(crate) reason: StrangerText,
}

/// An error on a request stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamError {
    /// The part of the connection that has to be closed.
    pub(super) scope: ErrorScope,
    pub(super) error: ConnectionError,
}

impl StreamError {
    pub(super) fn of(error: &DecodeError, side: Side) -> Self {
        if *error == DecodeError::PushPromise && side == Side::Server {
            // RFC 9114 §7.2.5: "A server MUST treat the receipt of a PUSH_PROMISE frame as a
            // connection error of type H3_FRAME_UNEXPECTED."
            return Self::unexpected("PUSH_PROMISE from a client");
        }
        let scope = match error {
            // A header section that is too long does not affect other requests. The rest of its
            // stream is not read.
            DecodeError::FrameTooLong { .. } => ErrorScope::Stream,
            error => error.scope(),
        };
        Self { scope, error: error.clone().into() }
    }

    /// Creates the error for a frame on a stream, or at a time, at which it is not allowed.
    pub(super) fn unexpected(what: &str) -> Self {
        let error = ConnectionError { code: Code::H3_FRAME_UNEXPECTED, reason: what.into() };
        Self { scope: ErrorScope::Connection, error }
    }
}

impl From<DecodeError> for ConnectionError {
    fn from(error: DecodeError) -> Self {
        Self { code: error.code(), reason: error.to_string().into() }
    }
}

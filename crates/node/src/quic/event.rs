//! The events of QUIC connections.

use std::net::SocketAddr;

use noq_proto::ConnectionError;
use tandem_wire::Code;

use super::StreamId;

/// An event of a connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// A peer's connection was accepted. Its handshake is in progress.
    Accepted {
        /// The address of the peer.
        remote: SocketAddr,
    },
    /// The handshake is complete.
    Connected,
    /// The peer opened a stream, which may have something to read.
    Opened(StreamId),
    /// A stream has bytes, an end or a reset to be read.
    Readable(StreamId),
    /// A stream that was blocked has room again, or was stopped.
    Writable(StreamId),
    /// The peer wants no more data on this stream.
    Stopped(StreamId, Code),
    /// The peer allows more streams than before.
    MoreStreams,
    /// Datagrams arrived.
    Datagrams,
    /// The connection has ended by an error, by a timeout or by the peer.
    Lost(Closed),
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// No packet arrived during the idle timeout, or the handshake took too long.
    TimedOut,
    /// The server closed it, because it needed the room or the memory for others.
    Displaced,
    /// TLS failed at either end.
    Tls(String),
    /// The peer closed the connection with this application error.
    ByPeer(Code, String),
    /// The peer violated QUIC.
    Violation(String),
    /// Any other reason of QUIC.
    Transport(String),
}

impl From<ConnectionError> for Closed {
    fn from(error: ConnectionError) -> Self {
        /// TLS alerts are the QUIC errors 0x0100 to 0x01ff (RFC 9001 §4.8).
        fn is_tls(code: u64) -> bool {
            (0x100..0x200).contains(&code)
        }
        match error {
            ConnectionError::TimedOut => Self::TimedOut,
            ConnectionError::TransportError(error) if is_tls(u64::from(error.code)) => {
                Self::Tls(error.reason)
            }
            ConnectionError::ConnectionClosed(close) if is_tls(u64::from(close.error_code)) => {
                Self::Tls(format!("the peer says: {close}"))
            }
            ConnectionError::ApplicationClosed(close) => Self::ByPeer(
                Code(close.error_code.into_inner()),
                String::from_utf8_lossy(&close.reason).into_owned(),
            ),
            ConnectionError::TransportError(error) => Self::Violation(error.to_string()),
            other => Self::Transport(other.to_string()),
        }
    }
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TimedOut => f.write_str("no packet for the idle timeout"),
            Self::Displaced => f.write_str("closed to make room for others"),
            Self::Tls(reason) => write!(f, "TLS: {reason}"),
            Self::ByPeer(code, reason) if reason.is_empty() => {
                write!(f, "closed by the peer with {code}")
            }
            Self::ByPeer(code, reason) => write!(f, "closed by the peer with {code}: {reason}"),
            Self::Violation(reason) | Self::Transport(reason) => f.write_str(reason),
        }
    }
}

//! The events of QUIC connections.

use std::net::SocketAddr;

use bytes::Bytes;
use noq_proto::ConnectionError;
use rustls::{PeerIncompatible, internal::msgs::codec::Codec};
use tandem_wire::{Code, StrangerText};

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
    Tls(StrangerText),
    /// The server, which has shown a certificate for its public name, rejects the Encrypted `ClientHello`. It may have
    /// other configurations (`ECHConfigList`) for it (RFC 9849 §6.1.6).
    EchRejected(Option<Bytes>),
    /// The peer closed the connection with this application error.
    ByPeer(Code, StrangerText),
    /// The peer violated QUIC.
    Violation(StrangerText),
    /// Any other reason of QUIC.
    Transport(StrangerText),
}

impl From<ConnectionError> for Closed {
    fn from(error: ConnectionError) -> Self {
        /// TLS alerts are the QUIC errors 0x0100 to 0x01ff (RFC 9001 §4.8).
        fn is_tls(code: u64) -> bool {
            (0x100..0x200).contains(&code)
        }
        if let ConnectionError::TransportError(error) = &error
            && let Some(crypto) = &error.crypto
            && let Some(rustls::Error::PeerIncompatible(
                PeerIncompatible::ServerRejectedEncryptedClientHello(configs),
            )) = crypto.downcast_ref()
        {
            return Self::EchRejected(
                configs.as_ref().map(|configs| configs.get_encoding().into()),
            );
        }
        match error {
            ConnectionError::TimedOut => Self::TimedOut,
            ConnectionError::TransportError(error) if is_tls(u64::from(error.code)) => {
                Self::Tls(error.reason.into())
            }
            ConnectionError::ConnectionClosed(close) if is_tls(u64::from(close.error_code)) => {
                Self::Tls(format!("the peer says: {close}").into())
            }
            ConnectionError::ApplicationClosed(close) => Self::ByPeer(
                Code(close.error_code.into_inner()),
                StrangerText::from_bytes(&close.reason),
            ),
            ConnectionError::TransportError(error) => Self::Violation(error.to_string().into()),
            other => Self::Transport(other.to_string().into()),
        }
    }
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TimedOut => f.write_str("no packet for the idle timeout"),
            Self::Displaced => f.write_str("closed to make room for others"),
            Self::Tls(reason) => write!(f, "TLS: {reason}"),
            Self::EchRejected(_) => {
                f.write_str("TLS: the server rejects the Encrypted ClientHello")
            }
            Self::ByPeer(code, reason) if reason.is_empty() => {
                write!(f, "closed by the peer with {code}")
            }
            Self::ByPeer(code, reason) => write!(f, "closed by the peer with {code}: {reason}"),
            Self::Violation(reason) | Self::Transport(reason) => reason.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use noq_proto::{
        ApplicationClose, ConnectionClose, TransportError, TransportErrorCode, VarInt,
    };

    use super::*;

    #[test]
    fn whatever_ends_a_connection_is_told_in_one_line_without_commands_for_a_terminal() {
        for hostile in
            ["a\nb\r", "\u{1b}[2J\u{7}", "\u{9b}31m", "\u{202e}\u{2066}", "\u{200b}\u{ad}\u{2028}"]
        {
            let reason = hostile.repeat(100);
            let bytes = bytes::Bytes::copy_from_slice(reason.as_bytes());
            let by_quic = |error_code| {
                let reason = bytes.clone();
                ConnectionError::ConnectionClosed(ConnectionClose {
                    error_code,
                    frame_type: noq_proto::MaybeFrame::None,
                    reason,
                })
            };
            let error =
                |code| ConnectionError::TransportError(TransportError::new(code, reason.clone()));
            for error in [
                ConnectionError::ApplicationClosed(ApplicationClose {
                    error_code: VarInt::from_u32(0x100),
                    reason: bytes.clone(),
                }),
                by_quic(TransportErrorCode::PROTOCOL_VIOLATION),
                by_quic(TransportErrorCode::crypto(42)),
                error(TransportErrorCode::PROTOCOL_VIOLATION),
                // So a name in a certificate reaches us: in the reason of an alert of our own.
                error(TransportErrorCode::crypto(42)),
            ] {
                let closed = Closed::from(error);
                for shown in [closed.to_string(), format!("{closed:?}")] {
                    assert!(
                        !shown.contains(
                            |c: char| c.is_control() || hostile.contains(c) && !c.is_ascii()
                        ),
                        "{shown}"
                    );
                    assert!(
                        shown.contains('\\') && shown.len() < StrangerText::SHOWN_MAX + 60,
                        "{shown}"
                    );
                }
            }
        }
    }
}

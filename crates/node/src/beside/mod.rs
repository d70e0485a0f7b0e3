//! Packets beside a tunnel's QUIC connection, on the same UDP 4-tuple (`docs/wire.md`).
//!
//! There are two kinds. *Forwarded* packets are those of a QUIC connection inside the tunnel, with
//! another connection ID and scrambled (draft-ietf-masque-quic-proxy). *Sealed* packets hold payloads of
//! any kind, encrypted with keys of the tunnel's TLS session. Neither gets an acknowledgement, and
//! neither waits in a queue: they go from socket to socket. A receiver finds them by their connection ID
//! before the QUIC engine sees them.

mod client;
mod ids;
mod mapping;
mod outbox;
mod proxy;
mod registry;

use http::HeaderName;
use tandem_wire::{ConnectionId, ConnectionIdTooLong, ForwardingGrant, PortSharing, SealField};

use self::outbox::Outbox;
pub(crate) use self::{
    client::{Beside, Unwrapped, Wish},
    outbox::Batch,
    proxy::{Arrived, Asked, BesideFlows, Path},
    registry::{Violation, Virtual},
};

const FORWARDING: HeaderName = HeaderName::from_static(ForwardingGrant::NAME);
const PORT_SHARING: HeaderName = HeaderName::from_static(PortSharing::NAME);
const SEAL: HeaderName = HeaderName::from_static(SealField::NAME);

/// The shortest virtual connection ID that a node of ours chooses, in bytes. It is unpredictable, as the
/// draft demands (§5.10), and tells apart all IDs of a node by itself.
const VIRTUAL_LEN_MIN: usize = 8;

/// Whether a UDP payload has the short header of QUIC (RFC 8999 §5.2), which only means that the first
/// bit is clear.
fn is_short(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| first & 0x80 == 0)
}

/// Whether a packet with a short header may have this connection ID.
fn has_id(packet: &[u8], id: &ConnectionId) -> bool {
    is_short(packet) && packet.get(1..).is_some_and(|rest| rest.starts_with(id))
}

/// The IDs in the long header of a QUIC packet (RFC 8999 §5.1).
struct LongHeader {
    source: ConnectionId,
    /// Whether the packet is one of a handshake, and no Version Negotiation or Retry packet, whose IDs
    /// are not those of the connection.
    is_of_handshake: bool,
}

impl LongHeader {
    /// `None`: the packet has a short header, is truncated, or has IDs that QUIC version 1 does not allow.
    fn read(packet: &[u8]) -> Option<Self> {
        /// RFC 9000 §17.2.5 and RFC 9369 §3.2: the packet type of Retry in versions 1 and 2.
        const RETRY: [(u32, u8); 2] = [(1, 0b11), (0x6b33_43cf, 0b00)];
        let (&first, rest) = packet.split_first()?;
        if first & 0x80 == 0 {
            return None;
        }
        let (version, rest) = rest.split_first_chunk()?;
        let version = u32::from_be_bytes(*version);
        let (_, rest) = take_id(rest)?;
        let (source, _) = take_id(rest)?;
        let packet_type = first >> 4 & 0b11;
        let is_of_handshake = version != 0 && !RETRY.contains(&(version, packet_type));
        Some(Self { source: source.ok()?, is_of_handshake })
    }
}

/// Takes a connection ID and the length before it off the front.
fn take_id(header: &[u8]) -> Option<(Result<ConnectionId, ConnectionIdTooLong>, &[u8])> {
    let (&len, rest) = header.split_first()?;
    let (id, rest) = rest.split_at_checked(len.into())?;
    Some((ConnectionId::try_from(id), rest))
}

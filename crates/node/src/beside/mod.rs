//! Packets beside a tunnel's QUIC connection, on the same UDP 4-tuple (`docs/design/wire.md`).
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
use tandem_wire::{ConnectionId, ForwardingGrant, PortSharing, SealField};

use self::outbox::Outbox;
pub(crate) use self::{
    client::{Beside, Unwrapped, Wish},
    outbox::Batch,
    proxy::{Arrived, Asked, BesideFlows, FlowId, Path},
    registry::{Violation, Virtual},
};
use crate::quic::Header;

const FORWARDING: HeaderName = HeaderName::from_static(ForwardingGrant::NAME);
const PORT_SHARING: HeaderName = HeaderName::from_static(PortSharing::NAME);
const SEAL: HeaderName = HeaderName::from_static(SealField::NAME);

/// The shortest virtual connection ID that a node of ours chooses, in bytes. It is unpredictable, as the
/// draft demands (§5.10), and tells apart all IDs of a node by itself.
const VIRTUAL_LEN_MIN: usize = 8;

/// Whether a packet with a short header may have this connection ID.
fn has_id(packet: &[u8], id: &ConnectionId) -> bool {
    matches!(Header::read(packet), Some(Header::Short { rest }) if rest.starts_with(id))
}

/// What a long header says about the connection ID of its sender.
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
        let Header::Long { first, version, source, .. } = Header::read(packet)? else {
            return None; // it is short
        };
        let packet_type = first >> 4 & 0b11;
        let is_of_handshake = version != 0 && !RETRY.contains(&(version, packet_type));
        Some(Self { source: source.try_into().ok()?, is_of_handshake })
    }
}

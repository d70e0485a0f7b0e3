//! The headers of packets.

use serde_json::{Value, json};

use super::hex;
use crate::quic::Header;

/// The type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum PacketType {
    Initial,
    Handshake,
    OneRtt,
}

impl PacketType {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Handshake => "handshake",
            Self::OneRtt => "1RTT",
        }
    }
}

/// A header without protection, which ends with the packet number.
pub(super) fn json(packet_type: PacketType, number: u64, header: &[u8]) -> Value {
    let name = packet_type.name();
    let rest = match Header::read(header) {
        Some(Header::Long { destination, source, .. }) => {
            return json!({
                "packet_type": name,
                "packet_number": number,
                "scid": hex(source),
                "dcid": hex(destination),
            });
        }
        Some(Header::Short { rest }) => rest,
        None => return json!({ "packet_type": name, "packet_number": number }),
    };
    // RFC 9000 §17.3.1: the two least significant bits of the first byte are one less than the length of
    // the packet number, and the third one is the key phase.
    let first = header.first().copied().unwrap_or_default();
    let id_len = rest.len().saturating_sub(usize::from(first & 3) + 1);
    json!({
        "packet_type": name,
        "packet_number": number,
        "dcid": hex(rest.get(..id_len).unwrap_or_default()),
        "key_phase_bit": first & 4 != 0,
    })
}

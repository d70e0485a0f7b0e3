//! Transport parameters (RFC 9000 §18).

use serde_json::{Map, Value};
use tandem_wire::VarInt;

use super::hex;

/// The default exponent of the delays in ACK frames (RFC 9000 §18.2).
pub(super) const ACK_DELAY_EXPONENT: u32 = 3;

/// The identifier of that exponent.
const ACK_DELAY_EXPONENT_ID: u64 = 0x0a;

enum ParameterKind {
    Integer,
    Id,
    Flag,
}

/// What qlog has of a parameter. Tokens and preferred addresses are left out.
const fn named(id: u64) -> Option<(&'static str, ParameterKind)> {
    Some(match id {
        0x00 => ("original_destination_connection_id", ParameterKind::Id),
        0x01 => ("max_idle_timeout", ParameterKind::Integer),
        0x03 => ("max_udp_payload_size", ParameterKind::Integer),
        0x04 => ("initial_max_data", ParameterKind::Integer),
        0x05 => ("initial_max_stream_data_bidi_local", ParameterKind::Integer),
        0x06 => ("initial_max_stream_data_bidi_remote", ParameterKind::Integer),
        0x07 => ("initial_max_stream_data_uni", ParameterKind::Integer),
        0x08 => ("initial_max_streams_bidi", ParameterKind::Integer),
        0x09 => ("initial_max_streams_uni", ParameterKind::Integer),
        ACK_DELAY_EXPONENT_ID => ("ack_delay_exponent", ParameterKind::Integer),
        0x0b => ("max_ack_delay", ParameterKind::Integer),
        0x0c => ("disable_active_migration", ParameterKind::Flag),
        0x0e => ("active_connection_id_limit", ParameterKind::Integer),
        0x0f => ("initial_source_connection_id", ParameterKind::Id),
        0x10 => ("retry_source_connection_id", ParameterKind::Id),
        0x20 => ("max_datagram_frame_size", ParameterKind::Integer), // RFC 9221 §3
        0x2ab2 => ("grease_quic_bit", ParameterKind::Flag),          // RFC 9287 §3
        0xff04_de1b => ("min_ack_delay", ParameterKind::Integer), // draft-ietf-quic-ack-frequency
        _ => return None,
    })
}

/// The parameters that qlog has names for, and the exponent of the delays in ACK frames. What follows a malformed one
/// is left out.
pub(super) fn decode(mut encoded: &[u8]) -> (Map<String, Value>, u32) {
    let (mut data, mut exponent) = (Map::new(), ACK_DELAY_EXPONENT);
    while let Some((id, value)) = take(&mut encoded) {
        let Some((name, kind)) = named(id) else { continue }; // qlog has no name for it
        let value: Value = match kind {
            ParameterKind::Id => hex(value).into(),
            ParameterKind::Flag => true.into(),
            ParameterKind::Integer => {
                let Ok(number) = VarInt::decode(&mut { value }) else { continue }; // it is malformed
                if id == ACK_DELAY_EXPONENT_ID {
                    exponent = u32::try_from(number.get()).unwrap_or(ACK_DELAY_EXPONENT);
                }
                number.get().into()
            }
        };
        data.insert(name.to_owned(), value);
    }
    (data, exponent)
}

fn take<'a>(encoded: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let id = VarInt::decode(encoded).ok()?.get();
    let len = usize::try_from(VarInt::decode(encoded).ok()?.get()).ok()?;
    let (value, rest) = encoded.split_at_checked(len)?;
    *encoded = rest;
    Some((id, value))
}

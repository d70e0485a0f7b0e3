//! Frames (RFC 9000 §19) as qlog has them. Data, tokens and reasons in bytes are left out.

use serde_json::{Value, json};
use tandem_wire::{QuicFrame, StrangerText, VarInt};

use super::hex;

/// A frame. `ack_delay_exponent` is that of its sender.
pub(super) fn json(frame: &QuicFrame<'_>, ack_delay_exponent: u32) -> Value {
    let unknown = || json!({ "frame_type": "unknown", "raw": { "length": frame.frame.len() } });
    fields(frame, ack_delay_exponent).unwrap_or_else(unknown)
}

/// The fields of a frame. `None`: it is truncated, or its type is unknown.
fn fields(frame: &QuicFrame<'_>, ack_delay_exponent: u32) -> Option<Value> {
    let mut rest = frame.frame;
    let rest = &mut rest;
    let frame_type = next(rest)?;
    Some(match frame_type {
        0x00 => json!({ "frame_type": "padding", "raw": { "length": frame.frame.len() } }),
        0x01 => json!({ "frame_type": "ping" }),
        0x02 | 0x03 => ack(rest, frame_type == 0x03, ack_delay_exponent)?,
        0x04 => json!({
            "frame_type": "reset_stream",
            "stream_id": next(rest)?,
            "error": "unknown",
            "error_code": next(rest)?,
            "final_size": next(rest)?,
        }),
        0x05 => json!({
            "frame_type": "stop_sending",
            "stream_id": next(rest)?,
            "error": "unknown",
            "error_code": next(rest)?,
        }),
        0x06 => json!({
            "frame_type": "crypto", "offset": next(rest)?, "raw": { "length": next(rest)? },
        }),
        0x07 => json!({ "frame_type": "new_token", "token": { "raw": { "length": next(rest)? } } }),
        0x08..=0x0f => json!({
            "frame_type": "stream",
            "stream_id": next(rest)?,
            "offset": if frame_type & 0x04 == 0 { 0 } else { next(rest)? },
            "fin": frame_type & 0x01 != 0,
            "raw": { "length": frame.data.len() },
        }),
        0x10..=0x17 => limit(frame_type, rest)?,
        0x18 => new_connection_id(rest)?,
        0x19 => json!({ "frame_type": "retire_connection_id", "sequence_number": next(rest)? }),
        0x1a => json!({ "frame_type": "path_challenge", "data": hex(rest) }),
        0x1b => json!({ "frame_type": "path_response", "data": hex(rest) }),
        0x1c | 0x1d => close(rest, frame_type == 0x1c)?,
        0x1e => json!({ "frame_type": "handshake_done" }),
        0x1f => json!({ "frame_type": "immediate_ack" }),
        0x30 | 0x31 => json!({ "frame_type": "datagram", "raw": { "length": frame.data.len() } }),
        0xaf => json!({
            "frame_type": "ack_frequency",
            "sequence_number": next(rest)?,
            "ack_eliciting_threshold": next(rest)?,
            "requested_max_ack_delay": next(rest)?,
            "reordering_threshold": next(rest)?,
        }),
        _ => return None,
    })
}

/// RFC 9000 §19.3.
fn ack(rest: &mut &[u8], has_ecn: bool, ack_delay_exponent: u32) -> Option<Value> {
    let largest = next(rest)?;
    let micros = next(rest)?.checked_shl(ack_delay_exponent)?;
    let count = next(rest)?;
    let mut smallest = largest.checked_sub(next(rest)?)?;
    let mut ranges = vec![json!([smallest, largest])];
    for _ in 0..count {
        // RFC 9000 §19.3.1
        let largest = smallest.checked_sub(next(rest)?)?.checked_sub(2)?;
        smallest = largest.checked_sub(next(rest)?)?;
        ranges.push(json!([smallest, largest]));
    }
    #[expect(clippy::cast_precision_loss, reason = "a longer delay is a lie")]
    let delay = micros as f64 / 1000.0;
    let (ranges, delay) = (Value::from(ranges), Value::from(delay));
    if !has_ecn {
        return Some(json!({ "frame_type": "ack", "ack_delay": delay, "acked_ranges": ranges }));
    }
    Some(json!({
        "frame_type": "ack",
        "ack_delay": delay,
        "acked_ranges": ranges,
        "ect0": next(rest)?,
        "ect1": next(rest)?,
        "ce": next(rest)?,
    }))
}

/// The frames of flow control (RFC 9000 §19.9 to §19.14).
fn limit(frame_type: u64, rest: &mut &[u8]) -> Option<Value> {
    let stream_type =
        if matches!(frame_type, 0x12 | 0x16) { "bidirectional" } else { "unidirectional" };
    Some(match frame_type {
        0x10 => json!({ "frame_type": "max_data", "maximum": next(rest)? }),
        0x11 => json!({
            "frame_type": "max_stream_data", "stream_id": next(rest)?, "maximum": next(rest)?,
        }),
        0x12 | 0x13 => json!({
            "frame_type": "max_streams", "stream_type": stream_type, "maximum": next(rest)?,
        }),
        0x14 => json!({ "frame_type": "data_blocked", "limit": next(rest)? }),
        0x15 => json!({
            "frame_type": "stream_data_blocked", "stream_id": next(rest)?, "limit": next(rest)?,
        }),
        0x16 | 0x17 => json!({
            "frame_type": "streams_blocked", "stream_type": stream_type, "limit": next(rest)?,
        }),
        _ => return None,
    })
}

/// RFC 9000 §19.15.
fn new_connection_id(rest: &mut &[u8]) -> Option<Value> {
    let (sequence_number, retire_prior_to) = (next(rest)?, next(rest)?);
    let (&len, rest) = rest.split_first()?;
    let id = rest.get(..len.into())?;
    Some(json!({
        "frame_type": "new_connection_id",
        "sequence_number": sequence_number,
        "retire_prior_to": retire_prior_to,
        "connection_id_length": len,
        "connection_id": hex(id),
    }))
}

/// RFC 9000 §19.19.
fn close(rest: &mut &[u8], is_of_transport: bool) -> Option<Value> {
    let error_code = next(rest)?;
    let trigger = if is_of_transport { Some(next(rest)?) } else { None };
    let len = usize::try_from(next(rest)?).ok()?;
    let reason = StrangerText::from_bytes(rest.get(..len)?).to_string();
    let frame_type = "connection_close";
    Some(match trigger {
        Some(trigger) => json!({
            "frame_type": frame_type,
            "error_space": "transport",
            "error_code": error_code,
            "trigger_frame_type": trigger,
            "reason": reason,
        }),
        None => json!({
            "frame_type": frame_type,
            "error_space": "application",
            "error_code": error_code,
            "reason": reason,
        }),
    })
}

fn next(rest: &mut &[u8]) -> Option<u64> {
    Some(VarInt::decode(rest).ok()?.get())
}

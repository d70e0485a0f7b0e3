//! What a proxy tells clients of their tunnels (`TUNNEL_INFO`, TECC §4.2.2).

use std::time::{Duration, Instant};

use http::HeaderMap;
use tandem_wire::{FeedbackField, FieldError, QuarterStreamId, VarInt};

use crate::{
    fields::{FEEDBACK, only_line},
    quic::{Connection, SendDatagram},
    reporter::Reporter,
    tunnel_queue::TunnelQueue,
};

/// The Context ID of reports: odd (RFC 9298 §4), and not that of repaired payloads.
pub(super) const CONTEXT_ID: VarInt = VarInt::from_u32(3);

/// The weight that a request's field asks for, if it asks for reports.
pub(super) fn wanted_weight(headers: &HeaderMap) -> Result<Option<u8>, FieldError> {
    let Some(line) = only_line(headers, &FEEDBACK) else { return Ok(None) };
    let field = FeedbackField::parse_request(&line.map_err(FieldError::Syntax)?)?;
    Ok(match field {
        FeedbackField::Request { weight } => Some(weight),
        FeedbackField::Grant { .. } => None,
    })
}

/// Sends the reports that are due, ahead of the queue. Returns how many.
pub(super) fn send(
    now: Instant,
    reporter: &mut Reporter,
    connection: &mut Connection,
    queue: &TunnelQueue,
    interval: Option<Duration>,
) -> u64 {
    let due = reporter.take_due(now, connection, queue, interval);
    let datagrams = due.into_iter().filter_map(|(stream, info)| {
        let quarter_stream_id = QuarterStreamId::from_stream_id(stream.0)?;
        Some(info.to_datagram(quarter_stream_id, CONTEXT_ID))
    });
    datagrams.map(|it| u64::from(connection.send_datagram(it) == SendDatagram::Taken)).sum()
}

//! UDP payloads in QUIC datagrams (RFC 9297, RFC 9298). h3-datagram 0.0.2 writes the number of a connection's first
//! request into every datagram, so that this file does it instead.

use bytes::{Buf as _, Bytes};
use quinn::Connection;

/// The Context ID of UDP payloads (RFC 9298 §4).
const UDP_PAYLOADS: u8 = 0;

/// Requests have Quarter Stream IDs below this, so that those have one byte. That is enough for a test.
const QUARTER_ID_LIMIT: u64 = 64;

/// Sends a UDP payload, or drops it if it does not fit.
pub fn send(connection: &Connection, quarter_id: u64, payload: &[u8]) {
    let Some(quarter_id) =
        u8::try_from(quarter_id).ok().filter(|&id| u64::from(id) < QUARTER_ID_LIMIT)
    else {
        eprintln!("too many requests on one connection");
        return;
    };
    let datagram = [&[quarter_id, UDP_PAYLOADS], payload].concat();
    if let Err(error) = connection.send_datagram(datagram.into()) {
        eprintln!("a payload of {} bytes is dropped: {error}", payload.len());
    }
}

/// Receives a UDP payload, after the Quarter Stream ID of its request.
pub async fn receive(connection: &Connection) -> Result<(u64, Bytes), quinn::ConnectionError> {
    loop {
        let mut datagram = connection.read_datagram().await?;
        let (Some(quarter_id), Some(context)) = (varint(&mut datagram), varint(&mut datagram))
        else {
            continue;
        };
        if context == u64::from(UDP_PAYLOADS) {
            return Ok((quarter_id, datagram));
        }
    }
}

/// Takes a variable-length integer (RFC 9000 §16).
fn varint(bytes: &mut Bytes) -> Option<u64> {
    let len = 1 << (bytes.first()? >> 6);
    if bytes.len() < len {
        return None;
    }
    let value = bytes.get_uint(len);
    Some(value & (u64::MAX >> (64 - 8 * len + 2)))
}

//! As much of HTTP/3 as a client of CONNECT-UDP (RFC 9298) sends.

use std::net::SocketAddr;

use crate::tunnel::varint;

/// What a control stream begins with: its type, and a frame SETTINGS with `SETTINGS_H3_DATAGRAM = 1`.
pub const SETTINGS: &[u8] = &[0x00, 0x04, 0x02, 0x33, 0x01];
/// The context ID before a UDP payload.
pub const UDP_PAYLOAD: u8 = 0;

const HEADERS: u8 = 0x01;
// Field lines of QPACK (RFC 9204 §4.5, Appendix A).
const METHOD_CONNECT: u8 = 0xc0 | 15;
const SCHEME_HTTPS: u8 = 0xc0 | 23;
const NAME_AUTHORITY: u8 = 0x50;
const NAME_PATH: u8 = 0x50 | 1;

/// The frame HEADERS of a request.
pub fn request(proxy: SocketAddr, target: SocketAddr) -> Vec<u8> {
    let path = format!("/.well-known/masque/udp/{}/{}/", target.ip(), target.port());
    // Required Insert Count and Base are 0, because no field line refers to the dynamic table.
    let mut fields = vec![0, 0, METHOD_CONNECT, SCHEME_HTTPS];
    fields.push(NAME_AUTHORITY);
    push_value(&mut fields, &proxy.to_string());
    fields.push(NAME_PATH);
    push_value(&mut fields, &path);
    push_name(&mut fields, ":protocol");
    push_value(&mut fields, "connect-udp");
    push_name(&mut fields, "capsule-protocol");
    push_value(&mut fields, "?1");
    let length = varint(fields.len() as u64);
    [vec![HEADERS], length, fields].concat()
}

/// A literal name, whose length has a prefix of three bits. Names here have 8 to 134 bytes.
fn push_name(fields: &mut Vec<u8>, name: &str) {
    fields.push(0x20 | 0x07);
    fields.push(name.len() as u8 - 7);
    fields.extend(name.bytes());
}

/// A literal value of less than 127 bytes.
fn push_value(fields: &mut Vec<u8>, value: &str) {
    fields.push(value.len() as u8);
    fields.extend(value.bytes());
}

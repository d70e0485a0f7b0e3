//! Tests of peers that break the rules, in virtual time. Each test covers one kind of violation.
//! The rules are those of RFC 9114 (HTTP/3), RFC 9204 (QPACK), RFC 9297 (HTTP Datagrams) and RFC
//! 9298 (CONNECT-UDP).

mod bed;
mod beside;
mod bounds;
mod busy;
mod connect_tcp;
mod connect_udp;
mod continuations;
mod control_streams;
mod feedback;
mod groups;
mod h3_bytes;
mod lying_client;
mod memory;
mod moves;
mod packets;
mod passwords;
mod random;
mod raw_peer;
mod relaying_peer;
mod repair;
mod request_streams;
mod responses;
mod strangers;
mod target;
mod texts;
mod tokens;
mod transport;
mod tunnels;
mod uploads;
mod users;

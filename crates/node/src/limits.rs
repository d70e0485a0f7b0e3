//! Every bound of a node in one place, each with its reason.

use std::time::Duration;

/// Bounds on what a peer can make a node hold, send or wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// QUIC connections that a server holds. Each costs about 100 kB when idle.
    pub connections: usize,
    /// Request streams that a peer may have open at once on one connection. A proxy's flows are
    /// request streams; browsers open one for each origin.
    pub request_streams: u32,
    /// Encoded header section of a request or an answer, in bytes. Announced as
    /// `SETTINGS_MAX_FIELD_SECTION_SIZE`; 16 KiB is what common servers take.
    pub field_section: usize,
    /// Early datagrams kept per flow until its request is answered (RFC 9298 §5 allows to drop or
    /// to buffer). An initial flight of a QUIC client has at most ten packets.
    pub early_datagrams_per_flow: usize,
    /// Early datagrams kept per connection for requests that have not been seen yet, so that a peer
    /// cannot multiply the bound above by naming streams that never come.
    pub early_datagrams_per_connection: usize,
    /// Early payloads kept per flow in bytes: ten full packets and some. A capsule may be as long as
    /// UDP allows, so that their number alone would bound little.
    pub early_bytes_per_flow: usize,
    /// Names that a proxy looks up at once, of requests that have gone meanwhile too.
    pub queries: usize,
    /// Longest wait for a name server before the request is refused.
    pub dns_timeout: Duration,
    /// A flow without a packet in either direction for this long is closed. RFC 9298 §3.1:
    /// "UDP proxies that close sockets after a period of inactivity SHOULD NOT use a period lower
    /// than two minutes".
    pub flow_idle: Duration,
    /// Bytes of HTTP Datagrams that wait in one tunnel's queue, beyond which the newest is dropped.
    /// 1 MB: 800 ms at 10 Mbit/s and 80 ms at 100 Mbit/s.
    pub tunnel_queue: usize,
    /// The same while the queue is kept short by dropping early: 4 MB are 320 ms at 100 Mbit/s,
    /// which is what a sender in slow start needs to hear of the first drop.
    pub short_tunnel_queue: usize,
    /// Bytes of datagrams that one tunnel keeps until they have arrived, beyond which the oldest are
    /// repaired no more. 16 MB: what is under way for a second at 100 Mbit/s.
    pub repair_bytes: usize,
    /// Bytes of payloads that all flows of a node hold at their exits until what is missing before
    /// them has come, beyond which the flow that holds most waits no more. A flow by itself may hold
    /// 8 MB.
    pub held_bytes: usize,
    /// Value of one capsule in bytes: the largest UDP payload and its context ID.
    pub capsule: usize,
    /// Local peers of one listening UDP socket of a client, each of which is a flow.
    pub local_flows: usize,
    /// Bytes of a body read ahead from a file for one request.
    pub read_ahead: usize,
    /// Bytes of one upload that an origin takes. 10 GB, so that nobody keeps it busy for ever.
    pub upload: u64,
    /// Bytes of a fetched body given to the application before it takes them over.
    pub body_credit: u64,
    /// QUIC's idle timeout.
    pub connection_idle: Duration,
    /// A server that shuts down takes no more requests, and lets those that are under way go on for
    /// at most so long.
    pub drain: Duration,
    /// Then it waits at most so long for its last packets to go out and for peers
    /// to have heard of it.
    pub goodbye: Duration,
    /// A client's tunnel that hears nothing for so long is taken for dead; it sends keep-alives at a
    /// third of it. Short, because it can be built anew while the connection inside lives on.
    pub tunnel_idle: Duration,
    /// A client tries to build the tunnel of a download anew for so long; that of local programs for
    /// ever.
    pub reconnect: Duration,
    /// A client gives up on a hop or an origin that does not answer for this long.
    pub setup_timeout: Duration,
}

impl Limits {
    /// Bytes of one upload unless something else is said.
    pub const UPLOAD: u64 = 10_000_000_000;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            request_streams: 1024,
            field_section: 16 * 1024,
            early_datagrams_per_flow: 16,
            early_datagrams_per_connection: 64,
            early_bytes_per_flow: 24_000,
            queries: 4096,
            dns_timeout: Duration::from_secs(5),
            flow_idle: Duration::from_secs(150),
            tunnel_queue: 1_000_000,
            short_tunnel_queue: 4_000_000,
            repair_bytes: 16_000_000,
            held_bytes: 64_000_000,
            capsule: 65_527 + 8,
            local_flows: 1024,
            read_ahead: 256 * 1024,
            upload: Self::UPLOAD,
            body_credit: 8 * 1024 * 1024,
            connection_idle: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            goodbye: Duration::from_secs(1),
            tunnel_idle: Duration::from_secs(10),
            reconnect: Duration::from_secs(30),
            setup_timeout: Duration::from_secs(10),
        }
    }
}

//! All bounds of a node in one place, each with its reason.

use std::time::Duration;

/// The bounds on the memory, the packets and the time that a peer can cost a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of QUIC connections of a server, each of which costs about 62 kB when idle. It is [`Self::sockets`],
    /// because a connection without a flow is of no use.
    pub connections: usize,
    /// The share of one source prefix (/24 for IPv4, /56 for IPv6) in these connections. It bounds
    /// the connections of the prefix that have made no permitted request. For the others it counts
    /// only when all connections are taken.
    pub connections_per_prefix: usize,
    /// The number of incomplete handshakes with peers that have not proven their address, from
    /// which a server asks new peers for a proof (Retry, RFC 9000 §8.1.2). Each costs about 80 kB.
    pub unvalidated_handshakes: usize,
    /// The time after which a server gives up a handshake. It is longer than three retransmissions
    /// of a client's first packet (RFC 9002 §6.2: after 1, 3 and 7 seconds).
    pub handshake_timeout: Duration,
    /// How often a server begins a handshake, before it does the work of one, which is 0.5 to 0.8 ms of a core. A
    /// prefix gets 200 in a second, an eighth of a core, and all together get 1,000, half of a core and more. Either
    /// may make up at once for the two seconds before, so that a machine that was down gets most of its users back
    /// within seconds. It is the same for each of several nodes, because each has a core of its own to protect.
    pub handshakes: Pace,
    /// The number of connections of which a server remembers that their peer has made a permitted request. If the peer
    /// comes again with the address token that the connection gave it, its handshake is one of the first. One costs
    /// about 100 bytes of all nodes together.
    pub returning: usize,
    /// How often a server answers a packet that belongs to no connection, with a stateless reset for instance. One
    /// costs about 10 microseconds, of which a quarter is for receiving the packet in any case. A prefix gets 10,000 in
    /// a second, a tenth of a core, so that thousands of users behind one address learn of a restart at once, even if a
    /// neighbour sends as many packets as they do.
    pub answers: Pace,
    /// The bytes of memory that the process of a server may use. From half of it, new
    /// connections are refused and the heaviest ones are closed. The embedding program measures the
    /// memory in use; without measurements the bound has no effect.
    pub memory: u64,
    /// The number of request streams that a peer may have open at the same time on one connection.
    /// A proxy's flows are request streams; browsers open one for each origin.
    pub request_streams: u32,
    /// The size of the encoded header section of a request or a response, in bytes. It is announced
    /// as `SETTINGS_MAX_FIELD_SECTION_SIZE`. Common servers accept 16 KiB.
    pub field_section: usize,
    /// The number of early datagrams that are kept per flow until its request is answered. RFC 9298
    /// §5 allows dropping or buffering them. The first flight of a QUIC client has at most ten
    /// packets.
    pub early_datagrams_per_flow: usize,
    /// The number of early datagrams that are kept per connection for requests that have not
    /// arrived yet. Without it, a peer could multiply the bound per flow with the IDs of streams
    /// that it never opens.
    pub early_datagrams_per_connection: usize,
    /// The number of bytes of early payloads that are kept per flow: more than ten full packets. A
    /// capsule may have the length of the largest UDP payload, so the number of payloads alone
    /// would not be an effective bound.
    pub early_bytes_per_flow: usize,
    /// The number of names that a proxy resolves at the same time. It includes the names of
    /// requests that have ended in the meantime.
    pub queries: usize,
    /// The number of wrong tokens that a proxy looks at from one source (an IPv4 address, or the
    /// first 56 bits of an IPv6 address) at once. Several people behind one address may mistype
    /// their tokens at the same time.
    pub guesses: u32,
    /// The interval of further wrong tokens that a proxy looks at from that source. At one a second,
    /// a token of 16 random characters cannot be found.
    pub guess_interval: Duration,
    /// The number of sources whose wrong tokens a proxy remembers. Each costs about 100 bytes.
    /// Above it, the proxy forgets the source that would be forgiven next.
    pub guess_sources: usize,
    /// The number of wrong tokens on one connection after which a proxy closes it, so that a guess
    /// costs a part of a handshake.
    pub guesses_per_connection: u32,
    /// The number of sockets towards targets that all connections of a proxy may have together. One
    /// connection may open another socket while it has less than a quarter as many as are free.
    /// Each socket needs a descriptor and a port of its own; Linux has 28,232 such ports for each
    /// address family, and name resolution and other programs need some of them. A driver must
    /// lower this number if the operating system allows fewer descriptors.
    pub sockets: usize,
    /// The longest wait for a resolver, after which a proxy refuses the request. Resolvers usually wait as long for
    /// name servers.
    pub dns_timeout: Duration,
    /// The longest time in which a proxy opens a TCP connection to a target, over all its addresses. It
    /// is longer than three retransmissions of a SYN (RFC 6298: after 1, 3 and 7 seconds).
    pub connect_timeout: Duration,
    /// The time without a packet in either direction after which a flow is closed. RFC 9298 §3.1:
    /// "UDP proxies that close sockets after a period of inactivity SHOULD NOT use a period lower
    /// than two minutes".
    pub flow_idle: Duration,
    /// The length of one tunnel's queue in bytes of HTTP Datagrams. Above it the newest one is
    /// dropped. 1 MB is 800 ms at 10 Mbit/s and 80 ms at 100 Mbit/s. The queue has at most one
    /// payload per 100 bytes of its bound, because small payloads take more memory than they have
    /// bytes.
    pub tunnel_queue: usize,
    /// The length of one tunnel's queue in bytes while active queue management (AQM) keeps it
    /// short. 4 MB are 320 ms at 100 Mbit/s. After the first drop of the AQM, a sender in slow
    /// start needs that time to react.
    pub short_tunnel_queue: usize,
    /// The number of bytes of memory that one tunnel's datagrams take until they are acknowledged,
    /// with 256 for each beside its bytes. Above it the oldest ones are no longer repaired. 16 MB is
    /// more than the flight of one second at 100 Mbit/s.
    pub repair_bytes: usize,
    /// The number of bytes of memory that the payloads of all flows of a node take at the tunnels'
    /// egress until the missing payloads before them arrive, with 128 for each payload and each gap
    /// beside their bytes. Above it the flow that holds most stops waiting. A single flow may hold 8
    /// MB.
    pub held_bytes: usize,
    /// The length of the value of one capsule in bytes: the largest UDP payload and its Context ID.
    pub capsule: usize,
    /// The number of UDP flows of all local programs of a client, and also the number of flows that the embedding
    /// program may open itself.
    pub local_flows: usize,
    /// The number of TCP connections of all local programs of a client. Those for which the proxy allows no stream wait
    /// during [`request_wait`](Self::request_wait) and are then refused.
    pub local_connections: usize,
    /// The number of payloads of one flow that wait for the embedding program, if it opened the flow
    /// itself, at each of two places: in the client, and in a channel of the program. A program that
    /// does nothing for 20 ms at 100 Mbit/s loses none.
    pub flow_queue: usize,
    /// The number of bytes that are read from a file at a time for one request.
    pub read_ahead: usize,
    /// The number of bytes of one upload that an origin accepts. It is 10 GB, so that no upload
    /// keeps the origin busy without end.
    pub upload: u64,
    /// The number of requests that a node passes on at a time to the server behind its site. Each may need a connection
    /// to that server, which has bounds of its own, and a descriptor.
    /// A household (an IPv4 address, or the first 56 bits of an IPv6 address) may begin another one while it has fewer
    /// than are free.
    pub exchanges: usize,
    /// The number of WebSockets to that server at a time, besides these requests, with the same rule. Each has a
    /// connection of its own.
    pub websockets: usize,
    /// The number of bytes of the body of such a request that wait for that server. More waits at the client, by flow
    /// control.
    pub exchange_body: usize,
    /// The number of bytes of a fetched body that are emitted before the application takes them
    /// over.
    pub body_credit: u64,
    /// QUIC's idle timeout (RFC 9000 §10.1).
    pub connection_idle: Duration,
    /// The longest time for which a server whose address another process has taken over goes on for its connections. An
    /// hour is enough for most downloads. Tunnels that carry something all the time would keep the process for ever.
    pub hand_over: Duration,
    /// The longest time for which a server that shuts down continues the requests in progress. It
    /// accepts no new requests in this time.
    pub drain: Duration,
    /// The longest time for which the server then waits until its last packets are sent and the
    /// peers have received its `CONNECTION_CLOSE` frames.
    pub goodbye: Duration,
    /// The longest time for which a client that ends keeps each tunnel open, until the proxy has
    /// acknowledged what was sent through it last. That includes the end of the connection inside.
    /// Without it the far proxies and the origin would wait for their idle timeouts.
    pub last_words: Duration,
    /// The time without a packet after which a client considers a tunnel's connection dead. The
    /// client sends keep-alives at a third of it. It is short, because the client can reestablish
    /// the tunnel while the connection inside continues. While its host has no network, it waits for twice as long.
    pub tunnel_idle: Duration,
    /// The longest time for which a client tries to reestablish the tunnel of a download. It tries
    /// to reestablish the tunnel of local programs without a limit.
    pub reconnect: Duration,
    /// The longest time for which a client repeats attempts that fail for a reason that may pass,
    /// counted from its start or from the moment when its tunnel broke. `None`: at its start it
    /// gives up at once, and later it tries for as long as [`Self::reconnect`] says.
    pub retry: Option<Duration>,
    /// Whether a client repeats at its start also attempts whose failure a mistake in the settings may explain, such as
    /// a name without an address.
    pub retry_mistakes: bool,
    /// The wait of a client after the first failed attempt, which doubles with each further one. A
    /// proxy that restarts is back within a second.
    pub retry_wait: Duration,
    /// The longest wait of a client between two attempts. One attempt costs a server about as much
    /// as a handshake.
    pub retry_wait_max: Duration,
    /// The longest wait to which a proxy can make a client agree by `Retry-After`. A proxy of ours
    /// asks for at most 21 s.
    pub retry_after_max: Duration,
    /// The longest wait of a client for an answer from a hop or an origin. It is longer than a proxy waits for a
    /// resolver, so that the client learns the reason.
    pub setup_timeout: Duration,
    /// The bounds on one connection of a local program to the client's proxy port.
    pub local_proxy: LocalProxyLimits,
    /// The longest time until a local program has asked the client's proxy port for a target. Browsers
    /// open connections that they may use later.
    pub program_silence: Duration,
    /// The longest wait of a local program for the request of its TCP connection to leave: until the tunnel is up and
    /// the proxy allows one more stream. It is also the longest wait for an answer through a tunnel that has fallen
    /// silent.
    pub request_wait: Duration,
    /// The wait for the answer to such a request after which the client asks whether the proxy is still there. Another
    /// process in its place then says that it does not know the tunnel.
    pub answer_doubt: Duration,
    /// The longest further wait for the proxy's answer, which may itself wait for the target during
    /// [`connect_timeout`](Self::connect_timeout).
    pub answer_wait: Duration,
    /// The number of flows of one process through which a client's connection to this process may come. Each of them
    /// makes a packet cost the proxy as much again. Chains have up to four hops, which may be one proxy in tests.
    pub nested: u8,
    /// The number of datagrams of all local programs that wait until it is known whose they are. They are a program's
    /// first ones from a new port, and the answer takes milliseconds. A datagram may have 64 kB.
    pub unowned_datagrams: usize,
    /// The time for which the owners of UDP ports count as known: a port that a program gives back may belong to
    /// somebody else afterwards. The owners are asked for again after half of it, so that a program that goes on
    /// never waits.
    pub owners_known: Duration,
}

/// How often something may happen that peers cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The interval for the peers of one source prefix together (/24 for IPv4, /56 for IPv6). It is longer when many
    /// prefixes share [`Self::node`].
    pub prefix: Duration,
    /// The interval for all peers of a node together.
    pub node: Duration,
    /// The time of rest that a prefix, or the node, can make up for at once.
    pub burst: Duration,
    /// The number of prefixes that are remembered. Each costs about 100 bytes. Above it, the one is forgotten that
    /// would be first.
    pub prefixes: usize,
}

/// The default of [`Limits::sockets`] and of [`Limits::connections`].
const SOCKETS: usize = 24_000;

/// The bounds on what one connection of a local program to a client's proxy port costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalProxyLimits {
    /// The size of the head of an HTTP/1.1 message, and of the trailers after a body, in bytes.
    /// Programs send cookies of several kB, and common servers accept heads of 8 to 64 kB.
    pub head: usize,
    /// The length of the line before a chunk of a body in bytes. It has 18 bytes without extensions,
    /// which are hardly ever used.
    pub chunk_line: usize,
    /// The number of bytes in each direction that are held until they can be interpreted: one head
    /// or one pipelined request, and what was read together with it. The client reads nothing more
    /// of the program in the meantime, so only one read of it comes on top of a head.
    pub held: usize,
}

impl Default for LocalProxyLimits {
    fn default() -> Self {
        Self { head: 64 * 1024, chunk_line: 1024, held: 256 * 1024 }
    }
}

impl Limits {
    /// How many lines about flows of one user, and about connections of all clients of a node, are written in the log
    /// at once: a browser that starts with hundreds of tabs, or a device that comes back, is logged completely.
    pub const LOG_BURST: u32 = 1000;

    /// How many of these lines are written in each second after that. Of 20 lines, which have 250 bytes each, a user
    /// can fill 430 MB in a day; without a bound it was 145 GB.
    pub const LOG_PER_SECOND: u32 = 20;

    /// The [`setup_timeout`](Self::setup_timeout) of a client that carries its standard input and output. The program
    /// that has started it, such as ssh, shows nothing meanwhile.
    pub const STDIO_SETUP: Duration = Duration::from_secs(10);

    /// How long a server must have been idle before it ends, after another process has taken over. A client whose
    /// connection is new needs a moment for its first request.
    pub const QUIET: Duration = Duration::from_secs(10);

    /// The default of [`Self::upload`] in bytes.
    pub const UPLOAD: u64 = 10_000_000_000;

    /// The limits of each of this many nodes of one process. Each node gets a part of the bounds that concern
    /// clients and handshakes, so that the nodes need no common state for these. The address of a client
    /// decides which node it gets, so that a node has about its part of all clients.
    ///
    /// [`Self::sockets`] and [`Self::queries`] are counted for all nodes together
    /// ([`InUse`](crate::proxy::InUse)), and [`Self::memory`] is measured for the process.
    #[must_use]
    pub fn divided_by(self, nodes: u8) -> Self {
        let nodes = nodes.max(1);
        let part = |bound: usize, least: usize| (bound / usize::from(nodes)).max(least.min(bound));
        Self {
            connections: part(self.connections, 1),
            connections_per_prefix: part(self.connections_per_prefix, 1),
            // With fewer, clients would need Retry, which costs them a round trip, on a server with little to do.
            unvalidated_handshakes: part(self.unvalidated_handshakes, 16),
            guesses: (self.guesses / u32::from(nodes)).max(1),
            guess_interval: self.guess_interval * u32::from(nodes),
            guess_sources: part(self.guess_sources, 1),
            exchanges: part(self.exchanges, 16),
            websockets: part(self.websockets, 16),
            // Two flows can hold as much as a single one may.
            held_bytes: part(self.held_bytes, 16_000_000),
            ..self
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: SOCKETS,
            connections_per_prefix: 2500,
            unvalidated_handshakes: 100,
            handshake_timeout: Duration::from_secs(10),
            handshakes: Pace {
                prefix: Duration::from_millis(5),
                node: Duration::from_millis(1),
                burst: Duration::from_secs(2),
                prefixes: 4096,
            },
            returning: 65_536,
            answers: Pace {
                prefix: Duration::from_micros(100),
                node: Duration::from_micros(50),
                burst: Duration::from_millis(200),
                prefixes: 4096,
            },
            memory: 1 << 30,
            request_streams: 1024,
            field_section: 16 * 1024,
            early_datagrams_per_flow: 16,
            early_datagrams_per_connection: 64,
            early_bytes_per_flow: 24_000,
            queries: 4096,
            guesses: 20,
            guess_interval: Duration::from_secs(1),
            guess_sources: 4096,
            guesses_per_connection: 10,
            sockets: SOCKETS,
            dns_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            flow_idle: Duration::from_secs(150),
            tunnel_queue: 1_000_000,
            short_tunnel_queue: 4_000_000,
            repair_bytes: 16_000_000,
            held_bytes: 64_000_000,
            capsule: 65_527 + 8,
            local_flows: 1024,
            local_connections: 4096,
            flow_queue: 256,
            read_ahead: 256 * 1024,
            upload: Self::UPLOAD,
            exchanges: 512,
            websockets: 1024,
            exchange_body: 64 * 1024,
            body_credit: 8 * 1024 * 1024,
            connection_idle: Duration::from_secs(30),
            hand_over: Duration::from_secs(60 * 60),
            drain: Duration::from_secs(10),
            goodbye: Duration::from_secs(1),
            last_words: Duration::from_millis(500),
            tunnel_idle: Duration::from_secs(10),
            reconnect: Duration::from_secs(30),
            retry: None,
            retry_mistakes: false,
            retry_wait: Duration::from_millis(500),
            retry_wait_max: Duration::from_secs(4),
            retry_after_max: Duration::from_secs(60),
            setup_timeout: Duration::from_secs(12),
            local_proxy: LocalProxyLimits::default(),
            program_silence: Duration::from_secs(120),
            request_wait: Duration::from_secs(8),
            answer_doubt: Duration::from_secs(1),
            answer_wait: Duration::from_secs(5),
            nested: 3,
            unowned_datagrams: 64,
            owners_known: Duration::from_secs(10),
        }
    }
}

//! The interface of a node: its inputs and outputs.
//!
//! A node is the protocol stack of one host above UDP. It does no input or output itself (sans-IO):
//! it opens no socket, resolves no name, reads no file and reads no clock. It emits requests
//! ([`Output`]) and gets answers ([`Input`]). `tandem-net` drives it with real sockets, and
//! `tandem-lab` drives the same code in virtual time.
//!
//! A driver gives a node any number of inputs, then calls [`Node::poll`] until it returns
//! [`Output::Wait`].

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant, SystemTime},
};

use bytes::{Bytes, BytesMut};
use tandem_wire::TunnelInfo;

use crate::{
    OsError,
    password::{CheckId, PasswordCheck},
    tcp::{TcpInput, TcpOutput},
    upstream::{UpstreamInput, UpstreamOutput},
};

/// The protocol stack of one host. Its inputs are datagrams, answers and the time; its outputs are
/// datagrams, requests and a deadline.
pub trait Node {
    /// Processes one input at the time `now`. A driver may give any number of inputs before it
    /// calls [`Node::poll`].
    fn handle(&mut self, now: Instant, input: Input);

    /// Returns the node's next output. A driver calls this until it returns [`Output::Wait`].
    ///
    /// The node clears `buf` first. For [`Output::Transmit`] it writes the bytes to
    /// `buf[..transmit.size]`.
    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output;

    /// Takes whether an urgent flow (RFC 9218, an urgency below the default of 3) has sent a packet since the last
    /// call. Its packets should not wait for others in a driver.
    fn take_urgent(&mut self) -> bool {
        false
    }
}

/// The name of a socket. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// The name of a DNS query. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// The name of an open file. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The ECN mark (explicit congestion notification) of one IP packet (RFC 3168 §5). Not-ECT is
/// represented by `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// ECT(1), 0b01.
    Ect1,
    /// ECT(0), 0b10.
    Ect0,
    /// CE (congestion experienced), 0b11.
    Ce,
}

/// An input of a node.
#[derive(Debug)]
pub enum Input {
    /// One UDP payload arrived.
    Datagram(Received),
    /// The deadline of the last [`Output::Wait`] has passed.
    Timeout,
    /// The answer to [`Output::OpenSocket`].
    SocketOpened {
        /// The socket of the request.
        socket: SocketId,
        /// The socket's local address, or the error of the operating system. If the host has run
        /// out of descriptors, memory or ports, the error is `QuotaExceeded`.
        result: Result<SocketAddr, OsError>,
    },
    /// The operating system reports an error about the peer of a connected socket, such as an ICMP
    /// port unreachable message. Datagrams that are too large do not cause this input.
    SocketFailed {
        /// The socket.
        socket: SocketId,
        /// The error of the operating system.
        error: io::ErrorKind,
    },
    /// Addresses or routes of the host have changed since [`Output::WatchNetwork`].
    NetworkChanged,
    /// Something about a TCP connection.
    Tcp(TcpInput),
    /// An answer to [`Output::Resolve`]: all addresses that are known by now, in order of preference.
    Resolved {
        /// The query.
        query: QueryId,
        /// At least one address, or the reason why there is none.
        result: Result<Vec<IpAddr>, ResolveError>,
        /// Whether another answer follows.
        progress: Progress,
    },
    /// The answer to [`Output::CheckPassword`].
    PasswordChecked {
        /// The check.
        check: CheckId,
        /// Whether the password is right. `None`: it was not checked, because too many others are.
        is_right: Option<bool>,
    },
    /// An answer to [`Output::ResolveService`]: all endpoints that are known by now.
    ServiceResolved {
        /// The query.
        query: QueryId,
        /// At least one endpoint, or the reason why there is none.
        result: Result<Vec<ServiceEndpoint>, ResolveError>,
        /// Whether another answer follows.
        progress: Progress,
    },
    /// The answer to [`Output::OpenFile`].
    FileOpened {
        /// The file.
        file: FileId,
        /// The file's metadata, or the reason why it cannot be read.
        result: Result<FileMeta, FileError>,
    },
    /// Something of an exchange with the server from which a site comes.
    Upstream(UpstreamInput),
    /// The answer to [`Output::ReadFile`]: the bytes from the requested offset. There are as many
    /// bytes as requested, or fewer if the file was truncated in the meantime.
    FileChunk {
        /// The file.
        file: FileId,
        /// The bytes, or the reason why they cannot be read.
        result: Result<Bytes, FileError>,
    },
    /// The application has taken over a part of the body from [`Output::BodyChunk`].
    BodyCredit {
        /// The number of bytes.
        bytes: u64,
    },
    /// A report of the tunnel through which a download runs, if another client owns the tunnel. The
    /// node forwards the newest report to the origin. Only a client whose
    /// [`FetchConfig`](crate::client::FetchConfig) relays reports uses this input; other nodes
    /// ignore it.
    TunnelInfo(TunnelInfo),
    /// The process uses this many bytes of memory. A driver that can measure this says it now and
    /// then. A server then keeps to [`Limits::memory`](crate::limits::Limits::memory).
    MemoryInUse(u64),
    /// How busy the thread of the driver is. A driver that cannot measure this never says it.
    Load(Load),
    /// The operator requests the end of the node. The node closes its connections, then emits
    /// [`Event::Closed`].
    Shutdown,
}

/// How busy the thread of a driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// The thread always had something to do of late, so that inputs may wait for long.
    Busy,
    /// The thread has been busy and had nothing to do for a moment: no input waits. It may soon have to do again.
    Idle,
    /// The thread has been busy and is no longer.
    Normal,
}

/// A received UDP datagram.
#[derive(Debug)]
pub struct Received {
    /// The socket at which it arrived.
    pub socket: SocketId,
    /// The source address.
    pub remote: SocketAddr,
    /// The local IP address at which it arrived, if the operating system provides it.
    pub local_ip: Option<IpAddr>,
    /// The ECN mark; `None` is Not-ECT.
    pub ecn: Option<Ecn>,
    /// The UDP payload.
    pub payload: BytesMut,
}

/// An output of a node: a request to the driver, an event, or a deadline.
#[derive(Debug)]
pub enum Output {
    /// Send the bytes in the poll buffer.
    Transmit {
        /// The socket that sends them.
        socket: SocketId,
        /// The destination, and the sizes of the datagrams.
        transmit: Transmit,
    },
    /// Open a socket. [`Input::SocketOpened`] is the answer.
    OpenSocket {
        /// The name of the new socket.
        socket: SocketId,
        /// The kind of the new socket.
        kind: SocketKind,
    },
    /// Tell the node whenever addresses or routes of the host change, with [`Input::NetworkChanged`]. The operating
    /// system may not be able to.
    WatchNetwork,
    /// Something about a TCP connection.
    Tcp(TcpOutput),
    /// Close a socket. The node does not use its name again.
    CloseSocket(SocketId),
    /// Tell a peer with ICMP that its packets are too large, if the operating system lets the program
    /// do so (RFC 9298 §6.1).
    PacketTooBig {
        /// The socket that received such a packet.
        socket: SocketId,
        /// The peer.
        peer: SocketAddr,
        /// The local address that received the packet, if it is known.
        local_ip: Option<IpAddr>,
        /// The bytes of UDP payload in the peer's packet.
        len: usize,
        /// The largest number of bytes that fit.
        fits: usize,
    },
    /// Resolve a host name. One or more [`Input::Resolved`] are the answer.
    Resolve {
        /// The name of the new query.
        query: QueryId,
        /// The host name. An IPv4 literal asks for the addresses at which a NAT64 reaches it, if the host itself
        /// does not (RFC 6146). It is never an IPv6 literal.
        host: String,
    },
    /// Check a password, away from the threads that carry packets. [`Input::PasswordChecked`] is the answer. A node has
    /// at most one such request for each connection.
    CheckPassword {
        /// The name of the check.
        check: CheckId,
        /// What is checked.
        password: PasswordCheck,
    },
    /// Find the servers of an https authority, by its HTTPS records (RFC 9460) if it has some, else by its
    /// addresses. One or more [`Input::ServiceResolved`] are the answer.
    ResolveService {
        /// The name of the new query.
        query: QueryId,
        /// The host name, or an IPv4 literal, as in [`Output::Resolve`].
        host: String,
        /// The port of the authority.
        port: u16,
    },
    /// Open a file below the driver's folder. [`Input::FileOpened`] is the answer.
    OpenFile {
        /// The name of the new file.
        file: FileId,
        /// The decoded path segments below the folder. No segment is empty, `.` or `..`, or
        /// contains a slash, a backslash or a NUL. The driver checks that links do not lead out of
        /// the folder.
        path: Vec<String>,
    },
    /// Read from an open file. [`Input::FileChunk`] is the answer. A node has at most one such
    /// request per file at a time.
    ReadFile {
        /// The file.
        file: FileId,
        /// The position of the first byte.
        offset: u64,
        /// The number of bytes, at least 1. All of them are within the length in [`FileMeta`].
        len: usize,
    },
    /// Close a file. The node does not use its name again.
    CloseFile(FileId),
    /// Something of an exchange with the server from which a site comes.
    Upstream(UpstreamOutput),
    /// A part of the body that the node fetches. Parts of parallel ranges are interleaved; each
    /// byte occurs once. [`Input::BodyCredit`] is the answer, once the application has taken over
    /// the bytes.
    BodyChunk {
        /// The position of the bytes in the whole representation.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// An event for the embedding program.
    Event(Event),
    /// Wait until this time, or until there is an input. With `None` no timer runs.
    Wait(Option<Instant>),
}

/// The destination of the bytes in a poll buffer, and the sizes of their datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The destination address.
    pub destination: SocketAddr,
    /// The local IP address that sends the datagrams; with `None` the operating system chooses.
    pub src_ip: Option<IpAddr>,
    /// The ECN mark of the datagrams; `None` is Not-ECT.
    pub ecn: Option<Ecn>,
    /// The number of bytes in the poll buffer.
    pub size: usize,
    /// The size of each datagram in bytes, of which only the last one may be shorter. With `None`
    /// all bytes are one datagram.
    pub segment_size: Option<usize>,
}

/// The kind of a new socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// The socket receives from all addresses at a fixed local address. Port 0 lets the operating
    /// system choose a port.
    Listen(SocketAddr),
    /// The socket receives from all addresses at a free port of the address family of this peer.
    ForPeer(SocketAddr),
    /// The socket is connected, and receives only from this address.
    Connected(SocketAddr),
}

/// Whether all questions to name servers have been answered.
///
/// RFC 8305 §3: a host does not wait for the addresses of both families before it makes its first attempt, and
/// addresses that come later are tried too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something may still come: another answer follows, which has these addresses too. This one has at least one
    /// address.
    Partial,
    /// Nothing more comes.
    Complete,
}

/// A server of an https authority that speaks HTTP/3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEndpoint {
    /// Servers with a smaller priority are used first (`SvcPriority`, RFC 9460 §2.4.1).
    pub priority: u16,
    /// The addresses of the server, in order of preference.
    pub addresses: Vec<SocketAddr>,
    /// The configurations for an Encrypted `ClientHello` (`ECHConfigList`, RFC 9848 §2). `None`: it takes none.
    pub ech: Option<Bytes>,
}

/// The reason why a host name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name does not exist or has no address.
    #[error("the name has no address")]
    NotFound,
    /// No name server answered.
    #[error("no name server answered")]
    Unreachable,
}

/// The metadata of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// The length in bytes.
    pub len: u64,
    /// The time of the last change, if the operating system provides it.
    pub modified: Option<SystemTime>,
}

/// The reason why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// There is no such file, or it is outside of the folder.
    #[error("there is no such file")]
    NotFound,
    /// The path leads to a folder.
    #[error("it is a folder")]
    IsFolder,
    /// The operating system returned an error.
    #[error("it cannot be read: {0}")]
    Io(OsError),
}

/// An event for the embedding program.
#[derive(Clone, Debug)]
pub enum Event {
    /// A listening socket is open.
    Listening(SocketAddr),
    /// The tunnel through a hop is established.
    HopUp {
        /// The number of the hop, counted from 0.
        hop: usize,
        /// The proxy's authority.
        authority: String,
        /// The time from the first packet of this hop's connection until the answer to its request.
        setup: Duration,
        /// What was agreed on with the proxy. `None` if it has granted no flow yet.
        agreement: Option<crate::mode::Agreement>,
    },
    /// In mode `auto`, the client has chosen how losses in a tunnel are repaired. Until it says so, it is
    /// [`Choice::Ordered`](crate::client::Choice::Ordered).
    Chosen {
        /// The number of the hop, counted from 0.
        hop: usize,
        /// What was chosen.
        choice: crate::client::Choice,
    },
    /// A proxy granted another mode than for the flow before, or its first flow a lesser one after the
    /// hop was up. There is one event for each change.
    ModeChanged {
        /// The number of the hop, counted from 0.
        hop: usize,
        /// The proxy's authority.
        authority: String,
        /// What is in force now.
        agreement: crate::mode::Agreement,
    },
    /// The tunnel has failed at a hop or could not be established, and the client tries again. The
    /// connections inside a tunnel that has failed continue afterwards.
    HopLost {
        /// The number of the hop, counted from 0. The number after the last hop stands for the
        /// connection to the origin.
        hop: usize,
        /// The cause of the failure.
        error: crate::error::ClientError,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// A proxy refused or closed the flow of a local program, which may try again. For each listener there is one
    /// event until the cause changes or a flow works again, and at most one in ten seconds.
    FlowFailed {
        /// The address at which the client listens for the program.
        listen: SocketAddr,
        /// The cause of the failure.
        error: crate::error::ClientError,
        /// How many failures with other causes had no event, since the last event about this listener.
        left_out: u64,
    },
    /// A report of a proxy on the flow of a local program. The embedding program may forward it to
    /// that program, which may forward it to its origin. There is at most one event for each report
    /// of the proxy; newer reports replace older ones.
    TunnelInfo {
        /// The local program's address.
        local: SocketAddr,
        /// The report.
        info: TunnelInfo,
    },
    /// A packet of a local program was dropped, because it fits no datagram of the tunnel and may not
    /// go in a capsule (see [`Oversize`](crate::mode::Oversize)). There is one event for each flow.
    TooLarge {
        /// The local program's address.
        local: SocketAddr,
        /// The length of the packet: bytes of UDP payload.
        len: usize,
        /// The largest length that the tunnel carries at present.
        fits: usize,
    },
    /// The header section of the response to a fetch has arrived.
    ResponseStarted {
        /// The HTTP status code.
        status: u16,
        /// The length of the whole representation in bytes, if the origin has sent it.
        len: Option<u64>,
        /// The position of the first byte that the fetch emits. It is 0, unless the fetch continues
        /// an earlier one and the origin still has the same file.
        start: u64,
        /// The validator with which the fetch can be continued later; see
        /// [`Resume`](crate::client::Resume). `None`: the origin sent none that is reliable.
        validator: Option<http::HeaderValue>,
    },
    /// A fetch is complete: every byte was emitted in [`Output::BodyChunk`].
    Fetched(FetchReport),
    /// The node has ended. This is its last event.
    Closed(Result<(), crate::error::ClientError>),
}

impl Event {
    /// What a server says when its listening socket was opened, or could not be.
    pub(crate) fn listening(address: SocketAddr, result: Result<SocketAddr, OsError>) -> Self {
        match result {
            Ok(local) => Self::Listening(local),
            Err(error) => Self::Closed(Err(crate::error::ClientError::Listen { address, error })),
        }
    }
}

/// The measurements of a fetch.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchReport {
    /// The HTTP status code.
    pub status: u16,
    /// The length of the body in bytes.
    pub bytes: u64,
    /// The time from the start of the node until the first packet of the end-to-end connection. It
    /// includes DNS and the setup of tunnels.
    pub setup: Duration,
    /// The duration of the end-to-end handshake, from the first packet until it is complete.
    pub handshake: Duration,
    /// The flow completion time, from the first packet of the end-to-end connection to the last
    /// byte.
    pub completion: Duration,
    /// The smoothed RTT of the end-to-end connection at the end.
    pub smoothed_rtt: Duration,
    /// The connections of the chain at the end: the hops, the nearest proxy first, and the end-to-end
    /// connection.
    pub connections: Vec<crate::stats::ConnectionStats>,
    /// What the chain cost.
    pub overhead: crate::stats::Overhead,
    /// What was agreed on with each proxy; the nearest is the first.
    pub agreements: Vec<crate::mode::Agreement>,
    /// In mode `auto`, what the client had chosen at the end. `None`: in other modes, for an upload, and if no proxy
    /// repairs as ours do.
    pub choice: Option<crate::client::Choice>,
    /// The counts of the reports that the last proxy sent, and of those that the client sent to the
    /// origin.
    pub feedback: crate::stats::FeedbackStats,
}

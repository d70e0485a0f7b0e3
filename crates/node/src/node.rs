//! The edge of a node: what goes in, what comes out.
//!
//! A node is one host's whole stack from UDP payload up. It opens no socket, resolves no name, reads
//! no file and looks at no clock; it asks ([`Output`]) and is answered ([`Input`]). `tandem-net`
//! drives it with real sockets, `tandem-lab` in virtual time: the same code in both.
//!
//! The rule: feed any number of inputs, then call [`Node::poll`] until it returns [`Output::Wait`].

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant, SystemTime},
};

use bytes::{Bytes, BytesMut};
use tandem_wire::TunnelInfo;

/// One host's whole stack: datagrams, answers and time in; datagrams, requests and a deadline out.
pub trait Node {
    /// Takes one input. Any number may be fed before the next drain by [`Node::poll`].
    fn handle(&mut self, now: Instant, input: Input);

    /// The next thing that the node wants done; call until it returns [`Output::Wait`].
    ///
    /// For [`Output::Transmit`] the bytes stand in `buf[..transmit.size]`; `buf` is cleared first.
    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output;
}

/// Names a socket. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u64);

/// Names a DNS query. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// Names an open file. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Explicit congestion notification of one IP packet (RFC 3168 §5); Not-ECT is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// ECT(1), 0b01.
    Ect1,
    /// ECT(0), 0b10.
    Ect0,
    /// Congestion experienced, 0b11.
    Ce,
}

/// What a driver tells a node.
#[derive(Debug)]
pub enum Input {
    /// One UDP payload arrived.
    Datagram(Received),
    /// The deadline of the last [`Output::Wait`] has passed.
    Timeout,
    /// Answers [`Output::OpenSocket`] with the local address.
    SocketOpened {
        /// The socket that was asked for.
        socket: SocketId,
        /// Its local address, or why there is none.
        result: Result<SocketAddr, io::ErrorKind>,
    },
    /// The operating system says that a connected socket is of no use any more, for example because
    /// an ICMP port unreachable came. A payload that was too large is no such case.
    SocketFailed {
        /// The socket.
        socket: SocketId,
        /// What the operating system said.
        error: io::ErrorKind,
    },
    /// Answers [`Output::Resolve`]. The addresses are in the order of preference.
    Resolved {
        /// The query.
        query: QueryId,
        /// At least one address, or why there is none.
        result: Result<Vec<IpAddr>, ResolveError>,
    },
    /// Answers [`Output::OpenFile`].
    FileOpened {
        /// The file.
        file: FileId,
        /// What is known of it, or why it cannot be read.
        result: Result<FileMeta, FileError>,
    },
    /// Answers [`Output::ReadFile`]: the bytes from the offset asked for, at most as many as asked
    /// for and, unless the file was cut in the meantime, not fewer.
    FileChunk {
        /// The file.
        file: FileId,
        /// The bytes, or why they cannot be read.
        result: Result<Bytes, FileError>,
    },
    /// So many bytes of body were taken over by whoever reads [`Output::BodyChunk`].
    BodyCredit {
        /// Bytes.
        bytes: u64,
    },
    /// What the tunnel that a download runs through tells, where the tunnel is somebody else's: the
    /// newest of what is told last goes on to the origin. For a client whose
    /// [`FetchConfig`](crate::client::FetchConfig) relays it; others ignore it.
    TunnelInfo(TunnelInfo),
    /// The operator wants the node to end: say goodbye to peers, then emit [`Event::Closed`].
    Shutdown,
}

/// One UDP payload as it arrived.
#[derive(Debug)]
pub struct Received {
    /// The socket that it came to.
    pub socket: SocketId,
    /// The address that it came from.
    pub remote: SocketAddr,
    /// The local address that it came to, where the operating system tells.
    pub local_ip: Option<IpAddr>,
    /// Its ECN mark.
    pub ecn: Option<Ecn>,
    /// The UDP payload.
    pub payload: BytesMut,
}

/// What a node wants done.
#[derive(Debug)]
pub enum Output {
    /// Send the bytes in the poll buffer.
    Transmit {
        /// The socket to send them from.
        socket: SocketId,
        /// Where to, and how they are cut into datagrams.
        transmit: Transmit,
    },
    /// Open a socket; answered by [`Input::SocketOpened`].
    OpenSocket {
        /// The name that the socket is to have.
        socket: SocketId,
        /// Which socket.
        kind: SocketKind,
    },
    /// Close a socket. It is not named again.
    CloseSocket(SocketId),
    /// Resolve a host name; answered by [`Input::Resolved`]. Never an IP literal.
    Resolve {
        /// The name that the answer is to have.
        query: QueryId,
        /// A host name.
        host: String,
    },
    /// Open a file below the folder that the driver serves; answered by [`Input::FileOpened`].
    OpenFile {
        /// The name that the file is to have.
        file: FileId,
        /// Path segments below the folder, decoded; none is empty, `.`, `..` or contains a slash,
        /// a backslash or a NUL. The driver checks that links do not lead out of the folder.
        path: Vec<String>,
    },
    /// Read from an open file; answered by [`Input::FileChunk`]. One at a time per file.
    ReadFile {
        /// The file.
        file: FileId,
        /// First byte.
        offset: u64,
        /// Number of bytes, at least 1, and all within the length told in [`FileMeta`].
        len: usize,
    },
    /// Close a file. It is not named again.
    CloseFile(FileId),
    /// A part of the body that the node was asked to fetch. Parts of parallel ranges come
    /// interleaved; each byte comes once. Answered, when the bytes are safe, by
    /// [`Input::BodyCredit`].
    BodyChunk {
        /// Where it belongs in the whole representation.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Something that the embedding program may want to know.
    Event(Event),
    /// Nothing to do until then, or until an input comes. `None`: no timer runs.
    Wait(Option<Instant>),
}

/// Where to send the bytes of a poll buffer, and how they are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Destination.
    pub destination: SocketAddr,
    /// Local address to send from, if it matters.
    pub src_ip: Option<IpAddr>,
    /// ECN mark to set; `None` is Not-ECT.
    pub ecn: Option<Ecn>,
    /// Number of bytes in the poll buffer.
    pub size: usize,
    /// Each datagram has this many bytes, the last at most as many; `None`: one datagram.
    pub segment_size: Option<usize>,
}

/// Which socket to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// Receives from anybody at a fixed local address; port 0 lets the operating system choose.
    Listen(SocketAddr),
    /// Receives from anybody at any free port of the address family of this peer.
    ForPeer(SocketAddr),
    /// Connected: receives only from this address.
    Connected(SocketAddr),
}

/// Why a host name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name does not exist or has no address.
    #[error("the name has no address")]
    NotFound,
    /// No name server answered.
    #[error("no name server answered")]
    Unreachable,
}

/// What is known of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// Length in bytes.
    pub len: u64,
    /// Time of the last change.
    pub modified: Option<SystemTime>,
}

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// There is none, or it lies outside of the folder.
    #[error("no such file")]
    NotFound,
    /// It is a folder.
    #[error("is a folder")]
    IsFolder,
    /// The operating system refused or failed.
    #[error("cannot be read: {0}")]
    Io(io::ErrorKind),
}

/// What the embedding program may want to know.
#[derive(Clone, Debug)]
pub enum Event {
    /// A listening socket is open.
    Listening(SocketAddr),
    /// The tunnel through this hop, counted from 0, is up.
    HopUp {
        /// Which hop.
        hop: usize,
        /// The proxy's authority.
        authority: String,
        /// From the first packet of this hop's connection until the answer to its request.
        setup: Duration,
    },
    /// The tunnel broke at this hop, counted from 0, and is built anew. What is inside goes on when
    /// it is up again.
    HopLost {
        /// Which hop.
        hop: usize,
        /// What broke it.
        error: crate::error::ClientError,
    },
    /// A proxy told of the tunnel, for a local program whose flow goes through it: to be passed on to
    /// the program, which may pass it on to its origin. At most one for each report of the proxy;
    /// newer ones replace older ones.
    TunnelInfo {
        /// The program's address.
        local: SocketAddr,
        /// What the proxy told.
        info: TunnelInfo,
    },
    /// The header of the answer to a fetch came.
    ResponseStarted {
        /// HTTP status code.
        status: u16,
        /// Length of the whole representation, if the origin told.
        len: Option<u64>,
    },
    /// A fetch is complete: every byte was given in [`Output::BodyChunk`].
    Fetched(FetchReport),
    /// The node has ended; nothing more will come.
    Closed(Result<(), crate::error::ClientError>),
}

impl Event {
    /// What a server says when its listening socket was opened, or could not be.
    pub(crate) fn listening(
        address: SocketAddr,
        result: Result<SocketAddr, io::ErrorKind>,
    ) -> Self {
        match result {
            Ok(local) => Self::Listening(local),
            Err(kind) => Self::Closed(Err(crate::error::ClientError::Listen { address, kind })),
        }
    }
}

/// What a fetch measured.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchReport {
    /// HTTP status code.
    pub status: u16,
    /// Length of the body in bytes.
    pub bytes: u64,
    /// From the start of the node until the first packet of the end-to-end connection: DNS and
    /// tunnels.
    pub setup: Duration,
    /// End-to-end handshake: from its first packet until it is complete.
    pub handshake: Duration,
    /// Flow completion time: from the first packet of the end-to-end connection to the last byte.
    pub completion: Duration,
    /// Smoothed RTT of the end-to-end connection at the end.
    pub smoothed_rtt: Duration,
    /// Smoothed RTT of each hop's connection at the end, nearest proxy first.
    pub hop_smoothed_rtt: Vec<Duration>,
    /// Reports of the last proxy that were taken, and those that went to the origin.
    pub feedback: crate::stats::FeedbackStats,
}

//! The inputs and outputs of a node that are about TCP connections.
//!
//! The node pulls bytes from a connection ([`TcpOutput::Read`]) and is told when the bytes that it
//! gave have left ([`TcpInput::Written`]). A connection that is slow therefore costs neither the node
//! nor the driver more memory than the node chose.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use bytes::Bytes;

use crate::OsError;

/// The name of a listening TCP socket. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// The name of a TCP connection. The node chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TcpId(pub u64);

/// What a node asks of TCP connections.
#[derive(Debug)]
pub enum TcpOutput {
    /// Open a listening socket. [`TcpInput::Listening`] is the answer.
    Listen {
        /// The name of the new socket.
        listener: ListenerId,
        /// The local address. Port 0 lets the operating system choose a port.
        address: SocketAddr,
    },
    /// Take the next connection that comes to a listening socket. [`TcpInput::Opened`] is the answer,
    /// as soon as there is one. A node has at most one such request per socket at a time; further
    /// connections wait with the operating system.
    Accept {
        /// The listening socket.
        listener: ListenerId,
        /// The name of the connection that will come.
        tcp: TcpId,
    },
    /// Use the standard input and output of the process as a connection. [`TcpInput::Opened`] is the
    /// answer, with an unspecified address. A node asks for this at most once.
    OpenStdio(TcpId),
    /// Open a connection. [`TcpInput::Opened`] is the answer.
    Connect {
        /// The name of the new connection.
        tcp: TcpId,
        /// The peer's address.
        peer: SocketAddr,
        /// The user for whom it is, by a number. When more connections can be read than a round allows, users take
        /// turns; a connection without a user has a turn of its own.
        user: Option<u64>,
    },
    /// Read from a connection. [`TcpInput::Read`] is the answer, as soon as there is something to
    /// read. A node has at most one such request per connection at a time.
    Read {
        /// The connection.
        tcp: TcpId,
        /// The largest number of bytes, at least 1.
        max: usize,
    },
    /// Write to a connection, after everything that was written before. [`TcpInput::Written`] is the
    /// answer, once the operating system has taken the bytes. If they are few, it may wait for the next other input.
    Write {
        /// The connection.
        tcp: TcpId,
        /// At least one byte.
        data: Bytes,
    },
    /// End the sending direction of a connection (FIN) after everything that was written.
    Finish(TcpId),
    /// Close a connection after everything that was written, or stop opening it. The node does not
    /// use its name again, and gets no more inputs about it.
    Close(TcpId),
    /// Reset a connection (RST) at once. The node does not use its name again, and gets no more
    /// inputs about it.
    Reset(TcpId),
    /// Find the UDP ports from which only the user can send who owns the other end of a connection, which is on
    /// this host. [`TcpInput::UdpPorts`] is the answer. A node has at most one such request at a time.
    FindUdpPorts(TcpId),
}

/// The addresses of an open TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpAddresses {
    /// The peer's address. That of the standard input is unspecified.
    pub peer: SocketAddr,
    /// The local address at which the peer has reached this host. `None`: this host has opened the connection, or the
    /// operating system does not say it.
    pub local: Option<IpAddr>,
}

impl From<SocketAddr> for TcpAddresses {
    fn from(peer: SocketAddr) -> Self {
        Self { peer, local: None }
    }
}

/// What a node learns about TCP connections.
#[derive(Debug)]
pub enum TcpInput {
    /// The answer to [`TcpOutput::Listen`].
    Listening {
        /// The socket.
        listener: ListenerId,
        /// Its local address, or the error of the operating system.
        result: Result<SocketAddr, OsError>,
    },
    /// The answer to [`TcpOutput::Connect`], [`TcpOutput::Accept`] and [`TcpOutput::OpenStdio`].
    Opened {
        /// The connection.
        tcp: TcpId,
        /// Its addresses, or the error of the operating system, after which the connection is forgotten. If the host
        /// has run out of descriptors, memory or ports, the error is `QuotaExceeded`. A failed `accept` is repeated by
        /// the driver and is never an answer.
        result: Result<TcpAddresses, OsError>,
    },
    /// The answer to [`TcpOutput::Read`]: at least one byte, or none after the peer's FIN.
    Read {
        /// The connection.
        tcp: TcpId,
        /// The bytes.
        data: Bytes,
    },
    /// The operating system took bytes of [`TcpOutput::Write`].
    Written {
        /// The connection.
        tcp: TcpId,
        /// Their number since the last such input.
        bytes: usize,
    },
    /// A connection ended with an error, such as `ConnectionReset`. The driver has forgotten it, and
    /// the node gets no more inputs about it.
    Failed {
        /// The connection.
        tcp: TcpId,
        /// The error of the operating system.
        error: io::ErrorKind,
    },
    /// The answer to [`TcpOutput::FindUdpPorts`]. It comes also if the node has closed the connection since.
    UdpPorts {
        /// The connection.
        tcp: TcpId,
        /// The ports of the user at the IP address of the other end, in ascending order. No other user has a socket
        /// with one of them. An error says that the operating system does not tell who owns the connection.
        result: Result<Box<[u16]>, io::ErrorKind>,
    },
}

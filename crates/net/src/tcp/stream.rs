//! What bytes travel on: a TCP socket, or the standard input and output of the process.

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    mem::MaybeUninit,
    net::{Shutdown, SocketAddr},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, BytesMut};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWrite, Interest},
    net::TcpStream,
    task::coop::unconstrained,
};
use tracing::debug;

use super::stdio::Stdio;
use crate::socket::canonical;

/// The time without a packet after which the operating system asks whether the peer still exists.
/// A firewall of a home forgets connections after some minutes, which this prevents too.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);

/// The time between two such questions. Linux gives the connection up after nine of them, hence
/// three minutes after the peer's last packet.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

pub(super) enum Stream {
    Tcp(TcpStream),
    Stdio(Stdio),
}

impl Stream {
    /// Begins to connect to `peer`. The stream becomes writable when this has succeeded or failed.
    pub(super) fn connect(peer: SocketAddr) -> io::Result<Self> {
        let peer = canonical(peer);
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&peer.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        Ok(Self::from_tcp(TcpStream::from_std(socket.into())?))
    }

    /// Takes a TCP socket and sets the options that all of our connections have.
    pub(super) fn from_tcp(stream: TcpStream) -> Self {
        let socket = SockRef::from(&stream);
        let keepalive =
            TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
        let result =
            socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&keepalive));
        if let Err(error) = result {
            debug!(%error, "an option of a TCP socket could not be set");
        }
        Self::Tcp(stream)
    }

    /// The addresses of the other end and of this end.
    pub(super) fn ends(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        match self {
            Self::Tcp(stream) => Ok((stream.peer_addr()?, stream.local_addr()?)),
            Self::Stdio(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Is ready when the attempt to connect has ended.
    pub(super) fn poll_connected(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self::Tcp(stream) = self else { return Poll::Ready(Ok(())) };
        ready!(unlimited(context, |context| stream.poll_write_ready(context)))?;
        let error = stream.take_error()?;
        Poll::Ready(error.map_or_else(|| stream.peer_addr().map(drop), Err))
    }

    /// Returns whether reading could return something. If not, the waker is told when it can.
    pub(super) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        unlimited(context, |context| match self {
            Self::Tcp(stream) => stream.poll_read_ready(context),
            Self::Stdio(stdio) => stdio.input.poll_read_ready(context),
        })
    }

    /// Reads at most `max` bytes with one system call and appends them to `buffer`, which has room
    /// for them. No bytes mean the peer's FIN.
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let mut buffer = buffer.limit(max);
        match self {
            Self::Tcp(stream) => pin!(unconstrained(stream.read_buf(&mut buffer))).poll(context),
            Self::Stdio(stdio) => {
                pin!(unconstrained(stdio.input.read_buf(&mut buffer))).poll(context)
            }
        }
    }

    /// Writes with one system call.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        unlimited(context, |context| match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Stdio(stdio) => match &mut stdio.output {
                Some(output) => Pin::new(output).poll_write_vectored(context, slices),
                None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            },
        })
    }

    /// Ends the sending direction.
    pub(super) fn finish(&mut self) {
        match self {
            // An error means that the connection is dead, which the next call says too.
            Self::Tcp(stream) => drop(SockRef::from(&*stream).shutdown(Shutdown::Write)),
            Self::Stdio(stdio) => stdio.output = None,
        }
    }

    /// Makes the operating system reset the connection when the stream is dropped, rather than
    /// send what waits and a FIN.
    pub(super) fn reset_on_drop(&self) {
        if let Self::Tcp(stream) = self
            && let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO))
        {
            debug!(%error, "a TCP connection could not be reset and is closed");
        }
    }

    /// Returns the error of a connection that has failed. The check of the readiness is no system
    /// call.
    pub(super) fn failure(&self) -> Option<io::ErrorKind> {
        let Self::Tcp(stream) = self else { return None };
        stream.try_io(Interest::ERROR, || Ok(())).ok()?;
        let error = stream.take_error().ok().flatten();
        Some(error.map_or(io::ErrorKind::ConnectionReset, |error| error.kind()))
    }

    /// Returns whether bytes have arrived that were not read yet.
    pub(super) fn has_unread(&self) -> bool {
        let Self::Tcp(stream) = self else { return false };
        SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]).is_ok_and(|bytes| bytes > 0)
    }

    pub(super) fn is_stdio(&self) -> bool {
        matches!(self, Self::Stdio(_))
    }
}

/// Polls without tokio's budget for one task. When that is used up, tokio would wake each
/// connection at once, without an end, because the driver is one task and does not wait then.
pub(super) fn unlimited<T>(
    context: &mut Context<'_>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    pin!(unconstrained(poll_fn(poll))).poll(context)
}

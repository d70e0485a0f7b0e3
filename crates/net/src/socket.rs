//! A UDP socket of a node, which receives and sends in batches.

use std::{
    array, io,
    io::IoSliceMut,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, OnceLock},
};

use bytes::BytesMut;
use noq_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};
use tandem_node::{
    OsError, buffers,
    node::{Ecn, Received, SocketId, SocketKind, Transmit},
};
use tokio::io::{Interest, unix::AsyncFd};
use tracing::{debug, trace, warn};

use crate::stats::DriverStats;

/// The largest sum of UDP payloads, in bytes, that one send call may carry: the payload of one IPv4
/// packet. The kernel checks this before it segments the packet.
pub(crate) const SEND_BYTES_MAX: usize = 65_507;

/// The largest length of a received message in bytes. The kernel joins datagrams up to the largest
/// length of an IP packet.
const MESSAGE_BYTES_MAX: usize = 65_536;

/// A UDP socket at tokio's reactor.
///
/// A `tokio::net::UdpSocket` asks for the readiness to write as well, which this one never waits for. Each
/// datagram that leaves then wakes the process once more, when the kernel has freed its memory.
pub(crate) type WatchedSocket = AsyncFd<std::net::UdpSocket>;

/// The readiness that a receive call needs: datagrams, or an error that an earlier datagram caused.
pub(crate) const RECEIVE_INTEREST: Interest = Interest::READABLE.add(Interest::ERROR);

/// The options of sockets.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// The requested size of each socket's receive buffer and send buffer, in bytes. The operating
    /// system may limit it (on Linux with `net.core.rmem_max` and `wmem_max`).
    pub buffer_bytes: usize,
    /// The largest number of segments in one send call; 1 turns GSO (generic segmentation offload)
    /// off. The operating system's own limit (64 on Linux) applies as well.
    pub gso_segments_max: usize,
    /// Whether received datagrams are in memory that is used again (see [`buffers`]), so that nothing is allocated for
    /// each. A client with a connection inside its tunnel had better turn this off: such a connection decrypts packets
    /// where they are, and has to copy those whose memory is used again.
    pub reuses_memory: bool,
}

impl Default for SocketOptions {
    fn default() -> Self {
        // 4 MiB hold 27 ms at 1.25 Gbit/s, which is more than a scheduling delay of a busy machine.
        Self { buffer_bytes: 4 << 20, gso_segments_max: 64, reuses_memory: true }
    }
}

/// A UDP socket of a node.
#[derive(Debug)]
pub struct UdpSocket {
    id: SocketId,
    io: Arc<WatchedSocket>,
    state: UdpSocketState,
    local: SocketAddr,
    /// The only address from which the socket accepts datagrams; `None` accepts all.
    peer: Option<SocketAddr>,
    gso_segments_max: usize,
    /// Makes the copies of received datagrams.
    copy: fn(&[u8]) -> BytesMut,
    /// Whether a failure of this socket was reported to the node, and nothing has arrived since.
    is_failed: bool,
}

impl UdpSocket {
    /// Opens a socket. The caller must be in a tokio runtime.
    ///
    /// A socket that listens on `[::]` accepts IPv4 too; its IPv4 peers have IPv4 addresses. If the
    /// platform supports it, packets are never fragmented, and received datagrams have their ECN
    /// mark and local address.
    ///
    /// # Errors
    ///
    /// The operating system cannot open, bind or connect the socket.
    pub fn open(id: SocketId, kind: SocketKind, options: SocketOptions) -> io::Result<Self> {
        let buffers = Buffers { received: options.buffer_bytes, sent: options.buffer_bytes };
        let socket = bound(kind, buffers, |_| Ok(()))?;
        let peer = match kind {
            SocketKind::Connected(peer) => Some(canonical(peer)),
            SocketKind::Listen(_) | SocketKind::ForPeer(_) => None,
        };
        if let Some(peer) = peer {
            socket.connect(&peer.into())?;
        }
        Self::watch(id, socket.into(), peer, options)
    }

    /// Uses a socket that is open already. The caller must be in a tokio runtime.
    pub(crate) fn watch(
        id: SocketId,
        socket: std::net::UdpSocket,
        peer: Option<SocketAddr>,
        options: SocketOptions,
    ) -> io::Result<Self> {
        check_system_calls()?;
        let state = UdpSocketState::new((&socket).into())?;
        let io = watched(socket)?;
        let local = io.get_ref().local_addr()?;
        let io = Arc::new(io);
        let gso_segments_max = options.gso_segments_max.max(1);
        let copy: fn(&[u8]) -> BytesMut =
            if options.reuses_memory { buffers::copy } else { |bytes| BytesMut::from(bytes) };
        Ok(Self { id, io, state, local, peer, gso_segments_max, copy, is_failed: false })
    }

    /// Returns the address to which the socket is bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn io(&self) -> Arc<WatchedSocket> {
        Arc::clone(&self.io)
    }

    /// Receives at most [`BATCH_SIZE`] messages with one system call. With GRO (generic receive
    /// offload) a message may hold several datagrams. `deliver` gets each datagram, in an allocation
    /// of its own.
    pub fn recv_batch(
        &mut self,
        buffers: &mut ReceiveBuffers,
        stats: &mut DriverStats,
        mut deliver: impl FnMut(Received),
    ) -> Drained {
        let messages = match self.recv_messages(buffers) {
            Ok(messages) => messages,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Drained::Empty,
            Err(error) => {
                stats.receive_errors += 1;
                trace!(%error, local = %self.local, "a receive call failed");
                return self.first_failure(&error).map_or(Drained::More, Drained::Failed);
            }
        };
        self.is_failed = false;
        stats.receive_calls += 1;
        stats.receive_messages += messages as u64;
        for (meta, bytes) in buffers.messages(messages) {
            let datagrams = meta.len.div_ceil(meta.stride.max(1)).max(1) as u64;
            let remote = canonical(meta.addr);
            // RFC 9298 §3.1: a UDP proxy "MUST validate the IP source address and UDP source port
            // on received packets to ensure they match the client's request." The kernel does this
            // for a connected socket, except for packets that arrived between its bind and its
            // connect.
            if self.peer.is_some_and(|peer| !is_same_endpoint(peer, remote)) {
                stats.dropped_not_from_peer += datagrams;
                continue;
            }
            stats.datagrams_received += datagrams;
            stats.bytes_received += meta.len as u64;
            stats.receive_message_datagrams_max =
                stats.receive_message_datagrams_max.max(datagrams);
            for payload in split(bytes, meta.stride, self.copy) {
                deliver(Received {
                    socket: self.id,
                    remote,
                    local_ip: meta.dst_ip.map(|ip| ip.to_canonical()),
                    ecn: meta.ecn.map(ecn_from_udp),
                    payload,
                });
            }
        }
        if messages < BATCH_SIZE { Drained::Empty } else { Drained::More }
    }

    /// Fills the buffers with one system call, and returns the number of messages.
    ///
    /// If there are fewer messages than buffers, the queue is empty. The closure then returns
    /// `WouldBlock`, so that tokio clears the readiness. This saves the system call that would
    /// return that error; tokio itself does the same after a short read.
    fn recv_messages(&self, buffers: &mut ReceiveBuffers) -> io::Result<usize> {
        let mut received = None;
        // The two interests are tried one by one, because tokio's `try_io` does not accept a joint
        // interest.
        for interest in [Interest::READABLE, Interest::ERROR] {
            let result = self.io.try_io(interest, |socket| {
                let (mut slices, meta) = buffers.slices();
                let count = self.state.recv(socket.into(), &mut slices, meta)?;
                received = Some(count);
                if count < BATCH_SIZE { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (received, result) {
                (Some(count), _) => return Ok(count),
                (None, Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(error);
                }
                _ => {} // the queue is empty
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Sends the datagrams in `contents`, which have the segment size of `transmit`, with as few
    /// system calls as GSO allows.
    ///
    /// The call never waits for space in the send buffer, because all sockets share one task: a
    /// wait for one slow destination would delay the packets of all others. Datagrams that cannot
    /// be sent are counted and dropped, because UDP is unreliable and the layers above repair
    /// losses. Only the first error about the peer of a connected socket is returned, until something
    /// has arrived at it.
    pub fn send(
        &mut self,
        transmit: &Transmit,
        contents: &[u8],
        stats: &mut DriverStats,
    ) -> Option<io::ErrorKind> {
        // `try_io` is not used, because a new socket is writable before tokio has noticed that.
        self.send_with(transmit, contents, stats, |socket, chunk| {
            socket.state.try_send(socket.io.get_ref().into(), chunk)
        })
    }

    /// As [`Self::send`], with `send_call` in place of the system call.
    fn send_with(
        &mut self,
        transmit: &Transmit,
        contents: &[u8],
        stats: &mut DriverStats,
        mut send_call: impl FnMut(&Self, &noq_udp::Transmit<'_>) -> io::Result<()>,
    ) -> Option<io::ErrorKind> {
        let segment_size = transmit.segment_size.unwrap_or(contents.len()).max(1);
        let mut rest = contents;
        let mut failure = None;
        loop {
            let segments_max = self.segments_max(segment_size);
            let (chunk, after) = rest.split_at(rest.len().min(segment_size * segments_max));
            let datagrams = chunk.len().div_ceil(segment_size).max(1) as u64;
            let result = send_call(self, &self.to_udp(transmit, chunk, segment_size));
            if result.is_err() && datagrams > 1 && self.state.max_gso_segments().get() == 1 {
                // noq-udp has just detected that the network device does not support GSO. The loop
                // sends the datagrams one by one.
                continue;
            }
            match result {
                Ok(()) => {
                    stats.datagrams_sent += datagrams;
                    stats.bytes_sent += chunk.len() as u64;
                    stats.send_calls += 1;
                    stats.send_call_datagrams_max = stats.send_call_datagrams_max.max(datagrams);
                }
                Err(error) => {
                    *drop_counter(&error, stats) += datagrams;
                    trace!(%error, remote = %transmit.destination, datagrams, "a send call failed");
                    failure = failure.or(self.first_failure(&error));
                }
            }
            rest = after;
            if rest.is_empty() {
                return failure;
            }
        }
    }

    /// Returns the largest number of datagrams of this size in one call, at least 1.
    fn segments_max(&self, segment_size: usize) -> usize {
        let by_kernel = self.state.max_gso_segments().get();
        (SEND_BYTES_MAX / segment_size).min(by_kernel).min(self.gso_segments_max).max(1)
    }

    /// Returns noq-udp's form of one chunk.
    fn to_udp<'a>(
        &self,
        transmit: &Transmit,
        chunk: &'a [u8],
        segment_size: usize,
    ) -> noq_udp::Transmit<'a> {
        noq_udp::Transmit {
            destination: self.reachable_form(transmit.destination),
            ecn: transmit.ecn.map(ecn_to_udp),
            contents: chunk,
            segment_size: (chunk.len() > segment_size).then_some(segment_size),
            src_ip: transmit.src_ip,
        }
    }

    /// Returns the form of the address for this socket: an IPv6 socket needs IPv4-mapped addresses.
    fn reachable_form(&self, destination: SocketAddr) -> SocketAddr {
        match (self.local, destination.ip()) {
            (SocketAddr::V6(_), IpAddr::V4(ip)) => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), destination.port())
            }
            _ => destination,
        }
    }

    /// Returns the error if it has to be reported to the node: the first error of a connected
    /// socket that concerns the peer and not only one datagram.
    fn first_failure(&mut self, error: &io::Error) -> Option<io::ErrorKind> {
        let is_fatal = matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::NetworkDown
                | io::ErrorKind::AddrNotAvailable
        );
        if self.peer.is_none() || self.is_failed || !is_fatal {
            return None;
        }
        self.is_failed = true;
        debug!(%error, local = %self.local, "a connected socket failed");
        Some(error.kind())
    }
}

#[expect(
    deprecated,
    reason = "it is unsound if a type's descriptor can change or be closed; that of a socket of the \
              standard library cannot"
)]
fn watched(socket: std::net::UdpSocket) -> io::Result<WatchedSocket> {
    AsyncFd::with_interest(socket, RECEIVE_INTEREST)
}

/// The state of a socket's queue after a receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// The queue is empty. The socket becomes readable with the next datagram.
    Empty,
    /// The queue may hold more datagrams.
    More,
    /// A connected socket has failed with an error about its peer, which is reported once. The
    /// queue may hold more datagrams.
    Failed(io::ErrorKind),
}

/// The buffers to which the kernel writes received messages. All sockets of a driver share them.
pub struct ReceiveBuffers {
    bytes: Vec<u8>,
    meta: [RecvMeta; BATCH_SIZE],
}

impl ReceiveBuffers {
    /// Allocates the buffers for one batch.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; BATCH_SIZE * MESSAGE_BYTES_MAX],
            meta: [RecvMeta::default(); BATCH_SIZE],
        }
    }

    fn slices(&mut self) -> ([IoSliceMut<'_>; BATCH_SIZE], &mut [RecvMeta; BATCH_SIZE]) {
        let mut chunks = self.bytes.chunks_exact_mut(MESSAGE_BYTES_MAX);
        let slices = array::from_fn(|_| IoSliceMut::new(chunks.next().expect("one per slice")));
        (slices, &mut self.meta)
    }

    /// Returns the first `count` messages, each with exactly its bytes.
    fn messages(&self, count: usize) -> impl Iterator<Item = (&RecvMeta, &[u8])> {
        let chunks = self.bytes.chunks_exact(MESSAGE_BYTES_MAX);
        let messages = self.meta.iter().zip(chunks).take(count);
        messages.map(|(meta, chunk)| (meta, chunk.get(..meta.len).unwrap_or(chunk)))
    }
}

impl Default for ReceiveBuffers {
    fn default() -> Self {
        Self::new()
    }
}

/// Splits one message into its datagrams. An empty message is one empty datagram.
///
/// Each datagram is copied once, into a buffer of about its size. With one buffer for the
/// whole message, a single byte that the node keeps would keep up to 64 KiB. An attacker who sends
/// long messages and has one byte of each kept would then hold far more memory than any bound of
/// the node counts. Without the copy, safe Rust would have to clear a new buffer for each message,
/// which costs more than the copy.
fn split(
    message: &[u8],
    stride: usize,
    copy: fn(&[u8]) -> BytesMut,
) -> impl Iterator<Item = BytesMut> {
    let stride = if stride == 0 { message.len() } else { stride };
    let empty = message.is_empty().then(BytesMut::new);
    message.chunks(stride.max(1)).map(copy).chain(empty)
}

/// The sizes of a socket's buffers in the operating system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) received: usize,
    pub(crate) sent: usize,
}

/// Opens a socket and binds it. `prepare` changes it before.
pub(crate) fn bound(
    kind: SocketKind,
    buffers: Buffers,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> io::Result<Socket> {
    let form = (Type::DGRAM, Protocol::UDP);
    let (socket, bind) = match kind {
        SocketKind::Listen(address) => socket_to_listen(address, form)?,
        SocketKind::ForPeer(peer) | SocketKind::Connected(peer) => {
            let bind = any_address(canonical(peer));
            (Socket::new(Domain::for_address(bind), form.0, Some(form.1))?, bind)
        }
    };
    if bind.is_ipv6() {
        let takes_ipv4 = matches!(kind, SocketKind::Listen(_)) && bind.ip().is_unspecified();
        socket.set_only_v6(!takes_ipv4)?;
    }
    socket.set_nonblocking(true)?;
    set_buffers(&socket, buffers);
    prepare(&socket)?;
    socket.bind(&bind.into())?;
    Ok(socket)
}

/// Requests buffers. The operating system may limit them; a buffer of another size is not an error.
fn set_buffers(socket: &Socket, Buffers { received, sent }: Buffers) {
    if let Err(error) = socket.set_recv_buffer_size(received) {
        debug!(%error, bytes = received, "the size of the receive buffer could not be set");
    }
    if let Err(error) = socket.set_send_buffer_size(sent) {
        debug!(%error, bytes = sent, "the size of the send buffer could not be set");
    }
}

fn drop_counter<'a>(error: &io::Error, stats: &'a mut DriverStats) -> &'a mut u64 {
    if noq_udp::is_msg_size_err(error) {
        &mut stats.dropped_too_large
    } else if error.kind() == io::ErrorKind::WouldBlock {
        &mut stats.dropped_send_blocked
    } else {
        &mut stats.dropped_send_error
    }
}

/// Returns an error that occurred while a socket was opened.
///
/// The standard library has no kind of its own for most errors that mean that the host has run out
/// of something. All of them become [`io::ErrorKind::QuotaExceeded`], so that the node does not
/// blame the peer for them: the limits of open files of the process and of the host, memory, and
/// free ports.
pub(crate) fn open_error(error: &io::Error, kind: SocketKind) -> OsError {
    let is_any_port = !matches!(kind, SocketKind::Listen(_));
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) if is_any_port => out_of_room(error),
        _ => os_error(error),
    }
}

/// Returns an error as a node gets it. One that says that the host has run out of descriptors or memory has the kind
/// [`io::ErrorKind::QuotaExceeded`].
pub(crate) fn os_error(error: &io::Error) -> OsError {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => out_of_room(error),
        _ => error.into(),
    }
}

/// Returns an error that says that the host has run out of something.
pub(crate) fn out_of_room(error: &io::Error) -> OsError {
    OsError { kind: io::ErrorKind::QuotaExceeded, number: error.raw_os_error() }
}

/// Creates a socket that is to listen at an address. On a kernel without IPv6, `[::]` becomes `0.0.0.0`.
pub(crate) fn socket_to_listen(
    address: SocketAddr,
    (kind, protocol): (Type, Protocol),
) -> io::Result<(Socket, SocketAddr)> {
    let open = |address| Socket::new(Domain::for_address(address), kind, Some(protocol));
    let error = match open(address) {
        Ok(socket) => return Ok((socket, address)),
        Err(error) => error,
    };
    let instead = without_ipv6(address, &error).ok_or(error)?;
    let socket = open(instead)?;
    warn!(%address, %instead, "this kernel has no IPv6, so the program listens on IPv4 only");
    Ok((socket, instead))
}

/// The address that has the meaning of `[::]` on a kernel without IPv6, if the error says that it is one.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let is_missing = error.raw_os_error() == Some(libc::EAFNOSUPPORT);
    let is_all = is_missing && address.is_ipv6() && address.ip().is_unspecified();
    is_all.then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

/// Checks once that the kernel has the system call with which packets are received: some sandboxes and old kernels
/// have not. Without this check, a program would seem to work and never receive anything.
fn check_system_calls() -> io::Result<()> {
    static CHECKED: OnceLock<()> = OnceLock::new();
    if CHECKED.get().is_some() {
        return Ok(());
    }
    // It has no address, so that nobody who looks for the program's sockets takes it for one that listens.
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    let state = UdpSocketState::new((&socket).into())?;
    socket.set_nonblocking(true)?;
    let mut buffer = [0; 1];
    let mut slices = [IoSliceMut::new(&mut buffer)];
    match state.recv((&socket).into(), &mut slices, &mut [RecvMeta::default()]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Err(error),
        _ => {
            CHECKED.get_or_init(|| ());
            Ok(())
        }
    }
}

/// Returns the unspecified address of the family of `peer`, with port 0.
pub(crate) const fn any_address(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        SocketAddr::V6(_) => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
    }
}

/// Converts an IPv4-mapped address to IPv4. Other addresses are unchanged and keep their scope.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Compares address and port, but not scope and flow label, which only one of the two may have.
fn is_same_endpoint(one: SocketAddr, other: SocketAddr) -> bool {
    one.ip() == other.ip() && one.port() == other.port()
}

const fn ecn_from_udp(ecn: EcnCodepoint) -> Ecn {
    match ecn {
        EcnCodepoint::Ect0 => Ecn::Ect0,
        EcnCodepoint::Ect1 => Ecn::Ect1,
        EcnCodepoint::Ce => Ecn::Ce,
    }
}

const fn ecn_to_udp(ecn: Ecn) -> EcnCodepoint {
    match ecn {
        Ecn::Ect0 => EcnCodepoint::Ect0,
        Ecn::Ect1 => EcnCodepoint::Ect1,
        Ecn::Ce => EcnCodepoint::Ce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_datagram_keeps_the_memory_of_its_neighbours() {
        let message: Vec<u8> = (0..250).collect();
        for (len, stride, expected) in [
            (250, 100, vec![100, 100, 50]),
            (200, 100, vec![100, 100]),
            (250, 250, vec![250]),
            (250, 0, vec![250]),
            (250, 1400, vec![250]),
            (3, 1, vec![1, 1, 1]),
            (0, 0, vec![0]),
            (0, 100, vec![0]),
        ] {
            let parts: Vec<_> =
                split(&message[..len], stride, buffers::copy).map(BytesMut::freeze).collect();
            assert_eq!(parts.concat(), message[..len], "{len} bytes in steps of {stride}");
            let sizes: Vec<_> = parts.iter().map(bytes::Bytes::len).collect();
            assert_eq!(sizes, expected, "{len} bytes in steps of {stride}");
            for (index, part) in parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
                let end = part.as_ptr_range().end;
                let after = parts.iter().position(|next| next.as_ptr() == end);
                assert_eq!(after, None, "part {index} shares its memory");
            }
        }
    }

    #[test]
    fn a_host_that_has_run_out_of_something_is_told_from_a_peer_that_cannot_be_reached() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let (listen, connected) = (SocketKind::Listen(address), SocketKind::Connected(address));
        for (code, kind, expected) in [
            (libc::EMFILE, connected, io::ErrorKind::QuotaExceeded),
            (libc::ENFILE, connected, io::ErrorKind::QuotaExceeded),
            (libc::ENOBUFS, SocketKind::ForPeer(address), io::ErrorKind::QuotaExceeded),
            (libc::ENOMEM, listen, io::ErrorKind::QuotaExceeded),
            (libc::EADDRINUSE, connected, io::ErrorKind::QuotaExceeded),
            (libc::EADDRINUSE, listen, io::ErrorKind::AddrInUse),
            (libc::ENETUNREACH, connected, io::ErrorKind::NetworkUnreachable),
            (libc::EACCES, connected, io::ErrorKind::PermissionDenied),
        ] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(open_error(&error, kind).kind, expected, "{error}, {kind:?}");
        }
    }

    #[test]
    fn a_kernel_without_ipv6_listens_on_ipv4_if_any_address_will_do() {
        let error = io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        for (address, instead) in
            [("[::]:443", Some("0.0.0.0:443")), ("[::1]:443", None), ("0.0.0.0:443", None)]
        {
            let address = address.parse().unwrap();
            let instead = instead.map(|instead: &str| instead.parse().unwrap());
            assert_eq!(without_ipv6(address, &error), instead, "{address}");
            let other = io::Error::from_raw_os_error(libc::EADDRINUSE);
            assert_eq!(without_ipv6(address, &other), None);
        }
    }

    #[test]
    fn a_full_send_buffer_costs_datagrams_and_no_second_call() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _guard = runtime.enter();
        let destination = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let kinds = [SocketKind::Connected(destination), SocketKind::ForPeer(destination)];
        for kind in kinds {
            let one_each = SocketOptions { gso_segments_max: 1, ..SocketOptions::default() };
            let mut socket = UdpSocket::open(SocketId(1), kind, one_each).unwrap();
            let transmit = Transmit {
                destination,
                src_ip: None,
                ecn: None,
                size: 300,
                segment_size: Some(100),
            };
            let mut stats = DriverStats::default();
            for round in 0..2 {
                let mut calls = 0;
                let failure = socket.send_with(&transmit, &[7; 300], &mut stats, |_, chunk| {
                    assert_eq!(chunk.contents, [7; 100]);
                    calls += 1;
                    // The buffer is full at the second call only.
                    if calls == 2 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
                });
                assert_eq!(failure, None, "a full buffer says nothing about the peer");
                assert_eq!(calls, 3, "{kind:?}: each datagram is tried once in round {round}");
            }
            let expected = DriverStats {
                datagrams_sent: 4,
                bytes_sent: 400,
                send_calls: 4,
                send_call_datagrams_max: 1,
                dropped_send_blocked: 2,
                ..DriverStats::default()
            };
            assert_eq!(stats, expected, "{kind:?}");
        }
    }
}

//! Drives a [`Path`] in each direction between real UDP sockets. The relay uses one thread and one
//! system call to wait. It does not carry ECN marks; QUIC detects that and disables ECN (RFC 9000
//! §13.4.2).

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};
use tandem_netem::{LinkStats, Packet, Path, Seed};

use crate::{Links, clock, wait};

/// Maximum number of clients at a time. Each client has a socket, and the usual limit is 1024 open
/// files per process.
const CLIENTS_MAX: usize = 512;

/// A client that neither sends nor receives for this long is forgotten. It is longer than the two
/// minutes for which a proxy keeps an idle flow (RFC 9298 §3.1).
const CLIENT_IDLE: Duration = Duration::from_secs(180);

/// The interval at which idle clients are removed.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);

/// Number of datagrams that are read from one socket before other sockets and deadlines have their
/// turn.
const READS_PER_TURN: usize = 64;

/// The largest UDP payload, in bytes.
const PAYLOAD_MAX: usize = 65_527;

/// Size of the socket buffers in bytes. They hold datagrams while this thread sleeps.
const SOCKET_BUFFER: usize = 4_000_000;

/// The reason for which a relay cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The relay could not use its address.
    #[error("cannot listen on {address}: {error}; choose another address, or port 0 for any port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        error: io::Error,
    },
    /// Waiting for packets failed.
    #[error("cannot wait for packets: {0}")]
    Wait(io::Error),
}

/// Counters of the relay's packets.
#[derive(Clone, Debug, Default)]
pub struct RelayCounters {
    /// Packets from the clients, link by link.
    pub to_target: Vec<LinkStats>,
    /// Packets to the clients, link by link.
    pub to_client: Vec<LinkStats>,
    /// Number of client addresses that were seen.
    pub clients: u64,
    /// Datagrams that were dropped because there were too many clients, or because a socket could
    /// not be opened.
    pub refused_clients: u64,
}

/// The number of a client.
type ClientId = u64;

#[derive(Clone, Debug)]
struct Cargo {
    client: ClientId,
    payload: Bytes,
}

#[derive(Debug)]
struct RelayClient {
    address: SocketAddr,
    /// A socket that is connected to the target.
    socket: UdpSocket,
    last_used: Instant,
}

/// Carries datagrams between clients and one target across emulated links.
#[derive(Debug)]
pub struct UdpRelay {
    listener: UdpSocket,
    address: SocketAddr,
    target: SocketAddr,
    to_target: Path<Cargo>,
    to_client: Path<Cargo>,
    clients: BTreeMap<ClientId, RelayClient>,
    ids: BTreeMap<SocketAddr, ClientId>,
    counters: RelayCounters,
    next_sweep: Instant,
    buffer: Vec<u8>,
}

impl UdpRelay {
    /// Opens the listening socket.
    pub fn bind(
        listen: SocketAddr,
        target: SocketAddr,
        links: Links,
        seed: Seed,
    ) -> Result<Self, RelayError> {
        let refused = |error| RelayError::Listen { address: listen, error };
        let listener = open(listen).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let start = clock::now();
        Ok(Self {
            listener,
            address,
            target,
            to_target: Path::new(start, links.to_target, seed.derive(0)),
            to_client: Path::new(start, links.to_client, seed.derive(1)),
            clients: BTreeMap::new(),
            ids: BTreeMap::new(),
            counters: RelayCounters::default(),
            next_sweep: start + SWEEP_PERIOD,
            buffer: vec![0; PAYLOAD_MAX],
        })
    }

    /// The address to which clients send.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Works until `stop` is set. An error for a single packet loses only that packet.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<RelayCounters, RelayError> {
        wait::wake_in_time();
        while !stop.load(Ordering::Relaxed) {
            let ready = self.wait(clock::now()).map_err(RelayError::Wait)?;
            if ready.listener {
                self.receive_from_clients();
            }
            for client in ready.clients {
                self.receive_from_target(client);
            }
            self.deliver(clock::now());
        }
        let to_target = self.to_target.stats();
        let to_client = self.to_client.stats();
        Ok(RelayCounters { to_target, to_client, ..self.counters.clone() })
    }

    /// Waits for the next arrival or deadline, and returns the sockets that can be read.
    fn wait(&self, now: Instant) -> io::Result<Ready> {
        let events = [self.to_target.next_event(), self.to_client.next_event()];
        let sockets = self.clients.values().map(|client| &client.socket);
        let mut fds: Vec<_> = std::iter::once(&self.listener)
            .chain(sockets)
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        wait::wait(&mut fds, events.into_iter().flatten().min(), now)?;
        let mut is_ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(Ready {
            listener: is_ready.next().unwrap_or_default(),
            clients: self
                .clients
                .keys()
                .zip(is_ready)
                .filter(|(_, is)| *is)
                .map(|(id, _)| *id)
                .collect(),
        })
    }

    fn receive_from_clients(&mut self) {
        for _ in 0..READS_PER_TURN {
            // An error here belongs to an earlier send. A datagram that cannot be read is lost, as
            // on a link.
            let Ok((len, address)) = self.listener.recv_from(&mut self.buffer) else { return };
            let now = clock::now();
            let Some(client) = self.client(address, now) else {
                self.counters.refused_clients += 1;
                continue;
            };
            let payload = copy(&self.buffer, len);
            self.to_target.push(now, Packet::udp(len, Cargo { client, payload }));
        }
    }

    fn receive_from_target(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        for _ in 0..READS_PER_TURN {
            let Ok(len) = client.socket.recv(&mut self.buffer) else { return };
            let now = clock::now();
            client.last_used = now;
            let payload = copy(&self.buffer, len);
            self.to_client.push(now, Packet::udp(len, Cargo { client: id, payload }));
        }
    }

    /// Sends the datagrams that have arrived at the far end of the links. If the operating system
    /// refuses a datagram, it is lost, as on a link.
    fn deliver(&mut self, now: Instant) {
        while let Some((_, packet)) = self.to_target.pop(now) {
            let Cargo { client, payload } = packet.content;
            if let Some(client) = self.clients.get(&client) {
                drop(client.socket.send(&payload));
            }
        }
        while let Some((_, packet)) = self.to_client.pop(now) {
            let Cargo { client, payload } = packet.content;
            if let Some(client) = self.clients.get(&client) {
                drop(self.listener.send_to(&payload, client.address));
            }
        }
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP_PERIOD;
            self.clients.retain(|_, client| now < client.last_used + CLIENT_IDLE);
            self.ids.retain(|_, id| self.clients.contains_key(id));
        }
    }

    /// The client with this address, if it is known or there is room for it.
    fn client(&mut self, address: SocketAddr, now: Instant) -> Option<ClientId> {
        if let Some(id) = self.ids.get(&address) {
            self.clients.get_mut(id)?.last_used = now;
            return Some(*id);
        }
        if self.clients.len() >= CLIENTS_MAX {
            return None;
        }
        let socket = connect(self.target).ok()?;
        let id = self.counters.clients;
        self.counters.clients += 1;
        self.clients.insert(id, RelayClient { address, socket, last_used: now });
        self.ids.insert(address, id);
        Some(id)
    }
}

/// Sockets that can be read.
struct Ready {
    listener: bool,
    clients: Vec<ClientId>,
}

fn copy(buffer: &[u8], len: usize) -> Bytes {
    Bytes::copy_from_slice(buffer.get(..len).unwrap_or_default())
}

fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    // The system reduces a larger size to its limit.
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn connect(target: SocketAddr) -> io::Result<UdpSocket> {
    let any = match target {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = open(any)?;
    socket.connect(target)?;
    Ok(socket)
}

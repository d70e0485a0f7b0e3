//! Several sockets at one address: a few for each thread of a server, and as many for the process that takes over.

mod exchange;
mod filter;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use socket2::Socket;
use tandem_node::{
    error::ClientError,
    node::SocketKind,
    quic::{Steering, Turn},
};

pub(crate) use self::exchange::{Desk, Handed};
use self::{exchange::Exchange, filter::Filter};
use crate::socket::{Buffers, SocketOptions, bound, open_error};

/// The most sockets of a node. The kernel has a queue of its own for each, and the driver reads them in turn, so that a
/// flood fills only the queues that its packets come to.
const LANES_MAX: u8 = 8;

/// Sockets of one node that listen already. The driver gives them to the node that asks for a listening socket.
#[derive(Clone, Debug)]
pub struct Listener {
    /// At least one. The node sends from the first.
    lanes: Vec<Arc<UdpSocket>>,
    steering: Steering,
    desk: Desk,
}

impl Listener {
    /// Which node the sockets are for. The settings of the node must have the same.
    pub const fn steering(&self) -> Steering {
        self.steering
    }

    /// The sockets, and through what packets come that the kernel gave to another thread. `None`: there is no other
    /// thread.
    pub(crate) fn into_parts(self) -> io::Result<(Vec<UdpSocket>, Option<Desk>)> {
        let owned = |lane| Arc::try_unwrap(lane).or_else(|lane: Arc<UdpSocket>| lane.try_clone());
        let lanes = self.lanes.into_iter().map(owned).collect::<io::Result<_>>()?;
        Ok((lanes, (self.steering.nodes() > 1).then_some(self.desk)))
    }
}

/// All sockets at an address.
///
/// The kernel gives a packet of a connection to a socket of the node that chose the connection ID, whichever process
/// that is in, so that a client may change its address. The first packets of a connection go to a node of this process
/// that both addresses and ports choose.
///
/// Each node has a few sockets, its lanes. The sender's address and port choose among them.
///
/// A process that takes over the address has the same number of nodes and lanes, and gets all sockets. No socket is
/// closed while one of the processes runs, because the kernel would then renumber the remaining ones.
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<Arc<UdpSocket>>,
    nodes: u8,
    /// The number of sockets of each node.
    lanes: u8,
    turn: Turn,
    filter: Filter,
    exchange: Arc<Exchange>,
}

impl Listeners {
    /// The most sockets at an address. The operating system passes no more than 253 files to a process that takes over,
    /// which needs one of them for something else.
    pub const SOCKETS_MAX: u8 = 252;

    /// A process with this many nodes opens, and passes on, this many sockets.
    pub fn number_of_sockets(nodes: u8) -> u8 {
        2 * nodes * lanes(nodes)
    }

    /// Opens sockets at one address for this number of nodes. Port 0 lets the operating system choose one port for all.
    ///
    /// The byte `thread_at` of a connection ID says the node: 0, or
    /// [`Fleet::thread_at`](tandem_node::quic::Fleet::thread_at).
    ///
    /// # Errors
    ///
    /// [`ClientError::Listen`]: the operating system cannot open or bind a socket. Linux is needed for more
    /// than one node.
    ///
    /// # Panics
    ///
    /// There are none or more than [`Steering::NODES_MAX`] nodes.
    pub fn open(
        address: SocketAddr,
        nodes: u8,
        thread_at: usize,
        options: SocketOptions,
    ) -> Result<Self, ClientError> {
        assert!((1..=Steering::NODES_MAX).contains(&nodes), "{nodes} nodes");
        let error = |error: io::Error| ClientError::Listen {
            address,
            error: open_error(&error, SocketKind::Listen(address)),
        };
        let lanes = lanes(nodes);
        let sockets = sockets(address, (nodes, lanes), options).map_err(error)?;
        let listeners = Self::new(sockets, (nodes, lanes, Turn::First), thread_at);
        listeners.take_new_connections(Others::None).map_err(error)?;
        Ok(listeners)
    }

    /// All sockets of the process whose turn is before this one. Until [`Self::take_new_connections`], that process
    /// gets the new connections.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`]: there are not twice as many sockets as nodes, or a multiple of it. Others are
    /// those of the operating system.
    pub fn adopt(
        sockets: impl IntoIterator<Item = OwnedFd>,
        (nodes, turn): (u8, Turn),
        thread_at: usize,
    ) -> io::Result<Self> {
        let sockets: Vec<_> = sockets.into_iter().map(UdpSocket::from).collect();
        if !(1..=Steering::NODES_MAX).contains(&nodes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let slots = 2 * usize::from(nodes);
        let lanes = (1..=LANES_MAX).find(|&lanes| sockets.len() == slots * usize::from(lanes));
        let lanes = lanes.ok_or(io::ErrorKind::InvalidInput)?;
        sockets.iter().try_for_each(|socket| socket.set_nonblocking(true))?;
        Ok(Self::new(sockets, (nodes, lanes, turn), thread_at))
    }

    fn new(sockets: Vec<UdpSocket>, of: (u8, u8, Turn), thread_at: usize) -> Self {
        let sockets = sockets.into_iter().map(Arc::new).collect();
        let (nodes, lanes, turn) = of;
        let exchange = Arc::new(Exchange::new(nodes, thread_at));
        Self { sockets, nodes, lanes, turn, filter: Filter::new(of, thread_at), exchange }
    }

    /// The sockets of this process, for each node its own.
    pub fn of_this_process(&self) -> impl Iterator<Item = Listener> {
        let first = usize::from(self.turn.first_slot(self.nodes));
        let lanes = self.sockets.chunks(self.lanes.into()).skip(first).zip(0..self.nodes);
        lanes.filter_map(|(lanes, index)| {
            let steering = Steering::new(index, self.nodes, self.turn)?;
            let desk = Desk::new(Arc::clone(&self.exchange), index.into());
            Some(Listener { lanes: lanes.to_vec(), steering, desk })
        })
    }

    /// All sockets, for the process that takes over. `None`: the operating system cannot share the address.
    pub fn for_successor(&self) -> Option<impl ExactSizeIterator<Item = BorrowedFd<'_>>> {
        (self.sockets.len() > 1).then(|| self.sockets.iter().map(|socket| socket.as_fd()))
    }

    /// The turn of this process.
    pub const fn turn(&self) -> Turn {
        self.turn
    }

    /// The number of nodes of each process.
    pub const fn nodes(&self) -> u8 {
        self.nodes
    }

    /// The address at which the sockets listen.
    ///
    /// # Errors
    ///
    /// That of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.sockets.first().map_or(Err(io::ErrorKind::NotFound.into()), |it| it.local_addr())
    }

    /// Lets the kernel give new connections to this process. Packets with connection IDs of another process go there,
    /// or are for this process too if there is none.
    ///
    /// # Errors
    ///
    /// That of the operating system.
    pub fn take_new_connections(&self, others: Others) -> io::Result<()> {
        match (self.sockets.as_slice(), self.sockets.first()) {
            ([_], _) | (_, None) => Ok(()),
            (_, Some(socket)) => self.filter.attach(socket, others),
        }
    }
}

/// Whether another process at an address has connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// There is none.
    None,
    /// There is one.
    Draining,
}

/// The number of sockets of each node. Other systems than Linux do not let a program choose among them.
fn lanes(nodes: u8) -> u8 {
    let all = Listeners::SOCKETS_MAX / 2 / nodes.max(1);
    if cfg!(target_os = "linux") { LANES_MAX.min(all) } else { 1 }
}

fn sockets(
    address: SocketAddr,
    (nodes, lanes): (u8, u8),
    options: SocketOptions,
) -> io::Result<Vec<UdpSocket>> {
    // A flood from one address fills two lanes at most, which together hold as much as the only socket of a program.
    let buffers = Buffers {
        received: options.buffer_bytes / usize::from(lanes.min(2)),
        sent: options.buffer_bytes,
    };
    // The first socket does not share its address while it is bound, so that there is an error if another
    // program has it.
    let first = bound(SocketKind::Listen(address), buffers, |_| Ok(()))?;
    let mut sockets = Vec::new();
    if nodes > 1 || cfg!(target_os = "linux") {
        share(&first)?;
        let address = first.local_addr()?.as_socket().unwrap_or(address);
        for _ in 1..2 * nodes * lanes {
            sockets.push(bound(SocketKind::Listen(address), buffers, share)?);
        }
    }
    Ok(std::iter::once(first).chain(sockets).map(UdpSocket::from).collect())
}

#[cfg(target_os = "linux")]
fn share(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_port(true)
}

#[cfg(not(target_os = "linux"))]
fn share(_: &Socket) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

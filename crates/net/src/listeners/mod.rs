//! Several sockets at one address: one for each thread of a server, and as many for the process that takes over.

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
use crate::socket::{SocketOptions, bound, open_error};

/// A socket that listens already. The driver gives it to the node that asks for a listening socket.
#[derive(Clone, Debug)]
pub struct Listener {
    socket: Arc<UdpSocket>,
    steering: Steering,
    desk: Desk,
}

impl Listener {
    /// Which node the socket is for. The settings of the node must have the same.
    pub const fn steering(&self) -> Steering {
        self.steering
    }

    /// The socket, and through what packets come that the kernel gave to another thread. `None`: there is no other thread.
    pub(crate) fn into_parts(self) -> io::Result<(UdpSocket, Option<Desk>)> {
        let socket = Arc::try_unwrap(self.socket).or_else(|socket| socket.try_clone())?;
        Ok((socket, (self.steering.nodes() > 1).then_some(self.desk)))
    }
}

/// All sockets at an address.
///
/// The kernel gives a packet of a connection to the socket of the node that chose the connection ID, whichever process
/// that is in, so that a client may change its address. The first packets of a connection go to a node of this process that
/// both addresses and ports choose.
///
/// A process that takes over the address has as many nodes, and gets all sockets. No socket is ever closed while one of the
/// processes runs, because the kernel would then number the others anew.
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<Arc<UdpSocket>>,
    nodes: u8,
    turn: Turn,
    filter: Filter,
    exchange: Arc<Exchange>,
}

impl Listeners {
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
            kind: open_error(&error, SocketKind::Listen(address)),
        };
        let sockets = sockets(address, nodes, options).map_err(error)?;
        let listeners = Self::new(sockets, (nodes, Turn::First), thread_at);
        listeners.take_new_connections(Others::None).map_err(error)?;
        Ok(listeners)
    }

    /// All sockets of the process whose turn is before this one. Until [`Self::take_new_connections`], that process
    /// gets the new connections.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`]: there are not twice as many sockets as nodes. Others are those of the
    /// operating system.
    pub fn adopt(
        sockets: impl IntoIterator<Item = OwnedFd>,
        (nodes, turn): (u8, Turn),
        thread_at: usize,
    ) -> io::Result<Self> {
        let sockets: Vec<_> = sockets.into_iter().map(UdpSocket::from).collect();
        let is_whole =
            (1..=Steering::NODES_MAX).contains(&nodes) && sockets.len() == 2 * usize::from(nodes);
        if !is_whole {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sockets.iter().try_for_each(|socket| socket.set_nonblocking(true))?;
        Ok(Self::new(sockets, (nodes, turn), thread_at))
    }

    fn new(sockets: Vec<UdpSocket>, (nodes, turn): (u8, Turn), thread_at: usize) -> Self {
        let sockets = sockets.into_iter().map(Arc::new).collect();
        let exchange = Arc::new(Exchange::new(nodes, thread_at));
        Self { sockets, nodes, turn, filter: Filter::new(nodes, turn, thread_at), exchange }
    }

    /// The sockets of this process, one for each node.
    pub fn of_this_process(&self) -> impl Iterator<Item = Listener> {
        let first = usize::from(self.turn.first_slot(self.nodes));
        let sockets = self.sockets.iter().skip(first).zip(0..self.nodes);
        sockets.filter_map(|(socket, index)| {
            let steering = Steering::new(index, self.nodes, self.turn)?;
            let desk = Desk::new(Arc::clone(&self.exchange), index.into());
            Some(Listener { socket: Arc::clone(socket), steering, desk })
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

fn sockets(address: SocketAddr, nodes: u8, options: SocketOptions) -> io::Result<Vec<UdpSocket>> {
    // The first socket does not share its address while it is bound, so that there is an error if another
    // program has it.
    let first = bound(SocketKind::Listen(address), options, |_| Ok(()))?;
    let mut sockets = Vec::new();
    if nodes > 1 || cfg!(target_os = "linux") {
        share(&first)?;
        let address = first.local_addr()?.as_socket().unwrap_or(address);
        for _ in 1..2 * nodes {
            sockets.push(bound(SocketKind::Listen(address), options, share)?);
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

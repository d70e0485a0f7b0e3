//! Listening sockets.

use std::{
    io,
    net::SocketAddr,
    task::{Context, Poll, Waker},
};

use socket2::{Protocol, Type};
use tandem_node::tcp::TcpId;
use tokio::net::{TcpListener, TcpStream};

use super::stream::unlimited;
use crate::socket::{canonical, socket_to_listen};

/// The number of connections that wait with the operating system until the node takes them. Linux
/// lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 1024;

pub(super) struct Listener {
    socket: TcpListener,
    waker: Waker,
    /// The name of the connection that the node waits for.
    pub(super) wanted: Option<TcpId>,
}

impl Listener {
    /// Opens a listening socket. One that listens on `[::]` accepts IPv4 too.
    pub(super) fn open(address: SocketAddr, waker: Waker) -> io::Result<(Self, SocketAddr)> {
        let (socket, address) = socket_to_listen(address, (Type::STREAM, Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        // Without it, a program that restarts could not listen while its old connections linger.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        let local = socket.local_addr()?;
        Ok((Self { socket, waker, wanted: None }, local))
    }

    /// Takes a connection. If there is none, the waker is told when there is.
    pub(super) fn poll_accept(&self) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let mut context = Context::from_waker(&self.waker);
        let accepted = unlimited(&mut context, |context| self.socket.poll_accept(context));
        accepted.map_ok(|(stream, peer)| (stream, canonical(peer)))
    }
}

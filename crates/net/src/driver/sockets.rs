//! The UDP sockets of a driver.

use std::io;

use tandem_node::node::{Input, Node, SocketId, SocketKind};
use tracing::{debug, warn};

use super::{Application, Driver};
use crate::{
    clock,
    listeners::Listener,
    ready::ReadySignal,
    send_batch::SendBatch,
    socket::{UdpSocket, open_error},
};

/// An open socket, as the node knows it.
pub(super) struct OpenSocket {
    pub(super) socket: UdpSocket,
    signal: ReadySignal,
    /// Further sockets of the operating system at the address of a [`Listener`], which only receive.
    others: Box<[(UdpSocket, ReadySignal)]>,
    pub(super) batch: Option<SendBatch>,
}

impl OpenSocket {
    /// One of the operating system's sockets. `socket` is the first lane.
    pub(super) fn lane(&mut self, lane: u8) -> Option<(&mut UdpSocket, &mut ReadySignal)> {
        match lane.checked_sub(1) {
            None => Some((&mut self.socket, &mut self.signal)),
            Some(other) => {
                self.others.get_mut(usize::from(other)).map(|(socket, signal)| (socket, signal))
            }
        }
    }
}

/// The name of one of the operating system's sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) of: SocketId,
    /// The place among the sockets of `of`.
    pub(super) lane: u8,
}

impl<N: Node, A: Application<N>> Driver<'_, N, A> {
    pub(super) fn open_socket(&mut self, id: SocketId, kind: SocketKind) {
        let result = match (kind, self.listener.take()) {
            (SocketKind::Listen(_), Some(listener)) => self.watch_listener(id, listener),
            (_, listener) => {
                self.listener = listener;
                UdpSocket::open(id, kind, self.socket_options).map(|socket| (socket, Vec::new()))
            }
        };
        let result = match result {
            Ok((socket, others)) => {
                let local = socket.local_addr();
                let mut watch = |(lane, socket): (u8, UdpSocket)| {
                    let lane = Lane { of: id, lane };
                    self.readable.push(lane); // the first receive call arms its signal
                    let signal = ReadySignal::new(&socket, self.ready_list.waker(lane));
                    (socket, signal)
                };
                let (socket, signal) = watch((0, socket));
                let others = (1..).zip(others).map(watch).collect();
                self.sockets.insert(id, OpenSocket { socket, signal, others, batch: None });
                self.stats.sockets_opened += 1;
                debug!(?kind, %local, "socket opened");
                Ok(local)
            }
            Err(error) => {
                self.stats.sockets_refused += 1;
                let for_node = open_error(&error, kind);
                if matches!(kind, SocketKind::Listen(_)) {
                    // The node ends with this error and reports it.
                    debug!(%error, ?kind, "a socket cannot be opened");
                } else if matches!(kind, SocketKind::Connected(_)) && for_node.is_unroutable() {
                    // The node knows what it needs the socket for, and says what that means.
                    debug!(%error, ?kind, "there is no route");
                } else if let Some(left_out) = self.refused.due(clock::now()) {
                    warn!(%error, ?kind, left_out, "a socket cannot be opened");
                }
                Err(for_node)
            }
        };
        self.inputs.push(Input::SocketOpened { socket: id, result });
    }

    /// The first socket of a listener and its other ones.
    fn watch_listener(
        &mut self,
        id: SocketId,
        listener: Listener,
    ) -> io::Result<(UdpSocket, Vec<UdpSocket>)> {
        let (lanes, desk) = listener.into_parts()?;
        self.shared = desk.map(|desk| (id, desk));
        let watch = |socket| UdpSocket::watch(id, socket, None, self.socket_options);
        let mut lanes = lanes.into_iter().map(watch);
        let first = lanes.next().ok_or(io::ErrorKind::NotFound)??;
        Ok((first, lanes.collect::<io::Result<_>>()?))
    }
}

//! The chain of connections. It consists of the hops, the nearest proxy first, and of the
//! end-to-end connection inside the innermost tunnel, if the client itself opens that connection.

mod flow;
mod hop;
mod peer;

use std::{collections::VecDeque, net::SocketAddr, time::Instant};

use bytes::BytesMut;
use tandem_wire::{Code, TunnelInfo};

pub(super) use self::{
    flow::{Carries, Flow, FlowEnd, Request, grants},
    hop::Hop,
    peer::{INSIDE_TUNNEL, Peer, PeerSettings},
};
use crate::{
    impossible::impossible,
    limits::Limits,
    node::{Output, SocketId, Transmit},
    quic::{Ledger, Place, StreamId, earliest},
    service::HostPort,
    stats::{ConnectionStats, Overhead, Stats},
};

/// The connections of a client, each inside the one before it.
pub(in crate::client) struct Chain {
    /// What the qlogs of its connections have in common.
    id: u64,
    /// When the client was first polled.
    pub(in crate::client) began: Option<Instant>,
    pub(in crate::client) hops: Vec<Hop>,
    /// The end-to-end connection of a transfer.
    pub(in crate::client) origin: Option<Box<Peer>>,
    /// The address of the first peer, once it is known.
    pub(in crate::client) outer: Option<SocketAddr>,
    pub(in crate::client) outer_socket: SocketId,
    /// The local address of that socket.
    pub(in crate::client) outer_local: Option<SocketAddr>,
    /// Connections that the client gives up, until their last packets have left.
    leaving: Vec<(Peer, SocketId)>,
    /// Payloads of flows that came beside the connections of their hops.
    pub(in crate::client) arrived: VecDeque<BesideArrival>,
    /// The account of the bytes of all connections, if the client sees what they contain.
    ledger: Option<Ledger>,
    /// The newest report on this client's end of the last tunnel.
    own_report: Option<TunnelInfo>,
}

/// A payload of a flow that came beside the connection of its hop.
pub(in crate::client) struct BesideArrival {
    /// The index of the hop.
    pub(in crate::client) hop: usize,
    pub(in crate::client) stream: StreamId,
    pub(in crate::client) payload: BytesMut,
}

/// The way in which the packets of a connection leave.
enum Egress {
    /// Through a UDP socket.
    Socket(SocketId),
    /// As payloads of a flow of the hop around it. `None` while there is no such flow.
    Tunnel { hop: usize, flow: Option<StreamId> },
}

impl Chain {
    pub(in crate::client) fn new(
        id: u64,
        hops: Vec<Hop>,
        origin: Option<Peer>,
        outer_socket: SocketId,
        ledger: Option<Ledger>,
    ) -> Self {
        Self {
            id,
            began: None,
            hops,
            origin: origin.map(Box::new),
            outer: None,
            outer_socket,
            outer_local: None,
            leaving: Vec::new(),
            arrived: VecDeque::new(),
            ledger,
            own_report: None,
        }
    }

    /// Host and port of all proxies of the first hop, or of the origin if there is no hop.
    pub(in crate::client) fn first_places(&self) -> Vec<HostPort> {
        if let Some(hop) = self.hops.first() {
            return hop.places();
        }
        let settings = self.origin.iter().map(|origin| &origin.settings);
        settings.map(PeerSettings::place).collect()
    }

    /// The settings for a connection to this proxy of the first hop, or to the origin.
    pub(in crate::client) fn first_settings(&self, proxy: usize) -> Option<PeerSettings> {
        match self.hops.first() {
            Some(hop) => hop.settings_of(proxy),
            None => Some(self.origin.as_ref()?.settings.clone()),
        }
    }

    /// Takes this connection as that to the first peer.
    pub(in crate::client) fn adopt(
        &mut self,
        proxy: usize,
        address: SocketAddr,
        peer: Peer,
        socket: (SocketId, Option<SocketAddr>),
    ) {
        self.outer = Some(address);
        (self.outer_socket, self.outer_local) = socket;
        match (self.hops.first_mut(), &mut self.origin) {
            (Some(hop), _) => {
                hop.choose(proxy);
                hop.peer = peer;
            }
            (None, Some(origin)) => **origin = peer,
            (None, None) => impossible("a chain has a connection"),
        }
    }

    /// Sets until when the first peer must be reached. `None`: each attempt has a time of its own.
    pub(in crate::client) fn set_first_deadline(&mut self, deadline: Option<Instant>) {
        match self.peer(0) {
            Some(peer) => peer.deadline = deadline,
            None => impossible("a chain has a connection"),
        }
    }

    /// The limits of a connection of the chain. A tunnel counts as lost after [`Limits::tunnel_idle`]. Its engine waits
    /// for twice as long, because a host may have no network for a while.
    pub(in crate::client) fn limits_of(&self, index: usize, limits: &Limits) -> Limits {
        let mut limits = limits.clone();
        if index < self.hops.len() {
            limits.connection_idle = limits.connection_idle.min(2 * limits.tunnel_idle);
        }
        limits
    }

    /// Where in the chain the connection with this index is, for its qlog.
    pub(in crate::client) fn place(&self, now: Instant, index: usize) -> Place {
        Place {
            chain: self.id,
            layer: index,
            is_end_to_end: self.is_origin(index),
            offset: now - self.began.unwrap_or(now),
        }
    }

    /// The hop inside which the connection with this index is.
    pub(in crate::client) fn around(&mut self, index: usize) -> Option<&mut Hop> {
        self.hops.get_mut(index.checked_sub(1)?)
    }

    /// Closes a connection that is not needed.
    pub(in crate::client) fn leave(&mut self, now: Instant, mut peer: Peer, socket: SocketId) {
        peer.close(now, Code::H3_NO_ERROR, "");
        self.leaving.push((peer, socket));
    }

    /// Closes the connection to the first proxy. Returns its authority.
    pub(in crate::client) fn leave_first(
        &mut self,
        now: Instant,
        limits: &Limits,
    ) -> Option<String> {
        let hop = self.hops.first_mut()?;
        let next = Peer::new(hop.peer.settings.clone(), limits);
        let peer = std::mem::replace(&mut hop.peer, next);
        let authority = peer.settings.authority.clone();
        self.outer = None;
        self.leave(now, peer, self.outer_socket);
        Some(authority)
    }

    /// Sends through a socket, and counts.
    pub(in crate::client) fn transmit_outer(&self, socket: SocketId, transmit: Transmit) -> Output {
        let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
        self.count_outer(transmit.size.div_ceil(segment), transmit.size);
        Output::Transmit { socket, transmit }
    }

    /// Counts UDP payloads that pass the outer socket.
    pub(in crate::client) fn count_outer(&self, datagrams: usize, bytes: usize) {
        if let Some(ledger) = &self.ledger {
            ledger.on_socket(datagrams, bytes);
        }
    }

    /// The bytes of the chain. `None`: the client does not see what its connections contain.
    pub(in crate::client) fn overhead(&mut self) -> Option<Overhead> {
        let end_to_end_bytes = self.origin.as_mut()?.wire_bytes().get();
        Some(Overhead { end_to_end_bytes, ..self.ledger.as_ref()?.totals() })
    }

    /// The number of connections.
    pub(in crate::client) fn len(&self) -> usize {
        self.hops.len() + usize::from(self.origin.is_some())
    }

    /// Whether this index is that of the connection to the origin.
    pub(in crate::client) fn is_origin(&self, index: usize) -> bool {
        index == self.hops.len()
    }

    pub(in crate::client) fn peer(&mut self, index: usize) -> Option<&mut Peer> {
        let hops = self.hops.len();
        match self.hops.get_mut(index) {
            Some(hop) => Some(&mut hop.peer),
            None => self.origin.as_deref_mut().filter(|_| index == hops),
        }
    }

    /// All connections, the outermost first.
    pub(in crate::client) fn peers(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.hops.iter_mut().map(|hop| &mut hop.peer).chain(self.origin.as_deref_mut())
    }

    pub(in crate::client) fn connections(&mut self) -> impl Iterator<Item = ConnectionStats> {
        self.peers().map(Peer::stats)
    }

    /// The way in which the packets of a connection leave.
    fn egress(&self, index: usize) -> Egress {
        match index.checked_sub(1) {
            None => Egress::Socket(self.outer_socket),
            Some(hop) => Egress::Tunnel { hop, flow: self.hops.get(hop).and_then(|hop| hop.next) },
        }
    }

    /// Moves packets outwards, from the innermost connection to the socket.
    pub(in crate::client) fn transmit(
        &mut self,
        now: Instant,
        buf: &mut Vec<u8>,
        stats: &mut Stats,
    ) -> Option<Output> {
        for index in (0..self.len()).rev() {
            let mut gone = Vec::new();
            if let Some(hop) = self.hops.get_mut(index) {
                hop.feed(now);
                gone = hop.beside.take_gone();
                self.own_report = hop.tunnel.take_own_report().or(self.own_report);
            }
            if let Some(outer) = self.around(index) {
                outer.close_inner(gone);
            }
            let egress = self.egress(index);
            if let Some(output) = self.transmit_beside(now, index, buf, stats) {
                return Some(output);
            }
            loop {
                buf.clear();
                let Some(peer) = self.peer(index) else {
                    impossible::<()>("each connection has its place in the chain");
                    break;
                };
                let Some(transmit) = peer.poll_transmit(now, buf) else { break }; // it has sent all
                match egress {
                    Egress::Socket(socket) => {
                        return Some(self.transmit_outer(socket, transmit));
                    }
                    Egress::Tunnel { hop, flow } => {
                        let hop = flow.and_then(|flow| Some((self.hops.get_mut(hop)?, flow)));
                        let Some((hop, flow)) = hop else { continue }; // the tunnel around it is being rebuilt
                        let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
                        for payload in buf.chunks(segment) {
                            let is_sent = hop.send(now, flow, payload).is_ok();
                            stats.count_to_target(is_sent, payload.len());
                        }
                    }
                }
            }
        }
        self.transmit_leaving(now, buf)
    }

    /// Sends what the connections that are given up have to say, and closes their sockets.
    fn transmit_leaving(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let (peer, socket) = self.leaving.last_mut()?;
        buf.clear();
        let (transmit, socket) = (peer.poll_transmit(now, buf), *socket);
        let Some(transmit) = transmit else {
            self.leaving.pop();
            return Some(Output::CloseSocket(socket));
        };
        Some(self.transmit_outer(socket, transmit))
    }

    /// Moves the packets outwards that travel beside the connection of a hop.
    fn transmit_beside(
        &mut self,
        now: Instant,
        index: usize,
        buf: &mut Vec<u8>,
        stats: &mut Stats,
    ) -> Option<Output> {
        loop {
            buf.clear();
            let batch = self.hops.get_mut(index)?.beside.poll(buf)?;
            match (self.egress(index), self.outer) {
                (Egress::Socket(socket), Some(outer)) => {
                    let transmit = batch.transmit(outer);
                    self.count_outer(batch.count(), transmit.size);
                    return Some(Output::Transmit { socket, transmit });
                }
                (Egress::Tunnel { hop, flow: Some(flow) }, _) => {
                    let Some(hop) = self.hops.get_mut(hop) else {
                        impossible::<()>("a tunnel is of a hop");
                        continue;
                    };
                    for payload in buf.chunks(batch.segment.max(1)) {
                        let is_sent = hop.send(now, flow, payload).is_ok();
                        stats.count_to_target(is_sent, payload.len());
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes the newest report on this client's end of the last tunnel.
    pub(in crate::client) fn take_own_report(&mut self) -> Option<TunnelInfo> {
        self.own_report.take()
    }

    /// Stops to count the silence of peers as a failure, because nothing can arrive.
    pub(in crate::client) fn pause(&mut self) {
        self.hops.iter_mut().for_each(|hop| hop.peer.pause());
    }

    /// Lets all connections send at once, because the first peer can be reached again or over another path.
    pub(in crate::client) fn resume(&mut self, now: Instant) {
        for (index, peer) in self.peers().enumerate() {
            peer.resume(now, index == 0);
        }
    }

    pub(in crate::client) fn next_timeout(&mut self) -> Option<Instant> {
        let tunnels =
            self.hops.iter_mut().fold(None, |next, hop| earliest(next, hop.next_timeout()));
        self.peers().fold(tunnels, |next, peer| earliest(next, peer.next_timeout()))
    }

    /// Adds the counters of connections and tunnels.
    pub(in crate::client) fn add_to(&mut self, stats: &mut Stats) {
        for peer in self.peers() {
            let now = peer.stats();
            stats.connections += u64::from(peer.is_connected());
            stats.sent_packets += now.sent_packets;
            stats.lost_packets += now.lost_packets;
        }
        for hop in &self.hops {
            hop.add_to(stats);
        }
    }
}

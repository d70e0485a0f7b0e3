//! TCP connections as ideal pipes: every byte arrives after the propagation delay of the route, and
//! a bounded number of bytes is on its way and in buffers. ADR 31 has the reasons.

mod end;

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use tandem_node::tcp::{ListenerId, TcpId};

pub(crate) use self::end::{Departure, End};
use crate::HostId;

/// The number of bytes in one direction of a connection that the peer has not read yet, unless
/// [`World::set_tcp_buffer`](crate::World::set_tcp_buffer) says otherwise.
const BUFFER: usize = 256_000;

/// The number of connections that wait for `accept`: the default of Linux. Further ones get no
/// answer.
pub(crate) const BACKLOG: usize = 4096;

/// The time after which a program that connects gives up: the default of Linux, which repeats a SYN
/// after 1, 3, 7, 15, 31 and 63 seconds.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(127);

/// Identifies one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndId(u64);

impl EndId {
    /// The other end of the connection.
    pub(crate) const fn peer(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// A TCP socket of a host that has a port of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TcpSocket {
    Listener(ListenerId),
    Connection(EndId),
}

/// What one end of a connection sends to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Syn {
        source: SocketAddr,
        destination: SocketAddr,
    },
    SynAck,
    Data(Bytes),
    /// The reader has read this many bytes.
    Credit(usize),
    Fin,
    Rst,
}

impl Segment {
    /// A number that identifies the kind.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Syn { .. } => 0,
            Self::SynAck => 1,
            Self::Data(_) => 2,
            Self::Credit(_) => 3,
            Self::Fin => 4,
            Self::Rst => 5,
        }
    }
}

/// A segment on its way.
#[derive(Debug)]
pub(crate) struct Flight {
    /// The sending and the receiving host.
    pub(crate) between: (HostId, HostId),
    pub(crate) to: EndId,
    pub(crate) segment: Segment,
}

/// A listening socket.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    /// Connections that wait for `accept`.
    pub(crate) backlog: VecDeque<EndId>,
    /// The name that the process gave to the next connection.
    pub(crate) wanted: Option<TcpId>,
}

/// All TCP connections of a world.
#[derive(Debug)]
pub(crate) struct Tcp {
    pub(crate) ends: BTreeMap<EndId, End>,
    /// The ends that processes use, by their names.
    pub(crate) names: BTreeMap<(HostId, TcpId), EndId>,
    pub(crate) listeners: BTreeMap<(HostId, ListenerId), Listener>,
    /// The number of connections so far.
    count: u64,
    /// The number of bytes in one direction of a connection that the peer has not read yet.
    pub(crate) buffer: usize,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            ends: BTreeMap::new(),
            names: BTreeMap::new(),
            listeners: BTreeMap::new(),
            count: 0,
            buffer: BUFFER,
        }
    }
}

impl Tcp {
    /// The name of the connecting end of a new connection.
    pub(crate) const fn next_end(&mut self) -> EndId {
        let id = EndId(self.count * 2);
        self.count += 1;
        id
    }

    pub(crate) fn named(&mut self, host: HostId, tcp: TcpId) -> Option<(EndId, &mut End)> {
        let id = *self.names.get(&(host, tcp))?;
        Some((id, self.ends.get_mut(&id)?))
    }

    /// Gives an end the name that its process uses.
    ///
    /// # Panics
    /// It panics if the process uses the name for another connection.
    pub(crate) fn name(&mut self, host: HostId, tcp: TcpId, id: EndId) {
        let earlier = self.names.insert((host, tcp), id);
        assert!(earlier.is_none(), "{host:?} uses the name {tcp:?} twice");
    }

    /// The ends of a host's connections.
    pub(crate) fn of_host(&self, host: HostId) -> Vec<EndId> {
        let ends = self.ends.iter().filter(|(_, end)| end.host() == host);
        ends.map(|(id, _)| *id).collect()
    }
}

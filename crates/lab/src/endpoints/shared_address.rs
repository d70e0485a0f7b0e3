//! Several nodes at one address, and packets that reach the wrong one.

use std::{ops::Range, time::Instant};

use bytes::BytesMut;
use tandem_node::{
    Event, Input, Node, Output,
    node::{FileId, QueryId, Received, SocketId, SocketKind},
    password::CheckId,
};

/// The socket at the address that all nodes have.
const SHARED: SocketId = SocketId(u64::MAX);

/// Nodes of a server that share one address: threads, processes or machines behind a load balancer.
///
/// Each received packet with a short header goes to its owner and to all other nodes. In reality the kernel or a load
/// balancer gives a few to another node. The nodes carry UDP only.
pub struct SharedAddress<N> {
    nodes: Vec<Member<N>>,
    owner: Owner,
    /// The nodes that get new connections.
    new: Range<usize>,
    /// The nodes that get packets at all.
    there: Range<usize>,
    strays: u64,
    is_listening: bool,
}

/// The index of the node that a packet's connection ID names. `None`: the client has chosen the ID.
pub type Owner = Box<dyn Fn(&[u8]) -> Option<usize> + Send>;

struct Member<N> {
    node: N,
    /// Its name for the socket at the address.
    listening: Option<SocketId>,
    is_over: bool,
}

impl<N: Node> SharedAddress<N> {
    /// Nodes with the same settings, apart from what says which one each is. Those in the range `new` get new
    /// connections.
    pub fn new(nodes: impl IntoIterator<Item = N>, owner: Owner, new: Range<usize>) -> Self {
        let member = |node| Member { node, listening: None, is_over: false };
        let nodes: Vec<_> = nodes.into_iter().map(member).collect();
        Self { there: 0..nodes.len(), nodes, owner, new, strays: 0, is_listening: false }
    }

    /// Only these nodes get packets from now on, those of nodes that are not there too. `new`: those of them that get
    /// new connections. A process begins to take over an address, or has ended.
    pub fn set_members(&mut self, there: Range<usize>, new: Range<usize>) {
        (self.there, self.new) = (there, new);
    }

    /// How many packets have reached a node that is not their owner.
    pub const fn strays(&self) -> u64 {
        self.strays
    }

    /// The nodes, whose statistics need a mutable reference.
    pub fn nodes_mut(&mut self) -> impl Iterator<Item = &mut N> {
        self.nodes.iter_mut().map(|it| &mut it.node)
    }

    fn receive(&mut self, now: Instant, received: &Received) {
        let by_address = || {
            let new = self.new.len().max(1);
            self.new.start + usize::from(received.remote.port()) % new
        };
        let owner = (self.owner)(&received.payload).unwrap_or_else(by_address);
        // First packets of connections would begin one at each node.
        let is_long = received.payload.first().is_some_and(|first| first & 0x80 != 0);
        for (index, member) in self.nodes.iter_mut().enumerate() {
            let is_stray = index != owner;
            let Some(socket) = member.listening else { continue };
            if is_stray && is_long || !self.there.contains(&index) {
                continue;
            }
            self.strays += u64::from(is_stray);
            let payload = BytesMut::from(&*received.payload);
            let &Received { remote, local_ip, ecn, .. } = received;
            let received = Received { socket, remote, local_ip, ecn, payload };
            member.node.handle(now, Input::Datagram(received));
        }
    }

    /// The node that has given something this name, and its own name for it.
    fn of(&self, name: u64) -> (usize, u64) {
        let nodes = self.nodes.len() as u64;
        (usize::try_from(name % nodes).unwrap_or_default(), name / nodes)
    }

    fn to_one(&mut self, now: Instant, name: u64, input: impl FnOnce(u64) -> Input) {
        let (index, own) = self.of(name);
        if let Some(member) = self.nodes.get_mut(index) {
            member.node.handle(now, input(own));
        }
    }

    /// An output of a node with other names. `None`: it is none of the whole.
    fn outward(&mut self, index: usize, output: Output) -> Option<Output> {
        let nodes = self.nodes.len() as u64;
        let outer = |name: u64| name * nodes + index as u64;
        let member = self.nodes.get_mut(index)?;
        let socket = |socket: SocketId| match member.listening {
            Some(listening) if listening == socket => SHARED,
            _ => SocketId(outer(socket.0)),
        };
        Some(match output {
            Output::OpenSocket { socket, kind: kind @ SocketKind::Listen(_) } => {
                member.listening = Some(socket);
                if std::mem::replace(&mut self.is_listening, true) {
                    return None;
                }
                Output::OpenSocket { socket: SHARED, kind }
            }
            Output::Transmit { socket: from, transmit } => {
                Output::Transmit { socket: socket(from), transmit }
            }
            Output::OpenSocket { socket: new, kind } => {
                Output::OpenSocket { socket: socket(new), kind }
            }
            Output::CloseSocket(old) => {
                member.is_over |= member.listening == Some(old);
                let closed = socket(old);
                if closed == SHARED && !self.nodes.iter().all(|it| it.is_over) {
                    return None;
                }
                Output::CloseSocket(closed)
            }
            Output::Resolve { query, host } => {
                Output::Resolve { query: QueryId(outer(query.0)), host }
            }
            Output::OpenFile { file, path } => {
                Output::OpenFile { file: FileId(outer(file.0)), path }
            }
            Output::ReadFile { file, offset, len } => {
                Output::ReadFile { file: FileId(outer(file.0)), offset, len }
            }
            Output::CloseFile(file) => Output::CloseFile(FileId(outer(file.0))),
            Output::CheckPassword { check, password } => {
                Output::CheckPassword { check: CheckId(outer(check.0)), password }
            }
            Output::Event(Event::Closed(result)) => {
                member.is_over = true;
                if !self.nodes.iter().all(|it| it.is_over) {
                    return None;
                }
                Output::Event(Event::Closed(result))
            }
            Output::Event(event) if index == 0 => Output::Event(event),
            Output::Event(_) | Output::PacketTooBig { .. } => return None,
            Output::ResolveService { .. }
            | Output::Upstream(_)
            | Output::Tcp(_)
            | Output::BodyChunk { .. }
            | Output::WatchNetwork
            | Output::Wait(_) => panic!("servers of UDP have no such output"),
        })
    }
}

impl<N: Node> Node for SharedAddress<N> {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Datagram(received) if received.socket == SHARED => self.receive(now, &received),
            Input::Datagram(received) => {
                let name = received.socket.0;
                let with = |own| Received { socket: SocketId(own), ..received };
                self.to_one(now, name, |own| Input::Datagram(with(own)));
            }
            Input::SocketOpened { socket: SHARED, result } => {
                for member in &mut self.nodes {
                    if let Some(socket) = member.listening {
                        member.node.handle(now, Input::SocketOpened { socket, result });
                    }
                }
            }
            Input::SocketOpened { socket, result } => {
                let input = |own| Input::SocketOpened { socket: SocketId(own), result };
                self.to_one(now, socket.0, input);
            }
            Input::SocketFailed { socket, error } => {
                let input = |own| Input::SocketFailed { socket: SocketId(own), error };
                self.to_one(now, socket.0, input);
            }
            Input::PasswordChecked { check, is_right } => {
                let input = |own| Input::PasswordChecked { check: CheckId(own), is_right };
                self.to_one(now, check.0, input);
            }
            Input::Resolved { query, result, progress } => {
                let resolved = |own| Input::Resolved { query: QueryId(own), result, progress };
                self.to_one(now, query.0, resolved);
            }
            Input::FileOpened { file, result } => {
                self.to_one(now, file.0, |own| Input::FileOpened { file: FileId(own), result });
            }
            Input::FileChunk { file, result } => {
                self.to_one(now, file.0, |own| Input::FileChunk { file: FileId(own), result });
            }
            Input::Timeout => {
                self.nodes.iter_mut().for_each(|it| it.node.handle(now, Input::Timeout));
            }
            Input::Shutdown => {
                self.nodes.iter_mut().for_each(|it| it.node.handle(now, Input::Shutdown));
            }
            Input::MemoryInUse(bytes) => {
                let each = |it: &mut Member<N>| it.node.handle(now, Input::MemoryInUse(bytes));
                self.nodes.iter_mut().for_each(each);
            }
            Input::Load(load) => {
                self.nodes.iter_mut().for_each(|it| it.node.handle(now, Input::Load(load)));
            }
            Input::ServiceResolved { .. }
            | Input::Tcp(_)
            | Input::Upstream(_)
            | Input::BodyCredit { .. }
            | Input::NetworkChanged
            | Input::TunnelInfo(_) => panic!("servers of UDP have no such input"),
        }
    }

    fn poll(&mut self, now: Instant, buf: &mut Vec<u8>) -> Output {
        let mut first: Option<Instant> = None;
        for index in 0..self.nodes.len() {
            while let Some(member) = self.nodes.get_mut(index) {
                match member.node.poll(now, buf) {
                    Output::Wait(deadline) => {
                        first = [first, deadline].into_iter().flatten().min();
                        break;
                    }
                    output => {
                        if let Some(output) = self.outward(index, output) {
                            return output;
                        }
                    }
                }
            }
        }
        Output::Wait(first)
    }
}

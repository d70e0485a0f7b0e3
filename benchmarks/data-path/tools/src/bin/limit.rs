//! What a tunnel costs at least: encrypted packets with numbers in UDP, and no QUIC.
//!
//! ```text
//! limit [--pause MICROSECONDS] relay LISTEN TARGET ...
//! limit [--pause MICROSECONDS] client RELAY CONNECTIONS LISTEN=TARGET ...
//! ```
//!
//! It is a bound and no product: both ends know a fixed key, and nothing is negotiated, repeated, paced or limited. But
//! each packet has what one of QUIC has: a connection ID, a number, AES-128-GCM, the protection of the header, and a
//! flow ID. An end that has received 16 packets acknowledges them with one packet, which says how many came. There are
//! no ranges and no timers, and the sender does nothing with an acknowledgement. Sockets receive with recvmmsg and GRO,
//! send with GSO, and those towards targets are connected.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
};

use anyhow::{Context, Result, bail};
use data_path_bench::{
    kernel::Poll,
    pause::{self, Side},
    tunnel::{TARGETS, any_port, any_port_of_client, socket},
};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey, quic};

/// A byte with bits, and a connection ID.
const HEAD: usize = 9;
const NUMBER: usize = 4;
/// Where what is encrypted begins.
const BODY: usize = HEAD + NUMBER;
/// The kind of a frame, and a flow ID.
const FRAME: usize = 3;
const TAG: usize = 16;
/// What fits Ethernet, as in QUIC after it has found the size of the path.
const PAYLOAD_MAX: usize = 1472 - BODY - FRAME - TAG;
const DATA: u8 = 0x30;
const ACK: u8 = 0x02;
/// Bytes and datagrams of one call to send.
const BYTES_MAX: usize = 65_000;
const SEGMENTS_MAX: usize = 64;
const RECEIVE_BUFFER: usize = 65_536;
/// The number of packets that one acknowledgement is for.
const ACK_EVERY: u32 = 16;
/// The entry of a flow ID that no flow has.
const NO_FLOW: usize = usize::MAX;

fn main() -> Result<()> {
    let arguments = pause::arguments()?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["relay", listen, targets @ ..] => relay(listen.parse()?, targets)?.run(),
        ["client", relay, connections, listen @ ..] => {
            client(relay.parse()?, connections.parse()?, listen)?.run()
        }
        _ => bail!("relay or client?"),
    }
}

fn relay(listen: SocketAddr, targets: &[&str]) -> Result<Node> {
    let mut node = Node::new(Role::Relay)?;
    node.targets = targets.iter().map(|it| it.parse()).collect::<Result<_, _>>()?;
    let tunnel = node.add(listen, None, Side::Tunnel)?;
    eprintln!("listening on {}", node.sockets[tunnel].io.local_addr()?);
    Ok(node)
}

fn client(relay: SocketAddr, connections: usize, listen: &[&str]) -> Result<Node> {
    let mut node = Node::new(Role::Client)?;
    for words in listen {
        // The relay knows the target by its place.
        let (listen, _) = words.split_once('=').context("no target")?;
        let local = node.add(listen.parse()?, None, Side::Plain)?;
        eprintln!("listening on {}", node.sockets[local].io.local_addr()?);
    }
    for _ in 0..connections {
        let tunnel = node.add(any_port_of_client(), Some(relay), Side::Tunnel)?;
        node.add_peer(tunnel, relay);
    }
    Ok(node)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Relay,
}

struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    side: Side,
}

/// The other end of a connection.
struct Peer {
    seal: Key,
    open: Key,
    next: u32,
    /// The largest number that has come, how many have come, and what the other end has said about that.
    largest: u32,
    count: u32,
    acknowledged: (u32, u32),
    /// How many have come that are not acknowledged.
    owes: u32,
    is_due: bool,
    /// By flow ID.
    flows: Vec<usize>,
    out: Batch,
}

/// A program or target, which sends from one address.
struct Flow {
    peer: usize,
    id: u16,
    out: Batch,
}

/// Both ends: what comes from a flow goes to its peer, and the other way round.
struct Node {
    role: Role,
    poll: Poll,
    sockets: Vec<Socket>,
    targets: Vec<SocketAddr>,
    peers: Vec<Peer>,
    flows: Vec<Flow>,
    /// Peers or flows, by the socket and the address from which their packets come.
    known: BTreeMap<(usize, SocketAddr), usize>,
    /// What has to be sent before the next wait.
    peers_due: Vec<usize>,
    flows_due: Vec<usize>,
}

impl Node {
    fn new(role: Role) -> io::Result<Self> {
        Ok(Self {
            role,
            poll: Poll::new()?,
            sockets: Vec::new(),
            targets: Vec::new(),
            peers: Vec::new(),
            flows: Vec::new(),
            known: BTreeMap::new(),
            peers_due: Vec::new(),
            flows_due: Vec::new(),
        })
    }

    fn add(&mut self, listen: SocketAddr, to: Option<SocketAddr>, side: Side) -> Result<usize> {
        let io: UdpSocket = socket(listen)?.into();
        if let Some(to) = to {
            io.connect(to)?;
        }
        let state = UdpSocketState::new(UdpSockRef::from(&io))?;
        self.poll.add(&io, self.sockets.len())?;
        self.sockets.push(Socket { io, state, side });
        Ok(self.sockets.len() - 1)
    }

    fn add_peer(&mut self, socket: usize, address: SocketAddr) -> usize {
        let (own, other) = match self.role {
            Role::Client => (1, 2),
            Role::Relay => (2, 1),
        };
        self.peers.push(Peer {
            seal: Key::new(own),
            open: Key::new(other),
            next: 0,
            largest: 0,
            count: 0,
            acknowledged: (0, 0),
            owes: 0,
            is_due: false,
            flows: Vec::new(),
            out: Batch::new(socket, address),
        });
        self.known.insert((socket, address), self.peers.len() - 1);
        self.peers.len() - 1
    }

    fn add_flow(&mut self, socket: usize, address: SocketAddr, peer: usize, id: u16) -> usize {
        let flows = &mut self.peers[peer].flows;
        flows.resize(flows.len().max(usize::from(id) + 1), NO_FLOW);
        flows[usize::from(id)] = self.flows.len();
        self.flows.push(Flow { peer, id, out: Batch::new(socket, address) });
        self.known.insert((socket, address), self.flows.len() - 1);
        self.flows.len() - 1
    }

    fn run(mut self) -> Result<()> {
        let mut memory = vec![0; BATCH_SIZE * RECEIVE_BUFFER];
        loop {
            pause::before_wait();
            let ready = self.poll.wait();
            for socket in ready {
                self.receive(socket, &mut memory)?;
            }
            for flow in self.flows_due.drain(..) {
                self.flows[flow].out.send(&self.sockets);
            }
            for peer in self.peers_due.drain(..) {
                let peer = &mut self.peers[peer];
                peer.is_due = false;
                if peer.owes >= ACK_EVERY {
                    peer.owes = 0;
                    let words = [peer.largest.to_be_bytes(), peer.count.to_be_bytes()].concat();
                    peer.seal(ACK, 0, &words, &self.sockets);
                }
                peer.out.send(&self.sockets);
            }
        }
    }

    /// Takes what one call receives.
    fn receive(&mut self, socket: usize, memory: &mut [u8]) -> Result<()> {
        let Socket { io, state, side } = &self.sockets[socket];
        let side = *side;
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let received = {
            let mut pieces = memory.chunks_mut(RECEIVE_BUFFER).map(IoSliceMut::new);
            let mut pieces: [_; BATCH_SIZE] =
                std::array::from_fn(|_| pieces.next().expect("there are as many"));
            // An error reports that an earlier packet was refused at its destination.
            state.recv(UdpSockRef::from(io), &mut pieces, &mut metas).unwrap_or(0)
        };
        for (meta, bytes) in metas.iter().take(received).zip(memory.chunks_mut(RECEIVE_BUFFER)) {
            let packets = bytes[..meta.len].chunks_mut(meta.stride.max(1));
            pause::came(side, packets.len());
            match side {
                Side::Tunnel => self.from_peer(socket, meta.addr, packets)?,
                Side::Plain => self.from_flow(socket, meta.addr, packets),
            }
        }
        Ok(())
    }

    fn from_peer<'a>(
        &mut self,
        socket: usize,
        from: SocketAddr,
        packets: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<()> {
        let peer = match self.known.get(&(socket, from)) {
            Some(&peer) => peer,
            None => self.add_peer(socket, from),
        };
        for packet in packets {
            let Some((id, payload)) = self.peers[peer].open(packet) else { continue };
            self.due(peer);
            let known = self.peers[peer].flows.get(usize::from(id)).copied().unwrap_or(NO_FLOW);
            let flow = match known {
                NO_FLOW => {
                    let target = self.targets.get(usize::from(id) % TARGETS as usize).copied();
                    let Some(target) = target else { continue };
                    let socket = self.add(any_port(), Some(target), Side::Plain)?;
                    self.add_flow(socket, target, peer, id)
                }
                flow => flow,
            };
            let out = &mut self.flows[flow].out;
            if out.bytes.is_empty() {
                self.flows_due.push(flow);
            }
            out.begin(payload.len(), &self.sockets).extend_from_slice(payload);
        }
        Ok(())
    }

    fn from_flow<'a>(
        &mut self,
        socket: usize,
        from: SocketAddr,
        packets: impl Iterator<Item = &'a mut [u8]>,
    ) {
        let flow = match self.known.entry((socket, from)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(_) => {
                // Connections get flows in turn.
                let peer = self.flows.len() % self.peers.len();
                let targets = TARGETS as usize;
                let id = self.peers[peer].flows.len().next_multiple_of(targets) + socket;
                self.add_flow(socket, from, peer, id as u16)
            }
        };
        let Flow { peer, id, .. } = self.flows[flow];
        self.due(peer);
        for payload in packets.filter(|it| it.len() <= PAYLOAD_MAX) {
            self.peers[peer].seal(DATA, id, payload, &self.sockets);
        }
    }

    /// Has a peer get, before the next wait, what there is for it.
    fn due(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.peers[peer].is_due, true) {
            self.peers_due.push(peer);
        }
    }
}

impl Peer {
    /// Adds a packet to what is sent next.
    fn seal(&mut self, kind: u8, flow: u16, content: &[u8], sockets: &[Socket]) {
        let out = self.out.begin(BODY + FRAME + content.len() + TAG, sockets);
        let start = out.len();
        out.push(0x43); // a short header whose number has four bytes
        out.extend_from_slice(&[7; HEAD - 1]);
        out.extend_from_slice(&self.next.to_be_bytes());
        out.push(kind);
        out.extend_from_slice(&flow.to_be_bytes());
        out.extend_from_slice(content);
        let (head, body) = out[start..].split_at_mut(BODY);
        let nonce = nonce(self.next);
        let tag = self.seal.packet.seal_in_place_separate_tag(nonce, Aad::from(head), body);
        out.extend_from_slice(tag.expect("packets are short").as_ref());
        self.seal.mask(&mut out[start..]);
        self.next += 1;
    }

    /// Returns a flow and a payload.
    fn open<'a>(&mut self, packet: &'a mut [u8]) -> Option<(u16, &'a [u8])> {
        if packet.len() < BODY + FRAME + TAG {
            return None;
        }
        self.open.mask(packet);
        let (head, body) = packet.split_at_mut(BODY);
        let number = u32::from_be_bytes(head[HEAD..].try_into().ok()?);
        let (body, tag) = body.split_at_mut(body.len() - TAG);
        let tag = Tag::try_from(&*tag).ok()?;
        let key = &self.open.packet;
        let body =
            key.open_in_place_separate_tag(nonce(number), Aad::from(head), tag, body, 0..).ok()?;
        let (frame, payload) = body.split_at(FRAME);
        if frame[0] == ACK {
            let word = |at| Some(u32::from_be_bytes(payload.get(at..at + 4)?.try_into().ok()?));
            self.acknowledged = (word(0)?, word(4)?);
            return None;
        }
        self.largest = self.largest.max(number);
        self.count += 1;
        self.owes += 1;
        Some((u16::from_be_bytes([frame[1], frame[2]]), payload))
    }
}

struct Key {
    packet: LessSafeKey,
    header: quic::HeaderProtectionKey,
}

impl Key {
    fn new(byte: u8) -> Self {
        let packet = UnboundKey::new(&AES_128_GCM, &[byte; 16]).expect("it has this length");
        let header = quic::HeaderProtectionKey::new(&quic::AES_128, &[byte | 0x80; 16]);
        Self { packet: LessSafeKey::new(packet), header: header.expect("it has this length") }
    }

    /// Protects a header, or takes the protection away (RFC 9001 §5.4.1).
    fn mask(&self, packet: &mut [u8]) {
        let mask = self.header.new_mask(&packet[BODY..BODY + 16]).expect("it has this length");
        packet[0] ^= mask[0] & 0x1f;
        packet[HEAD..BODY].iter_mut().zip(&mask[1..]).for_each(|(byte, mask)| *byte ^= mask);
    }
}

fn nonce(number: u32) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - NUMBER..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Datagrams of one size to one address. The last one may be smaller.
struct Batch {
    socket: usize,
    to: SocketAddr,
    bytes: Vec<u8>,
    segment: usize,
}

impl Batch {
    fn new(socket: usize, to: SocketAddr) -> Self {
        Self { socket, to, bytes: Vec::new(), segment: 0 }
    }

    /// Returns where a datagram of this length is to be appended.
    fn begin(&mut self, length: usize, sockets: &[Socket]) -> &mut Vec<u8> {
        let full = self.bytes.len() + length > BYTES_MAX.min(self.segment * SEGMENTS_MAX);
        let ended = !self.bytes.len().is_multiple_of(self.segment.max(1));
        if full || ended || length > self.segment {
            self.send(sockets);
            self.segment = length.max(1);
        }
        &mut self.bytes
    }

    fn send(&mut self, sockets: &[Socket]) {
        if !self.bytes.is_empty() {
            let Socket { io, state, .. } = &sockets[self.socket];
            let segment_size = (self.bytes.len() > self.segment).then_some(self.segment);
            let contents = self.bytes.as_slice();
            let transmit =
                Transmit { destination: self.to, ecn: None, contents, segment_size, src_ip: None };
            // What the kernel refuses is lost.
            let _ = state.try_send(UdpSockRef::from(io), &transmit);
            self.bytes.clear();
        }
    }
}

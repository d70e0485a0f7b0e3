//! The program of the kernel that chooses the socket of each packet.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::UdpSocket,
};

use tandem_node::quic::Turn;

use super::Others;

/// What the program depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    nodes: u32,
    /// The number of sockets of each node.
    lanes: u32,
    /// The number of the first node of this process, among those of both.
    first: u32,
    thread_at: u32,
    /// Random, so that clients cannot compute which node gets their first packet.
    pub(super) key: u32,
}

impl Filter {
    pub(super) fn new((nodes, lanes, turn): (u8, u8, Turn), thread_at: usize) -> Self {
        let [a, b, c, d, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
        Self {
            nodes: nodes.into(),
            lanes: lanes.into(),
            first: turn.first_slot(nodes).into(),
            thread_at: u32::try_from(thread_at).unwrap_or(u32::MAX / 2),
            key: u32::from_ne_bytes([a, b, c, d]) | 1,
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn attach(self, _: &UdpSocket, _: Others) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Replaces the program of all sockets at the address of this one.
    #[cfg(target_os = "linux")]
    pub(super) fn attach(self, socket: &UdpSocket, others: Others) -> io::Result<()> {
        use nix::sys::socket::{setsockopt, sockopt::AttachReusePortCbpf};

        let mut program = self.program(others);
        let len = program.len().try_into().map_err(io::Error::other)?;
        let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
        Ok(setsockopt(socket, AttachReusePortCbpf, &program)?)
    }

    /// The program. Its result is the number of a socket. A packet that ends before the byte that is asked for goes to
    /// the first socket: the kernel then ends the program with 0.
    #[cfg(target_os = "linux")]
    fn program(self, others: Others) -> Vec<libc::sock_filter> {
        [&self.hash()[..], &self.lane(), &self.node_and_end(others)].concat()
    }

    /// Computes [`code::HASH`] and [`code::PREFIX`].
    #[cfg(target_os = "linux")]
    fn hash(self) -> [libc::sock_filter; 21] {
        use code::{
            AND, BYTE, COPY_TO_X, HASH, IF_EQUAL, IP, JUMP, MULTIPLY, PREFIX, STORE, WORD, XOR_X,
            jump, step,
        };

        let key = self.key;
        [
            // The hash is one of source address and ports, which stay the same during a handshake. Where IPv6 has
            // further headers, a part of these takes the place of the ports.
            step(BYTE, IP),
            step(AND, 0xf0),
            jump(IF_EQUAL, 0x60, 5, 0),
            step(WORD, IP + 12),
            step(STORE, PREFIX),
            step(COPY_TO_X, 0),
            step(WORD, IP + 20),
            step(JUMP, 9),
            step(WORD, IP + 8),
            step(MULTIPLY, key),
            step(COPY_TO_X, 0),
            step(WORD, IP + 12),
            step(XOR_X, 0),
            step(STORE, PREFIX),
            step(WORD, IP + 20),
            step(COPY_TO_X, 0),
            step(WORD, IP + 40),
            step(MULTIPLY, key),
            step(XOR_X, 0),
            step(MULTIPLY, key),
            step(STORE, HASH),
        ]
    }

    /// Puts the lane in the place of the prefix.
    #[cfg(target_os = "linux")]
    fn lane(self) -> [libc::sock_filter; 19] {
        use code::{
            ADD_X, AND, COPY_TO_X, HASH, LANE, LOAD, MULTIPLY, PREFIX, REMAINDER, SHIFT_RIGHT,
            STORE, XOR_X, step,
        };

        let Self { lanes, key, .. } = self;
        [
            // The address alone (the /64 of IPv6) chooses two of the lane's three bits, so that packets from one
            // address fill at most two lanes. The port chooses the last bit, which separates clients that share an
            // address. One multiplication would leave neighbouring addresses in one place with some keys. The two
            // others are those of lowbias32 (https://nullprogram.com/blog/2018/07/31/).
            step(LOAD, PREFIX),
            step(MULTIPLY, key),
            step(COPY_TO_X, 0),
            step(SHIFT_RIGHT, 16),
            step(XOR_X, 0),
            step(MULTIPLY, 0x7feb_352d),
            step(COPY_TO_X, 0),
            step(SHIFT_RIGHT, 15),
            step(XOR_X, 0),
            step(MULTIPLY, 0x846c_a68b),
            step(SHIFT_RIGHT, 30),
            step(MULTIPLY, 2),
            step(COPY_TO_X, 0),
            step(LOAD, HASH),
            step(SHIFT_RIGHT, 24),
            step(AND, 1),
            step(ADD_X, 0),
            step(REMAINDER, lanes),
            step(STORE, LANE),
        ]
    }

    /// Chooses the node, and then its socket in the lane.
    #[cfg(target_os = "linux")]
    fn node_and_end(self, others: Others) -> [libc::sock_filter; 19] {
        use code::{
            ADD, ADD_X, AND, BYTE, COPY_TO_X, HASH, IF_EQUAL, IF_SET, JUMP, LANE, LOAD, MULTIPLY,
            REMAINDER, RETURN, SHIFT_RIGHT, jump, step,
        };

        let Self { nodes, lanes, first, thread_at, .. } = self;
        // The IDs of a process that has ended lead to the same place among the sockets of this one.
        let (slots, from) = match others {
            Others::Draining => (2 * nodes, 0),
            Others::None => (nodes, first),
        };
        [
            step(BYTE, 0),
            // RFC 8999 §5.1: the most significant bit of the first byte is set in a long header.
            jump(IF_SET, 0x80, 2, 0),
            // RFC 8999 §5.2: the Destination Connection ID follows the first byte of a short header.
            step(BYTE, 1 + thread_at),
            step(JUMP, 3),
            // RFC 9000 §17.2: the next bits but one are 2 in a Handshake packet, whose connection ID the server has
            // chosen.
            step(AND, 0x30),
            jump(IF_EQUAL, 0x20, 0, 4),
            // RFC 8999 §5.1: version and length come before the Destination Connection ID.
            step(BYTE, 6 + thread_at),
            step(REMAINDER, slots),
            step(ADD, from),
            step(JUMP, 4),
            // All others may have a connection ID that the client has chosen.
            step(LOAD, HASH),
            step(SHIFT_RIGHT, 16),
            step(REMAINDER, nodes),
            step(ADD, first),
            step(MULTIPLY, lanes),
            step(COPY_TO_X, 0),
            step(LOAD, LANE),
            step(ADD_X, 0),
            step(RETURN, 0),
        ]
    }
}

/// The instructions of classic BPF, and where the program keeps what.
#[cfg(target_os = "linux")]
#[expect(clippy::cast_possible_truncation, reason = "an opcode has 16 bits")]
mod code {
    pub(super) const BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    pub(super) const WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    pub(super) const LOAD: u16 = (libc::BPF_LD | libc::BPF_MEM) as u16;
    pub(super) const STORE: u16 = libc::BPF_ST as u16;
    pub(super) const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    pub(super) const IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    pub(super) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    pub(super) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    pub(super) const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16;
    pub(super) const ADD_X: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
    pub(super) const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
    pub(super) const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
    pub(super) const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    pub(super) const XOR_X: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
    pub(super) const COPY_TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
    pub(super) const RETURN: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

    /// Offsets from here on are those from the start of the IP header.
    pub(super) const IP: u32 = libc::SKF_NET_OFF.cast_unsigned();

    /// The word of scratch memory with the prefix of the source address, which makes way for the lane.
    pub(super) const PREFIX: u32 = 0;
    pub(super) const LANE: u32 = 0;
    /// The word of scratch memory with the hash of source address and ports.
    pub(super) const HASH: u32 = 1;

    pub(super) const fn step(code: u16, k: u32) -> libc::sock_filter {
        jump(code, k, 0, 0)
    }

    /// `jt` and `jf` are numbers of instructions to leave out if the condition holds, and if it does not.
    pub(super) const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code, jt, jf, k }
    }
}

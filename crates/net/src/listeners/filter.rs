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
    /// The number of the first socket of this process.
    first: u32,
    thread_at: u32,
    /// Random, so that clients cannot compute which node gets their first packet.
    key: u32,
}

impl Filter {
    pub(super) fn new(nodes: u8, turn: Turn, thread_at: usize) -> Self {
        let [a, b, c, d, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
        Self {
            nodes: nodes.into(),
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

    /// The program. Its result is the number of a socket. A packet that ends before the byte that is asked for goes to the
    /// first socket: the kernel then ends the program with 0.
    #[cfg(target_os = "linux")]
    #[expect(clippy::cast_possible_truncation, reason = "an opcode has 16 bits")]
    fn program(self, others: Others) -> [libc::sock_filter; 27] {
        const BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
        const WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
        const IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
        const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
        const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16;
        const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
        const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
        const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
        const XOR_X: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
        const COPY_TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
        // Offsets from here on are those from the start of the IP header.
        const IP: u32 = libc::SKF_NET_OFF.cast_unsigned();

        let Self { nodes, first, thread_at, key } = self;
        // The IDs of a process that has ended lead to the same place among the sockets of this one.
        let (slots, from) = match others {
            Others::Draining => (2 * nodes, 0),
            Others::None => (nodes, first),
        };
        let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
        let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
        [
            step(BYTE, 0),
            // RFC 8999 §5.1: the most significant bit of the first byte is set in a long header.
            jump(IF_SET, 0x80, 2, 0),
            // RFC 8999 §5.2: the Destination Connection ID follows the first byte of a short header.
            step(BYTE, 1 + thread_at),
            step(JUMP, 3),
            // RFC 9000 §17.2: the next bits but one are 2 in a Handshake packet, whose connection ID the server has chosen.
            step(AND, 0x30),
            jump(IF_EQUAL, 0x20, 0, 4),
            // RFC 8999 §5.1: version and length come before the Destination Connection ID.
            step(BYTE, 6 + thread_at),
            step(REMAINDER, slots),
            step(ADD, from),
            step(RETURN, 0),
            // All others may have a connection ID that the client has chosen. Source address and ports stay the same during a
            // handshake. Where IPv6 has further headers, a part of these takes the place of the ports.
            step(BYTE, IP),
            step(AND, 0xf0),
            jump(IF_EQUAL, 0x60, 4, 0),
            step(WORD, IP + 12),
            step(COPY_TO_X, 0),
            step(WORD, IP + 20),
            step(JUMP, 3),
            step(WORD, IP + 20),
            step(COPY_TO_X, 0),
            step(WORD, IP + 40),
            step(MULTIPLY, key),
            step(XOR_X, 0),
            step(MULTIPLY, key),
            step(SHIFT_RIGHT, 16),
            step(REMAINDER, nodes),
            step(ADD, first),
            step(RETURN, 0),
        ]
    }
}

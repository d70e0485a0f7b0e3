//! Several sockets at one address, one for each thread of a server.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use socket2::Socket;
use tandem_node::{error::ClientError, node::SocketKind, quic::Steering};

use crate::socket::{SocketOptions, bound, open_error};

/// A socket that listens already. The driver gives it to the node that asks for a listening socket.
#[derive(Clone, Debug)]
pub struct Listener {
    socket: Arc<UdpSocket>,
    steering: Steering,
}

impl Listener {
    /// Opens `nodes` sockets at one address, for as many nodes, whose settings must have
    /// [`Listener::steering`]. Port 0 lets the operating system choose one port for all.
    ///
    /// The kernel gives a packet with a short header to the socket of the node that chose its connection ID,
    /// so that a client may change its address. The byte `thread_at` of the ID says the node: 0, or
    /// [`Fleet::thread_at`](tandem_node::quic::Fleet::thread_at). It gives packets with long headers to the socket that a
    /// hash of both addresses and ports chooses.
    ///
    /// # Errors
    ///
    /// [`ClientError::Listen`]: the operating system cannot open or bind a socket. Linux is needed for more
    /// than one socket.
    ///
    /// # Panics
    ///
    /// There are none or more than [`Steering::NODES_MAX`] nodes.
    pub fn open(
        address: SocketAddr,
        nodes: u8,
        thread_at: usize,
        options: SocketOptions,
    ) -> Result<Vec<Self>, ClientError> {
        sockets(address, (nodes, thread_at), options).map_err(|error| ClientError::Listen {
            address,
            kind: open_error(&error, SocketKind::Listen(address)),
        })
    }

    /// Which node the socket is for.
    pub const fn steering(&self) -> Steering {
        self.steering
    }

    /// The address at which the socket listens.
    ///
    /// # Errors
    ///
    /// That of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn into_socket(self) -> io::Result<UdpSocket> {
        Arc::try_unwrap(self.socket).or_else(|socket| socket.try_clone())
    }
}

fn sockets(
    address: SocketAddr,
    (nodes, thread_at): (u8, usize),
    options: SocketOptions,
) -> io::Result<Vec<Listener>> {
    // The first socket does not share its address while it is bound, so that there is an error if another
    // program has it.
    let first = bound(SocketKind::Listen(address), options, |_| Ok(()))?;
    let mut others = Vec::new();
    if nodes > 1 {
        share(&first)?;
        let address = first.local_addr()?.as_socket().unwrap_or(address);
        for _ in 1..nodes {
            others.push(bound(SocketKind::Listen(address), options, share)?);
        }
        steer(&first, nodes, thread_at)?;
    }
    let sockets = std::iter::once(first).chain(others);
    let listeners = sockets.zip(0..).map(|(socket, index)| Listener {
        socket: Arc::new(socket.into()),
        steering: Steering::new(index, nodes).expect("the caller keeps to the bound"),
    });
    Ok(listeners.collect())
}

#[cfg(target_os = "linux")]
fn share(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_port(true)
}

/// Lets a program of the kernel choose the socket of each packet. A result that is no index of a socket lets
/// the kernel choose by its hash.
#[cfg(target_os = "linux")]
#[expect(clippy::cast_possible_truncation, reason = "an opcode has 16 bits")]
fn steer(socket: &Socket, nodes: u8, thread_at: usize) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt::AttachReusePortCbpf};

    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const RETURN_RESULT: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    let at = u32::try_from(1 + thread_at).unwrap_or(u32::MAX);
    let instruction =
        |code, jump_if_true, k| libc::sock_filter { code, jt: jump_if_true, jf: 0, k };
    let mut program = [
        instruction(LOAD_BYTE, 0, 0),
        // RFC 8999 §5.1: the most significant bit of the first byte is set in a long header.
        instruction(JUMP_IF_SET, 3, 0x80),
        // RFC 8999 §5.2: the Destination Connection ID follows the first byte of a short header.
        instruction(LOAD_BYTE, 0, at),
        instruction(REMAINDER, 0, nodes.into()),
        instruction(RETURN_RESULT, 0, 0),
        instruction(RETURN, 0, u32::MAX),
    ];
    let program = libc::sock_fprog { len: 6, filter: program.as_mut_ptr() };
    Ok(setsockopt(socket, AttachReusePortCbpf, &program)?)
}

#[cfg(not(target_os = "linux"))]
fn share(_: &Socket) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn steer(_: &Socket, _: u8, _: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, time::Duration};

    use super::*;

    const NODES: u8 = 3;

    fn group(address: &str, thread_at: usize) -> (Vec<UdpSocket>, SocketAddr) {
        let address = address.parse().unwrap();
        let options = SocketOptions::default();
        let listeners = Listener::open(address, NODES, thread_at, options).unwrap();
        let address = listeners[0].local_addr().unwrap();
        let indices: Vec<_> = listeners.iter().map(|it| it.steering().index()).collect();
        assert_eq!(indices, [0, 1, 2]);
        let sockets = listeners.into_iter().map(|it| it.into_socket().unwrap()).collect();
        (sockets, address)
    }

    /// Which socket has received a packet, which has this length.
    fn received(sockets: &[UdpSocket], len: usize) -> usize {
        for _ in 0..1000 {
            for (index, socket) in sockets.iter().enumerate() {
                match socket.recv(&mut [0; 1500]) {
                    Ok(received) => {
                        assert_eq!(received, len);
                        return index;
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no socket has received the packet");
    }

    #[test]
    fn short_headers_are_steered_by_their_id_and_long_ones_by_their_address() {
        for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let (sockets, address) = group(at, 0);
            let ip = if address.is_ipv4() { "127.0.0.1" } else { "::1" };
            let to = SocketAddr::new(ip.parse().unwrap(), address.port());
            let mut chosen = [false; NODES as usize];
            for _ in 0..40 {
                let client = UdpSocket::bind((ip, 0)).unwrap();
                for first in [0, 1, 2, 100, 255_u8] {
                    client.send_to(&[0x40, first, 9, 9], to).unwrap();
                    assert_eq!(received(&sockets, 4), usize::from(first % NODES), "{at}, {first}");
                }
                client.send_to(&[0x40], to).unwrap();
                assert_eq!(received(&sockets, 1), 0, "{at}: a packet without an ID");
                let mut of_client = None;
                for first in [0, 1, 2, 255_u8] {
                    client.send_to(&[0xc0, 0, 0, 0, 1, 8, first], to).unwrap();
                    let index = received(&sockets, 7);
                    assert_eq!(*of_client.get_or_insert(index), index, "{at}, {first}");
                }
                chosen[of_client.unwrap()] = true;
            }
            assert_eq!(chosen, [true; NODES as usize], "{at}: all sockets get handshakes");
        }
    }

    #[test]
    fn another_byte_of_the_id_can_say_the_node() {
        let (sockets, address) = group("127.0.0.1:0", 3);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for node in [1, 2, 0, 5_u8] {
            client.send_to(&[0x40, 7, 8, 9, node], address).unwrap();
            assert_eq!(received(&sockets, 5), usize::from(node % NODES), "{node}");
        }
        client.send_to(&[0x40, 7, 8, 9], address).unwrap();
        assert_eq!(received(&sockets, 4), 0, "the ID ends before the byte");
    }

    #[test]
    fn another_program_cannot_take_part_of_the_packets() {
        let (_sockets, address) = group("127.0.0.1:0", 0);
        for nodes in [1, NODES] {
            let error = Listener::open(address, nodes, 0, SocketOptions::default()).unwrap_err();
            assert_eq!(error, ClientError::Listen { address, kind: ErrorKind::AddrInUse });
        }
    }
}

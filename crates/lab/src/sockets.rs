use std::{
    collections::BTreeMap,
    fmt::Debug,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tandem_node::node::SocketKind;

/// The sockets of one host and one protocol, with their names. They follow the rules of usual operating systems, but
/// without randomness: free ports are assigned in order.
#[derive(Debug)]
pub(crate) struct Sockets<I> {
    addresses: Vec<IpAddr>,
    open: BTreeMap<I, Socket>,
    /// The socket that receives at a local address. The IP address may be unspecified.
    bound: BTreeMap<SocketAddr, I>,
    next_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) local: SocketAddr,
    /// The only address from which it receives, if it is connected.
    pub(crate) peer: Option<SocketAddr>,
}

/// The first port that is assigned for port 0: the dynamic ports of RFC 6335 §6.
const FIRST_DYNAMIC_PORT: u16 = 49_152;

impl<I: Copy + Debug + Ord> Sockets<I> {
    pub(crate) fn new(addresses: Vec<IpAddr>) -> Self {
        Self {
            addresses,
            open: BTreeMap::new(),
            bound: BTreeMap::new(),
            next_port: FIRST_DYNAMIC_PORT,
        }
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(crate) fn set_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.addresses = addresses;
    }

    /// Opens a socket and returns its local address.
    ///
    /// # Panics
    /// It panics if a socket with this identifier is open.
    pub(crate) fn open(&mut self, id: I, kind: SocketKind) -> Result<SocketAddr, ErrorKind> {
        assert!(!self.open.contains_key(&id), "{id:?} is opened twice");
        let (wanted, peer) = match kind {
            SocketKind::Listen(local) => (local, None),
            SocketKind::ForPeer(peer) => (self.any_port_towards(peer)?, None),
            SocketKind::Connected(peer) => (self.any_port_towards(peer)?, Some(peer)),
        };
        if !wanted.ip().is_unspecified() && !self.addresses.contains(&wanted.ip()) {
            return Err(ErrorKind::AddrNotAvailable);
        }
        let local = match wanted.port() {
            0 => self.free_port(wanted.ip()).ok_or(ErrorKind::AddrInUse)?,
            _ if self.is_taken(wanted) => return Err(ErrorKind::AddrInUse),
            _ => wanted,
        };
        self.bound.insert(local, id);
        self.open.insert(id, Socket { local, peer });
        Ok(local)
    }

    pub(crate) fn close(&mut self, id: I) -> Option<Socket> {
        let socket = self.open.remove(&id)?;
        if self.bound.get(&socket.local) == Some(&id) {
            self.bound.remove(&socket.local);
        }
        Some(socket)
    }

    /// Closes this port for all addresses; sockets that are bound to it can still send.
    pub(crate) fn unbind_port(&mut self, port: u16) {
        self.bound.retain(|local, _| local.port() != port);
    }

    /// Closes all sockets, because the process has ended. The order of assigned ports continues.
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
        self.bound.clear();
    }

    pub(crate) fn get(&self, id: I) -> Option<Socket> {
        self.open.get(&id).copied()
    }

    /// The socket that receives datagrams to this address. [`Socket::peer`] is not considered.
    pub(crate) fn bound_to(&self, local: SocketAddr) -> Option<(I, Socket)> {
        let id = self.bound.get(&local).or_else(|| self.bound.get(&any_address(local)))?;
        Some((*id, self.get(*id)?))
    }

    /// The source address of a packet to `destination`.
    pub(crate) fn source(&self, local: SocketAddr, destination: SocketAddr) -> Option<SocketAddr> {
        if !local.ip().is_unspecified() {
            return Some(local);
        }
        let ip = self.address_towards(destination)?;
        Some(SocketAddr::new(ip, local.port()))
    }

    /// The first address of the peer's family.
    fn address_towards(&self, peer: SocketAddr) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|ip| ip.is_ipv4() == peer.is_ipv4())
    }

    fn any_port_towards(&self, peer: SocketAddr) -> Result<SocketAddr, ErrorKind> {
        let ip = self.address_towards(peer).ok_or(ErrorKind::NetworkUnreachable)?;
        Ok(SocketAddr::new(ip, 0))
    }

    fn free_port(&mut self, ip: IpAddr) -> Option<SocketAddr> {
        (FIRST_DYNAMIC_PORT..=u16::MAX).find_map(|_| {
            let local = SocketAddr::new(ip, self.next_port);
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_DYNAMIC_PORT);
            (!self.is_taken(local)).then_some(local)
        })
    }

    /// Whether the address is in use. An unspecified address uses the port of all addresses of its
    /// family.
    fn is_taken(&self, local: SocketAddr) -> bool {
        self.bound.contains_key(&local)
            || self.bound.contains_key(&any_address(local))
            || (local.ip().is_unspecified()
                && self.addresses.iter().any(|ip| {
                    ip.is_ipv4() == local.is_ipv4()
                        && self.bound.contains_key(&SocketAddr::new(*ip, local.port()))
                }))
    }
}

/// The unspecified address of the same family with the same port.
fn any_address(local: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match local {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, local.port())
}

#[cfg(test)]
mod tests {
    use tandem_node::node::SocketId;

    use super::*;

    fn sockets() -> Sockets<SocketId> {
        Sockets::new(vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()])
    }

    fn listen(
        sockets: &mut Sockets<SocketId>,
        id: u64,
        local: &str,
    ) -> Result<SocketAddr, ErrorKind> {
        sockets.open(SocketId(id), SocketKind::Listen(local.parse().unwrap()))
    }

    #[test]
    fn free_ports_are_assigned_in_order_and_used_ports_are_skipped() {
        let mut sockets = sockets();
        assert_eq!(
            listen(&mut sockets, 0, "10.0.0.1:49153"),
            "10.0.0.1:49153".parse().or(Err(ErrorKind::Other))
        );
        let peer: SocketAddr = "10.9.9.9:443".parse().unwrap();
        for (id, port) in [(1, 49_152), (2, 49_154), (3, 49_155)] {
            let local = sockets.open(SocketId(id), SocketKind::ForPeer(peer)).unwrap();
            assert_eq!(local, SocketAddr::new("10.0.0.1".parse().unwrap(), port));
        }
        sockets.close(SocketId(1)).unwrap();
        let local = sockets.open(SocketId(4), SocketKind::Connected(peer)).unwrap();
        assert_eq!(local.port(), 49_156, "a port is not used again at once");
    }

    #[test]
    fn an_address_is_bound_once() {
        for (first, second, result) in [
            ("10.0.0.1:443", "10.0.0.1:443", Err(ErrorKind::AddrInUse)),
            ("10.0.0.1:443", "10.0.0.2:443", Ok(())),
            ("0.0.0.0:443", "10.0.0.2:443", Err(ErrorKind::AddrInUse)),
            ("10.0.0.2:443", "0.0.0.0:443", Err(ErrorKind::AddrInUse)),
            ("0.0.0.0:443", "[::]:443", Ok(())),
            ("0.0.0.0:443", "0.0.0.0:444", Ok(())),
            ("0.0.0.0:443", "10.0.0.3:80", Err(ErrorKind::AddrNotAvailable)),
        ] {
            let mut sockets = sockets();
            listen(&mut sockets, 1, first).unwrap();
            assert_eq!(listen(&mut sockets, 2, second).map(|_| ()), result, "{first}, {second}");
        }
    }

    #[test]
    fn a_host_without_an_address_of_the_family_cannot_connect() {
        let peer = "[2001:db8::1]:443".parse().unwrap();
        let opened = sockets().open(SocketId(1), SocketKind::Connected(peer));
        assert_eq!(opened, Err(ErrorKind::NetworkUnreachable));
    }

    #[test]
    fn datagrams_reach_the_socket_of_their_port_and_a_closed_port_has_none() {
        let mut sockets = sockets();
        listen(&mut sockets, 1, "0.0.0.0:443").unwrap();
        let to = |sockets: &Sockets<SocketId>, local: &str| {
            sockets.bound_to(local.parse().unwrap()).map(|(SocketId(id), _)| id)
        };
        assert_eq!(to(&sockets, "10.0.0.2:443"), Some(1));
        assert_eq!(to(&sockets, "10.0.0.2:444"), None);
        sockets.unbind_port(443);
        assert_eq!(to(&sockets, "10.0.0.2:443"), None);
        assert!(sockets.get(SocketId(1)).is_some(), "it can still send");
    }
}

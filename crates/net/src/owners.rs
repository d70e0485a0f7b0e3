//! Which user owns which socket of this host, as `/proc/net` says it (`proc_pid_net(5)`).
//!
//! These tables and not `sock_diag(7)`: they list every socket of a port, so that a second user who shares a port is
//! seen, and a sandbox that forbids netlink sockets does not hide them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use procfs_core::{
    ExplicitSystemInfo, FromReadSI,
    net::{TcpNetEntries, TcpState, UdpNetEntries},
};

/// The bytes of one table that are read at most: some 400,000 sockets. A longer table is an error.
const TABLE_MAX: u64 = 64 << 20;

/// The user that stands for all users whom the user namespace of the process does not have, unless the system
/// says another number (`/proc/sys/kernel/overflowuid`, `user_namespaces(7)`).
const OVERFLOW_USER: u32 = 65534;

/// The number of users, so that a namespace with as many has all of them.
const USERS: u64 = u32::MAX as u64;

/// The tables of the sockets of a process's network namespace.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The folder with the files `tcp`, `tcp6`, `udp` and `udp6`.
    folder: PathBuf,
    /// A user who stands for several.
    ambiguous: Option<u32>,
}

impl Tables {
    pub(crate) fn of_process() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        let overflow = read("/proc/sys/kernel/overflowuid");
        let overflow = overflow.and_then(|user| user.trim().parse().ok()).unwrap_or(OVERFLOW_USER);
        let has_all = read("/proc/self/uid_map").is_some_and(|map| users(&map) >= USERS);
        Self { folder: "/proc/self/net".into(), ambiguous: (!has_all).then_some(overflow) }
    }

    /// The UDP ports from which only the owner of a program's TCP socket can send at the program's IP address, in
    /// ascending order. The ends are the addresses of the program's socket and of this process's.
    pub(crate) fn udp_ports(&self, ends: (SocketAddr, SocketAddr)) -> io::Result<Box<[u16]>> {
        let owner = self.owner_of_tcp(ends)?;
        let ip = ends.0.ip().to_canonical();
        // The users of each port. The second one makes it worthless.
        let mut by_port: BTreeMap<u16, Option<u32>> = BTreeMap::new();
        for name in ["udp", "udp6"] {
            for socket in self.read::<UdpNetEntries>(name)?.into_iter().flat_map(|table| table.0) {
                if sends_as(socket.local_address.ip(), ip) {
                    let user =
                        by_port.entry(socket.local_address.port()).or_insert(Some(socket.uid));
                    *user = user.filter(|user| *user == socket.uid);
                }
            }
        }
        Ok(by_port
            .into_iter()
            .filter(|(_, user)| *user == Some(owner))
            .map(|(port, _)| port)
            .collect())
    }

    /// The user who owns the first of the two sockets of a TCP connection within this host.
    fn owner_of_tcp(&self, ends: (SocketAddr, SocketAddr)) -> io::Result<u32> {
        let ends = (canonical(ends.0), canonical(ends.1));
        for name in ["tcp", "tcp6"] {
            let table = self.read::<TcpNetEntries>(name)?;
            let owner = table.into_iter().flat_map(|table| table.0).find(|socket| {
                // A connection in TIME-WAIT has no owner, and is listed as one of user 0.
                let is_alive = !matches!(socket.state, TcpState::TimeWait | TcpState::NewSynRecv);
                is_alive
                    && (canonical(socket.local_address), canonical(socket.remote_address)) == ends
            });
            match owner {
                Some(socket) if Some(socket.uid) == self.ambiguous => {
                    return Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "the user namespace does not have the owner of the connection",
                    ));
                }
                Some(socket) => return Ok(socket.uid),
                None => {}
            }
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "the connection is not listed"))
    }

    /// Reads a table. `None`: the system has none, because it does not have this version of IP.
    fn read<T: FromReadSI>(&self, name: &str) -> io::Result<Option<T>> {
        let file = match File::open(self.folder.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // The tables contain no times.
        let system = ExplicitSystemInfo {
            boot_time_secs: 0,
            ticks_per_second: 0,
            page_size: 0,
            is_little_endian: cfg!(target_endian = "little"),
        };
        T::from_read(file.take(TABLE_MAX), &system).map(Some).map_err(io::Error::other)
    }
}

/// Whether a socket that is bound to `bound` can send from `ip`, which is canonical.
fn sends_as(bound: IpAddr, ip: IpAddr) -> bool {
    let bound = bound.to_canonical();
    bound == ip
        || bound == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        || (ip.is_ipv4() && bound == IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The number of users that a `uid_map` lists.
fn users(map: &str) -> u64 {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse().ok());
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// The sockets of a host: table, local and remote address as the kernel writes them, state, user.
    type Sockets = [(&'static str, &'static str, &'static str, &'static str, u32)];

    const PROGRAM: &str = "0100007F:9C40"; // 127.0.0.1:40000
    const PROXY: &str = "0100007F:0438"; // 127.0.0.1:1080
    const MAPPED_PROGRAM: &str = "0000000000000000FFFF00000100007F:9C40";
    const MAPPED_PROXY: &str = "0000000000000000FFFF00000100007F:0438";
    const ANY: &str = "00000000:0000";
    const PORT_6000: &str = "0100007F:1770";
    const PORT_6001: &str = "00000000:1771";
    const PORT_6002_ALL: &str = "00000000000000000000000000000000:1772";
    const PORT_6003_V6: &str = "00000000000000000000000001000000:1773";
    const PORT_6004_OTHER: &str = "0200007F:1774"; // 127.0.0.2

    fn ports(ends: (&str, &str), sockets: &Sockets) -> Result<Vec<u16>, io::ErrorKind> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["tcp", "tcp6", "udp", "udp6"] {
            let mut text = "  sl  local_address rem_address   st tx_queue rx_queue\n".to_owned();
            for (index, (table, local, remote, state, user)) in sockets.iter().enumerate() {
                if *table == name {
                    let rest = "00000000:00000000 00:00000000 00000000";
                    writeln!(text, "{index:4}: {local} {remote} {state} {rest} {user:5} 0 7 1 0")
                        .unwrap();
                }
            }
            fs::write(folder.path().join(name), text).unwrap();
        }
        let tables = Tables { folder: folder.path().to_owned(), ambiguous: Some(65534) };
        let ends = (ends.0.parse().unwrap(), ends.1.parse().unwrap());
        tables.udp_ports(ends).map(Vec::from).map_err(|error| error.kind())
    }

    const ENDS: (&str, &str) = ("127.0.0.1:40000", "127.0.0.1:1080");
    /// The program is user 1000's.
    const TCP: (&str, &str, &str, &str, u32) = ("tcp", PROGRAM, PROXY, "01", 1000);

    #[test]
    fn ports_belong_to_the_user_of_the_connection() {
        for (socket, expected) in [
            (("udp", PORT_6000, ANY, "07", 1000), &[6000][..]),
            (("udp", PORT_6000, ANY, "01", 1000), &[6000]),
            (("udp", PORT_6001, ANY, "07", 1000), &[6001]),
            (("udp6", PORT_6002_ALL, ANY, "07", 1000), &[6002]),
            (("udp", PORT_6000, ANY, "07", 1001), &[]),
            (("udp", PORT_6000, ANY, "07", 0), &[]),
            // They cannot send from the program's address.
            (("udp6", PORT_6003_V6, ANY, "07", 1000), &[]),
            (("udp", PORT_6004_OTHER, ANY, "07", 1000), &[]),
        ] {
            // This end of the connection belongs to another user, and has the same addresses.
            let own = ("tcp", PROXY, PROGRAM, "01", 7);
            assert_eq!(ports(ENDS, &[own, TCP, socket]).unwrap(), expected, "{socket:?}");
        }
    }

    #[test]
    fn a_port_that_users_share_belongs_to_nobody() {
        let (own, other) =
            (("udp", PORT_6000, ANY, "07", 1000), ("udp", "00000000:1770", ANY, "07", 5));
        assert_eq!(ports(ENDS, &[TCP, own, own]).unwrap(), [6000]);
        assert!(ports(ENDS, &[TCP, own, other]).unwrap().is_empty());
        assert!(ports(ENDS, &[TCP, other, own, own]).unwrap().is_empty());
    }

    #[test]
    fn mapped_addresses_are_those_of_ipv4() {
        let udp = ("udp6", "0000000000000000FFFF00000100007F:1770", ANY, "07", 1000);
        let tcp = ("tcp6", MAPPED_PROGRAM, MAPPED_PROXY, "01", 1000);
        for ends in [ENDS, ("[::ffff:127.0.0.1]:40000", "[::ffff:127.0.0.1]:1080")] {
            for tcp in [tcp, TCP] {
                assert_eq!(ports(ends, &[tcp, udp]).unwrap(), [6000], "{ends:?} {tcp:?}");
            }
        }
        let program = "00000000000000000000000001000000:9C40";
        let tcp = ("tcp6", program, "00000000000000000000000001000000:0438", "01", 1000);
        let sockets =
            [tcp, ("udp6", PORT_6003_V6, ANY, "07", 1000), ("udp", PORT_6001, ANY, "07", 1000)];
        assert_eq!(ports(("[::1]:40000", "[::1]:1080"), &sockets).unwrap(), [6003]);
    }

    #[test]
    fn a_connection_whose_owner_is_not_known_has_no_ports() {
        let udp = |user| ("udp", PORT_6000, ANY, "07", user);
        for (tcp, expected) in [
            (("tcp", PROGRAM, "0100007F:0439", "01", 1000), io::ErrorKind::NotFound),
            (("tcp", PROGRAM, PROXY, "06", 0), io::ErrorKind::NotFound),
            (("tcp", PROGRAM, PROXY, "01", 65534), io::ErrorKind::PermissionDenied),
            (("tcp", PROGRAM, "no address", "01", 1000), io::ErrorKind::Other),
        ] {
            assert_eq!(ports(ENDS, &[tcp, udp(tcp.4)]), Err(expected), "{tcp:?}");
        }
        let nowhere = Tables { folder: "/does/not/exist".into(), ambiguous: None };
        let ends = (ENDS.0.parse().unwrap(), ENDS.1.parse().unwrap());
        assert_eq!(nowhere.udp_ports(ends).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn users_of_a_namespace_are_counted() {
        assert_eq!(users("         0          0 4294967295\n"), USERS);
        assert_eq!(users("0 1000 1\n"), 1);
        assert_eq!(users("0 1000 1\n1 100000 65536\n"), 65537);
        assert_eq!(users(""), 0);
    }
}

//! Three network namespaces in a row: a server, a PEP, and a client.

use std::{
    fs::File,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tandem_pep::Config;
use tandem_pep_linux::{Maker, Router, Stats};

pub(crate) const SERVER_PORT: u16 = 4433;

/// After this silence, nothing more comes.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);

/// The namespaces, until they are dropped.
pub(crate) struct Bed(&'static str);

impl Bed {
    pub(crate) fn new(name: &'static str) -> Self {
        let bed = Self(name);
        bed.remove();
        for place in ["server", "pep", "client"] {
            ip(&format!("netns add {name}-{place}"));
            ip(&format!("-n {name}-{place} link set lo up"));
        }
        for (place, link) in [("server", 1), ("client", 2)] {
            let (near, far) = (format!("{name}-pep"), format!("{name}-{place}"));
            ip(&format!("link add to-{place} netns {near} type veth peer name to-pep netns {far}"));
            for (namespace, device, host) in
                [(&near, format!("to-{place}"), 2), (&far, "to-pep".into(), 1)]
            {
                ip(&format!("-n {namespace} addr add 10.99.{link}.{host}/24 dev {device}"));
                ip(&format!("-n {namespace} addr add fd99:{link}::{host}/64 dev {device} nodad"));
                ip(&format!("-n {namespace} link set {device} up"));
            }
            ip(&format!("-n {far} route add default via 10.99.{link}.2"));
            ip(&format!("-n {far} route add default via fd99:{link}::2"));
        }
        for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            bed.inside("pep", move || std::fs::write(format!("/proc/sys/net/{setting}"), "1"))
                .unwrap();
        }
        for is_ipv6 in [false, true] {
            bed.wait(is_ipv6);
        }
        bed
    }

    /// Waits until packets pass.
    fn wait(&self, is_ipv6: bool) {
        let socket = |place| self.udp(place, SocketAddr::new(Self::address(place, is_ipv6), 9));
        let (server, client) = (socket("server"), socket("client"));
        let passes = |_| {
            server.send_to(b"ready?", client.local_addr().unwrap()).unwrap();
            client.recv(&mut [0; 9]).is_ok()
        };
        assert!((0..50).any(passes), "nothing passes, IPv6: {is_ipv6}");
    }

    /// The server or the client.
    pub(crate) fn address(place: &str, is_ipv6: bool) -> IpAddr {
        let link = if place == "server" { 1 } else { 2 };
        let address = if is_ipv6 { format!("fd99:{link}::1") } else { format!("10.99.{link}.1") };
        address.parse().unwrap()
    }

    /// Runs this in a namespace, so that sockets that it opens are there.
    pub(crate) fn inside<T: Send + 'static>(
        &self,
        place: &str,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.spawn(place, what).join().unwrap()
    }

    fn spawn<T: Send + 'static>(
        &self,
        place: &str,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        use std::os::fd::AsFd as _;
        let file = File::open(format!("/var/run/netns/{}-{place}", self.0)).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            what()
        })
    }

    /// A PEP between the two, until it is ended.
    pub(crate) fn pep(&self, config: Config, maker: Maker) -> Pep {
        let (is_over, servers) =
            (Arc::new(AtomicBool::new(false)), ["10.99.1.0/24", "fd99:1::/64"]);
        let servers = servers
            .map(|prefix| tandem_pep::Servers { prefix: prefix.parse().unwrap(), port: None });
        let attach =
            move || Router::attach(&["to-server".into()], &servers, config, maker).unwrap();
        let mut router = self.inside("pep", attach);
        let stop = is_over.clone();
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                router.step(Duration::from_millis(10)).unwrap();
            }
            router.stats()
        });
        Pep { is_over, thread }
    }

    pub(crate) fn udp(&self, place: &str, address: SocketAddr) -> UdpSocket {
        let socket = self.inside(place, move || UdpSocket::bind(address).unwrap());
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        socket
    }

    fn remove(&self) {
        for place in ["server", "pep", "client"] {
            // They need not exist.
            let name = format!("{}-{place}", self.0);
            drop(clean_ip().args(["netns", "del", &name]).output());
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.remove();
    }
}

pub(crate) struct Pep {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Stats>,
}

impl Pep {
    pub(crate) fn end(self) -> Stats {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// What a socket receives until there is silence.
pub(crate) fn received(
    mut receive: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        match receive(&mut buffer) {
            Ok(len) => all.push(buffer[..len].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The program `ip`, whatever language and colours the caller of the tests has chosen.
fn clean_ip() -> Command {
    let mut command = Command::new("ip");
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

fn ip(arguments: &str) {
    let done = clean_ip().args(arguments.split(' ')).output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {arguments}: {error}");
}

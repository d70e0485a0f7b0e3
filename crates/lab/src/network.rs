use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_netem::{
    DurationHistogram, LinkConfig, LinkStats, Packet, Path, Seed, Traffic, Violations,
};
use tandem_node::node::Ecn;
use tandem_units::ByteCount;

use crate::HostId;

/// Identifies a path, which is one direction between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(usize);

/// Counters of packets that reached no node. Packets that a link dropped do not count here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// No host has the destination address, or the sender has no address of its family.
    pub unroutable: u64,
    /// The direction was blocked by [`World::block`](crate::World::block), or for marked packets by
    /// [`World::drop_marked`](crate::World::drop_marked).
    pub blocked: u64,
    /// The destination port was closed, and an ICMP port unreachable message was sent back.
    pub refused: u64,
}

/// Size of an ICMP destination unreachable message (RFC 792): IP header (20), ICMP header (8), and
/// the IP header and first 64 bits of the original packet (28).
const PORT_UNREACHABLE_SIZE: ByteCount = ByteCount::new(56);

/// One packet between two hosts.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) from: HostId,
    pub(crate) to: HostId,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    Udp {
        ecn: Option<Ecn>,
        payload: Bytes,
    },
    /// An ICMP port unreachable message. Its source address is that of the closed port.
    PortUnreachable,
}

impl Content {
    fn into_packet(self, wrap: impl FnOnce(Self) -> Datagram) -> Packet<Datagram> {
        match &self {
            Self::Udp { payload, .. } => Packet::udp(payload.len(), wrap(self)),
            Self::PortUnreachable => Packet { size: PORT_UNREACHABLE_SIZE, content: wrap(self) },
        }
    }
}

/// The addresses of the hosts, and the paths between them.
#[derive(Debug)]
pub(crate) struct Network {
    seed: Seed,
    start: Instant,
    /// Whether the links of new paths are verified.
    is_verified: bool,
    owners: BTreeMap<IpAddr, HostId>,
    paths: Vec<ScheduledPath>,
    routes: BTreeMap<(HostId, HostId), Route>,
    /// Blocked directions, and the time at which each block ends.
    blocked: BTreeMap<(HostId, HostId), Instant>,
    /// The directions in which packets with an ECN mark are dropped.
    unmarked_only: BTreeSet<(HostId, HostId)>,
    pub(crate) stats: NetworkStats,
}

/// Packets of at most this size carry acknowledgements and no significant part of a body.
pub const SMALL_PACKET: ByteCount = ByteCount::new(200);

#[derive(Debug)]
struct ScheduledPath {
    path: Path<Datagram>,
    /// The sum of the propagation delays of the links.
    delay: Duration,
    /// Packets of at most [`SMALL_PACKET`] that entered the path.
    small: Traffic,
    /// The earliest event in the world's agenda that checks this path.
    scheduled: Option<Instant>,
}

/// The result of a packet's arrival at the end of a path.
pub(crate) enum PathExit {
    /// It reached its destination.
    Arrived(Packet<Datagram>),
    /// This packet entered the next path.
    Onward(PathId, Datagram),
}

#[derive(Clone, Debug)]
struct Route {
    /// The paths in the order in which packets take them. There is at least one.
    paths: Vec<PathId>,
    /// The number of routes that this one replaced. Each route has its own random draws.
    replaced: u64,
}

impl Network {
    pub(crate) fn new(start: Instant, seed: Seed) -> Self {
        Self {
            seed,
            start,
            is_verified: false,
            owners: BTreeMap::new(),
            paths: Vec::new(),
            routes: BTreeMap::new(),
            blocked: BTreeMap::new(),
            unmarked_only: BTreeSet::new(),
            stats: NetworkStats::default(),
        }
    }

    /// # Panics
    ///
    /// If another host has the address.
    pub(crate) fn add_address(&mut self, ip: IpAddr, owner: HostId) {
        let before = self.owners.insert(ip, owner).filter(|before| *before != owner);
        assert!(before.is_none(), "two hosts have the address {ip}");
    }

    /// Adds a path. Its random draws depend only on the pair of hosts, not on other hosts or paths.
    pub(crate) fn add_path(&mut self, between: (HostId, HostId), links: Vec<LinkConfig>) -> PathId {
        let replaced = self.routes.get(&between).map_or(0, |route| route.replaced + 1);
        let (from, to) = between;
        let seed = self.seed.derive(from.number().into()).derive(to.number().into());
        let path = PathId(self.paths.len());
        let delay = links.iter().map(|link| link.delay).sum();
        let mut links = Path::new(self.start, links, seed.derive(replaced));
        if self.is_verified {
            links.verify();
        }
        let small = Traffic::default();
        self.paths.push(ScheduledPath { path: links, delay, small, scheduled: None });
        self.routes.insert(between, Route { paths: vec![path], replaced });
        path
    }

    /// Routes the packets between these hosts over existing paths, one after the other.
    pub(crate) fn share_paths(&mut self, between: (HostId, HostId), paths: Vec<PathId>) {
        let different: BTreeSet<_> = paths.iter().collect();
        assert!(
            !paths.is_empty() && different.len() == paths.len(),
            "a route must not be empty or repeat a path"
        );
        let replaced = self.routes.get(&between).map_or(0, |route| route.replaced + 1);
        self.routes.insert(between, Route { paths, replaced });
    }

    /// The paths between two hosts, in the order in which packets take them.
    pub(crate) fn paths_between(&self, between: (HostId, HostId)) -> &[PathId] {
        self.routes.get(&between).map_or(&[], |route| &route.paths)
    }

    /// The path that a packet takes after this one, if there is a further path.
    fn path_after(&self, path: PathId, between: (HostId, HostId)) -> Option<PathId> {
        let paths = self.paths_between(between);
        let position = paths.iter().position(|other| *other == path)?;
        paths.get(position + 1).copied()
    }

    pub(crate) fn link_stats(&self, PathId(number): PathId) -> Vec<LinkStats> {
        self.paths.get(number).expect("a path is never removed").path.stats()
    }

    pub(crate) fn sojourns(
        &self,
        PathId(number): PathId,
        link: usize,
    ) -> Option<&DurationHistogram> {
        self.paths.get(number).expect("a path is never removed").path.sojourns(link)
    }

    /// Lets verifiers check all links, including links that are added later.
    pub(crate) fn verify(&mut self) {
        self.is_verified = true;
        self.paths.iter_mut().for_each(|scheduled| scheduled.path.verify());
    }

    /// The violations of links, by path.
    pub(crate) fn violations(&self) -> Vec<(PathId, Violations)> {
        let paths = self.paths.iter().enumerate();
        let paths = paths.map(|(number, scheduled)| (PathId(number), scheduled.path.violations()));
        paths.filter(|(_, violations)| violations.total > 0).collect()
    }

    pub(crate) fn is_idle(&self, PathId(number): PathId) -> bool {
        self.paths.get(number).expect("a path is never removed").path.is_idle()
    }

    pub(crate) fn small_packets(&self, PathId(number): PathId) -> Traffic {
        self.paths.get(number).expect("a path is never removed").small
    }

    /// The next packet that has arrived at the end of a path.
    pub(crate) fn pop(&mut self, id: PathId, now: Instant) -> Option<PathExit> {
        let ScheduledPath { path, scheduled, .. } = self.path_mut(id);
        scheduled.take_if(|scheduled| *scheduled <= now);
        let (_, packet) = path.pop(now)?;
        let between = (packet.content.from, packet.content.to);
        Some(match self.path_after(id, between) {
            None => PathExit::Arrived(packet),
            Some(next) => {
                let datagram = packet.content.clone();
                self.enter(now, next, packet);
                PathExit::Onward(next, datagram)
            }
        })
    }

    /// The time at which to check a path, if the agenda does not contain that check yet.
    pub(crate) fn schedule(&mut self, id: PathId) -> Option<Instant> {
        let ScheduledPath { path, scheduled, .. } = self.path_mut(id);
        let next = path.next_event()?;
        if scheduled.is_some_and(|scheduled| scheduled <= next) {
            return None;
        }
        *scheduled = Some(next);
        *scheduled
    }

    fn path_mut(&mut self, PathId(number): PathId) -> &mut ScheduledPath {
        self.paths.get_mut(number).expect("a path is never removed")
    }

    /// The time at which a byte arrives that TCP sends now. TCP retransmits what it sends into a
    /// blocked direction, so that the byte leaves at the end of the block.
    pub(crate) fn tcp_arrival(&self, now: Instant, between: (HostId, HostId)) -> Instant {
        let departure = self.blocked.get(&between).map_or(now, |until| now.max(*until));
        let paths = self.paths_between(between).iter();
        let delays =
            paths.filter_map(|PathId(number)| self.paths.get(*number)).map(|path| path.delay);
        departure + delays.sum::<Duration>()
    }

    /// The host that has an address.
    pub(crate) fn owner(&self, ip: IpAddr) -> Option<HostId> {
        self.owners.get(&ip).copied()
    }

    pub(crate) fn block(&mut self, between: (HostId, HostId), until: Instant) {
        self.blocked.insert(between, until);
    }

    pub(crate) fn drop_marked(&mut self, between: (HostId, HostId)) {
        self.unmarked_only.insert(between);
    }

    /// Makes the packet that a host sends, if a host has the destination address.
    pub(crate) fn packet(
        &mut self,
        from: HostId,
        source: SocketAddr,
        destination: SocketAddr,
        content: Content,
    ) -> Option<Packet<Datagram>> {
        let Some(&to) = self.owners.get(&destination.ip()) else {
            self.stats.unroutable += 1;
            return None;
        };
        Some(content.into_packet(|content| Datagram { from, to, source, destination, content }))
    }

    /// Puts a packet on the path between its hosts, unless that direction is blocked.
    pub(crate) fn send(&mut self, now: Instant, packet: Packet<Datagram>) -> Option<PathId> {
        let between = (packet.content.from, packet.content.to);
        let is_marked = matches!(packet.content.content, Content::Udp { ecn: Some(_), .. });
        let is_unwanted = is_marked && self.unmarked_only.contains(&between);
        if is_unwanted || self.blocked.get(&between).is_some_and(|until| now < *until) {
            self.stats.blocked += 1;
            return None;
        }
        let path = self.paths_between(between).first().copied();
        let path = path.unwrap_or_else(|| self.add_path(between, Vec::new()));
        self.enter(now, path, packet);
        Some(path)
    }

    pub(crate) fn enter(&mut self, now: Instant, path: PathId, packet: Packet<Datagram>) {
        let scheduled = self.path_mut(path);
        if packet.size <= SMALL_PACKET {
            scheduled.small.count(packet.size);
        }
        scheduled.path.push(now, packet);
    }
}

mod pep;
mod run;
mod system;
mod tcp;

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use pep::PepBox;
pub use pep::{PepNumber, PepPlace};
use run::Occurrence;
use tandem_netem::{
    Agenda, DurationHistogram, LinkConfig, LinkStats, Seed, SplitMix64, Traffic, Violations,
};
use tandem_node::{
    Event, Input, Node,
    node::{ResolveError, ServiceEndpoint},
};

use crate::{
    Body, FileSet, Handle, HostId, NetworkStats, PathId, Trace,
    delays::Delays,
    host::{Host, Pause},
    network::Network,
    tcp::Tcp,
};

/// Hosts, the paths between them, and virtual time. Virtual time passes only in
/// [`World::run_until`] and [`World::run_for`]. Between any two hosts there is a path without
/// delay, rate or loss, unless [`World::route`] says otherwise.
///
/// ```
/// use std::time::Duration;
/// use tandem_lab::{LinkConfig, Seed, World};
/// use tandem_lab::endpoints::{EchoHost, SenderHost, Shot};
///
/// let mut world = World::new(Seed(7));
/// let echo = world.add_host("echo", ["10.0.0.2"], EchoHost::new(7));
/// let shots = Shot::every(Duration::from_millis(10), 3, 1200);
/// let sender = SenderHost::new("10.0.0.2:7".parse()?, shots);
/// let sender = world.add_host("sender", ["10.0.0.1"], sender);
/// let delay = Duration::from_millis(20);
/// world.connect(sender, echo, LinkConfig { delay, ..LinkConfig::default() });
///
/// let got_all = |world: &World| world.node(sender).replies().len() == 3;
/// assert!(world.run_until(Duration::from_secs(1), got_all));
/// assert_eq!(world.elapsed(), Duration::from_millis(60));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub struct World {
    base: Instant,
    now: Instant,
    agenda: Agenda<Occurrence>,
    /// Number of events at the time [`Self::now`].
    events_now: u32,
    hosts: Vec<Host>,
    network: Network,
    tcp: Tcp,
    peps: Vec<PepBox>,
    names: BTreeMap<String, NameAnswer>,
    services: BTreeMap<String, Vec<ServiceEndpoint>>,
    trace: Trace,
    delays: Delays,
    timer_granularity: Option<Duration>,
    /// The longest time by which the processes of new hosts wake late, and the seed of these times.
    lateness: Option<(Duration, Seed)>,
    /// The buffer into which nodes write their packets.
    buf: Vec<u8>,
}

/// The resolver's answer to a query for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameAnswer {
    /// The resolver gives this answer after a delay.
    After(Duration, Result<Vec<IpAddr>, ResolveError>),
    /// The resolver finds these addresses after these delays, which ascend. The last part completes the answer; only
    /// that one may be empty.
    Parts(Vec<(Duration, Vec<IpAddr>)>),
    /// The resolver never answers.
    Never,
}

/// Methods that build and observe a world.
impl World {
    /// An empty world.
    pub fn new(seed: Seed) -> Self {
        let base = base_instant();
        Self {
            base,
            now: base,
            agenda: Agenda::new(),
            events_now: 0,
            hosts: Vec::new(),
            network: Network::new(base, seed),
            tcp: Tcp::default(),
            peps: Vec::new(),
            names: BTreeMap::new(),
            services: BTreeMap::new(),
            trace: Trace::new(),
            delays: Delays::default(),
            timer_granularity: None,
            lateness: None,
            buf: Vec::new(),
        }
    }

    /// Adds a host with one or more IP addresses and the node that runs on it. The first address of
    /// a family is its source address.
    ///
    /// # Panics
    /// It panics if an address is malformed or another host has it.
    pub fn add_host<'a, N: Node + 'static>(
        &mut self,
        name: &str,
        addresses: impl IntoIterator<Item = &'a str>,
        node: N,
    ) -> Handle<N> {
        let number = u32::try_from(self.hosts.len()).expect("a world has fewer hosts than 2^32");
        let id = HostId(number);
        let addresses = self.assign(id, name, addresses);
        let mut host = Host::new(name.to_owned(), addresses);
        host.node = Some(Box::new(node));
        host.pause = self.lateness.map(|(longest, seed)| {
            Pause::UpTo(longest, SplitMix64::starting_at(seed.derive(number.into()), 0))
        });
        self.hosts.push(host);
        self.agenda.push(self.now, Occurrence::Wake(id));
        Handle::new(id)
    }

    /// Makes these the addresses of a host.
    fn assign<'a>(
        &mut self,
        id: HostId,
        name: &str,
        addresses: impl IntoIterator<Item = &'a str>,
    ) -> Vec<IpAddr> {
        let addresses = addresses.into_iter().map(|text| {
            let ip = text.parse();
            ip.unwrap_or_else(|error| panic!("host {name}: {text:?} is not an IP address: {error}"))
        });
        let addresses: Vec<IpAddr> = addresses.collect();
        for ip in &addresses {
            self.network.add_address(*ip, id);
        }
        addresses
    }

    /// Routes packets from `from` to `to` over new links, from now on. Packets that are on their
    /// way stay on the old links.
    pub fn route(
        &mut self,
        from: impl Into<HostId>,
        to: impl Into<HostId>,
        links: Vec<LinkConfig>,
    ) -> PathId {
        self.network.add_path((from.into(), to.into()), links)
    }

    /// Routes packets from `from` to `to` over existing paths, one after the other. Other hosts may
    /// use the same paths, such as a shared access link.
    ///
    /// # Panics
    /// It panics if there is no path, or if a path is repeated.
    pub fn route_over(&mut self, from: impl Into<HostId>, to: impl Into<HostId>, paths: &[PathId]) {
        self.network.share_paths((from.into(), to.into()), paths.to_vec());
    }

    /// Routes packets in both directions between two hosts over links with the same configuration.
    pub fn connect(&mut self, a: impl Into<HostId>, b: impl Into<HostId>, link: LinkConfig) {
        let (a, b) = (a.into(), b.into());
        self.route(a, b, vec![link.clone()]);
        self.route(b, a, vec![link]);
    }

    /// Sets the resolver's answer for a name on all hosts, in upper or lower case. Other names are
    /// not found.
    pub fn set_name(&mut self, name: &str, answer: NameAnswer) {
        self.names.insert(name.to_ascii_lowercase(), answer);
    }

    /// Sets the servers to which the HTTPS records of a name lead on all hosts, in upper or lower case. A name
    /// without them has one server at the addresses of the name.
    pub fn set_service(&mut self, name: &str, endpoints: Vec<ServiceEndpoint>) {
        self.services.insert(name.to_ascii_lowercase(), endpoints);
    }

    /// Sets the files that a host serves.
    pub fn set_files(&mut self, host: impl Into<HostId>, files: FileSet) {
        self.host_mut(host.into()).files = files;
    }

    /// The number of files that a host's node has open.
    pub fn open_files(&mut self, host: impl Into<HostId>) -> usize {
        self.host_mut(host.into()).open_files()
    }

    /// Rounds deadlines up to multiples of `granularity`, counted from the start of the world, as a
    /// runtime with coarse timers does. Arrivals of packets stay exact.
    ///
    /// # Panics
    /// It panics if the granularity is zero.
    pub fn set_timer_granularity(&mut self, granularity: Duration) {
        assert!(!granularity.is_zero(), "a timer granularity must be above zero");
        self.timer_granularity = Some(granularity);
    }

    /// Keeps every packet in [`Trace::entries`] from now on.
    pub fn keep_trace(&mut self) {
        self.trace.keep_entries();
    }

    /// The virtual time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The virtual time at which the world started.
    pub const fn start(&self) -> Instant {
        self.base
    }

    /// The virtual time since the start of the world.
    pub fn elapsed(&self) -> Duration {
        self.now - self.base
    }

    /// The node of a host.
    ///
    /// # Panics
    /// It panics if the node was killed.
    pub fn node<N: Node + 'static>(&self, handle: Handle<N>) -> &N {
        let host = self.host(handle.id());
        let node = host.node.as_deref().unwrap_or_else(|| panic!("{} does not run", host.name));
        let node: &dyn Any = node;
        node.downcast_ref().expect("a handle knows the type of the node")
    }

    /// The node of a host, for a call that changes it. The world polls the node afterwards.
    ///
    /// # Panics
    /// It panics if the node was killed.
    pub fn node_mut<N: Node + 'static>(&mut self, handle: Handle<N>) -> &mut N {
        self.agenda.push(self.now, Occurrence::Wake(handle.id()));
        let host = self.host_mut(handle.id());
        let name = &host.name;
        let node = host.node.as_deref_mut().unwrap_or_else(|| panic!("{name} does not run"));
        let node: &mut dyn Any = node;
        node.downcast_mut().expect("a handle knows the type of the node")
    }

    /// The node of a host, for a read that needs `&mut`. The world does not poll the node, so the
    /// call does not change the run.
    ///
    /// # Panics
    /// It panics if the node was killed.
    pub fn inspect<N: Node + 'static>(&mut self, handle: Handle<N>) -> &mut N {
        let host = self.host_mut(handle.id());
        let name = &host.name;
        let node = host.node.as_deref_mut().unwrap_or_else(|| panic!("{name} does not run"));
        let node: &mut dyn Any = node;
        node.downcast_mut().expect("a handle knows the type of the node")
    }

    /// Measures, from now on, the one-way delay of every UDP payload of at least 16 bytes from
    /// `from` to `to`. This works through tunnels too, because they deliver payloads unchanged.
    pub fn measure_delay(&mut self, from: impl Into<HostId>, to: impl Into<HostId>) {
        self.delays.measure(from.into(), to.into());
    }

    /// The delays that [`Self::measure_delay`] measured, in the order of arrival.
    pub fn delays(&self) -> &[Duration] {
        self.delays.measured()
    }

    /// The peers that the nodes of a host told with ICMP that their packets are too large: the peer,
    /// the bytes of UDP payload of its packet, and the most that fits. The messages go nowhere.
    pub fn too_big(&self, host: impl Into<HostId>) -> &[(SocketAddr, usize, usize)] {
        &self.host(host.into()).too_big
    }

    /// The events of the nodes of a host, with their times since the start of the world.
    pub fn events(&self, host: impl Into<HostId>) -> &[(Duration, Event)] {
        &self.host(host.into()).events
    }

    /// The body that the node of a host fetched.
    pub fn body(&self, host: impl Into<HostId>) -> &Body {
        &self.host(host.into()).body
    }

    /// The counters of the links from one host to another, link by link. The list is empty if there
    /// is no route between them.
    pub fn link_stats(&self, from: impl Into<HostId>, to: impl Into<HostId>) -> Vec<LinkStats> {
        let paths = self.network.paths_between((from.into(), to.into())).iter();
        paths.flat_map(|path| self.network.link_stats(*path)).collect()
    }

    /// The counters of the links of a path, link by link.
    pub fn path_stats(&self, path: PathId) -> Vec<LinkStats> {
        self.network.link_stats(path)
    }

    /// Whether no packet is queued or in transmission at the bottlenecks of a path.
    pub fn is_path_idle(&self, path: PathId) -> bool {
        self.network.is_idle(path)
    }

    /// The packets that entered a path and have at most [`SMALL_PACKET`](crate::SMALL_PACKET)
    /// bytes.
    pub fn small_packets(&self, path: PathId) -> Traffic {
        self.network.small_packets(path)
    }

    /// The times of packets in the queue and in transmission of a link of a path; see
    /// [`Path::sojourns`](tandem_netem::Path::sojourns).
    pub fn sojourns(&self, path: PathId, link: usize) -> Option<&DurationHistogram> {
        self.network.sojourns(path, link)
    }

    /// Lets verifiers check all links against their configuration: no link exceeds its rate, no
    /// queue exceeds its limit, and every byte is counted.
    ///
    /// # Panics
    /// It panics if a packet has been sent already.
    pub fn verify_links(&mut self) {
        self.network.verify();
    }

    /// The violations of links, by path. There are none unless [`Self::verify_links`] was called.
    pub fn violations(&self) -> Vec<(PathId, Violations)> {
        self.network.violations()
    }

    /// Counters of packets that reached no node. Packets that a link dropped do not count here.
    pub const fn network_stats(&self) -> NetworkStats {
        self.network.stats
    }

    /// The record of the packets on the network.
    pub const fn trace(&self) -> &Trace {
        &self.trace
    }

    fn host(&self, HostId(number): HostId) -> &Host {
        self.hosts.get(number as usize).expect("a host is never removed")
    }

    fn host_mut(&mut self, HostId(number): HostId) -> &mut Host {
        self.hosts.get_mut(number as usize).expect("a host is never removed")
    }
}

/// Methods that cause failures.
impl World {
    /// Ends the process on a host without a clean shutdown. The machine stays up and answers
    /// packets to its closed ports with ICMP port unreachable messages. It closes the TCP connections
    /// of the process as Linux does: what the process wrote still arrives, and then the peer's end of
    /// the connection sees a FIN, or a RST if the process had not read everything. Whatever the peer
    /// sends afterwards is answered with a RST.
    pub fn kill(&mut self, host: impl Into<HostId>) {
        let host = host.into();
        self.host_mut(host).kill();
        self.end_tcp(host);
    }

    /// Ends the process on a host, if it still runs, and starts another.
    pub fn replace<N: Node + 'static>(&mut self, handle: Handle<N>, node: N) {
        self.kill(handle);
        self.host_mut(handle.id()).node = Some(Box::new(node));
        self.agenda.push(self.now, Occurrence::Wake(handle.id()));
    }

    /// Closes a port of a host without notice to the node.
    pub fn close_port(&mut self, host: impl Into<HostId>, port: u16) {
        self.host_mut(host.into()).sockets.unbind_port(port);
    }

    /// Blocks packets from `from` to `to` for a time. Packets that are on their way still arrive.
    /// What TCP connections send leaves at the end of that time. A program that connects gives up
    /// after 127 seconds.
    pub fn block(&mut self, from: impl Into<HostId>, to: impl Into<HostId>, duration: Duration) {
        self.network.block((from.into(), to.into()), self.now + duration);
    }

    /// Drops all packets from `from` to `to` that have an ECN mark, from now on.
    pub fn drop_marked(&mut self, from: impl Into<HostId>, to: impl Into<HostId>) {
        self.network.drop_marked((from.into(), to.into()));
    }

    /// Gives a host these UDP addresses instead of those that it has, as if it had moved to another network. The first
    /// address of a family is its source address. With none, the host has no network. Its open sockets keep their
    /// addresses. TCP connections are not concerned. Tell the node with [`Input::NetworkChanged`] if it may notice.
    ///
    /// # Panics
    /// It panics if an address is malformed or another host has it.
    pub fn change_addresses<'a>(
        &mut self,
        host: impl Into<HostId>,
        addresses: impl IntoIterator<Item = &'a str>,
    ) {
        let id = host.into();
        let name = self.host(id).name.clone();
        let addresses = self.assign(id, &name, addresses);
        self.host_mut(id).sockets.set_addresses(addresses);
    }

    /// Makes a host busy from now on. When something comes for its process, the process sleeps for
    /// this time, and then gets in one batch everything that has come.
    pub fn make_busy(&mut self, host: impl Into<HostId>, pause: Duration) {
        self.host_mut(host.into()).pause = Some(Pause::Always(pause));
    }

    /// Makes all hosts busy that are added from now on, as if other programs kept their cores busy. When something
    /// comes for a process that sleeps, it wakes late by a random time of at most `longest`, and then gets in one
    /// batch everything that has come.
    pub fn wake_late(&mut self, longest: Duration, seed: Seed) {
        self.lateness = Some((longest, seed));
    }

    /// Gives a node an input, such as [`Input::Shutdown`].
    pub fn input(&mut self, host: impl Into<HostId>, input: Input) {
        self.answer_after(Duration::ZERO, host.into(), input);
    }
}

/// The time at which a world starts. Only differences to it matter.
#[expect(clippy::disallowed_methods, reason = "there is no other way to get an Instant")]
fn base_instant() -> Instant {
    Instant::now()
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(|host| &host.name).collect();
        f.debug_struct("World")
            .field("elapsed", &self.elapsed())
            .field("hosts", &hosts)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

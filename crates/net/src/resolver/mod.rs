//! The resolution of host names with the hosts file and the system's name servers.
//!
//! | room | what it does |
//! | --- | --- |
//! | `names` | the text of a host to names of DNS: search list, IDNA |
//! | `settings`, `watched` | `/etc/resolv.conf` and `/etc/hosts`, read again when they change |
//! | `message` | questions, and what a message of a name server says |
//! | `ask`, `health`, `cache` | one question: whom to ask and when; what is known already |
//! | `nat64` | IPv4 addresses on networks without IPv4 |
//! | `service` | the servers of an https authority (HTTPS records) |

mod ask;
mod cache;
mod health;
mod message;
mod names;
mod nat64;
mod service;
mod settings;
mod watched;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use hickory_proto::rr::{Name, RecordType};
use tandem_node::node::ResolveError;
use tokio::time::{Instant, sleep_until};

use self::{
    ask::{Unanswered, ask},
    message::Reply,
    nat64::Prefix,
    settings::{Hosts, Servers, Settings},
    watched::Watched,
};
#[cfg(fuzzing)]
pub use self::{message::model::run as run_message_model, service::model::run as run_https_model};
use crate::socket::any_address;

/// The longest wait for IPv6 addresses after the IPv4 addresses have come, before the first attempt: the Resolution
/// Delay of RFC 8305 §8. Some name servers never answer AAAA queries.
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// The largest number of addresses of one family of a name. Further addresses would never be tried.
const ADDRESSES_MAX: usize = 8;

/// A resolver of host names. It is cheap to clone; clones share one cache.
///
/// It uses these sources in this order:
/// 1. The hosts file. A name in it has only the addresses in it.
/// 2. The loopback addresses for `localhost` and names below it (RFC 6761 §6.3).
/// 3. The name servers of `/etc/resolv.conf`, with parallel queries for A and AAAA. Without name servers, every other
///    name is [`ResolveError::Unreachable`].
///
/// Both files are looked at again once a second at most, when a name is resolved.
///
/// Addresses to which the host has a route come first (rule 1 of RFC 6724), and IPv6 comes before
/// IPv4 otherwise, which is the usual outcome of RFC 6724. A host without IPv6 thus gets IPv4
/// first.
#[derive(Clone)]
pub struct Resolver {
    source: Source,
}

#[derive(Clone)]
enum Source {
    Fixed(Arc<Settings>),
    Files(Arc<Watched>),
}

impl Resolver {
    /// Creates a resolver from the system's configuration, which is read when the first name is resolved. A part that
    /// is missing or broken is logged and left out.
    pub fn from_system() -> Self {
        Self { source: Source::Files(Arc::new(Watched::system())) }
    }

    /// Creates a resolver from a list of name servers, which may be empty, and a text in the format
    /// of `/etc/hosts`.
    pub fn from_parts(servers: &[SocketAddr], hosts_file: &str) -> Self {
        let servers = Servers::at(servers.to_vec());
        Self::from_settings(Settings::new(servers, Hosts::parse(hosts_file)))
    }

    fn from_settings(settings: Settings) -> Self {
        Self { source: Source::Fixed(Arc::new(settings)) }
    }

    async fn settings(&self) -> Arc<Settings> {
        match &self.source {
            Source::Fixed(settings) => Arc::clone(settings),
            Source::Files(files) => files.settings().await,
        }
    }

    /// Resolves a host name to its addresses, in order of preference: at least one, at most 8 of each family.
    ///
    /// While an address family has no answer yet, `partial` gets the addresses that are known as soon as an attempt to
    /// connect makes sense (RFC 8305 §3): one of them has a route, and if they are IPv4 addresses only, IPv6 addresses
    /// have had a moment to come.
    ///
    /// An IPv4 address resolves to itself and, if the host has no route to it, to the address at which a NAT64 reaches
    /// it (RFC 7050).
    ///
    /// The caller must be in a tokio runtime. This takes 10 seconds at most, or what the options in
    /// `/etc/resolv.conf` say.
    ///
    /// # Errors
    ///
    /// [`ResolveError::NotFound`] if the name has no addresses, [`ResolveError::Unreachable`] if no
    /// name server has answered.
    pub async fn resolve(
        &self,
        host: &str,
        mut partial: impl FnMut(Vec<IpAddr>) + Send,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let settings = self.settings().await;
        if let Ok(literal) = host.parse::<IpAddr>() {
            return Ok(reachable(&settings, literal).await);
        }
        let name = names::parse(host).ok_or(ResolveError::NotFound)?;
        let known = known(&settings, host, &name);
        if !known.is_empty() {
            return Ok(in_order(known));
        }
        let servers = &settings.servers;
        if servers.addresses.is_empty() {
            return Err(ResolveError::Unreachable);
        }
        let deadline = Instant::now() + servers.total();
        let mut error = ResolveError::NotFound;
        for candidate in names::candidates(host, &name, &servers.search, servers.ndots) {
            match both_families(&settings, &candidate, deadline, &mut partial).await {
                Ok(addresses) => return Ok(in_order(addresses)),
                Err(ResolveError::NotFound) => {}
                Err(worse) => error = worse,
            }
        }
        Err(error)
    }
}

/// The addresses of a name for which no name server is asked.
fn known(settings: &Settings, host: &str, name: &Name) -> Vec<IpAddr> {
    let in_file = settings.hosts.get(name);
    if in_file.is_empty() && names::is_localhost(host) {
        return vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
    }
    in_file
}

/// An address, and the one at which a NAT64 reaches it if the host has no route to it.
async fn reachable(settings: &Settings, literal: IpAddr) -> Vec<IpAddr> {
    let mut addresses = vec![literal];
    if let IpAddr::V4(v4) = literal
        && !has_route(literal)
        && let Some(name) = names::parse(nat64::WELL_KNOWN_NAME)
    {
        let deadline = Instant::now() + settings.servers.total();
        let reply = ask(settings, &name, RecordType::AAAA, deadline).await;
        let prefixes = reply.iter().flat_map(|reply| reply.addresses()).filter_map(|address| {
            if let IpAddr::V6(v6) = address { Prefix::find(v6) } else { None }
        });
        addresses.extend(prefixes.map(|prefix| IpAddr::from(prefix.address_of(v4))));
    }
    in_order(addresses)
}

/// The answers about one name.
#[derive(Default)]
struct Families {
    ipv6: Option<Result<Arc<Reply>, Unanswered>>,
    ipv4: Option<Result<Arc<Reply>, Unanswered>>,
}

impl Families {
    fn addresses(&self) -> Vec<IpAddr> {
        let of = |answer: &Option<Result<Arc<Reply>, Unanswered>>| match answer {
            Some(Ok(reply)) => reply.addresses().take(ADDRESSES_MAX).collect(),
            _ => Vec::new(),
        };
        [of(&self.ipv6), of(&self.ipv4)].concat()
    }

    /// The reason why there are no addresses. A name is not found only if a name server says so. A family without an
    /// answer may have addresses.
    fn why_none(&self) -> ResolveError {
        let answers = [&self.ipv6, &self.ipv4];
        let is_no_name =
            answers.into_iter().any(|answer| matches!(answer, Some(Ok(reply)) if reply.is_no_name));
        let are_empty = answers.into_iter().all(|answer| matches!(answer, Some(Ok(_))));
        if is_no_name || are_empty { ResolveError::NotFound } else { ResolveError::Unreachable }
    }
}

/// Asks for the addresses of both families.
///
/// RFC 8305 §3: "Implementations SHOULD NOT wait for both families of answers to return before attempting connection
/// establishment."
async fn both_families(
    settings: &Settings,
    name: &Name,
    deadline: Instant,
    partial: &mut (impl FnMut(Vec<IpAddr>) + Send),
) -> Result<Vec<IpAddr>, ResolveError> {
    let ipv6 = ask(settings, name, RecordType::AAAA, deadline);
    let ipv4 = ask(settings, name, RecordType::A, deadline);
    tokio::pin!(ipv6, ipv4);
    let mut families = Families::default();
    let mut attempts = Attempts::NotYet;
    while families.ipv6.is_none() || families.ipv4.is_none() {
        let begin = if let Attempts::At(begin) = attempts { Some(begin) } else { None };
        tokio::select! {
            biased;
            answer = &mut ipv6, if families.ipv6.is_none() => families.ipv6 = Some(answer),
            answer = &mut ipv4, if families.ipv4.is_none() => families.ipv4 = Some(answer),
            () = sleep_until(begin.unwrap_or(deadline)), if begin.is_some() => {
                attempts = Attempts::Begun;
                partial(in_order(families.addresses()));
            }
        }
        if attempts == Attempts::NotYet && families.addresses().into_iter().any(has_route) {
            let has_ipv6 = families.ipv6.is_some();
            let delay = if has_ipv6 { Duration::ZERO } else { RESOLUTION_DELAY };
            attempts = Attempts::At(Instant::now() + delay);
        }
    }
    let addresses = families.addresses();
    if addresses.is_empty() { Err(families.why_none()) } else { Ok(addresses) }
}

/// Whether attempts to connect make sense.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempts {
    /// There is no address yet to which the host has a route.
    NotYet,
    /// From this time on.
    At(Instant),
    /// The caller has got addresses for them.
    Begun,
}

/// The addresses with those first to which the host has a route.
fn in_order(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    if addresses.len() > 1 {
        addresses.sort_by_cached_key(|address| !has_route(*address)); // this sort is stable
    }
    addresses
}

/// Returns whether the host has a route to this address. Connecting a UDP socket looks up the route
/// and sends no packet.
fn has_route(address: IpAddr) -> bool {
    let peer = SocketAddr::new(address, 443);
    UdpSocket::bind(any_address(peer)).and_then(|socket| socket.connect(peer)).is_ok()
}

#[cfg(test)]
mod tests;

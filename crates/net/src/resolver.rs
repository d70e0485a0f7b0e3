//! The resolution of host names with the hosts file and the system's name servers.

mod service;

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use hickory_resolver::{
    Hosts, TokioResolver,
    config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    lookup::Lookup,
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::Query,
        rr::{Name, RecordType},
    },
    system_conf,
};
#[cfg(fuzzing)]
pub use service::model::run as run_https_model;
use tandem_node::node::ResolveError;
use tokio::time::timeout;
use tracing::{debug, warn};

/// The time after which a query without an answer is sent again. It is shorter than the usual 5 s,
/// so that a lost packet or an unreachable first name server delays a user less.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of retransmissions of a query without an answer.
const QUERY_RETRIES: usize = 1;

/// The longest wait for the second address family after the first has answered: the resolution
/// delay of RFC 8305 §8. Some name servers never answer AAAA queries.
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// The largest number of addresses of one name. Further addresses would never be tried.
const ADDRESSES_MAX: usize = 16;

/// A resolver of host names. It is cheap to clone; clones share one cache.
///
/// It uses these sources in this order:
/// 1. The hosts file. A name in it has only the addresses in it.
/// 2. The loopback addresses for `localhost` and names below it (RFC 6761 §6.3).
/// 3. The name servers of `/etc/resolv.conf`, with parallel queries for A and AAAA. Without that
///    file there are no name servers, and every other name is [`ResolveError::Unreachable`].
///
/// Addresses to which the host has a route come first (rule 1 of RFC 6724), and IPv6 comes before
/// IPv4 otherwise, which is the usual outcome of RFC 6724. A host without IPv6 thus gets IPv4
/// first.
#[derive(Clone)]
pub struct Resolver {
    hosts: Arc<Hosts>,
    name_servers: Option<TokioResolver>,
}

impl Resolver {
    /// Creates a resolver from the system's configuration. A part that is missing or broken is
    /// logged and left out.
    pub fn from_system() -> Self {
        let hosts = Hosts::from_system().unwrap_or_else(|error| {
            debug!(%error, "the hosts file cannot be read");
            Hosts::default()
        });
        let name_servers = match system_conf::read_system_conf() {
            Ok((config, options)) => name_servers(config, options),
            Err(error) => {
                warn!(%error, "there are no name servers: only the hosts file is used");
                None
            }
        };
        Self { hosts: Arc::new(hosts), name_servers }
    }

    /// Creates a resolver from a list of name servers, which may be empty, and a text in the format
    /// of `/etc/hosts`.
    pub fn from_parts(servers: &[SocketAddr], hosts_file: &str) -> io::Result<Self> {
        let mut hosts = Hosts::default();
        hosts.read_hosts_conf(hosts_file.as_bytes())?;
        let servers: Vec<_> = servers.iter().copied().map(name_server).collect();
        let name_servers = (!servers.is_empty())
            .then(|| ResolverConfig::from_name_servers(servers))
            .and_then(|config| name_servers(config, ResolverOpts::default()));
        Ok(Self { hosts: Arc::new(hosts), name_servers })
    }

    /// Resolves a host name to its addresses, in order of preference: at least one, at most 16.
    ///
    /// The caller must be in a tokio runtime. A query takes at most a few seconds per name in the
    /// search list; the caller sets the total limit.
    ///
    /// # Errors
    ///
    /// [`ResolveError::NotFound`] if the name has no addresses, [`ResolveError::Unreachable`] if no
    /// name server has answered.
    pub async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let host = host.to_ascii_lowercase();
        let name = Name::from_utf8(&host).map_err(|_error| ResolveError::NotFound)?;
        let mut addresses = self.in_hosts_file(&name);
        if addresses.is_empty() && is_localhost(&host) {
            addresses = vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
        }
        if addresses.is_empty() {
            addresses = self.ask_name_servers(name).await?;
        }
        addresses.truncate(ADDRESSES_MAX);
        if addresses.len() > 1 {
            addresses.sort_by_cached_key(|address| !has_route(*address)); // this sort is stable
        }
        if addresses.is_empty() { Err(ResolveError::NotFound) } else { Ok(addresses) }
    }

    fn in_hosts_file(&self, name: &Name) -> Vec<IpAddr> {
        [RecordType::AAAA, RecordType::A]
            .into_iter()
            .filter_map(|family| self.hosts.lookup_static_host(&Query::query(name.clone(), family)))
            .flat_map(|lookup| addresses(&lookup))
            .collect()
    }

    /// Queries both address families. Hickory's own lookup of both families is not used, because it
    /// would wait until the slower one times out.
    async fn ask_name_servers(&self, name: Name) -> Result<Vec<IpAddr>, ResolveError> {
        let servers = self.name_servers.as_ref().ok_or(ResolveError::Unreachable)?;
        let (ipv6, ipv4) = both_families(
            servers.lookup(name.clone(), RecordType::AAAA),
            servers.lookup(name, RecordType::A),
        )
        .await;
        let results = [ipv6, ipv4];
        let found: Vec<_> = results.iter().flatten().flatten().flat_map(addresses).collect();
        if found.is_empty() { Err(why_none(&results)) } else { Ok(found) }
    }
}

/// Returns the reason why there are no addresses. A name is not found only if a name server says
/// so. A family without an answer may have addresses.
fn why_none(results: &[Option<Result<Lookup, NetError>>; 2]) -> ResolveError {
    let is_denied =
        results.iter().flatten().any(|result| matches!(result, Err(error) if error.is_nx_domain()));
    let is_empty = |result: &Option<Result<Lookup, NetError>>| match result {
        Some(Ok(_)) => true,
        Some(Err(error)) => error.is_no_records_found(),
        None => false,
    };
    if is_denied || results.iter().all(is_empty) {
        ResolveError::NotFound
    } else {
        ResolveError::Unreachable
    }
}

/// Waits for both queries. After one has succeeded, it waits only [`RESOLUTION_DELAY`] for the
/// other.
async fn both_families<T, E>(
    one: impl Future<Output = Result<T, E>>,
    other: impl Future<Output = Result<T, E>>,
) -> (Option<Result<T, E>>, Option<Result<T, E>>) {
    tokio::pin!(one, other);
    tokio::select! {
        first = &mut one => {
            let second = second_family(first.is_ok(), other).await;
            (Some(first), second)
        }
        first = &mut other => {
            let second = second_family(first.is_ok(), one).await;
            (second, Some(first))
        }
    }
}

async fn second_family<T>(is_first_good: bool, second: impl Future<Output = T>) -> Option<T> {
    if is_first_good { timeout(RESOLUTION_DELAY, second).await.ok() } else { Some(second.await) }
}

fn addresses(lookup: &Lookup) -> Vec<IpAddr> {
    lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect()
}

fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    host == "localhost" || host.ends_with(".localhost")
}

/// Returns whether the host has a route to this address. Connecting a UDP socket looks up the route
/// and sends no packet.
fn has_route(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let connect = || UdpSocket::bind((any, 0))?.connect((address, 443));
    connect().is_ok()
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let mut config = NameServerConfig::udp_and_tcp(address.ip());
    for connection in &mut config.connections {
        connection.port = address.port();
    }
    config
}

fn name_servers(config: ResolverConfig, mut options: ResolverOpts) -> Option<TokioResolver> {
    options.timeout = options.timeout.min(QUERY_TIMEOUT);
    options.attempts = QUERY_RETRIES;
    options.use_hosts_file = ResolveHosts::Never; // `in_hosts_file` does this
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    match builder.build() {
        Ok(resolver) => Some(resolver),
        Err(error) => {
            warn!(%error, "the name servers cannot be used: only the hosts file is used");
            None
        }
    }
}

#[cfg(test)]
mod tests;

//! The servers of an https authority, by its HTTPS records (RFC 9460).
//!
//! The records only say to which addresses and ports the client connects. RFC 9460 §9.1: "clients MUST
//! continue to validate TLS certificate hostnames based on the origin." The parameter `ech` is ignored, because
//! rustls with ring cannot encrypt names in handshakes.

#[cfg(any(test, fuzzing))]
pub(super) mod model;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures_util::future;
use hickory_resolver::proto::rr::{
    Name, RData, Record, RecordType,
    rdata::svcb::{SVCB, SvcParamKey, SvcParamValue},
};
use tandem_node::{
    StrangerText,
    node::{ResolveError, ServiceEndpoint},
};
use tokio::time::timeout;
use tracing::debug;

use super::{RESOLUTION_DELAY, Resolver, is_localhost};

/// The largest number of aliases that are followed. Zones should not need more than one.
///
/// RFC 9460 §2.4.2: "To avoid unbounded alias chains, clients and recursive resolvers MUST impose a limit on
/// the total number of SVCB aliases they will follow for each resolution request."
const ALIASES_MAX: usize = 8;

/// The largest number of servers of one name. A client tries only a few.
const ENDPOINTS_MAX: usize = 16;

/// The longest wait for HTTPS records after the addresses of the name are known. Some networks drop
/// queries for record types that they do not know. It is longer than the delay for addresses, because the
/// choice of a proxy lasts as long as the tunnel.
const SERVICE_DELAY: Duration = Duration::from_millis(250);

/// The longest time for a whole resolution with all its aliases.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(5);

/// The priority of servers that are only used if those of the records cannot be reached: it is behind all
/// others.
const LAST: u16 = u16::MAX;

/// A server that a usable record names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Service {
    priority: u16,
    target: Name,
    port: Option<u16>,
    hints: Vec<IpAddr>,
}

/// What the HTTPS records of a name say.
#[derive(Debug, PartialEq, Eq)]
enum Records {
    Alias(Name),
    /// The servers, of which there may be none.
    Services(Vec<Service>),
}

/// The outcome of following all aliases.
struct Followed {
    services: Vec<Service>,
    /// The name to which the last alias led.
    alias: Option<Name>,
}

impl Resolver {
    /// Finds the servers of an https authority, in order of preference: at least one.
    ///
    /// A name in the hosts file, and `localhost`, have no records. If a name has no records that this client can
    /// use, or they do not arrive in time, its addresses are the only server.
    ///
    /// # Errors
    ///
    /// Those of [`Resolver::resolve`].
    pub async fn resolve_service(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<ServiceEndpoint>, ResolveError> {
        let plain = self.resolve(host);
        let records = timeout(SERVICE_TIMEOUT, self.services(host, port));
        tokio::pin!(plain, records);
        // RFC 9460 §3: "SVCB-optional clients SHOULD issue in parallel any other DNS queries that might be
        // needed for connection establishment."
        let (addresses, services) = tokio::select! {
            services = &mut records => {
                let services = services.unwrap_or_default();
                let addresses = if services.is_empty() {
                    plain.await
                } else {
                    timeout(RESOLUTION_DELAY, plain).await.unwrap_or(Err(ResolveError::NotFound))
                };
                (addresses, services)
            }
            addresses = &mut plain => {
                let services = match &addresses {
                    Ok(_) => timeout(SERVICE_DELAY, records).await.and_then(|services| services),
                    Err(_) => records.await,
                };
                (addresses, services.unwrap_or_default())
            }
        };
        combine(services, addresses, port)
    }

    /// The servers that the records of a name lead to, with their addresses.
    async fn services(&self, host: &str, port: u16) -> Vec<ServiceEndpoint> {
        let host = host.to_ascii_lowercase();
        let Ok(name) = Name::from_utf8(&host) else { return Vec::new() };
        if is_localhost(&host) || !self.in_hosts_file(&name).is_empty() {
            return Vec::new();
        }
        let Some(Followed { services, alias }) = self.follow(name, port).await else {
            return Vec::new();
        };
        let found = services.iter().map(|service| self.endpoint(service, port));
        let mut endpoints = future::join_all(found).await;
        // RFC 9460 §3: "SVCB-optional clients SHALL append an alternative endpoint consisting of the final
        // value of $QNAME, the authority endpoint's port number, and no SvcParams".
        if let Some(target) = alias {
            let last = Service { priority: LAST, target, port: None, hints: Vec::new() };
            endpoints.push(self.endpoint(&last, port).await);
        }
        endpoints.retain(|endpoint| !endpoint.addresses.is_empty());
        endpoints
    }

    /// Follows the aliases of a name to its servers. `None`: there are no records, or too many aliases.
    async fn follow(&self, host: Name, port: u16) -> Option<Followed> {
        let servers = self.name_servers.as_ref()?;
        let (mut name, mut alias) = (query_name(host, port)?, None);
        for _ in 0..=ALIASES_MAX {
            let records = match servers.lookup(name.clone(), RecordType::HTTPS).await {
                Ok(lookup) => interpret(lookup.answers()),
                Err(error) => {
                    debug!(name = %shown(&name), error = %shown(&error), "no HTTPS records");
                    Records::Services(Vec::new())
                }
            };
            match records {
                Records::Services(services) => return Some(Followed { services, alias }),
                Records::Alias(target) => {
                    alias = Some(target.clone());
                    name = target;
                }
            }
        }
        // RFC 9460 §3.1: "If the client is unable to complete SVCB resolution due to its chain length limit,
        // the client SHOULD fall back to the authority endpoint, as if the origin's SVCB record did not
        // exist."
        debug!(name = %shown(&name), "more than {ALIASES_MAX} aliases, one after the other");
        None
    }

    /// The addresses of a server. Those that the record has as hints are used if a name server does not give
    /// others in time.
    async fn endpoint(&self, service: &Service, port: u16) -> ServiceEndpoint {
        let target = service.target.to_string();
        let resolved = if service.hints.is_empty() {
            self.resolve(&target).await.ok()
        } else {
            timeout(RESOLUTION_DELAY, self.resolve(&target)).await.ok().and_then(Result::ok)
        };
        // RFC 9460 §7.2: "If this key is not present, clients SHALL use the authority endpoint's port number."
        let port = service.port.unwrap_or(port);
        let addresses = resolved.unwrap_or_else(|| service.hints.clone()).into_iter();
        ServiceEndpoint {
            priority: service.priority,
            addresses: addresses.map(|address| SocketAddr::new(address, port)).collect(),
        }
    }
}

/// The servers, and behind them the addresses of the name itself. No address occurs twice.
fn combine(
    mut endpoints: Vec<ServiceEndpoint>,
    addresses: Result<Vec<IpAddr>, ResolveError>,
    port: u16,
) -> Result<Vec<ServiceEndpoint>, ResolveError> {
    let error = match addresses {
        Ok(addresses) => {
            let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
            endpoints.push(ServiceEndpoint { priority: LAST, addresses });
            ResolveError::NotFound
        }
        Err(error) => error,
    };
    let mut known = BTreeSet::new();
    for endpoint in &mut endpoints {
        endpoint.addresses.retain(|address| known.insert(*address));
    }
    endpoints.retain(|endpoint| !endpoint.addresses.is_empty());
    if endpoints.is_empty() { Err(error) } else { Ok(endpoints) }
}

/// The name whose HTTPS records are asked for.
///
/// RFC 9460 §9.1: "The HTTPS RR uses Port Prefix Naming (Section 2.3), with one modification: if the scheme is
/// "https" and the port is 443, then the client's original QNAME is equal to the service name (i.e., the
/// origin's hostname), without any prefix labels."
fn query_name(host: Name, port: u16) -> Option<Name> {
    if port == 443 {
        return Some(host);
    }
    let labels = [format!("_{port}"), "_https".to_owned()];
    let labels = labels.iter().map(String::as_bytes).chain(host.iter());
    let mut name = Name::from_labels(labels).ok()?;
    name.set_fqdn(host.is_fqdn());
    Some(name)
}

/// Reads the HTTPS records of an answer.
fn interpret(answers: &[Record]) -> Records {
    let records = answers.iter().filter_map(|record| match &record.data {
        RData::HTTPS(https) => Some((&record.name, &https.0)),
        _ => None,
    });
    let records: Vec<(&Name, &SVCB)> = records.collect();
    // RFC 9460 §2.4.1: "If an RRset contains a record in AliasMode, the recipient MUST ignore any ServiceMode
    // records in the set."
    if let Some((_, alias)) = records.iter().find(|(_, record)| record.svc_priority == 0) {
        // RFC 9460 §2.5.1: "a TargetName of "." indicates that the service is not available or does not
        // exist. This indication is advisory: clients encountering this indication MAY ignore it and
        // attempt to connect without the use of SVCB."
        if alias.target_name.is_root() {
            return Records::Services(Vec::new());
        }
        return Records::Alias(alias.target_name.clone());
    }
    let mut services: Vec<_> =
        records.into_iter().filter_map(|(owner, record)| service(owner, record)).collect();
    services.sort_by_key(|service| service.priority);
    services.truncate(ENDPOINTS_MAX);
    Records::Services(services)
}

/// A name that comes from a name server, or an error with such names, for the log.
fn shown(from_server: &dyn std::fmt::Display) -> StrangerText {
    from_server.to_string().into()
}

/// The server of a record. `None`: this client cannot use it.
fn service(owner: &Name, record: &SVCB) -> Option<Service> {
    let refused = |reason: &str| {
        let (owner, target) = (shown(owner), shown(&record.target_name));
        debug!(%owner, %target, "an HTTPS record is not used: {reason}");
        None
    };
    // RFC 9460 §2.5.2: "if TargetName has the value ".", then the owner name of this record MUST be used as the
    // effective TargetName."
    let is_owner = record.target_name.is_root();
    let target = if is_owner { owner.clone() } else { record.target_name.clone() };
    let (mut port, mut hints, mut is_h3, mut no_default) = (None, Vec::new(), None, false);
    for (_, value) in &record.svc_params {
        match value {
            SvcParamValue::Mandatory(keys) => {
                if let Some(reason) = keys.0.iter().find_map(|key| fault_of_mandatory(*key, record))
                {
                    return refused(reason);
                }
            }
            SvcParamValue::Alpn(alpn) => is_h3 = Some(alpn.0.iter().any(|id| id == "h3")),
            SvcParamValue::NoDefaultAlpn => no_default = true,
            SvcParamValue::Port(0) => return refused("its port is 0"),
            SvcParamValue::Port(number) => port = Some(*number),
            SvcParamValue::Ipv4Hint(hint) => hints.extend(hint.0.iter().map(|a| IpAddr::V4(a.0))),
            SvcParamValue::Ipv6Hint(hint) => {
                // IPv6 comes first, as in other answers.
                hints.splice(0..0, hint.0.iter().map(|a| IpAddr::V6(a.0)));
            }
            // RFC 9460 §2.4.3: "clients MUST ignore any SvcParam that they do not recognize."
            _ => {}
        }
    }
    hints.truncate(super::ADDRESSES_MAX);
    // RFC 9460 §2.4.3: "Clients MUST reject any RR whose recognized SvcParams are not self-consistent".
    if no_default && is_h3.is_none() {
        return refused("it has no-default-alpn, but no alpn");
    }
    // RFC 9460 §7.1.2: "Clients SHOULD NOT attempt connection to a service endpoint whose SVCB ALPN set does
    // not contain any supported protocols." The default set is http/1.1.
    if is_h3 != Some(true) {
        return refused("its alpn does not have h3");
    }
    Some(Service { priority: record.svc_priority, target, port, hints })
}

/// Why a record with this mandatory key cannot be used, if it cannot.
///
/// RFC 9460 §8: "A `ServiceMode` RR is considered "compatible" with a client if the client recognizes all the
/// mandatory keys, and their values indicate that successful connection establishment is possible."
fn fault_of_mandatory(key: SvcParamKey, record: &SVCB) -> Option<&'static str> {
    // RFC 9460 §8: "For self-consistency (Section 2.4.3), listed keys MUST also appear in the SvcParams."
    let is_present = record.svc_params.iter().any(|(present, _)| *present == key);
    match key {
        _ if !is_present => Some("a mandatory key is missing"),
        SvcParamKey::Alpn
        | SvcParamKey::NoDefaultAlpn
        | SvcParamKey::Port
        | SvcParamKey::Ipv4Hint
        | SvcParamKey::Ipv6Hint => None,
        // RFC 9460 §8: the key `mandatory` "MUST NOT appear in its own value-list".
        SvcParamKey::Mandatory => Some("mandatory is one of its mandatory keys"),
        _ => Some("a mandatory key is not known"),
    }
}

#[cfg(test)]
mod tests;

//! The servers of an https authority, by its HTTPS records (RFC 9460).
//!
//! The records only say to which addresses and ports the client connects. RFC 9460 §9.1: "clients MUST
//! continue to validate TLS certificate hostnames based on the origin."

#[cfg(any(test, fuzzing))]
pub(super) mod model;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use hickory_proto::rr::{
    Name, RData, Record, RecordType,
    rdata::svcb::{EchConfigList, SVCB, SvcParamKey, SvcParamValue},
};
use tandem_node::{
    StrangerText,
    node::{Progress, ResolveError, ServiceEndpoint},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tracing::debug;

use super::{RESOLUTION_DELAY, Resolver, ask::ask, names};

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

/// The longest wait for HTTPS records after all addresses of the name are known. A client whose attempts have all
/// failed waits for it.
const RECORDS_PATIENCE: Duration = Duration::from_secs(1);

/// The longest time for HTTPS records with all their aliases.
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
    /// The configurations for an Encrypted `ClientHello`.
    ech: Option<Bytes>,
}

/// What the HTTPS records of a name say.
#[derive(Debug, PartialEq, Eq)]
enum Records {
    Alias(Name),
    /// The servers, of which there may be none.
    Services(Vec<Service>),
}

/// The outcome of following all aliases.
#[derive(Default)]
struct Followed {
    services: Vec<Service>,
    /// The name to which the last alias led.
    alias: Option<Name>,
}

impl Resolver {
    /// Finds the servers of an https authority, in order of preference: at least one.
    ///
    /// A name in the hosts file, `localhost` and addresses have no records. If a name has no records that this client
    /// can use, or they do not arrive in time, its addresses are the only server.
    ///
    /// While something may still come, `partial` gets what is known as soon as an attempt to connect makes sense, and
    /// again when there is more.
    ///
    /// # Errors
    ///
    /// Those of [`Resolver::resolve`].
    pub async fn resolve_service(
        &self,
        host: &str,
        port: u16,
        mut partial: impl FnMut(Vec<ServiceEndpoint>) + Send,
    ) -> Result<Vec<ServiceEndpoint>, ResolveError> {
        let (parts, mut news) = mpsc::unbounded_channel();
        let mut search = Search::new(host, port);
        let mut running = FuturesUnordered::new();
        running.push(self.news_of_records(host, port).boxed());
        // RFC 9460 §3: "SVCB-optional clients SHOULD issue in parallel any other DNS queries that might be
        // needed for connection establishment."
        running.push(self.news_of_name(host.to_owned(), parts.clone()).boxed());
        while !search.is_complete() {
            let due = search.due();
            tokio::select! {
                biased;
                Some(news) = news.recv() => search.learn(news),
                Some(news) = running.next() => search.learn(news),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            for target in search.new_targets() {
                running.push(self.news_of_name(target, parts.clone()).boxed());
            }
            if !search.is_complete()
                && let Some(endpoints) = search.part()
            {
                partial(endpoints);
            }
        }
        search.result()
    }

    async fn news_of_name(&self, host: String, parts: mpsc::UnboundedSender<News>) -> News {
        let part = |addresses| {
            let news = News::Addresses(host.clone(), Ok(addresses), Progress::Partial);
            drop(parts.send(news)); // the search may have ended, and then nobody reads it
        };
        let result = self.resolve(&host, part).await;
        News::Addresses(host, result, Progress::Complete)
    }

    async fn news_of_records(&self, host: &str, port: u16) -> News {
        let followed = timeout(SERVICE_TIMEOUT, self.follow(host, port)).await.ok().flatten();
        News::Records(followed.unwrap_or_default())
    }

    /// Follows the aliases of a name to its servers. `None`: there are no records, or too many aliases.
    async fn follow(&self, host: &str, port: u16) -> Option<Followed> {
        let settings = self.settings().await;
        let name = names::parse(host).filter(|_| host.parse::<IpAddr>().is_err())?;
        if names::is_localhost(host) || !settings.hosts.get(&name).is_empty() {
            return None;
        }
        let deadline = Instant::now() + SERVICE_TIMEOUT;
        let (mut name, mut alias) = (query_name(name, port)?, None);
        for _ in 0..=ALIASES_MAX {
            let reply = ask(&settings, &name, RecordType::HTTPS, deadline).await.ok();
            let records = reply.as_ref().map_or(&[][..], |reply| reply.records());
            debug!(name = %shown(&name), records = records.len(), "asked for HTTPS records");
            match interpret(records) {
                Records::Services(services) => return Some(Followed { services, alias }),
                Records::Alias(target) => {
                    alias = Some(target.clone());
                    name = target;
                }
            }
        }
        debug!(name = %shown(&name), "too many aliases");
        None
    }
}

/// What a search learns.
enum News {
    Records(Followed),
    /// The addresses of a name.
    Addresses(String, Result<Vec<IpAddr>, ResolveError>, Progress),
}

/// What is known of a name that is looked up.
#[derive(Default)]
struct Found {
    /// `None`: there was no answer yet.
    result: Option<Result<Vec<IpAddr>, ResolveError>>,
    is_complete: bool,
    /// When the first answer came, and when the last one did.
    since: Option<Instant>,
}

/// The search for the servers of one authority.
struct Search {
    host: String,
    port: u16,
    /// The servers that the records name, and when they were known.
    records: Option<(Followed, Instant)>,
    /// The names that are looked up: that of the authority, and the targets of its records.
    names: BTreeMap<String, Found>,
    /// What was told last.
    told: Vec<ServiceEndpoint>,
}

impl Search {
    fn new(host: &str, port: u16) -> Self {
        let names = BTreeMap::from([(host.to_owned(), Found::default())]);
        Self { host: host.to_owned(), port, records: None, names, told: Vec::new() }
    }

    fn learn(&mut self, news: News) {
        match news {
            News::Records(followed) => self.records = Some((followed, Instant::now())),
            News::Addresses(name, result, progress) => {
                let found = self.names.entry(name).or_default();
                found.since.get_or_insert_with(Instant::now);
                if progress == Progress::Complete {
                    (found.is_complete, found.since) = (true, Some(Instant::now()));
                }
                found.result = Some(result);
            }
        }
    }

    /// The servers of the records, in order, and behind them the name to which the last alias led.
    ///
    /// RFC 9460 §3: "SVCB-optional clients SHALL append an alternative endpoint consisting of the final value of
    /// `$QNAME`, the authority endpoint's port number, and no `SvcParams`".
    fn services(&self) -> Vec<Service> {
        let Some((followed, _)) = &self.records else { return Vec::new() };
        let last = followed.alias.clone().filter(|_| !self.is_reliant()).map(|target| Service {
            priority: LAST,
            target,
            port: None,
            hints: Vec::new(),
            ech: None,
        });
        followed.services.iter().cloned().chain(last).collect()
    }

    /// Whether only the servers of the records are used, because all of them take an Encrypted `ClientHello` (RFC 9848
    /// §5.1). With another way, an attacker could make the client show the name by dropping its first packets.
    fn is_reliant(&self) -> bool {
        let services = self.records.as_ref().map_or(&[][..], |(followed, _)| &followed.services);
        !services.is_empty() && services.iter().all(|service| service.ech.is_some())
    }

    /// The targets of records that were not looked up yet.
    fn new_targets(&mut self) -> Vec<String> {
        let targets = self.services().into_iter().map(|service| names::text(&service.target));
        let new: BTreeSet<String> = targets.filter(|it| !self.names.contains_key(it)).collect();
        self.names.extend(new.iter().map(|target| (target.clone(), Found::default())));
        new.into_iter().collect()
    }

    fn plain(&self) -> Option<&Found> {
        self.names.get(&self.host)
    }

    /// The addresses of a server: those of its target, or its hints if these do not come soon (RFC 9460 §7.3).
    fn addresses(&self, service: &Service) -> Option<Vec<IpAddr>> {
        let found = self.names.get(&names::text(&service.target));
        match found.and_then(|found| found.result.as_ref()) {
            Some(Ok(addresses)) => Some(addresses.clone()),
            Some(Err(_)) => Some(service.hints.clone()),
            None if Instant::now() >= self.hints_due()? && !service.hints.is_empty() => {
                Some(service.hints.clone())
            }
            None => None,
        }
    }

    fn hints_due(&self) -> Option<Instant> {
        self.records.as_ref().map(|(_, since)| *since + RESOLUTION_DELAY)
    }

    /// When records are not waited for any more with the first attempt.
    fn service_due(&self) -> Option<Instant> {
        let plain = self.plain().filter(|found| matches!(found.result, Some(Ok(_))))?;
        plain.since.map(|since| since + SERVICE_DELAY)
    }

    /// When something changes without news.
    fn due(&self) -> Option<Instant> {
        let due = [self.hints_due(), self.service_due(), self.records_due()];
        due.into_iter().flatten().filter(|due| *due > Instant::now()).min()
    }

    /// When records are given up. Without addresses of the name itself, they are all there is.
    fn records_due(&self) -> Option<Instant> {
        let plain = self.plain().filter(|found| found.is_complete)?;
        let is_found = matches!(plain.result, Some(Ok(_)));
        plain.since.filter(|_| is_found).map(|since| since + RECORDS_PATIENCE)
    }

    /// Whether nothing more comes.
    fn is_complete(&self) -> bool {
        let has_records =
            self.records.is_some() || self.records_due().is_some_and(|due| Instant::now() >= due);
        has_records && self.names.values().all(|found| found.is_complete)
    }

    /// The servers that are known, if a client can use them now and was told of other ones before.
    fn part(&mut self) -> Option<Vec<ServiceEndpoint>> {
        let is_late = self.service_due().is_some_and(|due| Instant::now() >= due);
        let is_known = |service: &Service| self.addresses(service).is_some();
        let are_known = self.records.is_some() && self.services().iter().all(is_known);
        let endpoints = self.result().ok().filter(|_| is_late || are_known)?;
        let is_new = endpoints != self.told;
        self.told.clone_from(&endpoints);
        is_new.then_some(endpoints)
    }

    /// All that is known.
    fn result(&self) -> Result<Vec<ServiceEndpoint>, ResolveError> {
        let endpoint = |service: Service| {
            // RFC 9460 §7.2: "If this key is not present, clients SHALL use the authority endpoint's port number."
            let port = service.port.unwrap_or(self.port);
            let addresses = self.addresses(&service).unwrap_or_default().into_iter();
            ServiceEndpoint {
                priority: service.priority,
                addresses: addresses.map(|address| SocketAddr::new(address, port)).collect(),
                ech: service.ech,
            }
        };
        let endpoints = self.services().into_iter().map(endpoint).collect();
        let plain = self.plain().and_then(|found| found.result.clone());
        let plain = plain.filter(|_| !self.is_reliant());
        combine(endpoints, plain.unwrap_or(Err(ResolveError::NotFound)), self.port)
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
            endpoints.push(ServiceEndpoint { priority: LAST, addresses, ech: None });
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
        let (owner, alias) = (shown(owner), shown(&record.target_name));
        debug!(%owner, %alias, "an HTTPS record is not used: {reason}");
        None
    };
    // RFC 9460 §2.5.2: "if TargetName has the value ".", then the owner name of this record MUST be used as the
    // effective TargetName."
    let is_owner = record.target_name.is_root();
    let target = if is_owner { owner.clone() } else { record.target_name.clone() };
    let (mut port, mut hints, mut is_h3, mut no_default) = (None, Vec::new(), None, false);
    let mut ech = None;
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
            SvcParamValue::EchConfigList(EchConfigList(list)) => {
                ech = Some(Bytes::copy_from_slice(list));
            }
            // RFC 9460 §2.4.3: "clients MUST ignore any SvcParam that they do not recognize."
            SvcParamValue::Unknown(_) => {}
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
    Some(Service { priority: record.svc_priority, target, port, hints, ech })
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
        | SvcParamKey::EchConfigList
        | SvcParamKey::Ipv6Hint => None,
        // RFC 9460 §8: the key `mandatory` "MUST NOT appear in its own value-list".
        SvcParamKey::Mandatory => Some("mandatory is one of its mandatory keys"),
        _ => Some("a mandatory key is not known"),
    }
}

#[cfg(test)]
mod tests;

//! What the system's configuration says about names: `/etc/resolv.conf` and `/etc/hosts`.
//!
//! Both are read as the C library reads them: a line that cannot be understood is left out, and the others count.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    sync::Mutex,
    time::Duration,
};

use hickory_proto::rr::Name;

use super::{cache::Cache, health::Health, names};

/// The port of name servers.
const PORT: u16 = 53;

/// The most name servers. The C library takes three.
const SERVERS_MAX: usize = 8;

/// The most domains of a search list.
const SEARCH_MAX: usize = 8;

/// The longest time for one name, whatever the options say.
const TOTAL_MAX: Duration = Duration::from_secs(30);

/// All that a resolution needs to know. What was learned with one configuration does not outlive it.
pub(super) struct Settings {
    pub(super) hosts: Hosts,
    pub(super) servers: Servers,
    pub(super) cache: Mutex<Cache>,
    pub(super) health: Mutex<Health>,
}

impl Settings {
    pub(super) fn new(servers: Servers, hosts: Hosts) -> Self {
        let health = Mutex::new(Health::new(servers.addresses.len()));
        Self { hosts, servers, cache: Mutex::default(), health }
    }
}

/// The name servers and how they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Servers {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) search: Vec<Name>,
    /// A name with this many dots is looked for as it is first, and in the search list afterwards.
    pub(super) ndots: u8,
    timeout: u32,
    attempts: u32,
    /// Whether questions begin with each server in turn.
    pub(super) rotate: bool,
    /// Whether answers may be longer than 512 bytes (RFC 6891).
    pub(super) edns0: bool,
    /// Whether servers are asked over TCP only.
    pub(super) use_tcp: bool,
}

impl Default for Servers {
    fn default() -> Self {
        // `timeout` and `attempts` are those of the C library.
        Self {
            addresses: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: 5,
            attempts: 2,
            rotate: false,
            edns0: false,
            use_tcp: false,
        }
    }
}

impl Servers {
    /// Servers at these addresses, with the usual options.
    pub(super) fn at(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, ..Self::default() }
    }

    /// The time after which a name is given up: `attempts` times `timeout`, 10 seconds if the options do not say it.
    pub(super) fn total(&self) -> Duration {
        let seconds = self.timeout.max(1).saturating_mul(self.attempts.max(1));
        Duration::from_secs(seconds.into()).min(TOTAL_MAX)
    }

    /// Reads the text of `/etc/resolv.conf` (resolv.conf(5)).
    pub(super) fn parse(text: &str) -> Self {
        let mut servers = Self::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(server_address);
                    let address = address.filter(|new| !servers.addresses.contains(new));
                    servers.addresses.extend(address);
                    servers.addresses.truncate(SERVERS_MAX);
                }
                // The last of these lines counts.
                Some("search" | "domain") => {
                    let domains = words.filter(|domain| *domain != ".").filter_map(names::parse);
                    servers.search = domains.take(SEARCH_MAX).collect();
                }
                Some("options") => words.for_each(|option| servers.set(option)),
                _ => {}
            }
        }
        servers
    }

    fn set(&mut self, option: &str) {
        let number = |text: &str| text.parse::<u32>().ok();
        match option.split_once(':') {
            Some(("ndots", value)) => {
                let ndots = number(value).map(|ndots| ndots.min(15));
                self.ndots = ndots.and_then(|ndots| u8::try_from(ndots).ok()).unwrap_or(self.ndots);
            }
            Some(("timeout", value)) => self.timeout = number(value).unwrap_or(self.timeout),
            Some(("attempts", value)) => self.attempts = number(value).unwrap_or(self.attempts),
            None => match option {
                "rotate" => self.rotate = true,
                "edns0" => self.edns0 = true,
                "use-vc" => self.use_tcp = true,
                _ => {}
            },
            Some(_) => {}
        }
    }
}

/// The address of a name server, which may have a scope, as in `fe80::1%eth0`.
fn server_address(text: &str) -> Option<SocketAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some((ip, PORT).into());
    }
    let (ip, scope) = text.split_once('%')?;
    let of_interface = || {
        let is_name = scope.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        let path = format!("/sys/class/net/{scope}/ifindex");
        fs::read_to_string(path).ok().filter(|_| is_name)?.trim().parse().ok()
    };
    let scope = scope.parse::<u32>().ok().or_else(of_interface)?;
    Some(SocketAddrV6::new(ip.parse().ok()?, PORT, 0, scope).into())
}

/// The names in the hosts file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(BTreeMap<Name, Vec<IpAddr>>);

impl Hosts {
    /// Reads the text of `/etc/hosts` (hosts(5)).
    pub(super) fn parse(text: &str) -> Self {
        let mut hosts = BTreeMap::<Name, Vec<IpAddr>>::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
                continue;
            };
            for name in words.filter_map(names::parse) {
                let addresses = hosts.entry(name).or_default();
                if addresses.len() < super::ADDRESSES_MAX && !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        Self(hosts)
    }

    /// The addresses of a name, IPv6 first.
    pub(super) fn get(&self, name: &Name) -> Vec<IpAddr> {
        let mut addresses = self.0.get(name).cloned().unwrap_or_default();
        addresses.sort_by_key(IpAddr::is_ipv4); // this sort is stable
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read_line_by_line() {
        let text = "# comment\n\
            nameserver 10.0.0.1 # the first\n\
            nameserver fe80::1%7\n\
            nameserver nonsense\n\
            nameserver 10.0.0.1\n\
            \tnameserver\t::1\n\
            domain old.test\n\
            search lab.test a_b.test .\n\
            unknown line\n\
            options ndots:3 timeout:x timeout:2 attempts:4 rotate edns0 trust-ad inet6\n";
        let servers = Servers::parse(text);
        let addresses: Vec<_> = servers.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1:53", "[fe80::1%7]:53", "[::1]:53"]);
        let search: Vec<_> = servers.search.iter().map(Name::to_ascii).collect();
        assert_eq!(search, ["lab.test.", "a_b.test."]);
        assert_eq!((servers.ndots, servers.total()), (3, Duration::from_secs(8)));
        assert!(servers.rotate && servers.edns0 && !servers.use_tcp);
        assert_eq!(Servers::parse(""), Servers::default());
        assert_eq!(Servers::default().total(), Duration::from_secs(10));
        let long = Servers::parse("options timeout:4294967295 attempts:4294967295 ndots:999");
        assert_eq!((long.total(), long.ndots), (TOTAL_MAX, 15));
        let many: Vec<_> = (0..100).map(|n| format!("nameserver 10.0.0.{n}\n")).collect();
        assert_eq!(Servers::parse(&many.concat()).addresses.len(), SERVERS_MAX);
    }

    #[test]
    fn hosts_are_read_line_by_line() {
        let hosts = Hosts::parse(
            "127.0.0.1\tlocalhost Box # comment\n::1 box\nnonsense box\n# 10.0.0.1 box\n\
             10.0.0.9 my_app.test\n10.0.0.9 my_app.test\n",
        );
        let get = |host: &str| hosts.get(&names::parse(host).expect("a name"));
        let addresses: Vec<_> = get("BOX.").iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["::1", "127.0.0.1"]);
        assert_eq!((get("my_app.test").len(), get("other").len()), (1, 0));
    }
}

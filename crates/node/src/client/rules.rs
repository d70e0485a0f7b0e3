//! Rules decide which targets of local programs go through the tunnel, which ones this client connects to itself, and
//! which ones it refuses. They read what a program has named: no name is looked up for them.

use std::{fmt, net::IpAddr, ops::RangeInclusive};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// What becomes of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// It goes through the tunnel.
    #[default]
    Proxy,
    /// This client connects to it without the tunnel.
    Direct,
    /// The program gets a refusal.
    Refuse,
}

impl Action {
    /// All actions, with their names.
    pub const NAMES: [(&'static str, Self); 3] =
        [("proxy", Self::Proxy), ("direct", Self::Direct), ("refuse", Self::Refuse)];
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, action)| action == self).map(|(name, _)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

/// What a program wants of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A TCP connection.
    Tcp,
    /// UDP payloads.
    Udp,
}

/// Which hosts a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// Every host.
    Any,
    /// This name, in lower case and without a dot at its end.
    Name(String),
    /// This name and all below it, in the same form.
    Domain(String),
    /// The addresses in this prefix, if a program names an address.
    Net(IpNet),
}

impl HostMatch {
    fn contains(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Name(name), Host::Name(host)) => name == host,
            (Self::Domain(domain), Host::Name(host)) => is_below(host, domain),
            (Self::Net(net), Host::Address(address)) => net.contains(address),
            (Self::Name(_) | Self::Domain(_), Host::Address(_)) | (Self::Net(_), Host::Name(_)) => {
                false
            }
        }
    }
}

impl fmt::Display for HostMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Name(name) => f.write_str(name),
            Self::Domain(domain) => write!(f, "*.{domain}"),
            Self::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Net(net) => net.fmt(f),
        }
    }
}

/// A rule: for which targets it is, and what becomes of them. A target has to match one of the hosts and one of the
/// ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What becomes of the targets.
    pub action: Action,
    /// The hosts.
    pub hosts: Vec<HostMatch>,
    /// The ports.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Whether the rule is for TCP, UDP or both.
    pub carries: Carries,
}

/// The ports of a rule that names none.
pub const ALL_PORTS: RangeInclusive<u16> = 0..=u16::MAX;

/// What a rule, or a proxy, is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carries {
    /// TCP connections.
    pub tcp: bool,
    /// UDP payloads.
    pub udp: bool,
}

impl Carries {
    /// Both.
    pub const BOTH: Self = Self { tcp: true, udp: true };

    const fn includes(self, carried: Carried) -> bool {
        match carried {
            Carried::Tcp => self.tcp,
            Carried::Udp => self.udp,
        }
    }
}

impl Rule {
    fn matches(&self, host: &Host, port: u16, carried: Carried) -> bool {
        self.carries.includes(carried)
            && self.ports.iter().any(|ports| ports.contains(&port))
            && self.hosts.iter().any(|it| it.contains(host))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.action)?;
        let has_ports = self.ports.iter().any(|ports| *ports != ALL_PORTS);
        for (index, host) in self.hosts.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match host {
                HostMatch::Net(net) if net.addr().is_ipv6() && has_ports => write!(f, "[{host}]")?,
                _ => host.fmt(f)?,
            }
        }
        for (index, ports) in self.ports.iter().filter(|_| has_ports).enumerate() {
            f.write_str(if index > 0 { "," } else { ":" })?;
            match (ports.start(), ports.end()) {
                (first, last) if first == last => first.fmt(f)?,
                (first, last) => write!(f, "{first}-{last}")?,
            }
        }
        match self.carries {
            Carries { tcp: true, udp: false } => f.write_str(" (TCP)"),
            Carries { tcp: false, udp: true } => f.write_str(" (UDP)"),
            Carries { .. } => Ok(()),
        }
    }
}

/// Which rule has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider<'a> {
    /// The target is this host itself, to which a client always connects directly.
    Loopback,
    /// A rule of the user.
    Own(&'a Rule),
    /// The target is in the network of this host.
    Local,
    /// A rule of the proxy's configuration document.
    Document(&'a Rule),
    /// No rule matches.
    Otherwise,
}

/// What becomes of a target, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// What becomes of it.
    pub action: Action,
    /// Which rule has decided.
    pub by: Decider<'a>,
}

/// All rules of a client.
///
/// They are asked in this order, and the first that matches decides: this host itself is reached directly; then come
/// the rules of the user; then the private addresses and names of the local network, which are reached directly; then
/// the rules of the proxy's configuration document; and then [`Self::otherwise`]. So a document can send no packet to
/// this host or its network through the tunnel, and cannot change what the user has said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rules of the user.
    pub own: Vec<Rule>,
    /// Those of the proxy's configuration document.
    pub document: Vec<Rule>,
    /// What becomes of all other targets.
    pub otherwise: Action,
}

impl Rules {
    /// What becomes of a target: a name, or an address without brackets.
    pub fn decide(&self, host: &str, port: u16, carried: Carried) -> Decision<'_> {
        let host = Host::of(host);
        if host.is_loopback() {
            return Decision { action: Action::Direct, by: Decider::Loopback };
        }
        let is_meant = |rule: &&Rule| rule.matches(&host, port, carried);
        if let Some(rule) = self.own.iter().find(is_meant) {
            return Decision { action: rule.action, by: Decider::Own(rule) };
        }
        if host.is_local() {
            return Decision { action: Action::Direct, by: Decider::Local };
        }
        if let Some(rule) = self.document.iter().find(is_meant) {
            return Decision { action: rule.action, by: Decider::Document(rule) };
        }
        Decision { action: self.otherwise, by: Decider::Otherwise }
    }
}

/// A host that a program has named.
enum Host {
    Address(IpAddr),
    /// A name in the form that rules have.
    Name(String),
}

impl Host {
    fn of(host: &str) -> Self {
        match host.parse::<IpAddr>() {
            Ok(address) => Self::Address(address.to_canonical()),
            Err(_) => Self::Name(host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()),
        }
    }

    fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => is_this_host(*address),
            Self::Name(name) => is_localhost(name),
        }
    }

    fn is_local(&self) -> bool {
        match self {
            Self::Address(address) => LOCAL.iter().any(|net| net.contains(address)),
            // RFC 6762 §3 and RFC 8375 §4: these names mean something in the local network only. So does one without
            // a dot.
            Self::Name(name) => {
                ["local", "home.arpa"].iter().any(|domain| is_below(name, domain))
                    || !name.contains('.')
            }
        }
    }
}

/// The addresses that mean something in the local network only: private ones (RFC 1918, RFC 4193), those of a link
/// (RFC 3927, RFC 4291), those behind a carrier's NAT (RFC 6598), and those of groups and all hosts.
const LOCAL: [IpNet; 10] = [
    v4([10, 0, 0, 0], 8),
    v4([172, 16, 0, 0], 12),
    v4([192, 168, 0, 0], 16),
    v4([169, 254, 0, 0], 16),
    v4([100, 64, 0, 0], 10),
    v4([224, 0, 0, 0], 4),
    v4([255, 255, 255, 255], 32),
    v6(0xfc00, 7),
    v6(0xfe80, 10),
    v6(0xff00, 8),
];

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(std::net::Ipv4Addr::new(a, b, c, d), len))
}

const fn v6(first: u16, len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(std::net::Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), len))
}

/// Whether a name in lower case leads to loopback, whatever a name server says (RFC 6761 §6.3).
pub(super) fn is_localhost(name: &str) -> bool {
    is_below(name, "localhost")
}

/// Whether an address leads to this host itself. Linux connects the unspecified address to loopback.
pub(super) fn is_this_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

/// Whether a prefix has addresses of this host or of the local network, which no rule of a document is asked about.
pub fn is_kept_local(net: &IpNet) -> bool {
    let overlaps = |other: &IpNet| other.contains(net) || net.contains(other);
    LOCAL.iter().any(overlaps)
        || [v4([127, 0, 0, 0], 8), v4([0, 0, 0, 0], 32)].iter().any(overlaps)
        || net.contains(&IpAddr::from(std::net::Ipv6Addr::LOCALHOST))
}

/// Whether a name is this domain, or below it.
fn is_below(name: &str, domain: &str) -> bool {
    let above = name.strip_suffix(domain);
    above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: Action, host: HostMatch, ports: RangeInclusive<u16>) -> Rule {
        Rule { action, hosts: vec![host], ports: vec![ports], carries: Carries::BOTH }
    }

    fn net(text: &str) -> HostMatch {
        HostMatch::Net(text.parse().unwrap())
    }

    fn domain(name: &str) -> HostMatch {
        HostMatch::Domain(name.to_owned())
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let own = [
            rule(Action::Refuse, HostMatch::Name("ads.example".to_owned()), ALL_PORTS),
            rule(Action::Proxy, net("10.9.0.0/16"), 443..=443),
            rule(Action::Direct, domain("direct.example"), 80..=443),
            rule(Action::Proxy, net("127.0.0.0/8"), ALL_PORTS),
        ];
        let mut udp_only = rule(Action::Direct, domain("udp.example"), ALL_PORTS);
        udp_only.carries.tcp = false;
        let document = [
            rule(Action::Direct, domain("document.example"), ALL_PORTS),
            rule(Action::Proxy, net("10.0.0.0/8"), ALL_PORTS),
            rule(Action::Proxy, net("0.0.0.0/0"), ALL_PORTS),
            rule(Action::Proxy, domain("local"), ALL_PORTS),
            rule(Action::Proxy, domain("direct.example"), ALL_PORTS),
            rule(Action::Direct, net("2001:db8::/32"), ALL_PORTS),
            udp_only,
        ];
        let rules = Rules { own: own.into(), document: document.into(), otherwise: Action::Proxy };
        for (host, port, by, action) in [
            ("ads.example", 443, "own", "refuse"),
            ("ADS.example.", 443, "own", "refuse"),
            ("www.ads.example", 443, "otherwise", "proxy"),
            ("direct.example", 443, "own", "direct"),
            ("a.b.direct.example", 80, "own", "direct"),
            ("indirect.example", 80, "otherwise", "proxy"),
            ("direct.example", 8080, "document", "proxy"),
            ("10.9.1.1", 443, "own", "proxy"),
            ("10.9.1.1", 80, "local", "direct"),
            ("10.1.1.1", 443, "local", "direct"),
            ("172.31.0.1", 443, "local", "direct"),
            ("172.32.0.1", 443, "document", "proxy"),
            ("169.254.169.254", 80, "local", "direct"),
            ("fe80::1", 80, "local", "direct"),
            ("fd00::1", 80, "local", "direct"),
            ("239.255.255.250", 1900, "local", "direct"),
            ("255.255.255.255", 67, "local", "direct"),
            ("printer.local", 631, "local", "direct"),
            ("nas.home.arpa", 80, "local", "direct"),
            ("router", 80, "local", "direct"),
            ("127.0.0.1", 443, "loopback", "direct"),
            ("127.9.9.9", 443, "loopback", "direct"),
            ("::1", 443, "loopback", "direct"),
            ("::ffff:127.0.0.1", 443, "loopback", "direct"),
            ("0.0.0.0", 443, "loopback", "direct"),
            ("::", 443, "loopback", "direct"),
            ("localhost", 443, "loopback", "direct"),
            ("a.LOCALHOST.", 443, "loopback", "direct"),
            ("notlocalhost.example", 443, "otherwise", "proxy"),
            ("::ffff:10.1.1.1", 443, "local", "direct"),
            ("document.example", 1, "document", "direct"),
            ("192.0.2.1", 1, "document", "proxy"),
            ("2001:db8:1::1", 1, "document", "direct"),
            ("2001:db9::1", 1, "otherwise", "proxy"),
            ("udp.example", 1, "otherwise", "proxy"),
        ] {
            let decision = rules.decide(host, port, Carried::Tcp);
            let seen = match decision.by {
                Decider::Loopback => "loopback",
                Decider::Own(_) => "own",
                Decider::Local => "local",
                Decider::Document(_) => "document",
                Decider::Otherwise => "otherwise",
            };
            assert_eq!((seen, &*decision.action.to_string()), (by, action), "{host}:{port}");
        }
        let udp = rules.decide("udp.example", 1, Carried::Udp);
        assert_eq!(udp.action, Action::Direct);
    }

    #[test]
    fn prefixes_that_touch_this_host_or_its_network_are_known() {
        for (text, expected) in [
            ("0.0.0.0/0", true),
            ("10.1.0.0/16", true),
            ("8.0.0.0/6", true),
            ("127.0.0.1/32", true),
            ("8.8.8.0/24", false),
            ("::/0", true),
            ("::1/128", true),
            ("fd00::/8", true),
            ("2001:db8::/32", false),
        ] {
            assert_eq!(is_kept_local(&text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn a_rule_is_shown_as_it_is_written() {
        for (rule, text) in [
            (rule(Action::Direct, domain("example.org"), ALL_PORTS), "direct=*.example.org"),
            (rule(Action::Proxy, net("192.0.2.0/24"), 443..=443), "proxy=192.0.2.0/24:443"),
            (rule(Action::Refuse, net("2001:db8::1/128"), 1..=9), "refuse=[2001:db8::1]:1-9"),
            (rule(Action::Refuse, HostMatch::Any, 25..=25), "refuse=*:25"),
        ] {
            assert_eq!(rule.to_string(), text);
        }
    }
}

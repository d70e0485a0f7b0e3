//! What users may use.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use tandem_units::{ByteCount, Rate};

use crate::proxy::TcpPorts;

/// One bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Bound<T> {
    /// The bound of the group, or the default.
    #[default]
    Inherited,
    /// No bound.
    Unlimited,
    /// This bound.
    At(T),
}

impl<T: Clone> Bound<T> {
    /// The bound, if there is one.
    pub const fn get(&self) -> Option<&T> {
        match self {
            Self::Inherited | Self::Unlimited => None,
            Self::At(bound) => Some(bound),
        }
    }

    fn or(&self, other: &Self) -> Self {
        if matches!(self, Self::Inherited) { other.clone() } else { self.clone() }
    }
}

/// The targets that a user may reach, of those that the proxy reaches at all. A list that is `None` permits
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetRules {
    /// The prefixes of addresses.
    pub prefixes: Option<Vec<IpNet>>,
    /// The ports of UDP and TCP.
    pub ports: Option<TcpPorts>,
    /// The names: `www.example.org`, or `*.example.org` for all names below. A user with names reaches only those,
    /// and no address that a request names itself, unless it is in `prefixes`.
    pub names: Option<Vec<String>>,
}

/// The error for a text that is no name of targets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name of targets; allowed: a host name such as www.example.org, or *.example.org for all names below"
)]
pub struct TargetRulesError(pub String);

impl TargetRules {
    /// Checks a name or a name with a wildcard label, and returns it in small letters without a dot at its end.
    pub fn name(text: &str) -> Result<String, TargetRulesError> {
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let labels = name.strip_prefix("*.").unwrap_or(&name);
        let is_name = name.len() <= 253
            && labels.split('.').all(is_label)
            && labels.parse::<IpAddr>().is_err();
        is_name.then_some(name).ok_or_else(|| TargetRulesError(text.to_owned()))
    }

    /// Whether a request for this host and port is permitted, before the host is resolved.
    pub(super) fn may_ask(&self, host: &str, port: u16) -> bool {
        let is_name = match host.parse::<IpAddr>() {
            Ok(address) => self.names.is_none() || self.has_prefix_of(address),
            Err(_) => {
                self.names.as_ref().is_none_or(|names| names.iter().any(|it| covers(it, host)))
            }
        };
        is_name && self.ports.as_ref().is_none_or(|ports| ports.permits(port))
    }

    /// Whether an address is permitted.
    pub(super) fn may_reach(&self, address: IpAddr) -> bool {
        self.prefixes.is_none() || self.has_prefix_of(address)
    }

    fn has_prefix_of(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.prefixes.iter().flatten().any(|prefix| prefix.contains(&address))
    }

    fn or(&self, other: &Self) -> Self {
        Self {
            prefixes: self.prefixes.clone().or_else(|| other.prefixes.clone()),
            ports: self.ports.clone().or_else(|| other.ports.clone()),
            names: self.names.clone().or_else(|| other.names.clone()),
        }
    }
}

/// Whether a name of a rule covers a host.
fn covers(rule: &str, host: &str) -> bool {
    let host = host.trim_end_matches('.');
    match rule.strip_prefix('*') {
        None => rule.eq_ignore_ascii_case(host),
        Some(end) => {
            let start = host.len().checked_sub(end.len()).filter(|&start| start > 0);
            start.and_then(|start| host.get(start..)).is_some_and(|it| it.eq_ignore_ascii_case(end))
        }
    }
}

/// What a user may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// The targets that the user may reach.
    pub targets: TargetRules,
    /// The rate of payload from clients to targets.
    pub rate_to_target: Bound<Rate>,
    /// The rate of payload from targets to clients.
    pub rate_to_client: Bound<Rate>,
    /// The number of connections.
    pub connections: Bound<u32>,
    /// The number of UDP flows and TCP connections together.
    pub flows: Bound<u32>,
    /// The number of flows that the user may open at once, after it has opened none for a while.
    pub flow_burst: Bound<u32>,
    /// The number of flows that the user may open in each second after that.
    pub flows_per_second: Bound<u32>,
    /// The number of names that are being resolved.
    pub lookups: Bound<u32>,
    /// The bytes of payload in both directions together in a month (UTC).
    pub month_bytes: Bound<ByteCount>,
}

impl UserLimits {
    /// The limits of a user for whom nothing else was said.
    ///
    /// A user is often a household or a small office: connections are for 50 devices with two clients each. A
    /// browser with many tabs has some hundred flows, and 4000 are a sixth of the sockets of a proxy. A user may open
    /// all of these at once, and then 200 a second: a resolver for a household asks a tenth as often. A resolver
    /// takes 5 s at most, so that 256 names at a time are 50 slow ones in a second, and a sixteenth of what the proxy
    /// resolves at a time. Rates and months are for operators to choose, since they depend on the price of traffic.
    pub fn of_anybody() -> Self {
        Self {
            connections: Bound::At(100),
            flows: Bound::At(4000),
            flow_burst: Bound::At(4000),
            flows_per_second: Bound::At(200),
            lookups: Bound::At(256),
            ..Self::default()
        }
    }

    /// How many flows the user may open at once and in each second, if both have a bound.
    pub(super) fn flow_rate(&self) -> Option<(u32, u32)> {
        Some((*self.flow_burst.get()?, *self.flows_per_second.get()?))
    }

    fn or(&self, other: &Self) -> Self {
        Self {
            targets: self.targets.or(&other.targets),
            rate_to_target: self.rate_to_target.or(&other.rate_to_target),
            rate_to_client: self.rate_to_client.or(&other.rate_to_client),
            connections: self.connections.or(&other.connections),
            flows: self.flows.or(&other.flows),
            flow_burst: self.flow_burst.or(&other.flow_burst),
            flows_per_second: self.flows_per_second.or(&other.flows_per_second),
            lookups: self.lookups.or(&other.lookups),
            month_bytes: self.month_bytes.or(&other.month_bytes),
        }
    }
}

/// What an operator says of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRule {
    /// The user's group, whatever the user's credentials say.
    pub group: Option<String>,
    /// The user's own limits.
    pub limits: UserLimits,
}

/// The limits of all users. What is [`Bound::Inherited`] at a user is looked up at its group, then in the default,
/// then in [`UserLimits::of_anybody`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRules {
    /// The limits of users for whom nothing else was said.
    pub default: UserLimits,
    /// The limits of groups by their names.
    pub groups: BTreeMap<String, UserLimits>,
    /// The rules for users by their names.
    pub users: BTreeMap<String, UserRule>,
}

impl UserRules {
    /// The name under which clients are counted that have to show nothing. Nothing is inherited there, since the
    /// name stands for any number of people.
    pub const ANYONE: &'static str = "anyone";

    /// The group and the limits of a user, whose credentials name this group.
    pub(super) fn of<'a>(
        &'a self,
        name: &str,
        claimed: Option<&'a str>,
    ) -> (Option<&'a str>, UserLimits) {
        let own = self.users.get(name);
        if name == Self::ANYONE {
            return (None, own.map(|rule| rule.limits.clone()).unwrap_or_default());
        }
        let group = own.and_then(|rule| rule.group.as_deref()).or(claimed);
        let mut limits = own.map(|rule| rule.limits.clone()).unwrap_or_default();
        if let Some(of_group) = group.and_then(|group| self.groups.get(group)) {
            limits = limits.or(of_group);
        }
        (group, limits.or(&self.default).or(&UserLimits::of_anybody()))
    }
}

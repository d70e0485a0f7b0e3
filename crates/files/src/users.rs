//! The file with the limits of users (TOML).

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    marker::PhantomData,
    ops::{Range, RangeInclusive},
    str::FromStr,
};

use ipnet::IpNet;
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use tandem_node::proxy::{
    Bound, TargetRules, TcpPorts, UserLimits, UserRule, UserRules, is_user_name,
};
use tandem_units::{ByteCount, Rate};
use toml::Spanned;

use crate::{
    Fault, line_of,
    setting::{Setting, Within},
};

/// Most bytes of the file: a guard against naming the wrong file. It is enough for 100,000 users.
pub const FILE_LEN_MAX: u64 = 20_000_000;

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsersToml {
    #[serde(default)]
    default: LimitsTable,
    #[serde(default)]
    group: BTreeMap<Spanned<String>, LimitsTable>,
    #[serde(default)]
    user: BTreeMap<Spanned<String>, LimitsTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LimitsTable {
    group: Option<Spanned<String>>,
    target_prefixes: Option<Vec<Text<IpNet>>>,
    target_ports: Option<Text<TcpPorts>>,
    target_names: Option<Vec<Text<Name>>>,
    #[serde(default)]
    rate_to_target: LimitText<Rates>,
    #[serde(default)]
    rate_to_client: LimitText<Rates>,
    #[serde(default)]
    connections: LimitText<Connections>,
    #[serde(default)]
    flows: LimitText<Flows>,
    #[serde(default)]
    flow_burst: LimitText<FlowBurst>,
    #[serde(default)]
    flows_per_second: LimitText<FlowsPerSecond>,
    #[serde(default)]
    lookups: LimitText<Lookups>,
    #[serde(default)]
    month_bytes: LimitText<MonthBytes>,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $value:ty = $range:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        struct $name;

        impl Setting for $name {
            type Value = $value;
            const ALLOWED: RangeInclusive<$value> = $range;
        }
    )*};
}

settings! {
    /// A user with no connections may do nothing.
    Connections: u32 = 0..=100_000;
    Flows: u32 = 0..=1_000_000;
    /// A user who may open no flow at once opens none.
    FlowBurst: u32 = 1..=1_000_000;
    FlowsPerSecond: u32 = 1..=1_000_000;
    Lookups: u32 = 0..=100_000;
    /// Below, a single large packet would take more than a second.
    Rates: Rate = KBIT..=Rate::from_mbps(1_000_000);
    MonthBytes: ByteCount = ByteCount::new(0)..=ByteCount::new(1_000_000_000_000_000_000);
}

const KBIT: Rate = Rate::from_bps(16_000).expect("it is not zero");

/// A limit: a number or a text with a unit, or "none".
#[derive(Debug)]
struct LimitText<S: Setting>(Bound<S::Value>);

impl<S: Setting> Default for LimitText<S> {
    fn default() -> Self {
        Self(Bound::Inherited)
    }
}

impl<'de, S: Setting> Deserialize<'de> for LimitText<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitVisitor(PhantomData))
    }
}

struct LimitVisitor<S>(PhantomData<S>);

impl<S: Setting> Visitor<'_> for LimitVisitor<S> {
    type Value = LimitText<S>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or \"none\"", S::allowed())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LimitText<S>, E> {
        if text == "none" {
            return Ok(LimitText(Bound::Unlimited));
        }
        let value: Within<S> = text.parse().map_err(E::custom)?;
        Ok(LimitText(Bound::At(value.0)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<LimitText<S>, E> {
        self.visit_str(&number.to_string())
    }
}

/// A value that has a text form.
#[derive(Debug)]
struct Text<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = |error| D::Error::custom(format_args!("{text:?}: {error}"));
        text.parse().map(Self).map_err(wrong)
    }
}

/// A name of targets.
#[derive(Debug)]
struct Name(String);

impl FromStr for Name {
    type Err = tandem_node::proxy::TargetRulesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        TargetRules::name(text).map(Self)
    }
}

impl From<LimitsTable> for UserLimits {
    fn from(table: LimitsTable) -> Self {
        let names = |names: Vec<Text<Name>>| names.into_iter().map(|Text(Name(name))| name);
        Self {
            targets: TargetRules {
                prefixes: table.target_prefixes.map(|it| it.into_iter().map(|it| it.0).collect()),
                ports: table.target_ports.map(|ports| ports.0),
                names: table.target_names.map(|it| names(it).collect()),
            },
            rate_to_target: table.rate_to_target.0,
            rate_to_client: table.rate_to_client.0,
            connections: table.connections.0,
            flows: table.flows.0,
            flow_burst: table.flow_burst.0,
            flows_per_second: table.flows_per_second.0,
            lookups: table.lookups.0,
            month_bytes: table.month_bytes.0,
        }
    }
}

/// Parses the text of a file.
pub fn parse(text: &str) -> Result<UserRules, Fault> {
    let fault =
        |(span, reason): (Range<usize>, _)| Fault { line: line_of(text, span.start), reason };
    parse_file(text).map_err(fault)
}

/// The same with the place of an error.
fn parse_file(text: &str) -> Result<UserRules, (Range<usize>, String)> {
    let wrong = |error: toml::de::Error| {
        (error.span().unwrap_or_default(), error.message().replace('\n', "; "))
    };
    let UsersToml { default, group: groups, user: users } = toml::from_str(text).map_err(wrong)?;
    let no_group = |table: &LimitsTable| match &table.group {
        Some(group) => {
            let reason = "`group` stands only at a user; groups have no groups".to_owned();
            Err((group.span(), reason))
        }
        None => Ok(()),
    };
    no_group(&default)?;
    let mut rules = UserRules { default: default.into(), ..UserRules::default() };
    for (name, table) in groups {
        no_group(&table)?;
        rules.groups.insert(name.into_inner(), table.into());
    }
    for (name, table) in users {
        if !is_user_name(name.get_ref()) {
            let reason = "the name of a user has 1 to 128 visible ASCII characters".to_owned();
            return Err((name.span(), reason));
        }
        let group = table.group.as_ref();
        if let Some(group) = group.filter(|group| !rules.groups.contains_key(group.get_ref())) {
            let reason = format!("there is no [group.{}]", group.get_ref());
            return Err((group.span(), reason));
        }
        let group = group.map(|group| group.get_ref().clone());
        rules.users.insert(name.into_inner(), UserRule { group, limits: table.into() });
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_limits_of_all_of_groups_and_of_users() {
        let rules = parse(
            "[default]\nconnections = 10\nmonth-bytes = \"100GB\"\nflow-burst = 20\n\
             [group.staff]\nconnections = \"none\"\nflows-per-second = \"none\"\n\
             [user.alice]\ngroup = \"staff\"\nrate-to-client = \"50Mbit/s\"\n\
             [user.\"bob@example.org\"]\ntarget-names = [\"*.Example.org\"]\n\
             target-prefixes = [\"192.0.2.0/24\"]\ntarget-ports = \"443\"\n",
        )
        .unwrap();
        assert_eq!(rules.default.connections, Bound::At(10));
        assert_eq!(rules.default.flow_burst, Bound::At(20));
        assert_eq!(rules.groups["staff"].flows_per_second, Bound::Unlimited);
        assert_eq!(rules.default.month_bytes, Bound::At(ByteCount::new(100_000_000_000)));
        assert_eq!(rules.groups["staff"].connections, Bound::Unlimited);
        let alice = &rules.users["alice"];
        assert_eq!(alice.group.as_deref(), Some("staff"));
        assert_eq!(alice.limits.rate_to_client, Bound::At(Rate::from_mbps(50)));
        assert_eq!(alice.limits.connections, Bound::Inherited);
        let targets = &rules.users["bob@example.org"].limits.targets;
        assert_eq!(targets.names.as_deref(), Some(&["*.example.org".to_owned()][..]));
        assert_eq!(parse(""), Ok(UserRules::default()));
    }

    #[test]
    fn an_error_has_its_line_and_what_is_allowed() {
        for (text, line, words) in [
            ("[default]\nflows = -1\n", 2, "0 to 1000000"),
            ("[default]\n\nflows = 1000001\n", 3, "allowed: 0 to 1000000"),
            ("[default]\nflows-per-second = 0\n", 2, "allowed: 1 to 1000000"),
            ("[default]\nflow-burst = 0\n", 2, "allowed: 1 to 1000000"),
            ("[user.alice]\nrate-to-client = \"1bit/s\"\n", 2, "16 kbit/s to 1000 Gbit/s"),
            ("[user.alice]\nrate-to-client = \"fast\"\n", 2, "50 Mbit/s"),
            ("[user.alice]\nrate-to-client = true\n", 2, "or \"none\""),
            ("[user.alice]\nflow = 1\n", 2, "unknown field `flow`"),
            ("[users.alice]\nflows = 1\n", 1, "unknown field `users`"),
            ("[user.alice]\ngroup = \"staff\"\n", 2, "no [group.staff]"),
            ("[group.a]\ngroup = \"b\"\n", 2, "only at a user"),
            ("[default]\ngroup = \"b\"\n", 2, "only at a user"),
            ("[user.\"a b\"]\nflows = 1\n", 1, "visible ASCII"),
            ("[user.a]\ntarget-names = [\"a\", \"*.*.b\"]\n", 2, "no name of targets"),
            ("[user.a]\ntarget-prefixes = [\"10.0.0.0/33\"]\n", 2, "10.0.0.0/33"),
            ("[user.a]\ntarget-ports = \"https\"\n", 2, "allowed: all, none"),
            ("[user.a]\nflows = 1\n[user.a]\nflows = 2\n", 3, "duplicate"),
            ("[user.a]\nflows = 1\nflows = 2\n", 3, "duplicate"),
            ("[user.a\n", 1, "table"),
        ] {
            let Fault { line: seen, reason } = parse(text).unwrap_err();
            assert_eq!(seen, line, "{text:?}: {reason}");
            assert!(reason.contains(words), "{text:?}: no {words:?} in {reason}");
        }
    }
}

//! `tandem route`.

use std::{fmt, path::PathBuf};

use serde::Serialize;
use serde_with::{DisplayFromStr, serde_as};
use tandem_node::client::{
    local::Target,
    rules::{Action, Carried, Decider, Decision, Rules},
};

use crate::{
    client::ClientSettings,
    config,
    error::{CliError, ConfigError},
    rules::{RuleSettings, RuleSetup},
    text,
    up::folder::Folder,
};

const EXAMPLES: &str = "\
Examples:
  tandem route example.org
      What does the client that `tandem up` has set up do with port 443 of example.org?
  tandem route 10.1.2.3:22 --rule proxy=10.0.0.0/8
      What would it do with this rule before all others?";

/// Say what becomes of a target: whether it goes through the tunnel, and which rule decides that.
///
/// It reads the same rules as `tandem client`, looks up no name and sends no packet.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Route {
    /// Target, as HOST or HOST:PORT; without a port it is 443
    #[arg(value_name = "TARGET")]
    target: RouteTarget,

    /// Configuration of a client [default: that of `tandem up`, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    rules: RuleSettings,

    /// Print the result as one JSON object
    #[arg(long, env = "TANDEM_JSON")]
    json: bool,
}

/// The port of a target that names none.
const DEFAULT_PORT: u16 = 443;

/// A target as people write it.
#[derive(Clone, Debug)]
struct RouteTarget(Target);

impl std::str::FromStr for RouteTarget {
    type Err = tandem_node::client::TargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
        let target = if is_v6 {
            Target::new(text, DEFAULT_PORT)
        } else {
            Target::parse(text, Some(DEFAULT_PORT))
        };
        target.map(Self)
    }
}

/// What becomes of a target, for both kinds of flows; the object of `route --json`.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    #[serde(skip)]
    target: &'a Target,
    host: &'a str,
    port: u16,
    tcp: Routed,
    udp: Routed,
}

/// What becomes of a target, and why.
#[serde_as]
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Routed {
    #[serde_as(as = "DisplayFromStr")]
    action: Action,
    /// `loopback`, `own`, `local`, `document` or `otherwise`.
    by: &'static str,
    /// The rule, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// The same for a person.
    #[serde(skip)]
    reason: String,
}

impl Routed {
    fn of(Decision { action, by }: Decision<'_>) -> Self {
        let (by, rule, reason) = match by {
            Decider::Loopback => ("loopback", None, "it is this machine itself".to_owned()),
            Decider::Own(rule) => ("own", Some(rule), format!("your rule {rule}")),
            Decider::Local => ("local", None, "it is in the network of this machine".to_owned()),
            Decider::Document(rule) => {
                let reason = format!("rule {rule} of the proxy's configuration document");
                ("document", Some(rule), reason)
            }
            Decider::Otherwise => ("otherwise", None, "no rule matches".to_owned()),
        };
        Self { action, by, rule: rule.map(ToString::to_string), reason }
    }
}

impl fmt::Display for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let goes = match self.action {
            Action::Proxy => "goes through the tunnel",
            Action::Direct => "goes directly",
            Action::Refuse => "is refused",
        };
        write!(f, "{goes}: {}", self.reason)
    }
}

impl fmt::Display for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, tcp, udp, .. } = self;
        if tcp == udp {
            return write!(f, "{target} {tcp}");
        }
        write!(f, "TCP to {target} {tcp}\nUDP to {target} {udp}")
    }
}

impl Route {
    /// Reads the rules, and prints what becomes of the target.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let rules = self.rules()?;
        let target = &self.target.0;
        let (host, port) = (target.host(), target.port());
        let decide = |carried| match &rules {
            Some(rules) => rules.decide(host, port, carried),
            None => Decision { action: Action::Proxy, by: Decider::Otherwise },
        };
        let (tcp, udp) = (decide(Carried::Tcp), decide(Carried::Udp));
        let (tcp, udp) = (Routed::of(tcp), Routed::of(udp));
        let answer = Answer { target, host, port, tcp, udp };
        let json = || serde_json::to_string(&answer).expect("texts and numbers are JSON");
        text::print(if self.json { json() } else { answer.to_string() })
    }

    fn rules(&self) -> Result<Option<Rules>, ConfigError> {
        let usual = || Folder::of_user().ok().and_then(|folder| folder.config());
        let file = self.config.clone().or_else(usual);
        let settings: Option<ClientSettings> =
            file.as_deref().map(config::from_file).transpose()?;
        let settings = settings.unwrap_or_default();
        let given = &self.rules;
        let rules = RuleSettings {
            rule: given.rule.iter().cloned().chain(settings.rules.rule).collect(),
            rules: given.rules.clone().or(settings.rules.rules),
            pvd: given.pvd.clone().or(settings.rules.pvd),
        };
        RuleSetup::from(rules).read(&settings.via)
    }
}

//! `tandem route`.

use std::{fmt, path::PathBuf};

use serde::Serialize;
use tandem_node::client::{
    Template,
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
struct Answer {
    host: String,
    port: u16,
    tcp: Routed,
    udp: Routed,
}

/// What becomes of a target, and why.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Routed {
    /// `proxy`, `direct` or `refuse`.
    action: String,
    /// `loopback`, `own`, `local`, `document` or `otherwise`.
    by: &'static str,
    /// The rule, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
}

impl Routed {
    fn of(decision: Decision<'_>) -> Self {
        let (by, rule) = match decision.by {
            Decider::Loopback => ("loopback", None),
            Decider::Own(rule) => ("own", Some(rule)),
            Decider::Local => ("local", None),
            Decider::Document(rule) => ("document", Some(rule)),
            Decider::Otherwise => ("otherwise", None),
        };
        Self { action: decision.action.to_string(), by, rule: rule.map(ToString::to_string) }
    }

    fn reason(&self) -> String {
        let rule = self.rule.as_deref().unwrap_or_default();
        match self.by {
            "loopback" => "it is this machine itself".to_owned(),
            "own" => format!("your rule {rule}"),
            "local" => "it is in the network of this machine".to_owned(),
            "document" => format!("rule {rule} of the proxy's configuration document"),
            _ => "no rule matches".to_owned(),
        }
    }
}

impl fmt::Display for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let goes = match self.action.as_str() {
            "direct" => "goes directly",
            "refuse" => "is refused",
            _ => "goes through the tunnel",
        };
        write!(f, "{goes}: {}", self.reason())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, tcp, udp } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        if tcp == udp {
            return write!(f, "{host}:{port} {tcp}");
        }
        write!(f, "TCP to {host}:{port} {tcp}\nUDP to {host}:{port} {udp}")
    }
}

impl Route {
    /// Reads the rules, and prints what becomes of the target.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let rules = self.rules()?;
        let (host, port) = (self.target.0.host().to_owned(), self.target.0.port());
        let routed = |carried| match &rules {
            Some(rules) => Routed::of(rules.decide(&host, port, carried)),
            None => Routed { action: Action::Proxy.to_string(), by: "otherwise", rule: None },
        };
        let (tcp, udp) = (routed(Carried::Tcp), routed(Carried::Udp));
        let answer = Answer { host, port, tcp, udp };
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
        let nobody = || Template::default_for("proxy.invalid").expect("it is an authority");
        let proxy = settings.via.last().map_or_else(nobody, |via| via.templates().0);
        RuleSetup::from(rules).read(&proxy)
    }
}

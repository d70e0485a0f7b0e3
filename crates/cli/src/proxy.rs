//! `tandem proxy`.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use tandem_net::DriverOptions;
use tandem_node::{
    ProxyConfig,
    limits::Limits,
    proxy::{Access, TargetPolicy},
    quic::Transport,
};
use tandem_units::HumanDuration;

use crate::{
    config::{
        ConfigArgs, ListenAddr, Prefix, Settings, TransportSettings, TransportSetup, Via, WorkFor,
        or_list, to_toml,
    },
    error::{CliError, ConfigError},
    run, text,
    tls::{Identity, ServerTlsSettings, ServerTlsSetup},
    tokens,
};

/// Run a CONNECT-UDP proxy (RFC 9298).
///
/// Reaches public addresses only, unless --allow-target names others. Listening on anything but
/// loopback needs --token-file, --client-ca or --allow-anyone.
#[derive(Debug, clap::Args)]
pub(crate) struct Proxy {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    settings: ProxySettings,
}

impl Proxy {
    /// Runs until a signal comes.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let setup = ProxySetup::try_from(self.config.load(self.settings)?)?;
        let identity = setup.tls.identity()?;
        let config = setup.to_node(&identity)?;
        if self.config.is_check_only() {
            return text::print(to_toml(&setup).trim_end());
        }
        identity.announce()?;
        let grace = run::grace(&config.limits);
        let node = tandem_node::Proxy::new(config).map_err(ConfigError::from)?;
        run::serve(node, DriverOptions { grace, ..DriverOptions::default() })
    }
}

/// Flags, and keys of the file.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct ProxySettings {
    /// Address and UDP port to listen at; port 0 is any free port
    #[arg(long, value_name = "ADDR", env = "TANDEM_LISTEN")]
    listen: Option<ListenAddr>,

    /// Also reach targets in this address range; repeatable [default: public addresses only]
    #[arg(long, value_name = "CIDR", env = "TANDEM_ALLOW_TARGET", value_delimiter = ' ')]
    allow_target: Vec<Prefix>,

    /// Serve who shows one of the tokens in this file, one per line
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// Serve who has a certificate of a CA in this PEM file
    #[arg(long, value_name = "FILE", env = "TANDEM_CLIENT_CA")]
    client_ca: Option<PathBuf>,

    /// Serve everybody who can reach the proxy
    #[arg(long, value_name = "BOOL", env = "TANDEM_ALLOW_ANYONE",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_anyone: Option<bool>,

    /// URI template that clients use; its path counts [default: RFC 9298's]
    #[arg(long, value_name = "TEMPLATE", env = "TANDEM_TEMPLATE")]
    template: Option<Via>,

    /// When told to end, let flows go on for at most so long; a second signal ends them [default: 10s]
    #[arg(long, value_name = "TIME", env = "TANDEM_DRAIN")]
    drain: Option<HumanDuration>,

    /// How often to tell clients of mode tecc of their tunnel, 5ms to 1s [default: once in the tunnel's
    /// least RTT]
    #[arg(long, value_name = "TIME", env = "TANDEM_FEEDBACK_INTERVAL")]
    feedback_interval: Option<HumanDuration>,

    #[command(flatten)]
    tls: ServerTlsSettings,

    #[command(flatten)]
    transport: TransportSettings,
}

impl Settings for ProxySettings {
    fn or(self, lower: Self) -> Self {
        Self {
            listen: self.listen.or(lower.listen),
            allow_target: or_list(self.allow_target, lower.allow_target),
            token_file: self.token_file.or(lower.token_file),
            client_ca: self.client_ca.or(lower.client_ca),
            allow_anyone: self.allow_anyone.or(lower.allow_anyone),
            template: self.template.or(lower.template),
            drain: self.drain.or(lower.drain),
            feedback_interval: self.feedback_interval.or(lower.feedback_interval),
            tls: self.tls.or(lower.tls),
            transport: self.transport.or(lower.transport),
        }
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let own = self.token_file.iter_mut().chain(&mut self.client_ca);
        own.chain(self.tls.paths_mut()).chain(self.transport.paths_mut()).collect()
    }
}

/// Reports come no more often, and no more seldom.
const FEEDBACK_INTERVAL: RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_secs(1);

/// What the proxy runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ProxySetup {
    listen: ListenAddr,
    allow_target: Vec<Prefix>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_ca: Option<PathBuf>,
    allow_anyone: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<Via>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain: Option<HumanDuration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feedback_interval: Option<HumanDuration>,
    tls: ServerTlsSetup,
    transport: TransportSetup,
}

impl TryFrom<ProxySettings> for ProxySetup {
    type Error = ConfigError;

    fn try_from(settings: ProxySettings) -> Result<Self, ConfigError> {
        let listen = settings.listen.ok_or(ConfigError::Missing {
            key: "listen",
            value: "ADDR",
            variable: "TANDEM_LISTEN",
        })?;
        if let Some(seen) =
            settings.feedback_interval.filter(|it| !FEEDBACK_INTERVAL.contains(&it.0))
        {
            let (name, allowed) = ("feedback-interval", "5ms to 1s");
            return Err(ConfigError::TimeOutOfRange { name, seen, allowed });
        }
        let allow_anyone = settings.allow_anyone.unwrap_or_default();
        let asks_who = settings.token_file.is_some() || settings.client_ca.is_some();
        if asks_who && allow_anyone {
            return Err(ConfigError::Conflict {
                first: "allow-anyone",
                second: if settings.token_file.is_some() { "token-file" } else { "client-ca" },
                reason: "either everybody may use the proxy or somebody may",
            });
        }
        if !listen.is_loopback() && !asks_who && !allow_anyone {
            return Err(ConfigError::OpenProxy { listen });
        }
        Ok(Self {
            listen,
            allow_target: settings.allow_target,
            token_file: settings.token_file,
            client_ca: settings.client_ca,
            allow_anyone,
            template: settings.template,
            drain: settings.drain,
            feedback_interval: settings.feedback_interval,
            tls: settings.tls.try_into()?,
            transport: TransportSetup::new(settings.transport, WorkFor::Tunnel)?,
        })
    }
}

impl ProxySetup {
    fn to_node(&self, identity: &Identity) -> Result<ProxyConfig, ConfigError> {
        let access = match &self.token_file {
            Some(file) => Access::Tokens(tokens::read_all(file)?),
            None => Access::Anyone,
        };
        let template = match &self.template {
            Some(Via(template)) => template.clone(),
            None => ProxyConfig::default_template(),
        };
        Ok(ProxyConfig {
            transport: Transport {
                reset_secret: identity.reset_secret(),
                ..self.transport.to_node("proxy", WorkFor::Tunnel)
            },
            access,
            policy: TargetPolicy::allowing(
                self.allow_target.iter().map(|prefix| prefix.0).collect(),
            ),
            feedback_interval: self.feedback_interval.map(Into::into),
            template,
            limits: Limits {
                drain: self.drain.map_or(Limits::default().drain, Into::into),
                ..Limits::default()
            },
            ..ProxyConfig::new(
                self.listen.0,
                self.tls.server_config(identity, self.client_ca.as_deref())?,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(toml: &str) -> Result<ProxySetup, ConfigError> {
        toml::from_str::<ProxySettings>(toml).unwrap().try_into()
    }

    #[test]
    fn only_loopback_is_open_to_everybody() {
        for (listen, is_open) in [
            ("127.0.0.1:0", true),
            ("127.8.8.8:443", true),
            ("[::1]:443", true),
            ("[::ffff:127.0.0.1]:443", true),
            ("0.0.0.0:443", false),
            ("[::]:443", false),
            ("192.0.2.1:443", false),
        ] {
            let listen = format!("listen = \"{listen}\"");
            let setup = check(&listen);
            assert_eq!(setup.is_ok(), is_open, "{listen}: {setup:?}");
            for access in ["allow-anyone = true", "token-file = \"t\"", "client-ca = \"c\""] {
                assert!(check(&format!("{listen}\n{access}")).is_ok(), "{listen}, {access}");
            }
        }
    }

    #[test]
    fn everybody_and_somebody_is_a_contradiction() {
        let setup = check("listen = \"[::1]:1\"\nallow-anyone = true\ntoken-file = \"t\"");
        assert!(matches!(setup, Err(ConfigError::Conflict { .. })), "{setup:?}");
    }

    #[test]
    fn reports_come_neither_too_often_nor_too_seldom() {
        for (interval, is_fine) in
            [("4ms", false), ("5ms", true), ("1s", true), ("1001ms", false), ("0s", false)]
        {
            let setup = check(&format!("listen = \"[::1]:1\"\nfeedback-interval = \"{interval}\""));
            let error = setup.map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(error.is_ok(), is_fine, "{interval}: {error:?}");
        }
        let setup = check("listen = \"[::1]:1\"\nfeedback-interval = \"4ms\"");
        let error = setup.unwrap_err().to_string();
        assert_eq!(error, "feedback-interval = 4ms; allowed: 5ms to 1s");
    }

    #[test]
    fn the_printed_configuration_means_itself() {
        let text = to_toml(
            &check(
                "listen = \"127.0.0.1:0\"\nallow-target = [\"10.0.0.0/8\"]\n[tls]\nname = [\"a\"]",
            )
            .unwrap(),
        );
        assert_eq!(to_toml(&check(&text).unwrap()), text);
        assert!(text.contains("controller = \"bbr1-tunnel\""), "{text}");
    }
}

//! `tandem connect`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use tandem_files::pair::PairFile;
use tandem_node::{
    ClientConfig, ProxyConfig,
    client::{FlowConfig, HopConfig, Task, TcpService, TunnelMode},
    tls::ServerTrust,
};
use tandem_server::{
    files::tokens,
    transport::{TransportSetup, WorkFor},
};
use tandem_wire::Template;

use super::{
    REQUIRED, both_addresses,
    files::{CLIENT_FILE, FOLDER, read_client_file},
};
use crate::{
    carried::Carried,
    carrier::{self, SERVICE_PORT},
    config::{Layered, ListenAddr, Settings, Target, TransportSettings, transport_for},
    error::{CliError, ConfigError},
    hops, programs, text,
    tls::{ClientTlsSetup, pinned},
};

const EXAMPLES: &str = "\
Examples:
  tandem connect --dest server.example:4433 --listen 127.0.0.1:5432 --pair client.pem
      Programs that connect to 127.0.0.1:5432 reach the service of `tandem serve`.
  tandem connect --dest server.example:443 --listen 127.0.0.1:5432 --token-file token
      The server has a certificate that every program trusts, and gave you a token.";

/// Carry TCP connections to the one service of `tandem serve` on another machine.
///
/// The file of --pair comes from there. Without it nothing is trusted.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Connect {
    #[command(flatten)]
    settings: Layered<ConnectSettings>,
}

impl Connect {
    /// Runs until a signal ends it.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let setup = self.settings.load()?;
        let config = setup.to_node()?;
        if let Some(checked) = self.settings.checked(&setup, &config.limits) {
            return text::print(checked.trim_end());
        }
        programs::warn_if_open(setup.listen);
        let service = TcpService::Forward {
            listen: setup.listen.0,
            target: FlowConfig::new(ProxyConfig::SERVICE, SERVICE_PORT),
        };
        let node = carrier::node(config, vec![service])?;
        text::say(Carried::from(&carrier::carry(node, (false, setup.transport.pause), None)?));
        Ok(())
    }
}

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ConnectSettings {
    /// The machine and the UDP port on which `tandem serve` listens
    #[arg(long, value_name = "HOST:PORT", env = "TANDEM_DEST")]
    dest: Option<Target>,

    /// Local TCP address to which programs connect
    #[arg(long, value_name = "ADDR", env = "TANDEM_LISTEN")]
    listen: Option<ListenAddr>,

    /// File that `tandem serve` made for this machine, with its certificate and a token [default:
    /// tandem-pair/client.pem]
    #[arg(long, value_name = "FILE", env = "TANDEM_PAIR")]
    pair: Option<PathBuf>,

    /// File whose first token is sent to the server, instead of --pair; the server's certificate then
    /// has to be for the name in --dest
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// Trust the CA certificates of this PEM file instead of the system's, with --token-file; repeatable,
    /// or several with commas between
    #[arg(long, value_name = "FILE", env = "TANDEM_CA", value_delimiter = ',')]
    ca: Vec<PathBuf>,

    #[command(flatten, next_help_heading = "Congestion control")]
    transport: TransportSettings,
}

impl Settings for ConnectSettings {
    type Setup = ConnectSetup;
    const SUBCOMMAND: &'static str = "connect";
    const REQUIRED: &'static [&'static str] = REQUIRED;
}

/// The settings that run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ConnectSetup {
    dest: Target,
    listen: ListenAddr,
    #[serde(flatten)]
    identification: Identification,
    #[serde(flatten)]
    transport: TransportSetup,
}

/// How both ends know each other.
#[derive(Debug, Serialize)]
#[serde(untagged, rename_all_fields = "kebab-case")]
enum Identification {
    /// By a certificate of a CA, and a token.
    Own { token_file: PathBuf, ca: Vec<PathBuf> },
    /// By the file of the other end.
    Pair { pair: PathBuf },
}

impl TryFrom<ConnectSettings> for ConnectSetup {
    type Error = ConfigError;

    fn try_from(settings: ConnectSettings) -> Result<Self, ConfigError> {
        let ConnectSettings { dest, listen, pair, token_file, ca, transport } = settings;
        let (dest, listen) = both_addresses(dest, listen)?;
        let identification = match (token_file, pair) {
            (Some(_), Some(_)) => {
                let reason = "the file of the pair has another token and the certificate to trust";
                return Err(ConfigError::Conflict { first: "pair", second: "token-file", reason });
            }
            (Some(token_file), None) => Identification::Own { token_file, ca },
            (None, _) if !ca.is_empty() => {
                let reason = "a server with a certificate of your own also has tokens of your own";
                return Err(ConfigError::Incomplete { first: "ca", second: "token-file", reason });
            }
            (None, pair) => {
                let usual = || Path::new(FOLDER).join(CLIENT_FILE);
                Identification::Pair { pair: pair.unwrap_or_else(usual) }
            }
        };
        let transport = transport_for(transport, WorkFor::Tunnel)?;
        Ok(Self { dest, listen, identification, transport })
    }
}

impl ConnectSetup {
    fn to_node(&self) -> Result<ClientConfig, ConfigError> {
        let (tls, ech, token) = match &self.identification {
            Identification::Own { token_file, ca } => {
                let ServerTrust { tls, ech } = ClientTlsSetup::trusting(ca.clone()).read()?.proxy;
                (tls, Some(ech), tokens::read_first(token_file)?)
            }
            Identification::Pair { pair } => {
                let PairFile { certificate, token } = read_client_file(pair)?;
                (pinned(certificate)?, None, token)
            }
        };
        let template =
            Template::default_for(&self.dest.to_string()).expect("a target is an authority");
        let hop = HopConfig {
            template,
            others: Vec::new(),
            tls,
            ech,
            transport: self.transport.to_node("tunnel", WorkFor::Tunnel),
            token: Some(token),
            concealed: None,
            mode: TunnelMode::default(),
        };
        Ok(ClientConfig {
            hops: vec![hop],
            task: Task::Forward(Vec::new()),
            limits: hops::limits(None, None, Some(Duration::MAX)),
            seed: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::from_text;

    #[test]
    fn a_pair_or_a_token_says_whom_to_trust() {
        let setup = |text: &str| {
            let text = format!("dest = \"a:1\"\nlisten = \"[::1]:2\"\n{text}");
            from_text::<ConnectSettings>(&text).map(|setup| setup.identification)
        };
        let usual = Path::new("tandem-pair/client.pem");
        assert!(matches!(setup(""), Ok(Identification::Pair { pair }) if pair == usual));
        let own = |text: &str, cas| match setup(text) {
            Ok(Identification::Own { ca, .. }) => ca.len() == cas,
            _ => false,
        };
        assert!(own("token-file = \"t\"", 0), "the system's CAs");
        assert!(own("token-file = \"t\"\nca = [\"a\", \"b\"]", 2));
        for (text, error) in [
            ("ca = \"a\"", "ca needs token-file"),
            ("ca = \"a\"\npair = \"p\"", "ca needs token-file"),
            ("pair = \"p\"\ntoken-file = \"t\"", "pair and token-file cannot be used together"),
        ] {
            let said = setup(text).unwrap_err().to_string();
            assert!(said.starts_with(error), "{text}: {said}");
        }
    }

    #[test]
    fn every_target_is_the_authority_of_a_proxy() {
        for dest in ["server.example:4433", "192.0.2.1:1", "[2001:db8::1]:65535"] {
            let target: Target = dest.parse().unwrap();
            assert!(Template::default_for(&target.to_string()).is_ok(), "{dest}");
        }
    }
}

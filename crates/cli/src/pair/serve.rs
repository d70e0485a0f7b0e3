//! `tandem serve`.

use std::path::PathBuf;

use serde::Serialize;
use tandem_server::{
    Setup,
    role::{ProxyRole, Role},
    tls::ServerTlsSetup,
    transport::{TransportSetup, WorkFor},
    users::UsersSetup,
};

use super::{
    REQUIRED, both_addresses,
    files::{CLIENT_FILE, FOLDER, PairFolder},
};
use crate::{
    config::{Layered, ListenAddr, Settings, Target, TransportSettings, transport_for},
    error::{CliError, ConfigError},
    server::Served,
    text,
};

const EXAMPLES: &str = "\
Examples:
  tandem serve --dest 127.0.0.1:5432 --listen 0.0.0.0:4433
      The database of this machine, for those who have the file tandem-pair/client.pem.
  tandem serve --dest db:5432 --listen [::]:443 --cert c.pem --key k.pem --token-file tokens
      With a certificate and tokens of your own.";

/// Let `tandem connect` on another machine reach one TCP service of this network.
///
/// The first start makes a certificate and a token in the folder of --pair, and every start prints what
/// to do on the other machine. Only that machine can connect, and it trusts no other server.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: Layered<ServeSettings>,
}

impl Serve {
    /// Runs until a signal ends it.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let setup = self.settings.load()?;
        let proxy = setup.proxy();
        let checked = |limits: &_| self.settings.checked(&setup, limits);
        if let Identification::Pair { pair } = &setup.identification {
            let pair = PairFolder::new(pair);
            let limits = proxy.role.limits(&proxy.setup);
            // A check makes no files.
            if let Some(checked) = checked(&limits).filter(|_| !pair.is_complete()) {
                return text::print(checked.trim_end());
            }
            pair.complete()?;
            setup.introduce(&pair);
        }
        proxy.run(checked)
    }
}

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ServeSettings {
    /// The TCP service: the host and the port to which every connection goes
    #[arg(long, value_name = "HOST:PORT", env = "TANDEM_DEST")]
    dest: Option<Target>,

    /// Address and UDP port to listen on for `tandem connect`
    #[arg(long, value_name = "ADDR", env = "TANDEM_LISTEN")]
    listen: Option<ListenAddr>,

    /// Folder with the files of this pair, which the first start makes [default: tandem-pair]
    #[arg(long, value_name = "DIR", env = "TANDEM_PAIR")]
    pair: Option<PathBuf>,

    /// Certificate chain in PEM, with --key and --token-file, instead of --pair
    #[arg(long, value_name = "FILE", env = "TANDEM_CERT")]
    cert: Option<PathBuf>,

    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE", env = "TANDEM_KEY")]
    key: Option<PathBuf>,

    /// File with the tokens of clients, which has TOKEN or NAME TOKEN on each line
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten, next_help_heading = "Congestion control")]
    transport: TransportSettings,
}

impl Settings for ServeSettings {
    type Setup = ServeSetup;
    const SUBCOMMAND: &'static str = "serve";
    const REQUIRED: &'static [&'static str] = REQUIRED;
}

/// The settings that run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ServeSetup {
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
    /// By the operator's own certificate and tokens.
    Own { cert: PathBuf, key: PathBuf, token_file: PathBuf },
    /// By the files in a folder.
    Pair { pair: PathBuf },
}

impl TryFrom<ServeSettings> for ServeSetup {
    type Error = ConfigError;

    fn try_from(settings: ServeSettings) -> Result<Self, ConfigError> {
        let ServeSettings { dest, listen, pair, cert, key, token_file, transport } = settings;
        let (dest, listen) = both_addresses(dest, listen)?;
        let identification = match (cert, key, token_file) {
            (None, None, None) => {
                Identification::Pair { pair: pair.unwrap_or_else(|| FOLDER.into()) }
            }
            (Some(cert), Some(key), Some(token_file)) => {
                if pair.is_some() {
                    let reason = "the folder has another certificate and token";
                    return Err(ConfigError::Conflict { first: "pair", second: "cert", reason });
                }
                Identification::Own { cert, key, token_file }
            }
            (cert, key, _) => {
                let (first, second) = match (cert, key) {
                    (Some(_), Some(_)) => ("cert", "token-file"),
                    (Some(_), None) => ("cert", "key"),
                    (None, Some(_)) => ("key", "cert"),
                    (None, None) => ("token-file", "cert"),
                };
                let reason = "a certificate of your own is used with its key and tokens";
                return Err(ConfigError::Incomplete { first, second, reason });
            }
        };
        let transport = transport_for(transport, WorkFor::Tunnel)?;
        Ok(Self { dest, listen, identification, transport })
    }
}

impl ServeSetup {
    /// The proxy whose only target is the service.
    fn proxy(&self) -> Served<ProxyRole> {
        let (tls, token_file) = match &self.identification {
            Identification::Own { cert, key, token_file } => {
                let (cert, key) = (cert.clone(), key.clone());
                (ServerTlsSetup::Files { cert, key }, token_file.clone())
            }
            Identification::Pair { pair } => {
                let PairFolder { server, tokens, .. } = PairFolder::new(pair);
                (ServerTlsSetup::Pinned { file: server }, tokens)
            }
        };
        let Target { host, port } = self.dest.clone();
        let setup = Setup {
            transport: self.transport.clone(),
            ..Setup::new(self.listen.0, tls, WorkFor::Tunnel)
        };
        let role = ProxyRole {
            service: Some((host, port)),
            users: UsersSetup::of_tokens(token_file),
            ..ProxyRole::default()
        };
        Served { setup, role }
    }

    /// Says what to do on the other machine.
    fn introduce(&self, pair: &PairFolder) {
        let client = pair.client.display();
        if self.listen.0.port() == 0 {
            text::say(
                "PORT below is the port at which this server listens; choose one to keep it the same",
            );
        }
        text::say(format_args!(
            "copy {client} to the other machine, by a way on which no one else can read it, and run there:"
        ));
        text::say(format_args!("  {}", self.connect_line()));
    }

    /// The command for the other machine, on which the file lies in the folder where it runs.
    fn connect_line(&self) -> String {
        let Self { dest, listen, .. } = self;
        let address = listen.0.ip();
        let host = if address.is_unspecified() {
            rustix::system::uname().nodename().to_string_lossy().into_owned()
        } else {
            address.to_string()
        };
        let mut here = Target { host, port: listen.0.port() }.to_string();
        if let Some(without_port) = here.strip_suffix(":0") {
            here = format!("{without_port}:PORT");
        }
        // Ports below 1024 need a right.
        let port = if dest.port < 1024 { dest.port + 10_000 } else { dest.port };
        format!("tandem connect --dest {here} --listen 127.0.0.1:{port} --pair {CLIENT_FILE}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::from_text;

    #[test]
    fn a_certificate_of_ones_own_comes_with_its_key_and_tokens() {
        let setup = |text: &str| {
            let text = format!("dest = \"a:1\"\nlisten = \"[::1]:2\"\n{text}");
            from_text::<ServeSettings>(&text).map(|setup| setup.identification)
        };
        assert!(matches!(setup(""), Ok(Identification::Pair { pair }) if pair == *FOLDER));
        let own = "cert = \"c\"\nkey = \"k\"\ntoken-file = \"t\"\n";
        assert!(matches!(setup(own), Ok(Identification::Own { .. })));
        for (text, error) in [
            ("cert = \"c\"", "cert needs key"),
            ("key = \"k\"", "key needs cert"),
            ("token-file = \"t\"", "token-file needs cert"),
            ("cert = \"c\"\nkey = \"k\"", "cert needs token-file"),
            ("cert = \"c\"\ntoken-file = \"t\"", "cert needs key"),
            (&format!("{own}pair = \"p\""), "pair and cert cannot be used together"),
        ] {
            let said = setup(text).unwrap_err().to_string();
            assert!(said.starts_with(error), "{text}: {said}");
        }
    }

    #[test]
    fn the_other_machine_is_told_an_address_that_it_can_reach() {
        let connect = |dest: &str, listen: &str| {
            let text = format!("dest = \"{dest}\"\nlisten = \"{listen}\"");
            from_text::<ServeSettings>(&text).unwrap().connect_line()
        };
        let line = |listen| connect("db.internal:5432", listen);
        let rest = "--listen 127.0.0.1:5432 --pair client.pem";
        let expected = format!("tandem connect --dest [2001:db8::1]:4433 {rest}");
        assert_eq!(line("[2001:db8::1]:4433"), expected);
        for unspecified in ["0.0.0.0:4433", "[::]:4433"] {
            let line = line(unspecified);
            assert!(line.ends_with(&format!(":4433 {rest}")), "{line}");
            assert!(!line.contains("0.0.0.0") && !line.contains("[::]"), "{line}");
        }
        assert!(line("192.0.2.1:0").contains("--dest 192.0.2.1:PORT "));
        assert!(connect("a:80", "[::]:1").contains("--listen 127.0.0.1:10080 "));
    }
}

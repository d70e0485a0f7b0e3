//! `tandem origin`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_net::{DriverOptions, Files};
use tandem_node::{OriginConfig, quic::Transport};

use crate::{
    config::{
        ConfigArgs, ListenAddr, Settings, TransportSettings, TransportSetup, WorkFor, to_toml,
    },
    error::{CliError, ConfigError},
    run, text,
    tls::{Identity, ServerTlsSettings, ServerTlsSetup},
};

/// Serve the files of a folder over HTTP/3.
#[derive(Debug, clap::Args)]
pub(crate) struct Origin {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    settings: OriginSettings,
}

impl Origin {
    /// Runs until a signal comes.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let setup = OriginSetup::try_from(self.config.load(self.settings)?)?;
        let identity = setup.tls.identity()?;
        let config = setup.to_node(&identity)?;
        let files = Files::below(&setup.root);
        let files =
            files.map_err(|error| ConfigError::Unreadable { file: setup.root.clone(), error })?;
        if self.config.is_check_only() {
            return text::print(to_toml(&setup).trim_end());
        }
        identity.announce()?;
        let grace = run::grace(&config.limits);
        let node = tandem_node::Origin::new(config).map_err(ConfigError::from)?;
        let options = DriverOptions { files: Some(files), grace, ..DriverOptions::default() };
        run::serve(node, options)
    }
}

/// Flags, and keys of the file.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct OriginSettings {
    /// Address and UDP port to listen at; port 0 is any free port
    #[arg(long, value_name = "ADDR", env = "TANDEM_LISTEN")]
    listen: Option<ListenAddr>,

    /// Folder whose files are served
    #[arg(long, value_name = "DIR", env = "TANDEM_ROOT")]
    root: Option<PathBuf>,

    /// Read, count and drop uploads (PUT), at most 10 GB each, instead of refusing them: a place to
    /// measure against
    #[arg(long, value_name = "BOOL", env = "TANDEM_TAKES_UPLOADS",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    takes_uploads: Option<bool>,

    #[command(flatten)]
    tls: ServerTlsSettings,

    #[command(flatten)]
    transport: TransportSettings,
}

impl Settings for OriginSettings {
    fn or(self, lower: Self) -> Self {
        Self {
            listen: self.listen.or(lower.listen),
            root: self.root.or(lower.root),
            takes_uploads: self.takes_uploads.or(lower.takes_uploads),
            tls: self.tls.or(lower.tls),
            transport: self.transport.or(lower.transport),
        }
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let own = self.root.iter_mut();
        own.chain(self.tls.paths_mut()).chain(self.transport.paths_mut()).collect()
    }
}

/// What the origin runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct OriginSetup {
    listen: ListenAddr,
    root: PathBuf,
    takes_uploads: bool,
    tls: ServerTlsSetup,
    transport: TransportSetup,
}

impl TryFrom<OriginSettings> for OriginSetup {
    type Error = ConfigError;

    fn try_from(settings: OriginSettings) -> Result<Self, ConfigError> {
        let missing = |key, value, variable| ConfigError::Missing { key, value, variable };
        let root = settings.root.ok_or(missing("root", "DIR", "TANDEM_ROOT"))?;
        if !root.is_dir() {
            return Err(ConfigError::NoFolder { what: "root", path: root });
        }
        Ok(Self {
            listen: settings.listen.ok_or(missing("listen", "ADDR", "TANDEM_LISTEN"))?,
            root,
            takes_uploads: settings.takes_uploads.unwrap_or(false),
            tls: settings.tls.try_into()?,
            transport: TransportSetup::new(settings.transport, WorkFor::Origin)?,
        })
    }
}

impl OriginSetup {
    fn to_node(&self, identity: &Identity) -> Result<OriginConfig, ConfigError> {
        Ok(OriginConfig {
            transport: Transport {
                reset_secret: identity.reset_secret(),
                ..self.transport.to_node("origin", WorkFor::Origin)
            },
            takes_uploads: self.takes_uploads,
            ..OriginConfig::new(self.listen.0, self.tls.server_config(identity, None)?)
        })
    }
}

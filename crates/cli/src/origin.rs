//! `tandem origin`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_net::{DriverOptions, Files};
use tandem_node::{OriginConfig, limits::Limits, quic::Transport};
use tandem_units::ByteCount;

use crate::{
    config::{
        Layered, ListenAddr, Settings, TransportSettings, TransportSetup, Within, WorkFor, to_toml,
    },
    descriptors,
    error::{CliError, ConfigError},
    memory::{self, MemoryBound},
    run, text,
    tls::{Identity, ServerTlsSettings, ServerTlsSetup},
};

/// Serve the files of a folder over HTTP/3.
#[derive(Debug, clap::Args)]
pub(crate) struct Origin {
    #[command(flatten)]
    settings: Layered<OriginSettings>,
}

impl Origin {
    /// Runs until a signal ends it.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let setup = OriginSetup::try_from(self.settings.load()?)?;
        let identity = setup.tls.identity()?;
        let config = setup.to_node(&identity)?;
        identity.report();
        let files = Files::below(&setup.root);
        let files =
            files.map_err(|error| ConfigError::Unreadable { file: setup.root.clone(), error })?;
        if self.settings.is_check_only() {
            return text::print(to_toml(&setup).trim_end());
        }
        identity.announce()?;
        descriptors::raise();
        let grace = run::grace(&config.limits);
        let node = tandem_node::Origin::new(config).map_err(ConfigError::from)?;
        let options = DriverOptions {
            files: Some(files),
            grace,
            memory_in_use: Some(memory::in_use),
            ..DriverOptions::default()
        };
        run::serve(node, options, |origin| {
            let new = setup.tls.reread(&identity)?;
            origin.set_tls(setup.tls.server_config(&new, None)?)?;
            new.report();
            Ok(setup.tls.reloaded(&[]))
        })
    }
}

/// Flags, and keys of the file.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct OriginSettings {
    /// Address and UDP port to listen on; port 0 stands for any free port
    #[arg(long, value_name = "ADDR", env = "TANDEM_LISTEN")]
    listen: Option<ListenAddr>,

    /// Folder whose files are served
    #[arg(long, value_name = "DIR", env = "TANDEM_ROOT")]
    root: Option<PathBuf>,

    #[arg(
        long, value_name = "BOOL", env = "TANDEM_TAKES_UPLOADS",
        num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help = format!(
            "Accept uploads (PUT) of at most {} each, count their bytes and discard them, so that \
             clients can measure uploads",
            ByteCount::new(Limits::UPLOAD),
        )
    )]
    takes_uploads: Option<bool>,

    #[arg(long, value_name = "SIZE", env = "TANDEM_MEMORY", help = MemoryBound::flag_help())]
    memory: Option<Within<MemoryBound>>,

    #[command(flatten)]
    tls: ServerTlsSettings,

    #[command(flatten)]
    transport: TransportSettings,
}

impl Settings for OriginSettings {
    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        let own = self.root.iter_mut();
        own.chain(self.tls.paths_mut()).chain(self.transport.paths_mut()).collect()
    }
}

/// The settings that the origin runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct OriginSetup {
    listen: ListenAddr,
    root: PathBuf,
    takes_uploads: bool,
    memory: Within<MemoryBound>,
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
            memory: MemoryBound::or_default(settings.memory),
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
            limits: Limits { memory: self.memory.0.get(), ..Limits::default() },
            ..OriginConfig::new(self.listen.0, self.tls.server_config(identity, None)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::assert_every_path_is_listed;

    #[test]
    fn every_path_of_a_file_is_relative_to_its_folder() {
        assert_every_path_is_listed::<OriginSettings>();
    }
}

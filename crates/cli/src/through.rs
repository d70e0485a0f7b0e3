//! The flags of programs that test the way through proxies: which proxies, and how they are reached.

use std::path::PathBuf;

use tandem_node::{client::HopConfig, limits::Limits, mode::Mode};
use tandem_server::transport::WorkFor;
use tandem_units::HumanDuration;

use crate::{
    config::{HopVia, RepairSettings, RepairSetup, TransportSettings, transport_for},
    error::ConfigError,
    hops,
    tls::{ClientTls, ClientTlsSettings, ClientTlsSetup},
};

/// Flags of `tandem ping` and `tandem speedtest`, which `get` and `client` have too.
#[derive(Debug, clap::Args)]
pub(crate) struct ThroughSettings {
    /// Proxy, as https://HOST:PORT or as a URI template; for a chain, repeat it or give several with
    /// spaces between, nearest proxy first
    ///
    /// Several with commas between are alternatives for one hop: the nearest one that works is used.
    #[arg(long, value_name = "URL", env = "TANDEM_VIA", value_delimiter = ' ')]
    pub(crate) via: Vec<HopVia>,

    /// File whose first token is sent to every proxy; repeat it to name one file for each --via
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE", value_delimiter = ',')]
    token_file: Vec<PathBuf>,

    #[arg(long, value_name = "TIME", env = "TANDEM_TIMEOUT", help = hops::timeout_help())]
    timeout: Option<HumanDuration>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_RETRY",
        help = hops::retry_help("0 at the start, 30s for a tunnel that breaks")
    )]
    retry: Option<HumanDuration>,

    #[command(flatten, next_help_heading = "TLS")]
    tls: ClientTlsSettings,

    #[command(flatten, next_help_heading = "Congestion control")]
    pub(crate) transport: TransportSettings,
}

/// The way through the proxies, with all files read.
pub(crate) struct Through {
    pub(crate) hops: Vec<HopConfig>,
    pub(crate) limits: Limits,
    /// TLS with proxies and origins.
    pub(crate) tls: ClientTls,
}

impl ThroughSettings {
    /// Reads the files, and warns of what is not safe. `mode` is that of the tunnel to the nearest proxy.
    pub(crate) fn read(&self, mode: Mode, repair: RepairSettings) -> Result<Through, ConfigError> {
        let setup = ClientTlsSetup::try_from(self.tls.clone())?;
        let tls = hops::read_when_written(self.retry, || setup.read())?;
        let repair = RepairSetup::new(repair, mode);
        let modes = hops::Modes::new((mode, mode.beyond()), repair, hops::group_streams(None));
        let transport = transport_for(self.transport.clone(), WorkFor::Tunnel)?;
        let hops = || hops::hops(&self.via, &tls, &transport, &self.token_file, modes);
        let hops = hops::read_when_written(self.retry, hops)?;
        setup.warn();
        Ok(Through { hops, limits: hops::limits(self.timeout, self.retry, None), tls })
    }
}

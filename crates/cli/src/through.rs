//! What programs share that test the way through proxies: flags for which proxies and how they are reached, and a run
//! that ends when the test does.

use tandem_net::{Application, DriverOptions, driver};
use tandem_node::{Client, client::HopConfig, limits::Limits, mode::Mode};
use tandem_server::{
    process::{Signals, SystemError},
    transport::WorkFor,
};
use tokio::sync::oneshot;

use crate::{
    config::{HopVia, RepairSettings, RepairSetup, TransportSettings, transport_for},
    error::ConfigError,
    hops::{self, ReachSettings},
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

    #[command(flatten)]
    reach: ReachSettings,

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
        let tls = hops::read_when_written(self.reach.retry, || setup.read())?;
        let repair = RepairSetup::new(repair, mode);
        let modes = hops::Modes::new((mode, mode.beyond()), repair, hops::group_streams(None));
        let transport = transport_for(self.transport.clone(), WorkFor::Tunnel)?;
        let hops = || hops::hops(&self.via, &tls, &transport, self.reach.rights(), modes);
        let hops = hops::read_when_written(self.reach.retry, hops)?;
        setup.warn();
        Ok(Through { hops, limits: self.reach.limits(), tls })
    }
}

/// Runs a client until the test is done or a signal comes. Returns whether there was a signal.
pub(crate) async fn run_until(
    node: Client,
    test: &mut impl Application<Client>,
    options: DriverOptions,
    is_done: oneshot::Receiver<()>,
) -> Result<bool, SystemError> {
    let mut signals = Signals::new()?;
    let mut is_interrupted = false;
    let shutdown = async {
        tokio::select! {
            () = signals.any() => is_interrupted = true,
            Ok(()) = is_done => {}
        }
    };
    driver::run(node, test, options, shutdown).await;
    Ok(is_interrupted)
}

//! `tandem lab link`.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::process::geteuid;
use serde::Serialize;
use tandem_netem::Seed;
use tokio::sync::oneshot;

use super::{
    direction::Direction,
    link_args::LinkArgs,
    tun::{
        Device, DeviceConfig, EndStats, Namespace, NetnsName, Network, TunCounters, TunError,
        TunLink,
    },
};
use crate::{
    error::{CliError, ConfigError},
    run::{self, Signals},
    text,
};

/// Emulate a link between two network namespaces, for any program. Needs root.
///
/// Makes the namespaces and removes them at the end. Programs run in them with `ip netns exec NAME
/// PROGRAM`. Prints counters as one JSON object when a signal ends it.
#[derive(Debug, clap::Args)]
pub(crate) struct Link {
    /// Network namespace of the clients; one that exists is used and stays
    #[arg(long, value_name = "NAME", default_value = "near")]
    near: NetnsName,

    /// Network namespace of the targets
    #[arg(long, value_name = "NAME", default_value = "far")]
    far: NetnsName,

    /// Network between them: the near end has its first address, the far end the second
    #[arg(long, value_name = "CIDR", default_value = "10.77.0.0/30")]
    network: Network,

    /// Largest IP packet of the devices
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
          value_parser = clap::value_parser!(u16).range(1280..))]
    device_mtu: u16,

    #[command(flatten)]
    args: LinkArgs,
}

impl Link {
    /// Runs until a signal comes.
    pub(crate) fn run(self) -> Result<(), CliError> {
        if self.near == self.far {
            return Err(CliError::Config(ConfigError::Conflict {
                first: "near",
                second: "far",
                reason: "inside one namespace packets would not pass the link; give two names",
            }));
        }
        let links = self.args.directions()?;
        check_system()?;
        // From here on a signal is no end without tidying up.
        let runtime = run::runtime()?;
        let mut signals = runtime.block_on(async { Signals::new() })?;
        let ends = Ends::set_up(&self)?;
        let devices = (&ends.near.device, &ends.far.device);
        let mut link = TunLink::new(devices, self.device_mtu, links, Seed(self.args.seed));
        let [near, far] = self.network.hosts().map(|host| host.addr());
        text::say(format_args!("ready: {} {near} <-> {} {far}", self.near, self.far));
        let stop = AtomicBool::new(false);
        let (ended, end) = oneshot::channel::<()>();
        let counters = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let result = link.run(&stop);
                drop(ended);
                result.map(|()| link.counters())
            });
            runtime.block_on(async {
                tokio::select! {
                    () = signals.any() => {}
                    _ = end => {}
                }
            });
            stop.store(true, Ordering::Relaxed);
            worker.join().expect("the emulator does not panic")
        });
        let report = Report::new(&counters.map_err(TunError::Lost)?, &ends)?;
        text::print(serde_json::to_string(&report).expect("numbers are JSON"))
    }
}

/// What has to be there, looked for before anything is made.
fn check_system() -> Result<(), TunError> {
    if !geteuid().is_root() {
        return Err(TunError::NotRoot);
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(TunError::NoTun);
    }
    Ok(())
}

/// Both ends. Devices go before the namespaces that they are in.
struct Ends {
    near: End,
    far: End,
}

struct End {
    device: Device,
    netns: Namespace,
}

impl Ends {
    fn set_up(link: &Link) -> Result<Self, TunError> {
        let near = Namespace::obtain(link.near.clone())?;
        let far = Namespace::obtain(link.far.clone())?;
        let [near_host, far_host] = link.network.hosts();
        let device = |netns: &Namespace, peer, address| {
            Device::make(netns, DeviceConfig { peer, address, mtu: link.device_mtu })
        };
        let near_device = device(&near, &link.far, near_host)?;
        let far_device = device(&far, &link.near, far_host)?;
        Ok(Self {
            near: End { device: near_device, netns: near },
            far: End { device: far_device, netns: far },
        })
    }
}

/// What became of the packets. Bytes are those of IP packets.
#[derive(Debug, Serialize)]
struct Report {
    to_target: Direction,
    to_client: Direction,
    near: EndReport,
    far: EndReport,
    /// How much later than due packets left: the median and the 99th percentile, both rounded up to
    /// powers of two, and the largest, all in microseconds.
    lateness_p50_us: u128,
    lateness_p99_us: u128,
    lateness_max_us: u128,
}

#[derive(Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "in JSON the name carries the unit")]
struct EndReport {
    not_ip_packets: u64,
    truncated_packets: u64,
    /// Dropped by the kernel before this program took them.
    missed_packets: u64,
    /// Not taken by the kernel.
    refused_packets: u64,
}

impl Report {
    fn new(counters: &TunCounters, ends: &Ends) -> Result<Self, TunError> {
        let end = |stats: EndStats, end: &End| {
            Ok::<_, TunError>(EndReport {
                not_ip_packets: stats.not_ip,
                truncated_packets: stats.truncated,
                missed_packets: end.device.missed(&end.netns)?,
                refused_packets: stats.refused,
            })
        };
        let lateness = &counters.lateness;
        Ok(Self {
            to_target: counters.to_target.into(),
            to_client: counters.to_client.into(),
            near: end(counters.near, &ends.near)?,
            far: end(counters.far, &ends.far)?,
            lateness_p50_us: lateness.percentile(50).as_micros(),
            lateness_p99_us: lateness.percentile(99).as_micros(),
            lateness_max_us: lateness.max().as_micros(),
        })
    }
}

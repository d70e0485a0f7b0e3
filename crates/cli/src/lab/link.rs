//! `tandem lab link`.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use serde::Serialize;
use tandem_emulate::{
    EndStats, Found, Namespace, NetnsName, Network, TunCounters, TunEnds, TunError, TunLink,
    check_system,
};
use tandem_netem::Seed;
use tandem_server::process::{self, Signals, log};
use tokio::sync::oneshot;

use super::{direction::DirectionCounters, link_args::LinkArgs};
use crate::{
    error::{CliError, ConfigError},
    text,
};

const EXAMPLES: &str = "\
Examples:
  tandem lab link --rate 10Mbit/s --delay 20ms --loss 2%
      In other terminals, `ip netns exec far iperf3 -s` and `ip netns exec near iperf3 -c 10.77.0.2`.
  tandem lab link --trace lte.trace --queue codel:1MB
      A link with the rate of a recorded mobile network.";

/// Emulate a link between two network namespaces, for any program. Needs root.
///
/// Makes the namespaces and removes them at the end. `ip netns exec NAME PROGRAM` runs a program in
/// one of them. Prints counters as one JSON object when a signal ends it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Link {
    /// Network namespace of the clients; if it exists already, it is used and stays
    #[arg(long, value_name = "NAME", default_value = "near")]
    near: NetnsName,

    /// Network namespace of the targets
    #[arg(long, value_name = "NAME", default_value = "far")]
    far: NetnsName,

    /// Network between them: the near end has its first address, the far end the second
    #[arg(long, value_name = "CIDR", default_value = "10.77.0.0/30")]
    network: Network,

    /// Largest IP packet of the devices
    #[arg(long, value_name = "BYTES", default_value_t = 1500, help_heading = "More of the link",
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
        let links = self.args.links()?;
        check_system()?;
        // From here on a signal ends the program only after it has removed its namespaces.
        let runtime = process::runtime()?;
        let mut signals = runtime.block_on(async { Signals::new() })?;
        let (near, far) = (obtain(&self.near)?, obtain(&self.far)?);
        let ends = TunEnds::set_up(near, far, self.network, self.device_mtu)?;
        let mut link = TunLink::new(ends.devices(), self.device_mtu, links, Seed(self.args.seed));
        log::use_own_thread()?;
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
            worker.join().expect("the link does not panic")
        });
        let report = LinkCountersJson::new(&counters?, ends.missed()?);
        text::print(serde_json::to_string(&report).expect("numbers are JSON"))
    }
}

/// Obtains the namespace of this name, and reports whether it existed before.
fn obtain(name: &NetnsName) -> Result<Namespace, TunError> {
    let namespace = Namespace::obtain(name.clone())?;
    let found = match namespace.found() {
        Found::Nothing => return Ok(namespace),
        Found::Foreign => "exists and was not made by tandem: it is used and not removed",
        Found::LeftOver => "was left by an earlier run: it is used and removed at the end",
        Found::InUse => "belongs to another link: it is used and not removed",
    };
    text::say(format_args!("the network namespace {name} {found}"));
    Ok(namespace)
}

/// The counters in JSON. Bytes are those of IP packets.
#[derive(Debug, Serialize)]
struct LinkCountersJson {
    to_target: DirectionCounters,
    to_client: DirectionCounters,
    near: EndReport,
    far: EndReport,
    /// Lateness of packets in microseconds: the median and the 99th percentile, both to within a
    /// hundredth, and the largest.
    lateness_p50_us: u128,
    lateness_p99_us: u128,
    lateness_max_us: u128,
}

#[derive(Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "in JSON the name carries the unit")]
struct EndReport {
    not_ip_packets: u64,
    truncated_packets: u64,
    /// Packets that the kernel dropped before this program read them.
    missed_packets: u64,
    /// Packets that the kernel refused.
    refused_packets: u64,
}

impl LinkCountersJson {
    fn new(counters: &TunCounters, [near_missed, far_missed]: [u64; 2]) -> Self {
        let end = |stats: EndStats, missed_packets| EndReport {
            not_ip_packets: stats.not_ip,
            truncated_packets: stats.truncated,
            missed_packets,
            refused_packets: stats.refused,
        };
        let lateness = &counters.lateness;
        Self {
            to_target: DirectionCounters::of_first(&counters.to_target),
            to_client: DirectionCounters::of_first(&counters.to_client),
            near: end(counters.near, near_missed),
            far: end(counters.far, far_missed),
            lateness_p50_us: lateness.percentile(50).as_micros(),
            lateness_p99_us: lateness.percentile(99).as_micros(),
            lateness_max_us: lateness.max().as_micros(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_documented() {
        let end = || EndReport {
            not_ip_packets: 0,
            truncated_packets: 0,
            missed_packets: 0,
            refused_packets: 0,
        };
        let report = LinkCountersJson {
            to_target: DirectionCounters::of_first(&[]),
            to_client: DirectionCounters::of_first(&[]),
            near: end(),
            far: end(),
            lateness_p50_us: 0,
            lateness_p99_us: 0,
            lateness_max_us: 0,
        };
        let page = include_str!("../../../../docs/guide/commands.md");
        let page = page.split("### `tandem lab relay`").nth(1).unwrap();
        let report = serde_json::to_value(report).unwrap();
        for (key, value) in report.as_object().unwrap() {
            assert!(page.contains(&format!("`{key}`")), "{key}");
            for inner in value.as_object().into_iter().flat_map(serde_json::Map::keys) {
                let parent = if key.starts_with("to_") { "DIRECTION" } else { "END" };
                assert!(page.contains(&format!("`{parent}.{inner}`")), "{key}.{inner}");
            }
        }
    }
}

//! The flags of `tandem lab run` that make a run what it is.

use std::path::PathBuf;

use tandem_congestion::ControllerName;
use tandem_experiments::{
    plan::Seeds,
    run::{Mode, Parameters, Workload},
};
use tandem_netem::{LossAt, LossModel, QueueConfig};
use tandem_node::client::Order;
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

/// Each has the name of the [`Parameters`] that it sets. What is not given has their default.
#[derive(Debug, clap::Args)]
pub(super) struct ParameterArgs {
    /// How payloads travel: mft (no tunnel), mft+, mdt, mst, msgt, rmdt, rmdt+, tecc or tecc-paper;
    /// several with commas between
    #[arg(long, value_name = "MODE,..", value_delimiter = ',', default_value = "mft,mdt,mst,rmdt")]
    mode: Vec<Mode>,

    /// Order in which payloads leave a tunnel that repairs them: off, window or ordered
    /// [default: ordered with rmdt, else window]
    #[arg(long, value_name = "ORDER")]
    resequence: Option<Order>,

    /// What differs in how an origin of mode tecc or tecc-paper uses reports, such as
    /// q-target=60ms,theta=1Ts
    #[arg(long, value_name = "KEY=VALUE,..")]
    tecc: Option<String>,

    /// How often proxies report in these modes [default: once in the tunnel's least RTT]
    #[arg(long, value_name = "TIME")]
    feedback_interval: Option<HumanDuration>,

    /// Request streams of each flow in mode msgt, 2 to 16 [default: 8]
    #[arg(long, value_name = "N")]
    group_streams: Option<u8>,

    /// Runs of each mode, by what their dice follow from: one seed, or the first and the last
    #[arg(long, value_name = "FIRST..LAST", default_value = "1")]
    seeds: Seeds,

    /// What is transferred: download, upload, long:TIME, flows:COUNT,INTERVAL,
    /// sharing:COUNT,SETTLE,TIME, parallel:COUNT, requests:COUNT,INTERVAL or datagrams:RATE,TIME
    /// [default: download]
    #[arg(long, value_name = "WHAT")]
    workload: Option<Workload>,

    /// Length of a download [default: 10 MB]
    #[arg(long, value_name = "BYTES")]
    size: Option<ByteCount>,

    /// Streams that a download is divided over [default: 1]
    #[arg(long, value_name = "N")]
    streams: Option<u64>,

    /// The download is that of a local program behind `tandem client --udp`
    #[arg(long)]
    local_program: bool,

    /// Proxies in the chain, 1 to 4 [default: 1]
    #[arg(long, value_name = "N")]
    proxies: Option<u64>,

    /// Rate of the access link in each direction [default: 10 Mbit/s]
    #[arg(long, value_name = "RATE", conflicts_with = "trace")]
    rate: Option<Rate>,

    /// Its rate towards the proxy [default: --rate, or 48 Mbit/s with --trace]
    #[arg(long, value_name = "RATE", conflicts_with = "uplink_trace")]
    uplink_rate: Option<Rate>,

    /// Trace in Mahimahi's format, or synthetic:KIND (driving, subway, wifi, mmwave), that the access
    /// link follows towards the client, from a moment on that the seed chooses
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Trace that it follows towards the proxy
    #[arg(long, value_name = "FILE")]
    uplink_trace: Option<PathBuf>,

    /// RTT between client and first proxy, without queues [default: 40ms]
    #[arg(long, value_name = "TIME")]
    client_rtt: Option<HumanDuration>,

    /// How much longer the RTT to each client is than that to the one before, behind the access link
    /// that they share [default: 0s]
    #[arg(long, value_name = "TIME")]
    client_rtt_step: Option<HumanDuration>,

    /// RTT between two proxies [default: 20ms]
    #[arg(long, value_name = "TIME")]
    hop_rtt: Option<HumanDuration>,

    /// RTT between the last proxy and the first origin [default: 100ms]
    #[arg(long, value_name = "TIME")]
    origin_rtt: Option<HumanDuration>,

    /// Rate of the link between the last proxy and each origin, with a queue of 150 kB; unlimited if
    /// not said
    #[arg(long, value_name = "RATE")]
    origin_rate: Option<Rate>,

    /// Origins, which flows take in turn [default: 1]
    #[arg(long, value_name = "N")]
    origins: Option<u64>,

    /// How much longer the RTT to each origin is than that to the one before [default: 0s]
    #[arg(long, value_name = "TIME")]
    origin_rtt_step: Option<HumanDuration>,

    #[arg(
        long,
        value_name = "LOSS",
        help = "Random loss on the access link: a share such as 5%, bursts:5%,4 for bursts of 4 \
                packets in the mean, or gilbert:TO_BAD,TO_GOOD,LOSS_BAD,LOSS_GOOD [default: 0%]"
    )]
    loss: Option<LossModel>,

    /// Loss towards the proxy [default: --loss]
    #[arg(long, value_name = "LOSS")]
    uplink_loss: Option<LossModel>,

    /// Where packets are lost: before or after the bottleneck [default: after]
    #[arg(long, value_name = "WHERE")]
    loss_at: Option<LossAt>,

    /// Queue of the access link: 150kB, 100packets, drop-head:150kB, codel:150kB or infinite
    /// [default: 150 kB]
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueConfig>,

    /// Most that comes on top of the access link's delay; reorders nothing [default: 0s]
    #[arg(long, value_name = "TIME")]
    jitter: Option<HumanDuration>,

    /// Share of packets that is late by a quarter of --client-rtt [default: 0%]
    #[arg(long, value_name = "RATIO")]
    reorder: Option<Ratio>,

    /// Traffic of others on the access link towards the client
    #[arg(long, value_name = "RATE")]
    cross_traffic: Option<Rate>,

    /// Downloads of others over the access link, without a tunnel and without end, whose origins have
    /// this congestion controller
    #[arg(long, value_name = "NAME")]
    others: Option<ControllerName>,

    /// How many, 1 to 100 [default: 1]
    #[arg(long, value_name = "N", requires = "others")]
    others_count: Option<u64>,

    /// Congestion controller of the origin: bbr1, bbr1-tunnel, newreno, cubic or bbr3 [default: bbr1]
    #[arg(long, value_name = "NAME")]
    origin_controller: Option<ControllerName>,

    /// Congestion controller of the tunnels: bbr1, bbr1-tunnel, newreno, cubic, bbr3 or off
    /// [default: bbr1-tunnel]
    #[arg(long, value_name = "NAME")]
    tunnel_controller: Option<ControllerName>,

    /// Initial window of origin and tunnels, in packets [default: 10; mft+ and rmdt+ have an origin
    /// with 32 at least]
    #[arg(long, value_name = "N")]
    initial_window: Option<u64>,

    /// Initial window of tunnels [default: 32 with bbr1-tunnel, else --initial-window]
    #[arg(long, value_name = "N")]
    tunnel_initial_window: Option<u64>,

    /// Percent of the known bandwidth at which tunnels look for more [default: 125 with bbr1, 200
    /// with bbr1-tunnel]
    #[arg(long, value_name = "N")]
    tunnel_up_gain_percent: Option<u64>,

    /// Most that the origin may have on its way [default: what the product allows]
    #[arg(long, value_name = "BYTES")]
    window: Option<ByteCount>,

    /// Let timers run out at multiples of this, as production's do at those of 1ms
    #[arg(long, value_name = "TIME")]
    timer_granularity: Option<HumanDuration>,

    /// Samples over time that each record keeps; --series FILE has all [default: 0]
    #[arg(long, value_name = "N")]
    samples: Option<u64>,

    /// Virtual time after which a run ends as not completed [default: 10min]
    #[arg(long, value_name = "TIME")]
    time_limit: Option<HumanDuration>,
}

impl ParameterArgs {
    /// Every mode with every seed, mode by mode.
    pub(super) fn runs(&self) -> Vec<Parameters> {
        let base = self.base();
        let with = |mode: Mode| {
            let base = base.clone();
            self.seeds.iter().map(move |seed| Parameters { mode, seed, ..base.clone() })
        };
        let mut modes = Vec::new();
        for mode in &self.mode {
            if !modes.contains(mode) {
                modes.push(*mode);
            }
        }
        modes.into_iter().flat_map(with).collect()
    }

    /// Number of runs, without making them.
    pub(super) fn count(&self) -> u64 {
        self.seeds.count().saturating_mul(self.mode.len() as u64)
    }

    fn base(&self) -> Parameters {
        let default = Parameters::default();
        Parameters {
            mode: default.mode,
            resequence: self.resequence,
            tecc: self.tecc.clone(),
            feedback_interval: self.feedback_interval,
            group_streams: self.group_streams.unwrap_or(default.group_streams),
            seed: default.seed,
            workload: self.workload.unwrap_or(default.workload),
            size: self.size.unwrap_or(default.size),
            local_program: self.local_program,
            streams: self.streams.unwrap_or(default.streams),
            proxies: self.proxies.unwrap_or(default.proxies),
            rate: self.rate.unwrap_or(default.rate),
            uplink_rate: self.uplink_rate,
            trace: self.trace.clone(),
            uplink_trace: self.uplink_trace.clone(),
            client_rtt: self.client_rtt.unwrap_or(default.client_rtt),
            client_rtt_step: self.client_rtt_step.unwrap_or(default.client_rtt_step),
            hop_rtt: self.hop_rtt.unwrap_or(default.hop_rtt),
            origin_rtt: self.origin_rtt.unwrap_or(default.origin_rtt),
            origin_rtt_step: self.origin_rtt_step.unwrap_or(default.origin_rtt_step),
            origin_rate: self.origin_rate,
            origins: self.origins.unwrap_or(default.origins),
            loss: self.loss.unwrap_or(default.loss),
            uplink_loss: self.uplink_loss,
            loss_at: self.loss_at.unwrap_or(default.loss_at),
            queue: self.queue.unwrap_or(default.queue),
            jitter: self.jitter.unwrap_or(default.jitter),
            reorder: self.reorder.unwrap_or(default.reorder),
            cross_traffic: self.cross_traffic,
            others: self.others,
            others_count: self.others_count.unwrap_or(default.others_count),
            origin_controller: self.origin_controller.unwrap_or(default.origin_controller),
            tunnel_controller: self.tunnel_controller.unwrap_or(default.tunnel_controller),
            initial_window: self.initial_window.unwrap_or(default.initial_window),
            tunnel_initial_window: self.tunnel_initial_window,
            tunnel_up_gain_percent: self.tunnel_up_gain_percent,
            window: self.window,
            timer_granularity: self.timer_granularity,
            samples: self.samples.unwrap_or(default.samples),
            time_limit: self.time_limit.unwrap_or(default.time_limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn every_parameter_has_a_flag_of_its_name() {
        let command = ParameterArgs::augment_args(Command::new("run"));
        let flags: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        let parameters = serde_json::to_value(Parameters::default()).unwrap();
        for key in parameters.as_object().unwrap().keys().filter(|key| *key != "seed") {
            assert!(flags.contains(&key.replace('_', "-").as_str()), "no flag for {key}");
        }
    }
}

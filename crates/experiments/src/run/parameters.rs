//! The parameters of one run, with the names that command lines, plans and results share.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tandem_congestion::ControllerName;
use tandem_netem::{LossAt, LossModel, QueueConfig, QueueLimit};
use tandem_node::{
    client::Order,
    mode::{Mode, TunnelMode},
    quic::DatagramTransport,
};
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

use super::{PepKind, RunError, Workload};
use crate::summary::fields;

/// Makes [`Parameters`] from a list of fields, so that each parameter is defined once: its
/// documentation, which is also the help of its flag; the name of the flag's value in the help; its
/// type; its default; and the range of a number. A field without a default has the default of its
/// type. A field with `not_a_flag` has no flag of its own.
macro_rules! parameters {
    (
        $(#[$of_struct:meta])*
        pub struct Parameters {
            $(
                $(#[$of_field:meta])*
                $($value:literal)? $name:ident: $type:ty
                $(= $default:expr)?
                $(, from $low:literal to $high:literal)?
                $(, not_a_flag $fixed:expr)?;
            )*
        }
    ) => {
        $(#[$of_struct])*
        pub struct Parameters {
            $(
                $(#[$of_field])*
                $(#[doc = concat!(" (", $low, " to ", $high, ")")])?
                $(#[cfg_attr(feature = "clap", arg(long, value_name = $value))])?
                $(#[cfg_attr(
                    feature = "clap",
                    arg(long, value_name = concat!($low, " to ", $high))
                )])?
                $(#[cfg_attr(feature = "clap", arg(default_value_t = $default))])?
                $(#[cfg_attr(feature = "clap", arg(skip = $fixed))])?
                pub $name: $type,
            )*
        }

        impl Default for Parameters {
            fn default() -> Self {
                Self { $($name: parameters!(@default $($default)? $($fixed)?),)* }
            }
        }

        impl Parameters {
            /// Refuses a number that is outside of its range.
            pub(super) fn check_ranges(&self) -> Result<(), RunError> {
                $($(
                    if let Some(seen) = self.$name.number()
                        && !($low..=$high).contains(&seen)
                    {
                        let allowed = concat!($low, " to ", $high);
                        let (name, seen) = (stringify!($name), seen.to_string());
                        return Err(RunError::Parameter { name, seen, allowed });
                    }
                )?)*
                Ok(())
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

parameters! {
    /// One run: its hosts, the links between them, and the seed of its random choices.
    ///
    /// ```text
    /// client --- access link --- proxy 1 --- hop_rtt --- proxy 2 ... --- origin_rtt --- origin
    /// ```
    /// The access link is the only bottleneck, unless `origin_rate` is set. The other links have
    /// only a delay. With the cargo feature `clap` these are flags of a command line, except `mode`
    /// and `seed`, of which a command may take several.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[cfg_attr(feature = "clap", derive(clap::Args))]
    #[serde(default)]
    pub struct Parameters {
        /// Mode in which payloads travel between client and proxy.
        mode: Mode, not_a_flag Mode::Mdt;

        /// Order in which payloads leave a tunnel that retransmits them: off, window or ordered
        /// [default: ordered with rmdt, else window]
        "ORDER" resequence: Option<Order>;

        /// Settings with which an origin of mode tecc or tecc-paper uses reports, if they differ
        /// from the defaults, such as q-target=60ms,theta=1Ts.
        "KEY=VALUE,.." tecc: Option<String>;

        /// Least interval of proxies' reports in these modes [default: the tunnel's least RTT]
        "TIME" feedback_interval: Option<HumanDuration>;

        /// Request streams of each flow in mode msgt
        group_streams: u8 = TunnelMode::GROUP_STREAMS_DEFAULT, from 2 to 16;

        /// Seed of all random choices.
        seed: u64, not_a_flag 1_u64;

        /// Transfers of the run: download, upload, long:TIME, flows:COUNT,INTERVAL,
        /// sharing:COUNT,SETTLE,TIME, parallel:COUNT, requests:COUNT,INTERVAL,
        /// datagrams:RATE,TIME or tcp:TIME.
        "WHAT" workload: Workload = Workload::Download;

        /// Length of a download or an upload.
        "BYTES" size: ByteCount = ByteCount::new(10_000_000);

        /// Let a local program behind `tandem client --udp` download, instead of the client itself.
        /// Without a tunnel this makes no difference.
        #[cfg_attr(feature = "clap", arg(long))]
        local_program: bool;

        /// Streams of each download
        streams: u64 = 1, from 1 to 100;

        /// Proxies in the chain, in modes with a tunnel
        proxies: u64 = 1, from 1 to 4;

        /// Mode of the tunnels behind the first one [default: that of the first]
        "MODE" beyond: Option<Mode>;

        /// Rate of the access link in each direction, counting IP packets.
        #[cfg_attr(feature = "clap", arg(conflicts_with = "trace"))]
        "RATE" rate: Rate = Rate::from_mbps(10);

        /// Rate of the access link towards the proxy [default: --rate, or 48 Mbit/s with --trace]
        #[cfg_attr(feature = "clap", arg(conflicts_with = "uplink_trace"))]
        "RATE" uplink_rate: Option<Rate>;

        /// Trace in Mahimahi's format, or synthetic:KIND (driving, subway, wifi, mmwave), that the
        /// access link follows towards the client, from a time in it that the seed chooses.
        "FILE" trace: Option<PathBuf>;

        /// Trace that the access link follows towards the proxy.
        "FILE" uplink_trace: Option<PathBuf>;

        /// RTT between client and first proxy, without queues.
        "TIME" client_rtt: HumanDuration = ms(40);

        /// Increase of the RTT from each client to the next, behind the access link that they
        /// share.
        "TIME" client_rtt_step: HumanDuration = ms(0);

        /// RTT between two proxies.
        "TIME" hop_rtt: HumanDuration = ms(20);

        /// RTT between the last proxy and the first origin.
        "TIME" origin_rtt: HumanDuration = ms(100);

        /// RTT between client and first origin, without queues. The link to the origin has what the other
        /// links leave, instead of --origin-rtt.
        "TIME" path_rtt: Option<HumanDuration>;

        /// Increase of the RTT from each origin to the next.
        "TIME" origin_rtt_step: HumanDuration = ms(0);

        /// Rate of the link between the last proxy and each origin, with a queue of 150 kB: a
        /// bottleneck behind the proxy [default: unlimited]
        "RATE" origin_rate: Option<Rate>;

        /// Loss on the link between the origin and the access link, or the last proxy.
        "LOSS" origin_loss: LossModel = LossModel::default();

        /// Lightweight PEP between the link to the origin and the access link, which tells the origin of
        /// the packets that have passed it: authentic, keyless without a MAC, or forged with a key that
        /// the origin does not know. In modes with tunnels the last proxy is the PEP [default: none]
        "WHICH" pep: Option<PepKind>;

        /// Share of the PEP's messages that are lost.
        "RATIO" pep_loss: Ratio = Ratio::ZERO;

        /// Time after which the PEP ends [default: never]
        "TIME" pep_until: Option<HumanDuration>;

        /// Origins, which flows take in turn.
        "N" origins: u64 = 1;

        /// Random loss on the access link: a share such as 5%, bursts:5%,4 for bursts of 4 packets
        /// on average, or `gilbert:TO_BAD,TO_GOOD,LOSS_BAD,LOSS_GOOD`.
        "LOSS" loss: LossModel = LossModel::default();

        /// Loss towards the proxy [default: --loss]
        "LOSS" uplink_loss: Option<LossModel>;

        /// Place at which packets are lost: before or after the bottleneck.
        "WHERE" loss_at: LossAt = LossAt::After;

        /// Queue of the access link in each direction: 150kB, 100packets, drop-head:150kB,
        /// codel:150kB or infinite.
        "QUEUE" queue: QueueConfig = QueueConfig::default();

        /// Queue of the access link in per cent of the bandwidth-delay product of the path, instead of
        /// --queue
        queue_bdp_percent: Option<u64>, from 10 to 10000;

        /// Maximum of a random time that is added to the access link's delay; it does not reorder
        /// packets.
        "TIME" jitter: HumanDuration = ms(0);

        /// Share of the access link's packets that are late by a quarter of --client-rtt.
        "RATIO" reorder: Ratio = Ratio::ZERO;

        /// Constant rate of other traffic on the access link towards the client [default: none]
        "RATE" cross_traffic: Option<Rate>;

        /// Congestion controller of other origins. Downloads from them, without end and without a
        /// tunnel, begin before the first flow and share the access link [default: none]
        "NAME" others: Option<ControllerName>;

        /// Let those downloads share the link to the first origin, too.
        #[cfg_attr(feature = "clap", arg(long, requires = "others"))]
        others_share_origin_link: bool;

        /// How many downloads from other origins share the access link
        #[cfg_attr(feature = "clap", arg(requires = "others"))]
        others_count: u64 = 1, from 1 to 100;

        /// Congestion controller of the origin, or of the client's end-to-end connection with an
        /// upload: bbr1, bbr1-tunnel, newreno, cubic, bbr3, mdcc or mdcc-paper. Modes mft-tuned, tecc and tecc-paper
        /// have one of their own.
        "NAME" origin_controller: ControllerName = ControllerName::Bbr1;

        /// Congestion controller of every proxy and of the client's tunnels: bbr1, bbr1-tunnel,
        /// newreno, cubic, bbr3 or off.
        "NAME" tunnel_controller: ControllerName = ControllerName::Bbr1Tunnel;

        /// What carries the datagrams of tunnels: sealed, the transport beside the connection, with the controllers
        /// that it can have; or quic, DATAGRAM frames.
        "NAME" tunnel_datagrams: DatagramTransport = DatagramTransport::default();

        /// Initial window of origin and tunnels, in full packets; an origin of mode mft-tuned, mft+
        /// or rmdt+ has at least 32
        initial_window: u64 = 10, from 2 to 1000;

        /// Initial window of tunnels [default: 32 with bbr1-tunnel, else --initial-window]
        tunnel_initial_window: Option<u64>, from 2 to 1000;

        /// Percent of the known bandwidth at which tunnels probe for more [default: 125 with bbr1,
        /// 200 with bbr1-tunnel]
        tunnel_up_gain_percent: Option<u64>, from 100 to 300;

        /// Share of the RTT for which tunnels delay acknowledgements; 0 for none [default: that of the
        /// product]
        "RATIO" ack_delay: Option<Ratio>;

        /// Packets after which tunnels delay an acknowledgement no longer [default: that of the product]
        ack_threshold: Option<u64>, from 1 to 1000;

        /// As --ack-delay, for the end-to-end connections
        "RATIO" e2e_ack_delay: Option<Ratio>;

        /// As --ack-threshold, for the end-to-end connections
        e2e_ack_threshold: Option<u64>, from 1 to 1000;

        /// Largest number of bytes that the sender of the body may have in flight, as the
        /// receiver's window [default: that of the product]
        "BYTES" window: Option<ByteCount>;

        /// Agree on keys by X25519MLKEM768 in all handshakes, as programs do by default, so that a
        /// client's first message takes two packets. Without it, it is X25519, as in the papers.
        #[cfg_attr(feature = "clap", arg(long))]
        post_quantum: bool;

        /// Let the timers of all hosts expire at multiples of this time, as in production at
        /// multiples of 1ms [default: exact]
        "TIME" timer_granularity: Option<HumanDuration>;

        /// Maximum of a random time by which the programs of all hosts wake late, as beside other programs
        /// that keep their cores busy.
        "TIME" late_wakes: HumanDuration = ms(0);

        /// Samples over time that each record keeps; --series FILE has all
        samples: u64 = 0, from 0 to 1000;

        /// Virtual time after which a run ends as not completed.
        "TIME" time_limit: HumanDuration = ms(600_000);
    }
}

const fn ms(ms: u64) -> HumanDuration {
    HumanDuration(Duration::from_millis(ms))
}

/// A type that may have a range.
trait Number {
    /// The number, if there is one.
    fn number(&self) -> Option<u64>;
}

impl Number for u8 {
    fn number(&self) -> Option<u64> {
        Some((*self).into())
    }
}

impl Number for u64 {
    fn number(&self) -> Option<u64> {
        Some(*self)
    }
}

impl Number for Option<u64> {
    fn number(&self) -> Option<u64> {
        *self
    }
}

impl Parameters {
    /// The command that repeats this run.
    pub fn command(&self) -> String {
        let default = fields(&Self { mode: self.mode, seed: self.seed, ..Self::default() });
        let flags = fields(self).into_iter().filter_map(|(key, value)| {
            let is_said = matches!(&*key, "mode" | "seed") || default.get(&key) != Some(&value);
            let flag = if key == "seed" { "seeds".to_owned() } else { key.replace('_', "-") };
            match value {
                Value::Bool(false) | Value::Null => None,
                _ if !is_said => None,
                Value::Bool(true) => Some(format!("--{flag}")),
                Value::String(text) if text.contains(' ') => Some(format!("--{flag} '{text}'")),
                Value::String(text) => Some(format!("--{flag} {text}")),
                value => Some(format!("--{flag} {value}")),
            }
        });
        format!("tandem lab run {}", flags.collect::<Vec<_>>().join(" "))
    }

    /// The end-to-end RTT without queues: that of the access link, between the proxies and to the
    /// first origin.
    pub fn e2e_rtt(&self) -> Duration {
        self.near_rtt() + self.last_rtt()
    }

    /// The part of it between the client and the last proxy, or the end of the access link.
    pub(super) fn near_rtt(&self) -> Duration {
        let hops = if self.mode.has_tunnel() { self.proxies.saturating_sub(1) } else { 0 };
        let hops = u32::try_from(hops).unwrap_or(u32::MAX);
        self.client_rtt.0 + self.hop_rtt.0.saturating_mul(hops)
    }

    /// The remaining part, to the first origin.
    pub(super) fn last_rtt(&self) -> Duration {
        let left = |whole: HumanDuration| whole.0.saturating_sub(self.near_rtt());
        self.path_rtt.map_or(self.origin_rtt.0, left)
    }

    /// The queue of the access link.
    pub(super) fn access_queue(&self) -> QueueConfig {
        let Some(percent) = self.queue_bdp_percent else { return self.queue };
        let product = self.rate.bytes_in(self.e2e_rtt()).get();
        let bytes = Some(ByteCount::new(product.saturating_mul(percent) / 100));
        QueueConfig::DropTail(QueueLimit { bytes, packets: None })
    }
}

/// Whether a parameter of [`Parameters`] makes a difference in this mode.
pub(crate) fn heeds(mode: Mode, key: &str) -> bool {
    match key {
        "resequence" => mode.repairs_datagrams(),
        "tecc" | "feedback_interval" => mode.has_feedback(),
        "origin_controller" => mode.origin_controller().is_none(),
        "group_streams" => mode == Mode::Msgt,
        "tunnel_controller" | "tunnel_datagrams" | "proxies" | "local_program" | "ack_delay"
        | "ack_threshold" | "beyond" => mode.has_tunnel(),
        _ => true,
    }
}

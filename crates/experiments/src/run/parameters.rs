//! What one run is made of, in the words that command lines, plans and results share.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tandem_congestion::ControllerName;
use tandem_netem::{LossAt, LossModel, QueueConfig};
use tandem_node::{
    client::Order,
    mode::{Mode, TunnelMode},
};
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

use crate::{run::Workload, summary::fields};

/// One run: who talks to whom, over what, and which dice are thrown.
///
/// ```text
/// client --- access link --- proxy 1 --- hop_rtt --- proxy 2 ... --- origin_rtt --- origin
/// ```
///
/// The access link is the only bottleneck, unless `origin_rate` is set; the others have a delay and
/// nothing else. What is not said has the value of [`Parameters::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// How payloads travel between client and proxy.
    pub mode: Mode,
    /// In which order repaired payloads leave the tunnel. Only for modes that repair datagrams; if
    /// nothing is said, `ordered` for [`Mode::Rmdt`], and `window` where the origin knows of the tunnel.
    pub resequence: Option<Order>,
    /// What is not as usual in the origin's use of reports, as
    /// [`TeccConfig`](tandem_congestion::TeccConfig) has it in text. Only for [`Mode::Tecc`] and
    /// [`Mode::TeccPaper`].
    pub tecc: Option<String>,
    /// How often the proxies report; if nothing is said, once in the tunnel's least RTT. Likewise.
    pub feedback_interval: Option<HumanDuration>,
    /// Request streams of each flow, 2 to 16. Only for [`Mode::Msgt`].
    pub group_streams: u8,
    /// What every random choice follows from.
    pub seed: u64,
    /// What is transferred.
    pub workload: Workload,
    /// Length of a download or an upload.
    pub size: ByteCount,
    /// Whether the download is that of a local program behind `tandem client --udp`, and not of the
    /// client itself. Without meaning without a tunnel.
    pub local_program: bool,
    /// Streams that a download is divided over, 1 to 100.
    pub streams: u64,
    /// Proxies in the chain, 1 to 4. Without meaning without a tunnel.
    pub proxies: u64,
    /// Rate of the access link in both directions, counting IP packets. Without meaning in a
    /// direction that follows a trace.
    pub rate: Rate,
    /// Rate towards the proxy, if it is another; with `trace`, 48 Mbit/s if nothing is said.
    pub uplink_rate: Option<Rate>,
    /// Trace that the access link follows towards the client.
    pub trace: Option<PathBuf>,
    /// Trace that it follows towards the proxy.
    pub uplink_trace: Option<PathBuf>,
    /// RTT between client and first proxy, without queues.
    pub client_rtt: HumanDuration,
    /// By how much the RTT to each further client is longer than that to the one before; the access
    /// link that they share stays as it is.
    pub client_rtt_step: HumanDuration,
    /// RTT between two proxies.
    pub hop_rtt: HumanDuration,
    /// RTT between the last proxy and the first origin.
    pub origin_rtt: HumanDuration,
    /// By how much the RTT to each further origin is longer than that to the one before.
    pub origin_rtt_step: HumanDuration,
    /// Rate of the link between the last proxy and each origin, with a queue of 150 kB: a bottleneck
    /// behind the proxy. Unlimited if not set.
    pub origin_rate: Option<Rate>,
    /// Origins; flows are divided over them in turn.
    pub origins: u64,
    /// Random loss on the access link.
    pub loss: LossModel,
    /// Random loss towards the proxy, if it is another.
    pub uplink_loss: Option<LossModel>,
    /// Whether packets are lost before or after the bottleneck.
    pub loss_at: LossAt,
    /// The queue of the access link, in each direction.
    pub queue: QueueConfig,
    /// Uniform jitter on top of the access link's delay, which reorders nothing.
    pub jitter: HumanDuration,
    /// Share of the access link's packets that is late by a quarter of its RTT.
    pub reorder: Ratio,
    /// Traffic of others on the access link towards the client, at a constant rate.
    pub cross_traffic: Option<Rate>,
    /// Congestion controller of downloads without end by others, from before the first flow on: over
    /// the same access link, without a tunnel, each from an origin of its own as far away as the
    /// run's.
    pub others: Option<ControllerName>,
    /// How many, 1 to 100.
    pub others_count: u64,
    /// Congestion controller of the origin, or of the client's end-to-end connection with an upload.
    pub origin_controller: ControllerName,
    /// Congestion controller of every proxy and of the client's tunnels.
    pub tunnel_controller: ControllerName,
    /// Initial window of the origin, in full packets, and of tunnels of which nothing else is said.
    /// An origin of [`Mode::MftPlus`] and [`Mode::RmdtPlus`] has 32 at least.
    pub initial_window: u64,
    /// Initial window of every tunnel, if it is another; 32 with `bbr1-tunnel` if nothing is said.
    pub tunnel_initial_window: Option<u64>,
    /// Percent of the known bandwidth at which tunnels with `bbr1` and `bbr1-tunnel` look for more;
    /// 125 and 200 if nothing is said.
    pub tunnel_up_gain_percent: Option<u64>,
    /// The most that the sender of the body may have on its way, as the receiver's window.
    pub window: Option<ByteCount>,
    /// Timers of all hosts run out at multiples of this, as in production; exact if not set.
    pub timer_granularity: Option<HumanDuration>,
    /// Samples of both layers over time that the record keeps, at most 1000.
    pub samples: u64,
    /// A run that is not complete after so much virtual time ends as `completed: false`.
    pub time_limit: HumanDuration,
}

impl Default for Parameters {
    fn default() -> Self {
        let ms = |ms| HumanDuration::from(Duration::from_millis(ms));
        Self {
            mode: Mode::Mdt,
            resequence: None,
            tecc: None,
            feedback_interval: None,
            group_streams: TunnelMode::GROUP_STREAMS_DEFAULT,
            seed: 1,
            workload: Workload::Download,
            size: ByteCount::new(10_000_000),
            local_program: false,
            streams: 1,
            proxies: 1,
            rate: Rate::from_mbps(10),
            uplink_rate: None,
            trace: None,
            uplink_trace: None,
            client_rtt: ms(40),
            client_rtt_step: ms(0),
            hop_rtt: ms(20),
            origin_rtt: ms(100),
            origin_rtt_step: ms(0),
            origin_rate: None,
            origins: 1,
            loss: LossModel::default(),
            uplink_loss: None,
            loss_at: LossAt::After,
            queue: QueueConfig::default(),
            jitter: ms(0),
            reorder: Ratio::ZERO,
            cross_traffic: None,
            others: None,
            others_count: 1,
            origin_controller: ControllerName::Bbr1,
            tunnel_controller: ControllerName::Bbr1Tunnel,
            initial_window: 10,
            tunnel_initial_window: None,
            tunnel_up_gain_percent: None,
            window: None,
            timer_granularity: None,
            samples: 0,
            time_limit: HumanDuration::from(Duration::from_secs(600)),
        }
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
        let hops = if self.mode.has_tunnel() { self.proxies.saturating_sub(1) } else { 0 };
        let near = self.hop_rtt.0.saturating_mul(u32::try_from(hops).unwrap_or(u32::MAX));
        self.client_rtt.0 + near + self.origin_rtt.0
    }
}

/// Whether a parameter of [`Parameters`] makes a difference in this mode.
pub(crate) fn heeds(mode: Mode, key: &str) -> bool {
    match key {
        "resequence" => mode.repairs_datagrams(),
        "tecc" | "feedback_interval" => mode.has_feedback(),
        "origin_controller" => !mode.has_feedback(),
        "group_streams" => mode == Mode::Msgt,
        "tunnel_controller" | "proxies" | "local_program" => mode.has_tunnel(),
        _ => true,
    }
}

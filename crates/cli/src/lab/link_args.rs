use std::{path::PathBuf, sync::Arc, time::Duration};

use tandem_emulate::Links;
use tandem_netem::{
    Capacity, LinkConfig, LossAt, LossModel, Outages, QueueConfig, RateTrace, Reorder,
};
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

use crate::error::LabError;

const LOSS_HELP: &str = "Packets that are lost at random, in each direction: a share such as 5%, \
    bursts:SHARE,PACKETS for bursts of PACKETS on average, or \
    gilbert:TO_BAD,TO_GOOD,LOSS_BAD,LOSS_GOOD";

/// The settings of an emulated link, in each direction.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Rate in each direction, such as 10Mbit/s [default: unlimited]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Rate in each direction from a Mahimahi trace: each line is a time in ms at which 1504 bytes
    /// can pass; the trace starts again after the last line
    #[arg(long, help_heading = "Traces", value_name = "FILE", conflicts_with = "rate")]
    trace: Option<PathBuf>,

    /// Another trace for the direction to the target
    #[arg(long, help_heading = "Traces", value_name = "FILE", requires = "trace")]
    uplink_trace: Option<PathBuf>,

    /// Time in the traces at which to start
    #[arg(
        long,
        help_heading = "Traces",
        value_name = "TIME",
        default_value = "0s",
        requires = "trace"
    )]
    trace_offset: HumanDuration,

    /// Propagation delay in each direction; it adds twice this delay to the RTT
    #[arg(long, value_name = "TIME", default_value = "0s")]
    delay: HumanDuration,

    /// Maximum of a random delay that is added, in each direction; packets stay in order
    #[arg(long, help_heading = "More of the link", value_name = "TIME", default_value = "0s")]
    jitter: HumanDuration,

    #[arg(long, value_name = "LOSS", default_value_t, help = LOSS_HELP)]
    loss: LossModel,

    /// Another loss for the direction to the target
    #[arg(long, help_heading = "More of the link", value_name = "LOSS")]
    uplink_loss: Option<LossModel>,

    /// Whether loss comes before the queue or after the bottleneck
    #[arg(long, help_heading = "More of the link", value_name = "before|after", default_value_t)]
    loss_at: LossAt,

    #[arg(
        long,
        value_name = "QUEUE",
        default_value = "150kB",
        help = "Queue in front of the link, in each direction: a limit such as 150kB, 100packets or \
                both with a comma, above which packets are dropped; drop-head:LIMIT drops the \
                oldest packets instead; codel:LIMIT[,TARGET,INTERVAL] is RFC 8289; infinite drops \
                nothing"
    )]
    queue: QueueConfig,

    /// Share of packets that are reordered, in each direction
    #[arg(long, help_heading = "More of the link", value_name = "RATIO", default_value = "0%")]
    reorder: Ratio,

    /// Additional delay of reordered packets
    #[arg(long, help_heading = "More of the link", value_name = "TIME", default_value = "10ms")]
    reorder_delay: HumanDuration,

    /// Share of packets that are duplicated, in each direction
    #[arg(long, help_heading = "More of the link", value_name = "RATIO", default_value = "0%")]
    duplicate: Ratio,

    #[arg(
        long,
        help_heading = "More of the link",
        value_name = "TIMES",
        help = "Times at which both directions are off, and packets vanish: FIRST,LENGTH[,PERIOD], \
                such as 10s,500ms,30s"
    )]
    outages: Option<Outages>,

    /// Largest IP packet that passes; larger packets are dropped [default: any]
    #[arg(long, help_heading = "More of the link", value_name = "BYTES")]
    mtu: Option<ByteCount>,

    /// Seed of random loss, jitter, reordering and duplication
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl LinkArgs {
    /// Makes a link in each direction, and reads the traces.
    pub(crate) fn links(&self) -> Result<Links, LabError> {
        let offset = Duration::from(self.trace_offset);
        let trace = |file: &Option<PathBuf>| {
            let trace = file.as_deref().map(RateTrace::read).transpose()?;
            Ok::<_, LabError>(trace.map(|trace| Capacity::Trace { trace: Arc::new(trace), offset }))
        };
        let constant = self.rate.map_or(Capacity::Unlimited, Capacity::Constant);
        let capacity = trace(&self.trace)?.unwrap_or(constant);
        let uplink = trace(&self.uplink_trace)?.unwrap_or_else(|| capacity.clone());
        let to_client = LinkConfig { capacity, ..self.link() };
        let loss = self.uplink_loss.unwrap_or(self.loss);
        let to_target = LinkConfig { capacity: uplink, loss, ..self.link() };
        Ok(Links { to_target: vec![to_target], to_client: vec![to_client] })
    }

    /// The settings that both directions share.
    fn link(&self) -> LinkConfig {
        let reorder = Reorder { ratio: self.reorder, extra_delay: self.reorder_delay.into() };
        LinkConfig {
            capacity: Capacity::Unlimited,
            delay: self.delay.into(),
            jitter: self.jitter.into(),
            loss: self.loss,
            loss_at: self.loss_at,
            queue: self.queue,
            reorder: (self.reorder > Ratio::ZERO).then_some(reorder),
            duplicate: self.duplicate,
            outages: self.outages,
            mtu: self.mtu,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;
    use crate::help;

    fn losses(flags: &[&str]) -> [LossModel; 2] {
        let command = LinkArgs::augment_args(clap::Command::new("link")).no_binary_name(true);
        let command = help::independent_of_caller(command);
        let args = LinkArgs::from_arg_matches(&command.get_matches_from(flags)).unwrap();
        let links = args.links().unwrap();
        [links.to_target[0].loss, links.to_client[0].loss]
    }

    #[test]
    fn uplink_loss_is_that_of_the_direction_to_the_target_only() {
        let loss = |text: &str| text.parse::<LossModel>().unwrap();
        assert_eq!(losses(&["--loss", "5%"]), [loss("5%"); 2]);
        assert_eq!(losses(&["--uplink-loss", "20%"]), [loss("20%"), loss("0%")]);
        assert_eq!(losses(&["--loss", "5%", "--uplink-loss", "0%"]), [loss("0%"), loss("5%")]);
    }
}

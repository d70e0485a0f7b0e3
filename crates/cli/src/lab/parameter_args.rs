//! The flags of `tandem lab run` that define its runs.

use clap::Arg;
use tandem_experiments::{
    plan::Seeds,
    run::{Mode, Parameters},
};

/// The groups of the flags that few runs need; [`Parameters`] does not know of help.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Repair", &["resequence", "group_streams"]),
    ("Feedback", &["tecc", "feedback_interval"]),
    (
        "Workload",
        &[
            "local_program",
            "streams",
            "origins",
            "others",
            "others_count",
            "others_share_origin_link",
        ],
    ),
    ("PEP", &["pep", "pep_loss", "pep_until"]),
    (
        "Link",
        &[
            "uplink_rate",
            "uplink_trace",
            "client_rtt_step",
            "hop_rtt",
            "path_rtt",
            "origin_rtt_step",
            "origin_rate",
            "origin_loss",
            "uplink_loss",
            "loss_at",
            "jitter",
            "reorder",
            "cross_traffic",
            "queue",
            "queue_bdp_percent",
        ],
    ),
    (
        "Congestion control",
        &[
            "origin_controller",
            "tunnel_controller",
            "tunnel_datagrams",
            "initial_window",
            "tunnel_initial_window",
            "tunnel_up_gain_percent",
            "ack_delay",
            "ack_threshold",
            "e2e_ack_delay",
            "e2e_ack_threshold",
            "window",
        ],
    ),
    (
        "Tests and tracing",
        &["post_quantum", "timer_granularity", "late_wakes", "samples", "time_limit"],
    ),
];

/// Gives a flag of [`GROUPS`] its heading.
fn with_heading(flag: Arg) -> Arg {
    let group = GROUPS.iter().find(|(_, flags)| flags.contains(&flag.get_id().as_str()));
    match group {
        Some((heading, _)) => flag.help_heading(*heading),
        None => flag,
    }
}

/// Modes, seeds, and the parameters that all runs share.
#[derive(Debug, clap::Args)]
#[command(mut_args = with_heading)]
pub(super) struct ParameterArgs {
    /// Modes in which payloads travel: mft (no tunnel), mft-tuned, mft+, mdt, forward, uack, uack-up, mst,
    /// msgt, rmdt, rmdt+, tecc or tecc-paper; several with commas between
    #[arg(long, value_name = "MODE,..", value_delimiter = ',', default_value = "mft,mdt,mst,rmdt")]
    mode: Vec<Mode>,

    /// Seeds of the runs of each mode: one seed, or the first and the last
    #[arg(long, value_name = "FIRST..LAST", default_value = "1")]
    seeds: Seeds,

    #[command(flatten)]
    common: Parameters,
}

impl ParameterArgs {
    /// The runs: every mode with every seed, mode by mode.
    pub(super) fn runs(&self) -> Vec<Parameters> {
        let mut modes = Vec::new();
        for mode in &self.mode {
            if !modes.contains(mode) {
                modes.push(*mode);
            }
        }
        let with = |mode: Mode| {
            let seeds = self.seeds.iter();
            seeds.map(move |seed| Parameters { mode, seed, ..self.common.clone() })
        };
        modes.into_iter().flat_map(with).collect()
    }

    /// Number of runs, without making them.
    pub(super) fn count(&self) -> u64 {
        self.seeds.count().saturating_mul(self.mode.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;
    use crate::help;

    #[test]
    fn every_parameter_has_a_flag_of_its_name() {
        let command = ParameterArgs::augment_args(Command::new("run"));
        let flags: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        let parameters = serde_json::to_value(Parameters::default()).unwrap();
        for key in parameters.as_object().unwrap().keys().filter(|key| *key != "seed") {
            assert!(flags.contains(&key.replace('_', "-").as_str()), "no flag for {key}");
        }
    }

    #[test]
    fn every_flag_of_a_group_exists() {
        let command = ParameterArgs::augment_args(Command::new("run"));
        let with_heading = command.get_arguments().filter(|flag| flag.get_help_heading().is_some());
        let flags = GROUPS.iter().flat_map(|(_, flags)| flags.iter());
        assert_eq!(with_heading.count(), flags.count());
    }

    #[test]
    fn without_flags_a_run_has_the_defaults() {
        let command = ParameterArgs::augment_args(Command::new("run"));
        let command = help::independent_of_caller(command);
        let matches = command.try_get_matches_from(["run", "--mode", "mdt"]).unwrap();
        let runs = ParameterArgs::from_arg_matches(&matches).unwrap().runs();
        assert_eq!(runs, [Parameters::default()]);
    }
}

//! `tandem lab`.

mod direction;
mod figure;
mod link;
mod link_args;
mod parameter_args;
mod programs;
mod relay;
mod report;
mod run;
mod runs_bar;
mod stop;
mod sweep;
mod table;
mod trace;

use crate::error::CliError;

/// Run experiments in virtual time and draw their figures; emulate links between real programs.
///
/// run, sweep, figure and report simulate: they need no network, and the same command gives the same
/// packets. relay and link carry the packets of real programs. trace makes traces of radio links for
/// both.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Lab {
    Run(Box<run::Run>),
    Relay(relay::Relay),
    Trace(trace::Trace),
    Link(link::Link),
    Sweep(sweep::Sweep),
    Figure(figure::Figure),
    Report(report::Report),
}

impl Lab {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Self::Run(run) => run.run(),
            Self::Relay(relay) => relay.run(),
            Self::Trace(trace) => trace.run(),
            Self::Link(link) => link.run(),
            Self::Sweep(sweep) => sweep.run(),
            Self::Figure(figure) => figure.run(),
            Self::Report(report) => report.run(),
        }
    }
}

//! `tandem lab`.

mod direction;
mod figure;
mod link;
mod link_args;
mod parameter_args;
mod relay;
mod report;
mod run;
mod runs_bar;
mod stop;
mod sweep;
mod table;
mod trace;

use crate::error::CliError;

/// Emulate networks: links between real sockets, and whole experiments in virtual time.
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

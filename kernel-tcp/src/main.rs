//! Loads the two-domain congestion control into the kernel, and removes it at the end.

use std::{fs, io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::Parser;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use tandem_kernel_tcp::{
    key,
    programs::{NAME, Programs, Settings},
};

/// The congestion control of connections for which nobody chooses one.
const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Make the congestion control `tandem_mdcc` available to TCP sockets, until SIGINT or SIGTERM.
///
/// It uses PEP-ACKs that arrive on the named devices. Prints what it has counted at the end.
#[derive(Parser)]
struct Arguments {
    /// Device on which PEP-ACKs arrive; may be repeated
    #[arg(long = "device", value_name = "NAME", required = true)]
    devices: Vec<String>,

    /// File with the PEP that is believed: ID KEY, as for `tandem origin --peps`
    #[arg(long, value_name = "FILE")]
    pep: PathBuf,

    /// Queue that data may have behind the PEP, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5)]
    queue_target: u64,

    /// Print the counters as a JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let (pep, key) = key::read(&arguments.pep)?;
    let Arguments { devices, queue_target, json, .. } = arguments;
    let mut signals = Signals::new([SIGINT, SIGTERM])?; // before there is something to remove
    let settings =
        Settings { devices, pep, key, queue_target: Duration::from_millis(queue_target) };
    let programs = Programs::load(&settings)?;
    eprintln!("ready: TCP sockets can choose {NAME}");
    signals.forever().next();
    let counters = programs.counters()?;
    drop(programs);
    if fs::read_to_string(DEFAULT).is_ok_and(|name| name.trim() == NAME) {
        eprintln!(
            "warning: {DEFAULT} still names {NAME}, so the kernel keeps it, without PEP-ACKs"
        );
    }
    let text = if json { serde_json::to_string(&counters)? } else { counters.to_string() };
    writeln!(std::io::stdout(), "{text}").context("standard output")
}

//! Attacks a running proxy, measures it, and says whether it kept its bounds.
//!
//! The tool starts the program that it is told as a child, on loopback and with a token of its own.
//! It attacks the proxy with an independent QUIC implementation (quinn), reads the proxy's memory
//! and descriptors from `/proc`, and ends the child in any case.

mod attack;
mod client;
mod idle;
mod limits;
mod proxy;
mod relay;
mod report;
mod target;
mod usage;
mod user;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::{
    attack::{
        churn, connections, descriptors, gaps, guesses, handshakes, memory, restart, rush, soak,
    },
    proxy::Launch,
    report::Report,
};

/// Attack a proxy on loopback and measure it. The exit code is 1 if a bound was broken.
#[derive(Parser)]
#[command(name = "tandem-siege", version)]
struct Cli {
    /// The program to start as `PROGRAM proxy`
    #[arg(long, value_name = "PROGRAM", default_value = "target/release/tandem")]
    tandem: PathBuf,
    /// One more argument for the proxy, such as `--proxy-arg=--memory=300MB`; repeatable
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    proxy_arg: Vec<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    attack: Attack,
}

#[derive(Subcommand)]
enum Attack {
    Churn(churn::Churn),
    Connections(connections::Connections),
    Handshakes(handshakes::Handshakes),
    Gaps(gaps::Gaps),
    Guesses(guesses::Guesses),
    Descriptors(descriptors::Descriptors),
    Memory(memory::Memory),
    Restart(restart::Restart),
    Rush(rush::Rush),
    Soak(soak::Soak),
}

impl Attack {
    async fn run(self, launch: Launch) -> Result<Report> {
        match self {
            Self::Churn(attack) => attack.run(launch).await,
            Self::Connections(attack) => attack.run(launch).await,
            Self::Handshakes(attack) => attack.run(launch).await,
            Self::Gaps(attack) => attack.run(launch).await,
            Self::Guesses(attack) => attack.run(launch).await,
            Self::Descriptors(attack) => attack.run(launch).await,
            Self::Memory(attack) => attack.run(launch).await,
            Self::Restart(attack) => attack.run(launch).await,
            Self::Rush(attack) => attack.run(launch).await,
            Self::Soak(attack) => attack.run(launch).await,
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether every bound held.
fn run() -> Result<bool> {
    let cli = Cli::parse();
    let launch = Launch {
        program: cli.tandem,
        arguments: cli.proxy_arg,
        files: None,
        users: 1,
        keeps_key: false,
    };
    // One thread for the attacker leaves the other cores to the proxy.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?;
    let report = runtime.block_on(async {
        tokio::select! {
            report = cli.attack.run(launch) => report,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("the attack was interrupted"),
        }
    })?;
    report.print(cli.json)?;
    Ok(report.holds())
}

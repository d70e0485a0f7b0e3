//! Diagnostics on standard error.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tandem_server::process::log::{self, StderrWriter};
use tracing::Level;
use tracing_subscriber::EnvFilter;

use crate::text;

/// The form of the lines on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object on each line.
    Json,
}

/// Starts logging at this level, raised by each `-v`; `RUST_LOG` overrides both.
pub(crate) fn start(level: Level, verbose: u8, format: Format) {
    let level = (0..verbose).fold(level, |level, _| match level {
        Level::ERROR => Level::WARN,
        Level::WARN => Level::INFO,
        Level::INFO => Level::DEBUG,
        _ => Level::TRACE,
    });
    let ours =
        format!("warn,tandem={level},tandem_node={level},tandem_net={level},tandem_server={level}");
    let filter = match EnvFilter::try_from_default_env() {
        Ok(filter) => filter,
        Err(_) => EnvFilter::new(ours),
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(StderrWriter);
    // The library would say on standard error that it cannot write there, and panics if that fails too.
    let subscriber = subscriber.log_internal_errors(false);
    match log::set_format(format.into()) {
        log::Format::Text => {
            subscriber.with_ansi(io::stderr().is_terminal() && text::may_be_coloured()).init();
        }
        log::Format::Json => {
            subscriber
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .init();
        }
    }
}

impl From<Format> for log::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

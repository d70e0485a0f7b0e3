//! Diagnostics on standard error.

use std::io::{self, IsTerminal};

use tracing::Level;
use tracing_subscriber::EnvFilter;

use crate::text;

/// Starts logging at this level, raised by each `-v`; `RUST_LOG` overrides both.
pub(crate) fn start(level: Level, verbose: u8) {
    let level = (0..verbose).fold(level, |level, _| match level {
        Level::ERROR => Level::WARN,
        Level::WARN => Level::INFO,
        Level::INFO => Level::DEBUG,
        _ => Level::TRACE,
    });
    let ours = format!("warn,tandem={level},tandem_node={level},tandem_net={level}");
    let filter = match EnvFilter::try_from_default_env() {
        Ok(filter) => filter,
        Err(_) => EnvFilter::new(ours),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && text::may_be_coloured())
        .init();
}

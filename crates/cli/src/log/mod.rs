//! Diagnostics on standard error.

mod stderr;

use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};

use clap::ValueEnum;
use serde_json::json;
use tracing::Level;
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        format::Writer,
        time::{FormatTime, SystemTime},
    },
};

pub(crate) use self::stderr::{flush, has_own_thread, lost, put, use_own_thread};
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

static FORMAT: OnceLock<Format> = OnceLock::new();

/// Starts logging at this level, raised by each `-v`; `RUST_LOG` overrides both.
pub(crate) fn start(level: Level, verbose: u8, format: Format) {
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
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr::Writer);
    // The library would say on standard error that it cannot write there, and panics if that fails too.
    let log = log.log_internal_errors(false);
    match FORMAT.get_or_init(|| format) {
        Format::Text => {
            log.with_ansi(io::stderr().is_terminal() && text::may_be_coloured()).init();
        }
        Format::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
        }
    }
}

/// A line of standard error that is not from the log, in the form of the log.
pub(crate) fn line(text: &str) -> String {
    match FORMAT.get() {
        Some(Format::Json) => json_line(text),
        Some(Format::Text) | None => format!("{text}\n"),
    }
}

/// The first word tells the level.
fn json_line(line: &str) -> String {
    let level = match line.split_once(": ") {
        Some(("error", _)) => Level::ERROR,
        Some(("warning", _)) => Level::WARN,
        _ => Level::INFO,
    };
    let mut time = String::new();
    if SystemTime.format_time(&mut Writer::new(&mut time)).is_err() {
        time.clear();
    }
    let level = level.as_str();
    let object = json!({ "timestamp": time, "level": level, "message": line, "target": "tandem" });
    format!("{object}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_becomes_one_object_with_a_level() {
        for (line, level) in [
            ("error: it is\nbroken \"here\"", "ERROR"),
            ("warning: careful", "WARN"),
            ("listening on 127.0.0.1:443", "INFO"),
        ] {
            let text = json_line(line);
            assert!(text.ends_with('\n') && text.lines().count() == 1, "{text:?}");
            let object: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(object["message"], line);
            assert_eq!(object["level"], level);
            assert!(object["timestamp"].as_str().unwrap().ends_with('Z'), "{object}");
        }
    }
}

//! Lines on standard error, of the log and others, in one form.

mod stderr;

use std::sync::OnceLock;

use serde_json::json;
use tracing::Level;
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime},
};

pub use self::stderr::{StderrWriter, flush, has_own_thread, lost, put, use_own_thread};

/// The form of the lines on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object on each line.
    Json,
}

static FORMAT: OnceLock<Format> = OnceLock::new();

/// Sets the form of all lines. Only the first call has an effect. Returns the form.
pub fn set_format(format: Format) -> Format {
    *FORMAT.get_or_init(|| format)
}

/// A line of standard error that is not from the log, in the form of the log.
pub fn line(text: &str) -> String {
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

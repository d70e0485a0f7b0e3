//! What `--check` prints: the settings and the limits that are in force, as a configuration file.

use std::fmt::Write;

use clap::Command;
use serde::Serialize;
use tandem_node::limits::Limits;
use toml::{Table, Value};

use super::Settings;

/// The text of a configuration file that means this setup. Comments tell which settings are not set.
pub(super) fn text<S: Settings>(setup: &S::Setup) -> String {
    let values = table(setup);
    let mut text =
        String::from("# Relative paths begin at the folder in which this was printed.\n");
    for flag in S::augment_args(Command::new(S::SUBCOMMAND)).get_arguments() {
        let key = flag.get_long().unwrap_or_default();
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        let line = match (values.get(key), default_of(&help)) {
            (Some(value), _) => assignment(key, value),
            (None, Some(default)) => format!("# {key} is not set; default: {default}"),
            (None, None) => format!("# {key} is not set"),
        };
        text += &line;
        text += "\n";
    }
    text
}

/// Comments that tell the limits that no setting changes.
pub(super) fn limits(limits: &Limits) -> String {
    let mut text = String::from("\n# Limits, which docs/design/threats.md explains:\n");
    for line in lines_of(&format!("{limits:#?}")) {
        writeln!(text, "# {line}").expect("a text takes every line");
    }
    text
}

/// The longest duration, in seconds.
const FOREVER: &str = "18446744073709551615.";

/// The fields in the text of a value as Rust prints it for programmers, each on a line with its whole name. A field
/// that has no value does not bound anything.
fn lines_of(debug: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut outer: Vec<&str> = Vec::new();
    for line in debug.lines().skip(1).map(|line| line.trim().trim_end_matches(',')) {
        let (key, value) = line.split_once(": ").unwrap_or(("", line));
        let name =
            || outer.iter().copied().chain([key]).filter(|it| !it.is_empty()).collect::<Vec<_>>();
        if value.ends_with(['{', '(', '[']) {
            outer.push(key);
        } else if matches!(value, "}" | ")" | "]") {
            outer.pop();
        } else if value.starts_with(FOREVER) {
            lines.push(format!("{} = without end", name().join(".")));
        } else if value != "None" {
            lines.push(format!("{} = {value}", name().join(".")));
        }
    }
    lines
}

/// The values of a setup by their keys.
pub(super) fn table(setup: &impl Serialize) -> Table {
    Table::try_from(setup).expect("a setup is a table of texts, numbers and lists")
}

/// A line of a file.
pub(super) fn assignment(key: &str, value: &Value) -> String {
    format!("{key} = {value}")
}

/// The default that a help text names.
pub(super) fn default_of(help: &str) -> Option<&str> {
    let (_, rest) = help.split_once(DEFAULT)?;
    rest.split_once(']').map(|(default, _)| default.trim())
}

/// What stands before a default in a help text.
pub(super) const DEFAULT: &str = "[default:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_without_the_syntax_of_a_program() {
        let text = limits(&Limits { retry: Some(std::time::Duration::MAX), ..Limits::default() });
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("# ")).skip(1).collect();
        assert!(lines.len() > 50, "{text}");
        for line in &lines {
            let (name, value) = line.split_once(" = ").unwrap_or_default();
            assert!(name.len() > 2 && !value.is_empty(), "{line}");
            assert!(!line.contains(['{', '}', '(', ')']) && !line.contains("None"), "{line}");
        }
        assert!(lines.contains(&"# local_proxy.head = 65536"), "{text}");
        assert!(lines.contains(&"# retry = without end"), "{text}");
    }
}

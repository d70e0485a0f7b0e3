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
    for line in format!("{limits:#?}").lines().filter_map(|line| line.strip_prefix("    ")) {
        writeln!(text, "# {}", line.trim_end_matches(',')).expect("a text takes every line");
    }
    text
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

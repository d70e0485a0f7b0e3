//! Arranges the help of every subcommand: the everyday flags first and alone in `-h`, the others in
//! groups in `--help`, then examples, environment variables and exit codes.

use std::any::TypeId;

use clap::{Arg, Command};

/// What the exit codes mean, as [`CliError::exit_code`](crate::error::CliError::exit_code) has them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    The program has done its work, or a signal has ended a server.
  1    The run has failed.
  2    A flag, a variable, the configuration file or a file that they name is wrong.
  3    An emulated link has violated its rules, so that the results are not valid.
  130  Ctrl-C or SIGTERM has ended the program before its work was done.";

/// Hides the flags with a heading from `-h`, and says there where they are. Flags without a heading are
/// the everyday ones.
pub(crate) fn arrange(command: Command) -> Command {
    let command = command.mut_subcommands(arrange).mut_args(|flag| {
        let is_special = flag.get_help_heading().is_some();
        let is_bool = flag.get_value_parser().type_id() == TypeId::of::<bool>();
        let is_bool = is_bool && flag.get_action().takes_values();
        flag.hide_env(true).hide_short_help(is_special).hide_possible_values(is_bool)
    });
    if command.has_subcommands() {
        return command.after_long_help(EXIT_CODES);
    }
    let examples = command.get_after_long_help().map(|text| format!("{text}\n\n"));
    let long = [examples, variables(&command), Some(EXIT_CODES.to_owned())];
    let long: String = long.into_iter().flatten().collect();
    match more(&command) {
        Some(more) => command.after_help(more).after_long_help(long),
        None => command.after_long_help(long),
    }
}

/// The headings of a command's flags, each once.
pub(crate) fn headings(command: &Command) -> Vec<&str> {
    let mut headings: Vec<&str> = Vec::new();
    for heading in command.get_arguments().filter_map(Arg::get_help_heading) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    headings
}

/// Tells in `-h` which flags `--help` has.
fn more(command: &Command) -> Option<String> {
    let mut headings = headings(command);
    let last = headings.pop()?;
    let others = headings.join(", ");
    let groups = if others.is_empty() { last.to_owned() } else { format!("{others} and {last}") };
    Some(format!("--help has examples and more flags: {groups}."))
}

/// Tells which flags have environment variables.
fn variables(command: &Command) -> Option<String> {
    let flags = || command.get_arguments().filter(|flag| flag.get_long().is_some());
    let example = flags().find(|flag| flag.get_env().is_some())?;
    let names = flags().filter(|flag| flag.get_env().is_none()).filter_map(Arg::get_long);
    let without: Vec<_> = names.map(|name| format!("--{name}")).collect();
    Some(format!(
        "Environment:\n  Each flag except {} has a variable, such as {} for --{}; the flag takes \
         precedence.\n\n",
        without.join(", "),
        example.get_env()?.to_string_lossy(),
        example.get_long()?,
    ))
}

/// The command as every test must see it: without the environment variables of its caller, and with lines of this many
/// columns, even in a terminal that is narrower or wider.
#[cfg(test)]
pub(crate) fn independent_of_caller(command: Command) -> Command {
    without_variables(command.term_width(100))
}

#[cfg(test)]
fn without_variables(command: Command) -> Command {
    command
        .mut_subcommands(without_variables)
        .mut_args(|flag| flag.env(clap::builder::Resettable::Reset))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    /// The subcommands of the program, by their words.
    fn find(words: &[&str]) -> Command {
        let mut command = arrange(Cli::command()).term_width(100);
        command.build();
        words.iter().fold(command, |command, word| command.find_subcommand(word).unwrap().clone())
    }

    const COMMANDS: [&[&str]; 13] = [
        &["get"],
        &["ping"],
        &["speedtest"],
        &["client"],
        &["serve"],
        &["connect"],
        &["proxy"],
        &["origin"],
        &["pep"],
        &["demo"],
        &["lab", "run"],
        &["lab", "link"],
        &["lab", "relay"],
    ];

    #[test]
    fn the_short_help_fits_a_screen_and_the_long_help_has_examples() {
        for words in COMMANDS {
            let mut command = find(words);
            let short = command.render_help().to_string();
            let flags = short.lines().filter(|line| line.trim_start().starts_with('-')).count();
            assert!((7..=18).contains(&flags), "{words:?}: {flags} flags in\n{short}");
            assert!(!short.contains("[env") && !short.contains("true, false"), "{short}");
            assert!(short.contains("--help has examples and more flags: "), "{short}");
            let long = command.render_long_help().to_string();
            let name = format!("  tandem {} ", words.join(" "));
            let examples = long.split("Examples:").nth(1).unwrap_or_default();
            assert!(examples.matches(&name).count() >= 2, "{words:?}: {long}");
            assert!(long.contains(EXIT_CODES), "{long}");
            let lengths = examples.lines().map(|line| line.chars().count());
            assert!(lengths.max() <= Some(100), "{examples}");
        }
    }

    #[test]
    fn the_short_help_of_a_proxy_has_what_everybody_needs() {
        let short = find(&["proxy"]).render_help().to_string();
        for flag in [
            "--listen",
            "--token-file",
            "--users-file",
            "--acme-domain",
            "--acme-folder",
            "--cert ",
            "--key ",
            "--allow-target",
            "--admin",
            "--config",
            "--check",
        ] {
            assert!(short.contains(flag), "no {flag} in\n{short}");
        }
    }

    #[test]
    fn examples_are_valid_command_lines() {
        for words in COMMANDS {
            let long = find(words).render_long_help().to_string();
            let examples = long.split("Examples:").nth(1).unwrap_or_default();
            for line in examples.lines().filter_map(|line| line.strip_prefix("  tandem ")) {
                let line = line.split_whitespace().map(|word| word.trim_matches('\''));
                let line = ["tandem"].into_iter().chain(line);
                let parsed = independent_of_caller(Cli::command()).try_get_matches_from(line);
                assert!(parsed.is_ok(), "{}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn a_setting_and_its_variable_have_one_name() {
        for words in COMMANDS {
            for flag in find(words).get_arguments() {
                let (Some(long), Some(variable)) = (flag.get_long(), flag.get_env()) else {
                    continue;
                };
                let expected = format!("TANDEM_{}", long.replace('-', "_").to_uppercase());
                assert_eq!(variable.to_str(), Some(&*expected), "{words:?}");
            }
        }
        let bare = |words: &[&str]| {
            let command = find(words);
            let flags = command.get_arguments().filter(|flag| flag.get_env().is_none());
            flags.filter_map(Arg::get_long).map(str::to_owned).collect::<Vec<_>>()
        };
        for words in [["client"], ["proxy"], ["origin"], ["serve"], ["connect"], ["pep"]] {
            let mut bare = bare(&words);
            bare.sort();
            assert_eq!(bare, ["check", "help", "verbose", "version"], "{words:?}");
        }
        let client = find(&["client"]);
        let of_client: Vec<_> = client.get_arguments().filter_map(Arg::get_long).collect();
        let shared = ["verbose", "help", "version"];
        for flag in bare(&["get"]) {
            assert!(shared.contains(&&*flag) || !of_client.contains(&&*flag), "{flag}");
        }
    }
}

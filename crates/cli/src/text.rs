//! Standard output for results, standard error for everything else.

use std::{
    env,
    fmt::Display,
    io::{self, Write},
};

use textwrap::WordSplitter;

use crate::{error::CliError, log};

/// Whether the user allows colours (<https://no-color.org>).
pub(crate) fn may_be_coloured() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes a result and a line end to standard output.
pub(crate) fn print(result: impl Display) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{result}").and_then(|()| stdout.flush()).map_err(CliError::Stdout)
}

/// Writes a line to standard error, in the form of the log. A failure is counted, because there is no other place to
/// report it; `eprintln!` would panic.
pub(crate) fn say(line: impl Display) {
    log::put(log::line(&line.to_string()).as_bytes());
}

/// Breaks each paragraph into lines of at most `width` characters, between words. Every line begins
/// with `indent`.
pub(crate) fn wrap(text: &str, width: usize, indent: &str) -> String {
    let options = textwrap::Options::new(width).initial_indent(indent).subsequent_indent(indent);
    let options = options.break_words(false).word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

//! Standard output for results, standard error for everything else.

use std::{
    env,
    fmt::Display,
    io::{self, Write},
};

pub(crate) use tandem_server::process::say;
use textwrap::WordSplitter;

use crate::error::CliError;

/// Whether the user allows colours (<https://no-color.org>).
pub(crate) fn may_be_coloured() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes a result and a line end to standard output.
pub(crate) fn print(result: impl Display) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{result}").and_then(|()| stdout.flush()).map_err(CliError::Stdout)
}

/// Breaks each paragraph into lines of at most `width` characters, between words. Every line begins
/// with `indent`.
pub(crate) fn wrap(text: &str, width: usize, indent: &str) -> String {
    let options = textwrap::Options::new(width).initial_indent(indent).subsequent_indent(indent);
    let options = options.break_words(false).word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

//! Asks for a secret: on the terminal, which does not show it, or for the first line of the standard input.

use std::io::{self, BufRead, IsTerminal, Read};

/// Whether a person is asked.
pub(crate) fn is_on_terminal() -> bool {
    io::stdin().is_terminal()
}

/// A line without its end. The prompt is for a terminal only, and the most bytes are for the standard input.
pub(crate) fn line(prompt: &str, len_max: u64) -> io::Result<String> {
    if is_on_terminal() {
        return rpassword::prompt_password(prompt);
    }
    let mut line = String::new();
    io::stdin().lock().take(len_max).read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

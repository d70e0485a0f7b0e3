//! What is in the files that the program reads, and in the messages between its processes: texts to values,
//! and back for those that it writes itself. Nothing here opens a file, and no error shows a secret.
//!
//! | module | what it reads |
//! | --- | --- |
//! | [`users`] | the limits of users (TOML) |
//! | [`fleet`] | what all machines of a fleet have (TOML) |
//! | [`tokens`] | the tokens of clients, one on a line |
//! | [`pair`] | the file by which one end of a pair knows the other |
//! | [`pvd`] | the configuration document of a proxy (PvD, JSON) |
//! | [`rules`] | the rules for what goes through a tunnel, one on a line |
//! | [`download`] | the state of a download that is not complete (JSON) |
//! | [`takeover`] | what a process tells the one that takes over from it (JSON) |
//! | [`setting`] | values that have a range |

pub mod download;
pub mod fleet;
pub mod pair;
pub mod pvd;
pub mod rules;
pub mod setting;
pub mod takeover;
pub mod tokens;
pub mod users;

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Fault {
    /// The line, counted from 1.
    pub line: usize,
    /// The error, and what is allowed. It does not show a secret.
    pub reason: String,
}

impl Fault {
    /// The fault that TOML finds.
    fn of_toml(text: &str, error: &toml::de::Error) -> Self {
        let line = line_of(text, error.span().unwrap_or_default().start);
        Self { line, reason: error.message().replace('\n', "; ") }
    }
}

/// The lines of a text that are neither empty nor comments, which begin with `#`, without white space around them. Each
/// comes with its number, from 1.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Number of the line that holds this byte, from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}

//! What a process tells the one that takes over from it: about its sockets, and what users have used (JSON, one
//! line each).

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use tandem_node::proxy::{EachWay, KeptUsage, is_user_name};

/// Changes when a program with another form of [`Hello`], or of what follows, must not take over.
const FORM: u8 = 1;

/// The most bytes of a line about a user: a name has 128 bytes at most, which JSON may double, and numbers have 20
/// digits.
pub const LINE_MAX: u64 = 1024;

/// What the new process is told with its sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    form: u8,
    /// The number of nodes of each process.
    pub nodes: u8,
    /// Whether the new process has the second turn.
    pub is_second: bool,
    /// Which byte of connection IDs says the node.
    pub thread_at: usize,
}

impl Hello {
    /// What a process of this program says.
    pub const fn new(nodes: u8, is_second: bool, thread_at: usize) -> Self {
        Self { form: FORM, nodes, is_second, thread_at }
    }

    /// Parses a message.
    pub fn parse(message: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(message)
    }

    /// Whether this program knows what comes from a process that says so.
    pub const fn is_understood(&self) -> bool {
        self.form == FORM
    }
}

/// The message.
impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).expect("the keys are texts"))
    }
}

/// What a user has used since the line before.
#[derive(Debug, Serialize, Deserialize)]
struct UsageLine {
    user: String,
    month: String,
    to_target: u64,
    to_client: u64,
    /// Since 1970, in seconds.
    last_seen: u64,
}

/// The line about what a user has used.
///
/// # Panics
///
/// It does not: the keys of JSON are texts.
pub fn usage_line(used: &KeptUsage) -> String {
    let line = UsageLine {
        user: used.name.clone(),
        month: used.month.to_string(),
        to_target: used.bytes.to_target,
        to_client: used.bytes.to_client,
        last_seen: used.last_seen.as_secs(),
    };
    serde_json::to_string(&line).expect("the keys are texts") + "\n"
}

/// Parses a line. `None`: it is not about a user.
pub fn parse_usage(text: &str) -> Option<KeptUsage> {
    let line: UsageLine =
        serde_json::from_str(text).ok().filter(|line: &UsageLine| is_user_name(&line.user))?;
    Some(KeptUsage {
        name: line.user,
        month: line.month.parse().ok()?,
        bytes: EachWay { to_target: line.to_target, to_client: line.to_client },
        last_seen: Duration::from_secs(line.last_seen),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str) -> String {
        format!(
            r#"{{"user":"{user}","month":"2026-11","to_target":1,"to_client":2,"last_seen":3}}"#
        )
    }

    #[test]
    fn only_lines_about_users_are_read() {
        let used = parse_usage(&line("alice")).unwrap();
        assert_eq!((used.name.as_str(), used.bytes.to_target), ("alice", 1));
        assert_eq!(parse_usage(&usage_line(&used)), Some(used));
        for name in ["", "two words", "a\\nb", "\u{e9}", &"x".repeat(129)] {
            assert_eq!(parse_usage(&line(name)), None, "{name:?}");
        }
        assert_eq!(parse_usage(&line("alice").replace("2026-11", "2026-13")), None);
    }

    #[test]
    fn a_message_of_another_form_is_not_understood() {
        let hello = Hello::new(2, true, 1);
        assert_eq!(Hello::parse(hello.to_string().as_bytes()).unwrap(), hello);
        let other = hello.to_string().replace("\"form\":1", "\"form\":2");
        assert!(!Hello::parse(other.as_bytes()).unwrap().is_understood());
    }
}

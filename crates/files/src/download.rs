//! The state of a download that is not complete: what the bytes that are there are the beginning of (JSON).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the format.
const VERSION: u8 = 1;

/// The beginning of which file a part has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct State {
    /// The version of the format.
    #[serde(rename = "tandem-state")]
    version: u8,
    /// The URL that the user asked for.
    pub url: String,
    /// The validator of the file (RFC 9110 §8.8), if the origin sent a reliable one.
    pub validator: Option<String>,
    /// How many bytes of the part, from its start, are there without a gap. `None`: all of them.
    pub complete: Option<u64>,
}

impl State {
    /// The state of a download that has just begun.
    pub fn new(url: &str) -> Self {
        Self { version: VERSION, url: url.to_owned(), validator: None, complete: None }
    }

    /// Parses a text. `None`: it is no state of this version.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|state: &Self| state.version == VERSION)
    }
}

/// The text of the state, which is one line.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self);
        writeln!(f, "{}", text.expect("the keys are texts"))
    }
}

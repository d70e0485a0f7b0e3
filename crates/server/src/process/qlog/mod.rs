//! Qlog files of connections.

mod background;

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tandem_node::quic::QlogFiles;

pub use self::background::{cut, flush};
use super::log;
use crate::process::secret;

/// The character before each record of a JSON text sequence (RFC 7464).
const RECORD_SEPARATOR: char = '\u{1e}';

/// Makes the qlog files of connections, which only their owner can read, because they contain addresses. Their
/// names are ROLE-TIME-ID-SIDE.qlog. TIME is in milliseconds since 1970, when the
/// connection began.
#[derive(Clone, Debug)]
pub struct QlogDir {
    /// An existing folder.
    pub dir: PathBuf,
    /// What the connections belong to.
    pub role: &'static str,
}

impl QlogFiles for QlogDir {
    fn create(&self, name: &str) -> io::Result<Box<dyn Write + Send>> {
        let file = self.dir.join(format!("{}-{}-{name}.qlog", self.role, since_1970().as_millis()));
        if log::has_own_thread() {
            return background::create(file);
        }
        Ok(Box::new(BufWriter::new(secret::create_new(&file)?)))
    }
}

/// The time of day.
#[expect(clippy::disallowed_methods, reason = "the time of day names files and marks records")]
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// One record of a qlog file.
pub fn record(value: &Value) -> String {
    format!("{RECORD_SEPARATOR}{value}\n")
}

/// The first record of a qlog file.
pub fn header(title: &str, vantage_point: &str) -> Value {
    json!({
        "qlog_version": "0.3",
        "qlog_format": "JSON-SEQ",
        "title": title,
        "trace": {
            "vantage_point": { "type": vantage_point },
            "common_fields": { "time_format": "absolute", "reference_time": 0 },
        },
    })
}

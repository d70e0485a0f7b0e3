//! Qlog files: those of connections, and one of what a chain of tunnels costs, which no file of one
//! connection can tell.

mod background;

use std::{
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tandem_node::quic::QlogFiles;

pub(crate) use self::background::{cut, flush};
use crate::{error::WriteError, log, outcome::Outcome, secret_file};

/// The character before each record of a JSON text sequence (RFC 7464).
const RECORD_SEPARATOR: char = '\u{1e}';

/// Makes the qlog files of connections, which only their owner can read, because they contain addresses. Their
/// names are ROLE-TIME-ID-SIDE.qlog. TIME is in milliseconds since 1970, when the
/// connection began.
#[derive(Clone, Debug)]
pub(crate) struct QlogDir {
    /// An existing folder.
    pub(crate) dir: PathBuf,
    pub(crate) role: &'static str,
}

impl QlogFiles for QlogDir {
    fn create(&self, name: &str) -> io::Result<Box<dyn Write + Send>> {
        let file = self.dir.join(format!("{}-{}-{name}.qlog", self.role, since_1970().as_millis()));
        if log::has_own_thread() {
            return background::create(file);
        }
        Ok(Box::new(BufWriter::new(secret_file::create_new(&file)?)))
    }
}

/// The time of day.
#[expect(clippy::disallowed_methods, reason = "the time of day names files and marks records")]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Writes a file `get-chain-TIME.sqlog`, whose time is in milliseconds since 1970. Its only event,
/// `tandem:chain_overhead`, has the fields of `get --json` about the chain.
pub(crate) fn write_chain(dir: &Path, outcome: &Outcome) -> Result<(), WriteError> {
    let time = since_1970().as_millis();
    let file = dir.join(format!("get-chain-{time}.sqlog"));
    let header = header("the cost of a chain of tunnels", "client");
    let event = event(u64::try_from(time).unwrap_or(u64::MAX), outcome);
    let text = record(&header) + &record(&event);
    let write = || secret_file::create_new(&file)?.write_all(text.as_bytes());
    write().map_err(|error| WriteError { file: file.clone(), error })
}

/// One record of a qlog file.
pub(crate) fn record(value: &Value) -> String {
    format!("{RECORD_SEPARATOR}{value}\n")
}

/// The first record of a qlog file.
pub(crate) fn header(title: &str, vantage_point: &str) -> Value {
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

fn event(time: u64, outcome: &Outcome) -> Value {
    json!({
        "time": time,
        "name": "tandem:chain_overhead",
        "data": {
            "hops": outcome.hops,
            "chain_overhead_ratio": outcome.chain_overhead_ratio,
            "chain_ack_ratio": outcome.chain_ack_ratio,
            "connections": outcome.connections,
        },
    })
}

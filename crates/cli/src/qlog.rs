//! The qlog file of what a chain of tunnels costs, which no file of one connection can tell.

use std::{io::Write, path::Path};

use serde_json::{Value, json};
use tandem_server::process::{
    WriteError,
    qlog::{header, record, since_1970},
    secret,
};

use crate::outcome::Outcome;

/// Writes a file `get-chain-TIME.sqlog`, whose time is in milliseconds since 1970. Its only event,
/// `tandem:chain_overhead`, has the fields of `get --json` about the chain.
pub(crate) fn write_chain(dir: &Path, outcome: &Outcome) -> Result<(), WriteError> {
    let time = since_1970().as_millis();
    let file = dir.join(format!("get-chain-{time}.sqlog"));
    let header = header("the cost of a chain of tunnels", "client");
    let event = event(u64::try_from(time).unwrap_or(u64::MAX), outcome);
    let text = record(&header) + &record(&event);
    let write = || secret::create_new(&file)?.write_all(text.as_bytes());
    write().map_err(WriteError::of(&file))
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

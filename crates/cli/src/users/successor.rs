//! What users use, in lines from the old process to the one that has taken over.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tandem_node::proxy::{EachWay, KeptUsage, Users};

use super::keeper::unkept;

/// The most bytes of a line: a name has 128 bytes at most, which JSON may double, and numbers have 20 digits.
const LINE_MAX: u64 = 1024;

/// How long to wait for a process that does not read.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a user has used since the line before.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    user: String,
    month: String,
    to_target: u64,
    to_client: u64,
    /// Since 1970, in seconds.
    last_seen: u64,
}

/// The process that has taken over.
#[derive(Debug)]
pub(super) struct Successor {
    /// `None`: it has gone, or does not listen.
    stream: Option<UnixStream>,
}

impl Successor {
    /// A process that is told from now on, and now what no store has.
    pub(super) fn new(stream: UnixStream, users: &Users) -> Self {
        let mut new = Self { stream: Some(stream) };
        new.tell(users);
        new
    }

    /// Tells what users have used since the last time.
    pub(super) fn tell(&mut self, users: &Users) {
        let (Some(stream), Some(month)) = (&mut self.stream, users.month()) else { return };
        let mut lines = Vec::new();
        let used = users.usage();
        let used = used.iter().filter_map(|usage| unkept(usage, month));
        let used: Vec<_> = used.filter(|used| used.bytes != EachWay::default()).collect();
        for used in &used {
            serde_json::to_writer(&mut lines, &Line::from(used)).expect("all keys are strings");
            lines.push(b'\n');
        }
        users.note_kept(&used);
        let written =
            stream.set_write_timeout(Some(PATIENCE)).and_then(|()| stream.write_all(&lines));
        if let Err(error) = written {
            tracing::warn!(%error, "what users use is lost, because the process that took over does not listen");
            self.stream = None;
        }
    }
}

impl From<&KeptUsage> for Line {
    fn from(used: &KeptUsage) -> Self {
        Self {
            user: used.name.clone(),
            month: used.month.to_string(),
            to_target: used.bytes.to_target,
            to_client: used.bytes.to_client,
            last_seen: used.last_seen.as_secs(),
        }
    }
}

/// Adds what the process before this one tells, until it ends.
pub(super) fn listen(told: UnixStream, users: &Users) {
    let mut told = BufReader::new(told);
    let mut text = String::new();
    loop {
        text.clear();
        match (&mut told).take(LINE_MAX).read_line(&mut text) {
            Ok(1..) => users.add_used(parse(&text)),
            Ok(0) => return,
            Err(error) => return tracing::warn!(%error, "what users use is not read any more"),
        }
    }
}

fn parse(text: &str) -> Option<KeptUsage> {
    let line: Line = serde_json::from_str(text).ok()?;
    Some(KeptUsage {
        name: line.user,
        month: line.month.parse().ok()?,
        bytes: EachWay { to_target: line.to_target, to_client: line.to_client },
        last_seen: Duration::from_secs(line.last_seen),
    })
}

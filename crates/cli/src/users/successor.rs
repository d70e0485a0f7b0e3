//! What users use, in lines from the old process to the one that has taken over.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tandem_node::proxy::{EachWay, KeptUsage, Month, UserUsage, Users};

/// The most bytes of a line: a name has 64 bytes at most, and numbers have 20 digits.
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
    /// What it knows.
    told: Told,
}

/// What a process has been told that users have used in a month.
pub(super) type Told = BTreeMap<String, (Month, EachWay)>;

impl Successor {
    /// A process that is told from now on. `is_stored`: it knows from a store what users have used before.
    pub(super) fn new(stream: UnixStream, users: &Users, is_stored: bool) -> Self {
        let mut new = Self { stream: Some(stream), told: Told::new() };
        if is_stored && let Some(month) = users.month() {
            let known = users.usage().into_iter().map(|it| (it.name, (month, it.month_bytes)));
            new.told = known.collect();
        } else {
            new.tell(users);
        }
        new
    }

    /// What it knows.
    pub(super) const fn told(&self) -> &Told {
        &self.told
    }

    /// Tells what users have used since the last time.
    pub(super) fn tell(&mut self, users: &Users) {
        let (Some(stream), Some(month)) = (&mut self.stream, users.month()) else { return };
        let mut lines = Vec::new();
        for usage in users.usage() {
            if let Some(line) = line(&usage, month, self.told.get(&usage.name)) {
                serde_json::to_writer(&mut lines, &line).expect("all keys are strings");
                lines.push(b'\n');
                self.told.insert(usage.name, (month, usage.month_bytes));
            }
        }
        let written =
            stream.set_write_timeout(Some(PATIENCE)).and_then(|()| stream.write_all(&lines));
        if let Err(error) = written {
            tracing::warn!(%error, "what users use is lost, because the process that took over does not listen");
            self.stream = None;
        }
    }
}

/// What to tell of a user.
fn line(usage: &UserUsage, month: Month, told: Option<&(Month, EachWay)>) -> Option<Line> {
    let before = told.filter(|(of, _)| *of == month).map(|(_, bytes)| *bytes).unwrap_or_default();
    let since = |now: u64, before: u64| now.saturating_sub(before);
    let EachWay { to_target, to_client } = usage.month_bytes;
    let line = Line {
        user: usage.name.clone(),
        month: month.to_string(),
        to_target: since(to_target, before.to_target),
        to_client: since(to_client, before.to_client),
        last_seen: usage.last_seen?.as_secs(),
    };
    (line.to_target != 0 || line.to_client != 0).then_some(line)
}

/// What is in a store without what has been told.
pub(super) fn since(mut kept: KeptUsage, told: &Told) -> KeptUsage {
    if let Some((month, bytes)) = told.get(&kept.name)
        && *month == kept.month
    {
        kept.bytes.to_target = kept.bytes.to_target.saturating_sub(bytes.to_target);
        kept.bytes.to_client = kept.bytes.to_client.saturating_sub(bytes.to_client);
    }
    kept
}

/// Adds what the process before this one tells, until it ends.
pub(super) fn listen(told: UnixStream, users: &Users) {
    let mut told = BufReader::new(told);
    let mut text = String::new();
    loop {
        text.clear();
        match (&mut told).take(LINE_MAX).read_line(&mut text) {
            Ok(1..) => users.restore(parse(&text)),
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

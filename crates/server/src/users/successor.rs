//! What users use, in lines from the old process to the one that has taken over.

use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use tandem_files::takeover::{LINE_MAX, parse_usage, usage_line};
use tandem_node::proxy::{EachWay, Users};

use super::keeper::unkept;

/// How long to wait for a process that does not read.
const PATIENCE: Duration = Duration::from_secs(5);

/// The process that has taken over.
#[derive(Debug)]
pub(super) struct StoreSuccessor {
    /// `None`: it has gone, or does not listen.
    stream: Option<UnixStream>,
    /// Lines that did not fit into the socket yet.
    unsent: VecDeque<u8>,
}

impl StoreSuccessor {
    /// A process that may open the store from now on, which an empty line says.
    pub(super) fn new(stream: UnixStream) -> Self {
        let mut new = Self { stream: Some(stream), unsent: VecDeque::from([b'\n']) };
        new.send();
        new
    }

    /// Tells what no store has, and this process has not told before. What the other process does not read in time is
    /// told the next time.
    pub(super) fn tell(&mut self, users: &Users) {
        self.send();
        let Some(month) = users.month().filter(|_| self.unsent.is_empty() && self.stream.is_some())
        else {
            return;
        };
        let used = users.usage();
        let used = used.iter().filter_map(|usage| unkept(usage, month));
        let used: Vec<_> = used.filter(|used| used.bytes != EachWay::default()).collect();
        for used in &used {
            self.unsent.extend(usage_line(used).into_bytes());
        }
        users.note_kept(&used);
        self.send();
    }

    /// Sends as much as the other process reads in time.
    fn send(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        match send(stream, &mut self.unsent) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                tracing::warn!(
                    "what users use is told later, because the process that took over does not read it"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "what users use is lost, because the process that took over does not listen");
                self.stream = None;
            }
        }
    }
}

fn send(stream: &mut UnixStream, unsent: &mut VecDeque<u8>) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    while !unsent.is_empty() {
        match stream.write(unsent.as_slices().0) {
            Ok(len) => drop(unsent.drain(..len)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Adds what the process before this one tells, until it ends. `closed` is called when that one has no store open any
/// more.
pub(super) fn listen<T>(told: UnixStream, users: &Users, closed: impl FnOnce() -> T) {
    let (mut told, mut closed) = (BufReader::new(told), Some(closed));
    let mut text = String::new();
    loop {
        text.clear();
        let read = (&mut told).take(LINE_MAX).read_line(&mut text);
        // The first line says so, and so does the end.
        closed.take().map(|closed| closed());
        match read {
            Ok(1..) => users.add_used(parse_usage(&text)),
            Ok(0) => return,
            Err(error) => return tracing::warn!(%error, "what users use is not read any more"),
        }
    }
}

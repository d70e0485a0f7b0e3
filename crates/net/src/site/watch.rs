//! What is known of the server behind a site: what became of requests, and whether it answers.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tandem_node::upstream::UpstreamError;
use tracing::{info, warn};

/// The time between two checks.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

/// The longest wait for the answer to a check.
pub(super) const CHECK_TIME: Duration = Duration::from_secs(5);

/// The failures in a row after which a server that has answered counts as down. One may be a restart.
const FAILURES: u32 = 2;

/// What is known of the server behind a site. All threads of a process share it.
#[derive(Debug, Default)]
pub struct UpstreamWatch {
    answered: AtomicU64,
    failed: [AtomicU64; UpstreamError::ALL.len()],
    websockets: AtomicU64,
    state: Mutex<State>,
}

/// What the checks have found.
#[derive(Debug, Default)]
struct State {
    /// `None`: there was none yet.
    is_up: Option<bool>,
    /// The failures in a row.
    failures: u32,
}

impl UpstreamWatch {
    /// The responses whose header section has come.
    pub fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    /// The requests without an answer, or without a whole one, by cause.
    pub fn failed(&self) -> [(UpstreamError, u64); UpstreamError::ALL.len()] {
        let mut all = UpstreamError::ALL.map(|error| (error, 0));
        for ((_, count), counter) in all.iter_mut().zip(&self.failed) {
            *count = counter.load(Relaxed);
        }
        all
    }

    /// The WebSockets that are open.
    pub fn websockets(&self) -> u64 {
        self.websockets.load(Relaxed)
    }

    /// Whether the server answers, as far as the checks know. It does until one has shown otherwise.
    pub fn is_up(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_up.unwrap_or(true)
    }

    pub(super) fn count_answer(&self) {
        self.answered.fetch_add(1, Relaxed);
    }

    pub(super) fn count_failure(&self, error: UpstreamError) {
        let index = UpstreamError::ALL.iter().position(|it| *it == error);
        if let Some(counter) = index.and_then(|index| self.failed.get(index)) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Counts a WebSocket for as long as the result lives.
    pub(super) fn open_websocket(&self) -> OpenWebSocket<'_> {
        self.websockets.fetch_add(1, Relaxed);
        OpenWebSocket(self)
    }

    /// Notes what a check has found, and says it if it is new.
    pub(super) fn note(&self, result: Result<(), String>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(()) => {
                if state.is_up == Some(false) {
                    info!("the server behind the site answers again");
                }
                *state = State { is_up: Some(true), failures: 0 };
            }
            Err(reason) => {
                state.failures += 1;
                let is_down = state.is_up.is_none() || state.failures >= FAILURES;
                if is_down && state.is_up != Some(false) {
                    state.is_up = Some(false);
                    warn!(reason, "the server behind the site is down");
                }
            }
        }
    }
}

/// A WebSocket that is open.
pub(super) struct OpenWebSocket<'a>(&'a UpstreamWatch);

impl Drop for OpenWebSocket<'_> {
    fn drop(&mut self) {
        self.0.websockets.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_is_no_end_and_the_first_one_is() {
        let (good, bad) = (|| Ok(()), || Err("none".to_owned()));
        for (results, is_up) in [
            (vec![], true),
            (vec![good()], true),
            (vec![bad()], false),
            (vec![good(), bad()], true),
            (vec![good(), bad(), bad()], false),
            (vec![good(), bad(), good(), bad()], true),
            (vec![bad(), good()], true),
            (vec![good(), bad(), bad(), good(), bad()], true),
        ] {
            let watch = UpstreamWatch::default();
            let shown = format!("{results:?}");
            for result in results {
                watch.note(result);
            }
            assert_eq!(watch.is_up(), is_up, "{shown}");
        }
    }

    #[test]
    fn failures_are_counted_by_cause() {
        let watch = UpstreamWatch::default();
        watch.count_failure(UpstreamError::Silent);
        watch.count_failure(UpstreamError::Silent);
        let counted: Vec<_> = watch.failed().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(UpstreamError::Silent, 2)]);
        let open = watch.open_websocket();
        assert_eq!(watch.websockets(), 1);
        drop(open);
        assert_eq!(watch.websockets(), 0);
    }
}

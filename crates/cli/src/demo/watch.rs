//! Looks at a journey while it runs.

use std::{
    panic,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
};

use tandem_net::clock;

use super::{
    gauges::{Gauges, PERIOD, Readings},
    sample::Samples,
};
use crate::error::CliError;

/// Who is shown a journey: what the gauges show now, and what they showed before.
pub(super) type Show<'a> = dyn FnMut(&Readings, &Samples) + Send + 'a;

/// Runs `journey` while a thread beside it samples the gauges and shows them.
pub(super) fn watch<T>(
    gauges: &Gauges,
    show: &mut Show<'_>,
    journey: impl FnOnce() -> T,
) -> Result<(T, Samples), CliError> {
    thread::scope(|scope| {
        let (running, has_ended) = mpsc::channel();
        let watcher = thread::Builder::new()
            .name("watch".to_owned())
            .spawn_scoped(scope, move || sample(gauges, show, &has_ended))
            .map_err(|error| CliError::System { what: "start a thread", error })?;
        let result = journey();
        drop(running);
        let samples = watcher.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
        Ok((result, samples))
    })
}

/// Until the sender is gone.
fn sample(gauges: &Gauges, show: &mut Show<'_>, has_ended: &Receiver<()>) -> Samples {
    let start = clock::now();
    let mut samples = Samples::new();
    loop {
        let readings = gauges.read();
        samples.add(clock::now().saturating_duration_since(start), &readings);
        show(&readings, &samples);
        if has_ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
            return samples;
        }
    }
}

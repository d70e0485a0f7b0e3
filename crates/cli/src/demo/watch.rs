//! Samples a journey while it runs.

use std::{
    panic,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use tandem_net::clock;
use tandem_server::process::SystemError;

use super::{
    gauges::{Gauges, PERIOD, Readings},
    sample::{DemoSample, Samples},
    stage::DemoStage,
};
use crate::error::CliError;

/// The current and the earlier samples of a journey.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment<'a> {
    /// Time since the client began to connect.
    pub(super) at: Duration,
    pub(super) readings: &'a Readings,
    pub(super) samples: &'a [DemoSample],
}

/// Runs `journey` while a thread beside it samples the gauges and shows them.
pub(super) fn watch<T>(
    gauges: &Gauges,
    stage: Option<&mut DemoStage>,
    journey: impl FnOnce() -> T,
) -> Result<(T, Samples), CliError> {
    thread::scope(|scope| {
        let (running, has_ended) = mpsc::channel();
        let watcher = thread::Builder::new()
            .name("watch".to_owned())
            .spawn_scoped(scope, move || sample(gauges, stage, &has_ended))
            .map_err(SystemError::thread)?;
        let result = journey();
        drop(running);
        let samples = watcher.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
        Ok((result, samples))
    })
}

/// Samples until the sender is dropped.
fn sample(gauges: &Gauges, mut stage: Option<&mut DemoStage>, has_ended: &Receiver<()>) -> Samples {
    let start = clock::now();
    let mut samples = Samples::new();
    loop {
        let readings = gauges.read();
        let at = clock::now().saturating_duration_since(start);
        samples.add(at, &readings);
        if let Some(stage) = &mut stage {
            stage.show(Moment { at, readings: &readings, samples: samples.as_slice() });
        }
        if has_ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
            return samples;
        }
    }
}

//! Ends a long command at a signal, after the runs that have begun.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use tandem_server::process::{Signals, runtime};

use crate::{error::CliError, text};

/// Returns a flag that the first signal sets; a second signal ends the program.
pub(super) fn on_signal() -> Result<Arc<AtomicBool>, CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = runtime()?;
    let mut first = runtime.block_on(async { Signals::new() })?;
    let signalled = stop.clone();
    thread::spawn(move || {
        runtime.block_on(first.any());
        signalled.store(true, Ordering::Relaxed);
        text::say("finishing the runs that have begun; a second signal ends them at once");
        let Ok(mut second) = runtime.block_on(async { Signals::new() }) else { return };
        runtime.block_on(second.any());
        process::exit(130);
    });
    Ok(stop)
}

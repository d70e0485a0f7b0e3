//! What a process uses, as `/proc` says it.

use std::time::Duration;

use anyhow::{Context, Result};
use procfs::process::Process;

/// The memory, the descriptors and the threads of a process.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    /// The resident memory in kB.
    pub(crate) memory_kb: u64,
    /// The highest resident memory so far in kB.
    pub(crate) peak_kb: u64,
    /// The number of open descriptors.
    pub(crate) descriptors: usize,
    /// The number of threads.
    pub(crate) threads: usize,
    /// The processor time so far, of all threads.
    pub(crate) processor: Duration,
}

impl Usage {
    /// Reads the present values of a process.
    pub(crate) fn of(process: u32) -> Result<Self> {
        let process = Process::new(i32::try_from(process)?).context("the proxy has ended")?;
        let stat = process.stat().context("the proxy has ended")?;
        let ticks = Duration::from_secs(stat.utime + stat.stime);
        let processor = ticks / u32::try_from(procfs::ticks_per_second())?;
        let status = process.status().context("the proxy has ended")?;
        Ok(Self {
            memory_kb: status.vmrss.context("the proxy has ended")?,
            peak_kb: status.vmhwm.context("the proxy has ended")?,
            descriptors: process.fd_count()?,
            threads: usize::try_from(status.threads)?,
            processor,
        })
    }

    pub(crate) fn memory_mb(&self) -> f64 {
        megabytes(self.memory_kb)
    }

    pub(crate) fn peak_mb(&self) -> f64 {
        megabytes(self.peak_kb)
    }
}

/// The kernel's kB are 1024 bytes.
#[expect(clippy::cast_precision_loss, reason = "a report needs no more than 52 bits")]
pub(crate) fn megabytes(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

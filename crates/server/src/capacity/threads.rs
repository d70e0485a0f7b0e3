//! The threads of a server, each of which runs a node of its own.

use std::{ops::RangeInclusive, thread};

use tandem_files::setting::{Setting, Within};
use tandem_node::quic::Steering;

/// The number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Threads;

impl Setting for Threads {
    type Value = u8;
    const ALLOWED: RangeInclusive<u8> = 1..=Steering::NODES_MAX;
}

impl Threads {
    /// The number with which a server runs. By default there is one for each processor that the process may
    /// use.
    pub fn or_default(setting: Option<Within<Self>>) -> Within<Self> {
        setting.unwrap_or_else(|| {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            let processors = u8::try_from(processors).unwrap_or(u8::MAX);
            let can_share = cfg!(target_os = "linux");
            Within(if can_share { processors.min(*Self::ALLOWED.end()) } else { 1 })
        })
    }

    /// The help of the flag.
    pub fn flag_help() -> String {
        Self::help(
            "Threads, each of which serves some of the connections; they divide the limits",
            "as many as processors",
        )
    }
}

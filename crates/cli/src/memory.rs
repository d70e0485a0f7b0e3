//! The memory of a server's process: the allocator, how much is in use, and the bound on it.
//!
//! jemalloc gives unused memory back to the system within seconds, and says how much is in use.
//! glibc's allocator does neither after a peak of many connections.

use std::ops::RangeInclusive;

use sysinfo::{
    MemoryRefreshKind, Process, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System,
    get_current_pid,
};
use tandem_units::ByteCount;
use tikv_jemalloc_ctl::{Access, AsName, background_thread, epoch, stats};
use tikv_jemallocator::Jemalloc;

use crate::config::{Setting, Within};

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Milliseconds for which the allocator of a server keeps pages that nothing uses. Its default is ten
/// seconds. In that time clients who come and go could make the process larger than its bound, because
/// the kept pages count as memory of the process but not as memory in use.
const UNUSED_PAGES_KEPT: isize = 500;

/// The settings that say so: that of the arena which the process has, and that of those which it will get.
const UNUSED_PAGES_SETTINGS: [&[u8]; 2] = [b"arena.0.dirty_decay_ms\0", b"arenas.dirty_decay_ms\0"];

/// What a server measures its memory with. From now on the allocator soon gives back what is not in use.
pub(crate) fn gauge() -> fn() -> u64 {
    for name in UNUSED_PAGES_SETTINGS {
        if let Err(error) = name.name().write(UNUSED_PAGES_KEPT) {
            tracing::debug!(%error, "the allocator keeps unused memory for its default time");
        }
    }
    in_use
}

/// The bytes that the process has allocated, without what the allocator keeps for later. 0 if the
/// allocator cannot say.
pub(crate) fn in_use() -> u64 {
    // The allocator's numbers are those of the last epoch.
    let bytes = epoch::advance().and_then(|_| stats::allocated::read()).unwrap_or_default();
    bytes as u64
}

/// The bytes of the process in the machine's RAM. 0 if the system cannot say.
pub(crate) fn resident() -> u64 {
    let Ok(pid) = get_current_pid() else { return 0 };
    let mut system = System::new();
    let only = ProcessesToUpdate::Some(&[pid]);
    system.refresh_processes_specifics(only, true, ProcessRefreshKind::nothing().with_memory());
    system.process(pid).map_or(0, Process::memory)
}

/// Runs this while the process has no threads of the allocator, so that those that begin later have the rights
/// that it leaves to the process.
pub(crate) fn without_threads<T>(run: impl FnOnce() -> T) -> T {
    let were_running = background_thread::write(false).is_ok();
    let result = run();
    if were_running && background_thread::write(true).is_err() {
        tracing::debug!("the allocator gives memory back less often from now on");
    }
    result
}

/// The bound on the memory of a server's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryBound;

impl Setting for MemoryBound {
    type Value = ByteCount;
    const ALLOWED: RangeInclusive<ByteCount> = ByteCount::new(256_000_000)..=ByteCount::MAX;

    fn allowed() -> String {
        format!("at least {}", Self::ALLOWED.start())
    }
}

impl MemoryBound {
    /// The default: half of the memory that the machine has, or that a control group leaves to the
    /// process.
    fn by_default() -> ByteCount {
        let refresh = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(refresh);
        let total = system.total_memory();
        // Without /proc nothing is known, and the library panics if it is asked for more.
        let group = (total > 0).then(|| system.cgroup_limits()).flatten();
        let group = group.map_or(u64::MAX, |limits| limits.total_memory);
        ByteCount::new(total.min(group) / 2).max(*Self::ALLOWED.start())
    }

    /// The bound with which a server runs.
    pub(crate) fn or_default(setting: Option<Within<Self>>) -> Within<Self> {
        setting.unwrap_or_else(|| Within(Self::by_default()))
    }

    /// The help of the flag.
    pub(crate) fn flag_help() -> String {
        Self::help(
            "Memory that the process may use; from half of it, new connections are refused, and the \
             connection that uses most is closed",
            "half of the machine's",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_allocated_is_in_use() {
        // Other tests of this process allocate and free much less at the same time.
        let block = vec![1_u8; 200_000_000];
        let with_block = in_use();
        assert!(with_block >= block.len() as u64, "{with_block}");
        drop(block);
        assert!(in_use() <= with_block - 150_000_000, "{}", in_use());
    }

    #[test]
    fn a_gauge_makes_the_allocator_give_back_soon() {
        gauge();
        for name in UNUSED_PAGES_SETTINGS {
            let kept: isize = name.name().read().unwrap();
            assert_eq!(kept, UNUSED_PAGES_KEPT);
        }
    }

    #[test]
    fn the_default_is_a_share_of_the_machine() {
        let bound = MemoryBound::by_default();
        assert!(MemoryBound::ALLOWED.contains(&bound) && bound < ByteCount::MAX, "{bound}");
    }
}

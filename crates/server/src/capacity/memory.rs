//! The memory of a server's process: the allocator, how much is in use, and the bound on it.
//!
//! jemalloc gives unused memory back to the system within seconds, and says how much is in use. glibc's allocator does
//! neither after a peak of many connections. The program chooses the allocator; with another one, nothing counts as in
//! use, and the bound has no effect.

use std::{
    ops::RangeInclusive,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use sysinfo::{
    MemoryRefreshKind, Process, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System,
    get_current_pid,
};
use tandem_files::setting::{Setting, Within};
use tandem_net::clock;
use tandem_units::{ByteCount, Rate};
use tikv_jemalloc_ctl::{Access, AsName, background_thread, epoch, stats};

use crate::capacity::control_group;

/// Milliseconds for which the allocator of a server keeps pages that nothing uses. Its default is ten
/// seconds. In that time clients who come and go could make the process larger than its bound, because
/// the kept pages count as memory of the process but not as memory in use.
const UNUSED_PAGES_KEPT: isize = 500;

/// The settings that say so: that of the arena which the process has, and that of those which it will get.
const UNUSED_PAGES_SETTINGS: [&[u8]; 2] = [b"arena.0.dirty_decay_ms\0", b"arenas.dirty_decay_ms\0"];

/// How fast memory can fill: the rate of a fast link.
const ARRIVES: Rate = Rate::from_mbps(10_000);

/// What all servers of the process measure its memory with.
static MEASURED: Mutex<Measured> = Mutex::new(Measured { bound: u64::MAX, last: None });

/// What the threads of servers measure the memory of their process with, so that it does not exceed this bound. From
/// now on the allocator soon gives back what is not in use.
pub fn gauge(bound: ByteCount) -> fn() -> u64 {
    for name in UNUSED_PAGES_SETTINGS {
        if let Err(error) = name.name().write(UNUSED_PAGES_KEPT) {
            tracing::debug!(%error, "the allocator keeps unused memory for its default time");
        }
    }
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    measured.bound = measured.bound.min(bound.get());
    || MEASURED.lock().unwrap_or_else(PoisonError::into_inner).get(clock::now(), in_use)
}

/// The last measurement of the memory in use, which takes the allocator some 0.03 ms, so that not each thread makes its
/// own.
struct Measured {
    /// The bound on the memory of the process in bytes.
    bound: u64,
    /// When it was measured, and the bytes in use.
    last: Option<(Instant, u64)>,
}

impl Measured {
    /// The longest time for which a measurement holds.
    const HOLDS_MAX: Duration = Duration::from_millis(100);

    /// The bytes in use, of which at most a quarter of what is left until half of the bound may have come since the
    /// measurement. From half of the bound, where each thread closes connections, each one measures for itself.
    fn get(&mut self, now: Instant, measure: impl FnOnce() -> u64) -> u64 {
        if let Some((then, bytes)) = self.last
            && now.saturating_duration_since(then) < self.holds(bytes)
        {
            return bytes;
        }
        let bytes = measure();
        self.last = Some((now, bytes));
        bytes
    }

    fn holds(&self, bytes: u64) -> Duration {
        let left = (self.bound / 2).saturating_sub(bytes);
        ARRIVES.time_to_send(ByteCount::new(left / 4)).min(Self::HOLDS_MAX)
    }
}

/// The bytes that the process has allocated, without what the allocator keeps for later. 0 if the
/// allocator cannot say.
pub fn in_use() -> u64 {
    // The allocator's numbers are those of the last epoch.
    let bytes = epoch::advance().and_then(|_| stats::allocated::read()).unwrap_or_default();
    bytes as u64
}

/// The bytes of the process in the machine's RAM. 0 if the system cannot say.
pub fn resident() -> u64 {
    let Ok(pid) = get_current_pid() else { return 0 };
    let mut system = System::new();
    let only = ProcessesToUpdate::Some(&[pid]);
    system.refresh_processes_specifics(only, true, ProcessRefreshKind::nothing().with_memory());
    system.process(pid).map_or(0, Process::memory)
}

/// Runs this while the process has no threads of the allocator, so that those that begin later have the rights
/// that it leaves to the process.
pub fn without_threads<T>(run: impl FnOnce() -> T) -> T {
    let were_running = background_thread::write(false).is_ok();
    let result = run();
    if were_running && background_thread::write(true).is_err() {
        tracing::debug!("the allocator gives memory back less often from now on");
    }
    result
}

/// The bound on the memory of a server's process.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBound;

impl Setting for MemoryBound {
    type Value = ByteCount;
    const ALLOWED: RangeInclusive<ByteCount> = ByteCount::new(256_000_000)..=ByteCount::MAX;

    fn allowed() -> String {
        format!("at least {}", Self::ALLOWED.start())
    }
}

impl MemoryBound {
    /// The default, in what the machine has and its control groups leave.
    fn by_default() -> ByteCount {
        Room::here().default_bound()
    }

    /// The bound with which a server runs.
    pub fn or_default(setting: Option<Within<Self>>) -> Within<Self> {
        setting.unwrap_or_else(|| Within(Self::by_default()))
    }

    /// The help of the flag.
    pub fn flag_help() -> String {
        Self::help(
            "Memory that the process may use; from half of it, new connections are refused, and the \
             connection that uses most is closed",
            "half of what the machine has, or its control group leaves",
        )
    }
}

/// The memory that a process can have, in bytes.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// What the machine has. 0 if the system cannot say.
    machine: u64,
    /// The least limit of its control groups.
    group: Option<u64>,
}

impl Room {
    fn here() -> Self {
        let refresh = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
        let machine = System::new_with_specifics(refresh).total_memory();
        Self { machine, group: control_group::memory_limit(Path::new("/")) }
    }

    /// The largest bound that keeps the kernel from ending the process. `None`: no control group has a limit.
    ///
    /// A group pays for more than the memory of its processes: for what the kernel holds for sockets, and for files
    /// that are being written. An eighth of the limit is left for that.
    fn bound_max(self) -> Option<ByteCount> {
        // Without a limit, version 1 says almost 2^63.
        let limit = self.group.filter(|&limit| self.machine == 0 || limit < self.machine)?;
        Some(ByteCount::new(limit - limit / 8))
    }

    /// Half of it, but no less than the least bound. A control group that has no room for the least bound gets half of
    /// its limit: what the process takes in addition to its bound then has the other half.
    fn default_bound(self) -> ByteCount {
        let known =
            Some(self.machine).filter(|&bytes| bytes > 0).into_iter().chain(self.group).min();
        let half = ByteCount::new(known.unwrap_or_default() / 2);
        let least = *MemoryBound::ALLOWED.start();
        match self.bound_max() {
            Some(max) if max < least => half,
            _ => half.max(least),
        }
    }

    /// What an operator should know of a bound.
    fn warning(self, bound: ByteCount) -> Option<String> {
        let max = self.bound_max()?;
        let limit = ByteCount::new(self.group?);
        let least = *MemoryBound::ALLOWED.start();
        if max < least {
            return Some(format!(
                "the control group leaves {limit} of memory to the process, in which no bound is certain to hold: \
                 the kernel may end the process when many clients come; at least 300 MB are needed"
            ));
        }
        (bound > max).then(|| {
            format!(
                "the bound on memory is {bound}, but the control group leaves {limit} to the process: the kernel may \
                 end the process before the bound has an effect; the bound should be at most {max}"
            )
        })
    }
}

/// Warns if the control group of the process leaves it less memory than its bound needs.
pub fn warn_of_group(bound: ByteCount) {
    if let Some(warning) = Room::here().warning(bound) {
        tracing::warn!("{warning}");
    }
}

#[cfg(test)]
mod tests {
    use tikv_jemallocator::Jemalloc;

    use super::*;

    #[global_allocator]
    static ALLOCATOR: Jemalloc = Jemalloc;

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
    fn threads_share_measurements_until_the_memory_may_have_grown() {
        // The bound and the memory in use in MB, and how many of 64 calls measure: they come from 8 threads in turn,
        // each 20 ms apart for a thread, in 160 ms.
        for (bound, in_use, measurements) in [
            (12_000, 100, 2), // 100 ms is the most
            (1_000, 0, 2),    // exactly as long
            (1_000, 400, 8),  // 20 ms
            (256, 50, 10),    // 15.6 ms: at each seventh call
            (256, 127, 64),   // 0.2 ms
            (256, 128, 64),   // half of the bound
            (256, 1_000, 64),
        ] {
            let mut measured = Measured { bound: bound * 1_000_000, last: None };
            let (begin, mut count) = (clock::now(), 0);
            for call in 0..64 {
                let now = begin + Duration::from_micros(2500) * call;
                let bytes = measured.get(now, || {
                    count += 1;
                    in_use * 1_000_000
                });
                assert_eq!(bytes, in_use * 1_000_000);
            }
            assert_eq!(count, measurements, "{in_use} of {bound} MB");
        }
    }

    #[test]
    fn a_gauge_makes_the_allocator_give_back_soon() {
        gauge(ByteCount::MAX);
        for name in UNUSED_PAGES_SETTINGS {
            let kept: isize = name.name().read().unwrap();
            assert_eq!(kept, UNUSED_PAGES_KEPT);
        }
    }

    #[test]
    fn the_default_leaves_room_in_the_control_group() {
        const MB: u64 = 1_000_000;
        for (machine, group, bound, is_warned) in [
            (24_000, None, 12_000, false),
            (400, None, 256, false),
            (0, None, 256, false),
            // A limit that the machine cannot reach is none.
            (24_000, Some(9_223_372_036_854), 12_000, false),
            (24_000, Some(4_000), 2_000, false),
            (24_000, Some(512), 256, false),
            (24_000, Some(300), 256, false),
            (24_000, Some(200), 100, true),
            (0, Some(4_000), 2_000, false),
            (0, Some(64), 32, true),
        ] {
            let room = Room { machine: machine * MB, group: group.map(|limit: u64| limit * MB) };
            let default = room.default_bound();
            assert_eq!(default, ByteCount::new(bound * MB), "{room:?}");
            assert_eq!(room.warning(default).is_some(), is_warned, "{room:?}");
        }
    }

    #[test]
    fn a_bound_that_the_control_group_has_no_room_for_is_warned_of() {
        let room = Room { machine: 24_000_000_000, group: Some(400_000_000) };
        assert_eq!(room.warning(ByteCount::new(350_000_000)), None);
        let warning = room.warning(ByteCount::new(350_000_001)).unwrap();
        assert!(warning.ends_with("the bound should be at most 350 MB"), "{warning}");
        let free = Room { group: None, ..room };
        assert_eq!(free.warning(ByteCount::MAX), None);
    }

    #[test]
    fn the_default_is_a_share_of_the_machine() {
        let bound = MemoryBound::by_default();
        assert!(MemoryBound::ALLOWED.contains(&bound) && bound < ByteCount::MAX, "{bound}");
    }
}

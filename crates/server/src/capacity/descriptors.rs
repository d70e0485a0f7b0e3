//! The number of open files that the operating system allows, and what a server may do with them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tandem_node::limits::Limits;
use tracing::warn;

use crate::process;

/// Descriptors for everything except sockets at the address of the server, towards targets and towards name servers:
/// the event loop, the log, the configuration and `/etc/hosts`.
const RESERVE: u64 = 64;

/// The sockets of one name lookup: two address families, and two name servers for each.
const SOCKETS_PER_LOOKUP: u64 = 4;

/// The part of the descriptors that name lookups may use at most is one in this number.
const LOOKUPS_PART: u64 = 4;

/// Raises the soft limit of open files to the hard limit. Returns the limit that then holds.
pub fn raise() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => warn!(%error, ?limit, "the limit of open files cannot be raised"),
        }
    }
    limit.current.unwrap_or(u64::MAX)
}

/// Lowers the limits of a proxy to what this number of open files allows, some of which are the sockets at its address.
pub fn limit(limits: &mut Limits, open_files: u64, listening: u8) {
    let usable = open_files.saturating_sub(RESERVE + u64::from(listening));
    let for_lookups = usable / LOOKUPS_PART;
    let lower = |limit: usize, to: u64| limit.min(usize::try_from(to).unwrap_or(limit)).max(1);
    limits.queries = lower(limits.queries, for_lookups / SOCKETS_PER_LOOKUP);
    limits.sockets = lower(limits.sockets, usable - for_lookups);
}

/// Prints how many flows the number of open files allows, and how to get more if that is less than
/// the proxy could have.
pub fn say(open_files: u64, sockets: usize) {
    let more = if sockets < Limits::default().sockets {
        "; set LimitNOFILE= in the systemd unit, or use ulimit -n, to allow more"
    } else {
        ""
    };
    process::say(format_args!(
        "open files: at most {open_files}, so at most {sockets} flows at a time{more}"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_left_for_name_lookups_and_files() {
        for (open_files, queries, sockets) in [
            (0, 1, 1),
            (64, 1, 1),
            (256, 12, 144),
            (1024, 60, 720),
            (4096, 252, 3024),
            (65_536, 4092, 24_000),
            (1_048_576, 4096, 24_000),
            (u64::MAX - 32, 4096, 24_000),
        ] {
            let mut limits = Limits::default();
            limit(&mut limits, open_files + 32, 32);
            assert_eq!((limits.queries, limits.sockets), (queries, sockets), "{open_files}");
            let used = limits.queries as u64 * SOCKETS_PER_LOOKUP + limits.sockets as u64;
            assert!(open_files <= RESERVE || used + RESERVE <= open_files, "{open_files}");
        }
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        let raised = raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(limit.current.unwrap_or(u64::MAX), raised);
    }
}

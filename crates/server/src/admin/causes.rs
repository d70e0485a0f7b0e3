//! Counters by cause, under the names that the metrics and the page share. They are taken apart field by field, so that
//! the compiler finds a cause that is missing.

use tandem_node::stats::Dropped;

/// UDP payloads that tunnels dropped.
pub(super) const fn dropped(dropped: &Dropped) -> [(&'static str, u64); 8] {
    let Dropped {
        queue_full,
        too_large,
        unknown_context,
        unknown_flow,
        malformed,
        deadline,
        standing_queue,
        over_share,
        too_many_flows: _, // of clients
    } = *dropped;
    [
        ("queue_full", queue_full),
        ("standing_queue", standing_queue),
        ("over_share", over_share),
        ("deadline", deadline),
        ("too_large", too_large),
        ("unknown_context", unknown_context),
        ("unknown_flow", unknown_flow),
        ("malformed", malformed),
    ]
}

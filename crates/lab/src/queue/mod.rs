//! Queues in front of a bottleneck, one file each.

mod drop_tail;

pub(crate) use drop_tail::DropTail;
use tandem_units::ByteCount;

/// How much may wait in a queue, in bytes of IP packets. The packet in transmission has left the
/// queue and does not count, as in Mahimahi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimit(pub ByteCount);

impl Default for QueueLimit {
    /// 150 kB: 100 full packets, a usual size of home and access routers.
    fn default() -> Self {
        Self(ByteCount::new(150_000))
    }
}

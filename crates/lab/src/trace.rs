//! A record of what travels on the network.

use std::{fmt, time::Duration};

use sha2::{Digest, Sha256};
use tandem_units::ByteCount;

use crate::{HostId, tcp::Segment};

/// Every packet that a host sent or received, as a digest and, on request, as a list. What arrives
/// through TCP connections is part of the digest only.
pub struct Trace {
    digest: Sha256,
    entries: Option<Vec<TraceEntry>>,
}

/// One packet at one end of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// The time since the start of the world.
    pub at: Duration,
    /// The end of the path at which the packet was recorded.
    pub end: PathEnd,
    /// The sending host.
    pub from: HostId,
    /// The receiving host.
    pub to: HostId,
    /// Size of the IP packet.
    pub size: ByteCount,
}

/// An end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEnd {
    /// A host sent the packet.
    Sent,
    /// The packet came to a host.
    Delivered,
}

/// SHA-256 over time, end, hosts and size of every packet, and over time, hosts and content of
/// everything that arrived through TCP connections. Two runs with the same digest have the same
/// network traffic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceDigest([u8; 32]);

impl Trace {
    pub(crate) fn new() -> Self {
        Self { digest: Sha256::new(), entries: None }
    }

    pub(crate) fn keep_entries(&mut self) {
        self.entries.get_or_insert_default();
    }

    pub(crate) fn record(&mut self, entry: TraceEntry) {
        let end: u8 = match entry.end {
            PathEnd::Sent => 0,
            PathEnd::Delivered => 1,
        };
        self.digest.update(entry.at.as_nanos().to_be_bytes());
        self.digest.update([end]);
        self.digest.update(entry.from.number().to_be_bytes());
        self.digest.update(entry.to.number().to_be_bytes());
        self.digest.update(entry.size.get().to_be_bytes());
        if let Some(entries) = &mut self.entries {
            entries.push(entry);
        }
    }

    /// Records what arrived through a TCP connection.
    pub(crate) fn record_tcp(
        &mut self,
        at: Duration,
        between: (HostId, HostId),
        segment: &Segment,
    ) {
        const TCP: u8 = 2;
        let (from, to) = between;
        self.digest.update(at.as_nanos().to_be_bytes());
        self.digest.update([TCP, segment.code()]);
        self.digest.update(from.number().to_be_bytes());
        self.digest.update(to.number().to_be_bytes());
        if let Segment::Data(data) = segment {
            self.digest.update((data.len() as u64).to_be_bytes());
            self.digest.update(data);
        }
    }

    /// The digest so far.
    pub fn digest(&self) -> TraceDigest {
        TraceDigest(self.digest.clone().finalize().into())
    }

    /// The packets so far, in order of time. The list is empty unless
    /// [`World::keep_trace`](crate::World::keep_trace) was called.
    pub fn entries(&self) -> &[TraceEntry] {
        self.entries.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("digest", &self.digest()).finish_non_exhaustive()
    }
}

impl fmt::Display for TraceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TraceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

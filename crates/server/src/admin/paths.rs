//! What PEPs have shown of the paths of an origin's connections, as metrics show it.

use serde::Serialize;

/// The sums over all connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathTotals {
    /// Open connections by their bottleneck.
    pub connections: PlaceCounts,
    pub seconds: Places,
    pub lost: Lost,
}

/// Connections by their bottleneck.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaceCounts {
    pub wired: u64,
    pub access: u64,
    pub sender: u64,
}

impl PlaceCounts {
    pub(super) const fn by_place(&self) -> [(&'static str, u64); 3] {
        [("wired", self.wired), ("access", self.access), ("sender", self.sender)]
    }
}

impl Places {
    pub(super) const fn by_place(&self) -> [(&'static str, f64); 3] {
        [("wired", self.wired), ("access", self.access), ("sender", self.sender)]
    }
}

impl Lost {
    pub(super) const fn by_domain(&self) -> [(&'static str, u64); 3] {
        [("wired", self.wired), ("access", self.access), ("unknown", self.unknown)]
    }
}

/// A number of seconds for each place.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Places {
    pub wired: f64,
    pub access: f64,
    pub sender: f64,
}

/// A number of packets for each place.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lost {
    pub wired: u64,
    pub access: u64,
    pub unknown: u64,
}

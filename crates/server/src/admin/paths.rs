//! What PEPs have shown of the paths of an origin's connections, as metrics show it.

use serde::Serialize;

/// The sums over all connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathTotals {
    /// Open connections by their bottleneck.
    pub(crate) connections: PlaceCounts,
    pub(crate) seconds: SecondsAtPlaces,
    pub(crate) lost: LostAtPlaces,
}

/// Connections by their bottleneck.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlaceCounts {
    pub(crate) wired: u64,
    pub(crate) access: u64,
    pub(crate) sender: u64,
}

impl PlaceCounts {
    pub(super) const fn by_place(&self) -> [(&'static str, u64); 3] {
        [("wired", self.wired), ("access", self.access), ("sender", self.sender)]
    }
}

impl SecondsAtPlaces {
    pub(super) const fn by_place(&self) -> [(&'static str, f64); 3] {
        [("wired", self.wired), ("access", self.access), ("sender", self.sender)]
    }
}

impl LostAtPlaces {
    pub(super) const fn by_domain(&self) -> [(&'static str, u64); 3] {
        [("wired", self.wired), ("access", self.access), ("unknown", self.unknown)]
    }
}

/// A number of seconds for each place.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct SecondsAtPlaces {
    pub(crate) wired: f64,
    pub(crate) access: f64,
    pub(crate) sender: f64,
}

/// A number of packets for each place.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct LostAtPlaces {
    pub(crate) wired: u64,
    pub(crate) access: u64,
    pub(crate) unknown: u64,
}

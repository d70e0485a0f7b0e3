use std::collections::BTreeSet;

use crate::quic::StreamId;

/// The flows by the bytes that they hold in the queue. A drop finds the longest one without looking
/// at every flow.
#[derive(Debug, Default)]
pub(super) struct Longest(BTreeSet<(usize, StreamId)>);

impl Longest {
    /// Notes that a flow that held `before` bytes now holds `after`.
    pub(super) fn resize(&mut self, stream: StreamId, before: usize, after: usize) {
        if before != 0 {
            self.0.remove(&(before, stream));
        }
        if after != 0 {
            self.0.insert((after, stream));
        }
    }

    /// The flow that holds the most bytes. Of several equal ones it is the one with the highest
    /// stream ID.
    pub(super) fn get(&self) -> Option<StreamId> {
        self.0.last().map(|&(_, stream)| stream)
    }
}

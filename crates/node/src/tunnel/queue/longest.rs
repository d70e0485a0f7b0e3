use std::collections::BTreeSet;

use crate::quic::StreamId;

/// Which flow holds most of the queue, kept up to date so that a drop does not look at every flow.
#[derive(Debug, Default)]
pub(super) struct Longest(BTreeSet<(usize, StreamId)>);

impl Longest {
    /// A flow that held `before` bytes now holds `after`.
    pub(super) fn resize(&mut self, stream: StreamId, before: usize, after: usize) {
        if before != 0 {
            self.0.remove(&(before, stream));
        }
        if after != 0 {
            self.0.insert((after, stream));
        }
    }

    /// The flow that holds most; of several the one with the highest stream ID.
    pub(super) fn get(&self) -> Option<StreamId> {
        self.0.last().map(|&(_, stream)| stream)
    }
}

use std::collections::{BTreeMap, BTreeSet};

use super::FlowQueue;
use crate::quic::StreamId;

/// Up to this number of flows, a look at every flow costs less than an index.
const FEW: usize = 16;

/// Finds the flow that holds most of the queue. Where there are many flows, an index is kept up to
/// date, so that a drop does not look at every flow.
#[derive(Debug, Default)]
pub(super) struct Longest(BTreeSet<(usize, StreamId)>);

impl Longest {
    /// Notes that a flow held `before` bytes and holds `after` now, as it does in `flows`.
    pub(super) fn resize(
        &mut self,
        flows: &BTreeMap<StreamId, FlowQueue>,
        stream: StreamId,
        (before, after): (usize, usize),
    ) {
        if flows.len() <= FEW {
            self.0.clear();
        } else if self.0.is_empty() {
            self.0.extend(flows.iter().map(|(&stream, flow)| (flow.bytes, stream)));
        } else {
            self.0.remove(&(before, stream));
            self.0.insert((after, stream));
        }
    }

    /// Forgets a flow that holds this number of bytes.
    pub(super) fn remove(&mut self, stream: StreamId, bytes: usize) {
        self.0.remove(&(bytes, stream));
    }

    /// The flow that holds most; of several the one with the highest stream ID.
    pub(super) fn get(&self, flows: &BTreeMap<StreamId, FlowQueue>) -> Option<StreamId> {
        let scan = || flows.iter().max_by_key(|(_, flow)| flow.bytes).map(|(&stream, _)| stream);
        self.0.last().map_or_else(scan, |&(_, stream)| Some(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_and_a_look_at_every_flow_find_the_same() {
        let (mut flows, mut longest) = (BTreeMap::<StreamId, FlowQueue>::new(), Longest::default());
        let mut random = 1_u64;
        for step in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let stream = StreamId(random >> 59);
            if (random >> 40).is_multiple_of(8) {
                if let Some(flow) = flows.remove(&stream) {
                    longest.remove(stream, flow.bytes);
                }
                continue;
            }
            let flow = flows.entry(stream).or_default();
            let before = flow.bytes;
            flow.bytes = usize::try_from(random >> 50 & 15).unwrap();
            let after = flow.bytes;
            longest.resize(&flows, stream, (before, after));
            let scanned = flows.iter().max_by_key(|(_, flow)| flow.bytes).map(|(&it, _)| it);
            assert_eq!(longest.get(&flows), scanned, "step {step}");
        }
    }
}

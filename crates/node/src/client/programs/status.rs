//! What the embedding program sees of the flows.

use std::cmp::Reverse;

use super::{
    Programs, Source,
    flows::{Flow, Life},
};
use crate::client::{FlowKind, FlowPhase, FlowStatus};

impl Programs {
    /// At most this number of flows, the one through which something passed last first, and how many there are.
    pub(in crate::client) fn status(&self, max: usize) -> (Vec<FlowStatus>, usize) {
        let flows = self.flows.all().filter_map(|(source, flow)| Some((kind(*source)?, flow)));
        let mut flows: Vec<_> = flows.collect();
        let number = flows.len();
        flows.sort_by_key(|(_, flow)| Reverse(flow.activity.map(|activity| activity.last)));
        (flows.into_iter().take(max).map(|(kind, flow)| status(kind, flow)).collect(), number)
    }
}

/// What the flow of this source is for. `None`: no program has it yet.
const fn kind(source: Source) -> Option<FlowKind> {
    match source {
        Source::Ahead(_) => None,
        Source::Udp(_) => Some(FlowKind::Udp),
        Source::Own(_) => Some(FlowKind::Embedded),
        Source::Associate(_) => Some(FlowKind::SocksUdp),
        Source::Tcp(_) => Some(FlowKind::Tcp),
    }
}

fn status(kind: FlowKind, flow: &Flow) -> FlowStatus {
    FlowStatus {
        kind,
        target: flow.request.authority(),
        phase: match flow.life {
            Life::Waiting => FlowPhase::Waiting,
            Life::Requested(_) => FlowPhase::Asked,
            Life::Granted(_) => FlowPhase::Open,
            Life::Idle => FlowPhase::Idle,
            Life::Closing(..) => FlowPhase::Closing,
        },
        to_target_bytes: flow.to_target_bytes,
        to_client_bytes: flow.to_client_bytes,
        began: flow.activity.map(|activity| activity.began),
        last: flow.activity.map(|activity| activity.last),
    }
}

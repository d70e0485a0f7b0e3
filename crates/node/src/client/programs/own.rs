//! The flows that the embedding program opens itself, whose payloads it gives to the client and
//! takes from it.

use std::collections::VecDeque;

use bytes::Bytes;
use tandem_wire::{OwnCapsule, TunnelInfo};

use super::{
    Context, Source,
    flows::{Flows, Life},
};
use crate::{error::ClientError, limits::Limits};

/// The name of a flow that the embedding program opens. The program chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// What happened on a flow that the embedding program opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    /// The proxy has granted the flow. This event comes again after the tunnel was rebuilt.
    Opened,
    /// A payload of the target.
    Payload(Bytes),
    /// A report of the proxy on the flow.
    Report(TunnelInfo),
    /// A capsule of the proxy that only the flow's service can read. Flows of UDP payloads have none.
    Capsule(OwnCapsule),
    /// The flow has ended, because the proxy refused it or closed it. This is its last event.
    Ended(ClientError),
}

/// What the embedding program has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Own {
    events: VecDeque<(FlowId, FlowEvent)>,
}

impl Own {
    pub(super) fn tell(&mut self, id: FlowId, event: FlowEvent) {
        self.events.push_back((id, event));
    }

    /// Handles the grant of a flow. A program that has closed it meanwhile is told nothing.
    pub(super) fn on_granted(&mut self, id: FlowId, flows: &Flows) {
        let is_open = |life| matches!(life, Life::Granted(_));
        if flows.get(Source::Own(id)).is_some_and(|flow| is_open(flow.life)) {
            self.tell(id, FlowEvent::Opened);
        }
    }

    /// Handles a payload of the target. It is dropped if the program has not taken those before it.
    pub(super) fn on_payload(
        &mut self,
        id: FlowId,
        payload: Bytes,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let flow = flows.get_mut(Source::Own(id)).filter(|flow| flow.life.stream().is_some());
        let Some(flow) = flow else {
            cx.stats.dropped.unknown_flow += 1; // the program has closed it
            return;
        };
        if flow.queued >= cx.limits.flow_queue {
            cx.stats.dropped.queue_full += 1;
            return;
        }
        flow.on_received(cx.now, payload.len());
        flow.queued += 1;
        cx.stats.count_to_client(payload.len());
        self.tell(id, FlowEvent::Payload(payload));
    }

    /// Tells the program of a report or a capsule of the proxy. It is dropped if many events wait, so that no proxy can
    /// fill the memory. The next report follows soon.
    pub(super) fn offer(&mut self, id: FlowId, event: FlowEvent, limits: &Limits) {
        if self.events.len() < limits.flow_queue {
            self.tell(id, event);
        }
    }

    /// Forgets the events of a flow that its program has closed.
    pub(super) fn forget_events(&mut self, id: FlowId) {
        self.events.retain(|(of, _)| *of != id);
    }

    pub(super) fn poll_event(&mut self, flows: &mut Flows) -> Option<(FlowId, FlowEvent)> {
        let (id, event) = self.events.pop_front()?;
        if matches!(event, FlowEvent::Payload(_))
            && let Some(flow) = flows.get_mut(Source::Own(id))
        {
            flow.queued = flow.queued.saturating_sub(1);
        }
        Some((id, event))
    }
}

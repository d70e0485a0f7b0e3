//! How the payloads of a flow are repaired, and how that changes while the flow lasts.

use std::time::Instant;

use tandem_wire::{RepairField, RetransmissionLimit, VarInt};

use super::{
    ClientTunnel, End, RepairOffer, RepairPlan, Tunnel,
    agreement::wanted_limit,
    capsules::encode_repair,
    contexts::{NUMBERED_BY_CLIENT, NUMBERED_BY_PROXY, PayloadKind},
};
use crate::impossible::impossible;
use crate::{client::Choice, mode::Repair, quic::StreamId};

impl<E: End> Tunnel<E> {
    /// Handles a capsule of a peer that speaks draft-yang-masque-dgram-retrans. It says how often
    /// to retransmit lost datagrams.
    pub(super) fn on_limit(&mut self, stream: StreamId, limit: RetransmissionLimit) {
        if let Some(flow) = self.flows.get(&stream)
            && flow.repair == RepairOffer::Draft
            && let Some(limit) = wanted_limit(limit)
        {
            self.queue.set_repair(stream, RepairPlan::unnumbered(limit, flow.too_large));
        }
    }

    /// Starts the repair that two ends with our protocol agreed on. This end sends numbered
    /// payloads under the Context ID `ours`, and the peer sends them under `theirs`.
    pub(super) fn repair_numbered(
        &mut self,
        stream: StreamId,
        ours: VarInt,
        theirs: VarInt,
        wish: Repair,
    ) {
        let Some(flow) = self.flows.get_mut(&stream) else {
            return impossible("repair is agreed on for a flow");
        };
        flow.contexts.register(theirs, PayloadKind::Numbered);
        self.queue.set_repair(stream, RepairPlan::numbered(ours, wish, flow.too_large));
        self.egress.insert(stream, wish.order, wish.deadline);
        self.orders.count(wish.order);
    }

    /// Changes the repair of a flow, as its client asks.
    pub(super) fn on_repair(&mut self, now: Instant, stream: StreamId, field: RepairField) {
        let flow = self.flows.get(&stream).filter(|flow| E::IS_PROXY && flow.is_granted);
        if let Some(flow) = flow
            && matches!(flow.repair, RepairOffer::Ours(_))
        {
            let plan = RepairPlan::numbered(NUMBERED_BY_PROXY, field.into(), flow.too_large);
            self.queue.set_repair(stream, plan);
            self.egress.set_order(now, stream, field.order);
            self.orders.count(field.order);
        } else {
            self.dropped.malformed += 1;
        }
    }
}

impl ClientTunnel {
    /// Whether the repair of a flow may be changed while it lasts.
    pub(crate) fn adapts(&self, stream: StreamId) -> bool {
        let flow = self.flows.get(&stream).filter(|_| self.end.adapts());
        flow.is_some_and(|flow| matches!(flow.repair, RepairOffer::Ours(_)))
    }

    /// Changes the order of a flow's payloads at both exits of the tunnel, if the mode leaves that to the client.
    /// Returns whether it was another before.
    pub(crate) fn choose(&mut self, now: Instant, stream: StreamId, choice: Choice) -> bool {
        if !self.adapts(stream) {
            return false;
        }
        let wish = self.flows.get_mut(&stream).and_then(|flow| flow.wish.as_mut());
        let Some(wish) = wish.filter(|wish| wish.order != choice.order()) else { return false }; // it is so already
        wish.order = choice.order();
        let field = wish.to_field(NUMBERED_BY_CLIENT);
        self.egress.set_order(now, stream, field.order);
        self.orders.count(field.order);
        self.queue.push_capsule(stream, encode_repair(&field));
        true
    }
}

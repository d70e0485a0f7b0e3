//! What only the proxy's end of a tunnel does: it grants flows, and reports on them.

use std::time::{Duration, Instant};

use http::HeaderMap;
use tandem_wire::{GroupField, QuarterStreamId};

use super::{
    Carrier, Flow, Form, RepairOffer, Role, TooLarge, Tunnel,
    agreement::{Asked, Granted},
    contexts::{NUMBERED_BY_PROXY, REPORTS_OF_PROXY},
};
use crate::{
    limits::Limits,
    quic::{SendDatagram, StreamId},
};

/// The settings of a proxy's end.
#[derive(Debug)]
pub(super) struct ProxyEnd {
    /// How often to report; `None`: once in the tunnel's least RTT.
    pub(super) interval: Option<Duration>,
    /// Request streams that the client may have open.
    pub(super) request_streams: u32,
}

impl Tunnel {
    /// The proxy's end of a tunnel, which reports once in `interval`, or, without one, once in the
    /// tunnel's least RTT.
    pub(crate) fn proxy(interval: Option<Duration>, limits: &Limits) -> Self {
        let end = ProxyEnd { interval, request_streams: limits.request_streams };
        Self::new(Role::Proxy(end), limits)
    }

    /// A permitted request came, which waits for its grant. What came before it waits too.
    pub(crate) fn on_request(&mut self, carrier: &Carrier<'_>, stream: StreamId, asked: Asked) {
        // A client that did not enable HTTP Datagrams takes only capsules. Its SETTINGS may be late.
        let form = if carrier.refuses_datagrams() { Form::Capsule } else { Form::Datagram };
        let mut flow = Flow::new(stream, form, self.capsule_max);
        flow.too_large = asked.promised.map_or(TooLarge::Drop, TooLarge::Capsule);
        if form == Form::Datagram {
            flow.repair = asked.repair; // streams repair by themselves
        }
        flow.asked = Some(asked);
        self.flows.insert(stream, flow);
        self.prioritise(stream, &asked);
        self.dropped.unknown_flow += self.early.on_request(stream) as u64;
    }

    fn prioritise(&mut self, stream: StreamId, asked: &Asked) {
        self.queue.set_urgency(stream, asked.urgency);
        self.queue.set_weight(stream, asked.weight.unwrap_or(1));
    }

    /// Grants a flow. Returns the fields of the answer that say what is agreed on.
    pub(crate) fn grant(&mut self, now: Instant, stream: StreamId) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let Some(flow) = self.flows.get_mut(&stream) else { return headers };
        flow.is_granted = true;
        let asked = flow.asked;
        // Reports go in datagrams only.
        let weight = asked.and_then(|asked| asked.weight).filter(|_| flow.form == Form::Datagram);
        let is_reported = weight.is_some_and(|weight| {
            self.reporter.insert(now, stream, weight, self.queue.urgency(stream))
        });
        if is_reported {
            self.queue.set_reported();
        }
        let granted = Granted {
            promised: asked.and_then(|asked| asked.promised),
            repair: flow.repair,
            reports: is_reported.then_some(REPORTS_OF_PROXY),
            group: asked.and_then(|asked| asked.group).map(without_first),
        };
        granted.write(&mut headers);
        if let RepairOffer::Ours(field) = flow.repair {
            self.repair_numbered(stream, NUMBERED_BY_PROXY, field.context_id, field.into());
        }
        self.replay_early(stream);
        headers
    }

    /// Lets a request stream join a granted flow whose request allowed it. Returns the fields of the
    /// answer; `None`: it may not join.
    pub(crate) fn join(
        &mut self,
        first: StreamId,
        stream: StreamId,
        asked: &Asked,
    ) -> Option<HeaderMap> {
        let flow = self.flows.get_mut(&first).filter(|flow| flow.is_granted)?;
        let group = flow.asked?.group.map(without_first)?;
        if flow.group.len() >= usize::from(group.streams) {
            return None;
        }
        flow.group.join(stream);
        flow.form = Form::Capsule; // nothing else would need several streams
        let mut joined = Flow::new(stream, Form::Capsule, self.capsule_max);
        joined.is_granted = true;
        joined.first = Some(first);
        self.flows.insert(stream, joined);
        self.prioritise(stream, asked);
        self.dropped.unknown_flow += self.early.on_request(stream) as u64;
        self.replay_early(stream);
        let mut headers = HeaderMap::new();
        Granted { group: Some(group), ..Granted::default() }.write(&mut headers);
        Some(headers)
    }

    /// Sends the reports that are due, ahead of the queue.
    pub(super) fn report_to_client(
        &mut self,
        now: Instant,
        carrier: &mut Carrier<'_>,
        interval: Option<Duration>,
    ) {
        for (stream, info) in self.reporter.take_due(now, carrier, &self.queue, interval) {
            let Some(id) = QuarterStreamId::from_stream_id(stream.0) else { continue };
            let is_sent = carrier.send_datagram(info.to_datagram(id, REPORTS_OF_PROXY));
            self.feedback.sent += u64::from(is_sent == SendDatagram::Taken);
        }
    }
}

/// How the grant names a group: by its size alone.
fn without_first(field: GroupField) -> GroupField {
    GroupField { first: None, ..field }
}

//! The proxy's end of a tunnel, which grants flows and reports on them.

use std::time::{Duration, Instant};

use http::HeaderMap;
use tandem_wire::{Code, GroupField, MAX_UDP_PAYLOAD, QuarterStreamId};

use super::{
    Arrival, Arrived, End, Flow, Form, ProxyTunnel, RepairOffer, Reporter, TooLarge, Tunnel,
    agreement::{Asked, Granted},
    contexts::{NUMBERED_BY_PROXY, REPORTS_OF_PROXY},
};
use crate::{
    carrier::{Carrier, QueueCarrier},
    h3::ConnectionError,
    impossible::impossible,
    limits::Limits,
    mode::Oversize,
    quic::{SendDatagram, StreamId},
    service::Service,
};

/// The settings of a proxy's end.
#[derive(Debug)]
pub(crate) struct ProxyEnd {
    /// The time between reports. `None`: the tunnel's minimum RTT.
    interval: Option<Duration>,
    /// How many request streams the client may have open.
    request_streams: u32,
    /// What becomes of payloads from targets that fit no datagram.
    oversize: Oversize,
}

impl End for ProxyEnd {
    const IS_PROXY: bool = true;

    /// Sends the reports that are due, ahead of the queue.
    fn report(tunnel: &mut ProxyTunnel, now: Instant, carrier: &mut Carrier<'_>) {
        let Tunnel { reporter, queue, end, .. } = tunnel;
        reporter.report_due(now, carrier, queue, end.interval, |carrier, stream, info| {
            let Some(id) = QuarterStreamId::from_stream_id(stream.0) else {
                return impossible("requests are on streams that clients open");
            };
            let is_sent = carrier.send_report(&info, id, REPORTS_OF_PROXY);
            tunnel.feedback.sent += u64::from(is_sent == SendDatagram::Taken);
        });
    }

    fn on_unknown_flow(
        tunnel: &mut ProxyTunnel,
        now: Instant,
        carrier: &Carrier<'_>,
        &Arrived { stream, context_id, ref payload, .. }: &Arrived,
    ) -> Option<Arrival> {
        if carrier.cannot_come(stream, tunnel.end.request_streams) {
            // RFC 9297 §2.1: a datagram for "a stream that cannot be created due to
            // client-initiated bidirectional stream limits [...] SHOULD be treated as an HTTP/3
            // connection error of type H3_ID_ERROR."
            tunnel.dropped.unknown_flow += 1;
            let reason = format!("a datagram for stream {stream}, beyond the limit").into();
            return Some(Arrival::Broken(ConnectionError { code: Code::H3_ID_ERROR, reason }));
        }
        let (id, rtt) = ((stream, context_id), carrier.smoothed_rtt());
        let is_kept = carrier.may_come(stream) && tunnel.early.keep_unseen(now, id, payload, rtt);
        tunnel.dropped.unknown_flow += u64::from(!is_kept);
        None
    }
}

impl ProxyTunnel {
    /// The proxy's end of a tunnel. It reports once per `interval`, or once per minimum RTT of the
    /// tunnel without one.
    pub(crate) fn proxy(interval: Option<Duration>, oversize: Oversize, limits: &Limits) -> Self {
        let end = ProxyEnd { interval, request_streams: limits.request_streams, oversize };
        Self::new(end, Reporter::to_client(), limits)
    }

    /// Handles a permitted request, which now waits for its grant. Payloads that arrived before the
    /// request wait with it.
    pub(crate) fn on_request(
        &mut self,
        carrier: &Carrier<'_>,
        stream: StreamId,
        service: Service,
        asked: Asked,
    ) {
        // A client that did not enable HTTP Datagrams accepts only capsules. Its SETTINGS may
        // arrive later.
        let form = if carrier.refuses_datagrams() { Form::Capsule } else { Form::Datagram };
        let mut flow = Flow::new(stream, form, self.decoder(service));
        flow.too_large = match (self.end.oversize, asked.promised) {
            (Oversize::Auto, Some(size)) => TooLarge::Capsule(size),
            (Oversize::Capsule, _) => TooLarge::Capsule(MAX_UDP_PAYLOAD),
            (Oversize::Auto, None) | (Oversize::Drop, _) => TooLarge::Drop,
        };
        if form == Form::Datagram {
            flow.repair = asked.repair; // QUIC itself repairs streams
        }
        flow.asked = Some(asked);
        self.flows.insert(stream, Box::new(flow));
        self.prioritise(stream, &asked);
        self.dropped.unknown_flow += self.early.on_request(stream) as u64;
    }

    fn prioritise(&mut self, stream: StreamId, asked: &Asked) {
        self.queue.set_urgency(stream, asked.urgency);
        self.queue.set_weight(stream, asked.weight.unwrap_or(1));
    }

    /// Grants a flow. Returns the header fields of the answer, which say what is agreed on.
    pub(crate) fn grant(&mut self, now: Instant, stream: StreamId) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let Some(flow) = self.flows.get_mut(&stream) else {
            return impossible("only what was requested is granted");
        };
        flow.is_granted = true;
        let asked = flow.asked;
        // Reports are sent in datagrams only.
        let weight = asked.and_then(|asked| asked.weight).filter(|_| flow.form == Form::Datagram);
        if let Some(weight) = weight {
            self.reporter.insert(now, stream, weight, self.queue.urgency(stream));
            self.queue.set_reported();
        }
        let granted = Granted {
            promised: asked
                .and_then(|asked| asked.promised)
                .filter(|_| flow.too_large != TooLarge::Drop),
            repair: flow.repair,
            reports: weight.map(|_| REPORTS_OF_PROXY),
            group: asked.and_then(|asked| asked.group).map(without_first),
            beside: false, // its fields are written elsewhere
        };
        granted.write(&mut headers);
        if let RepairOffer::Ours(field) = flow.repair {
            self.repair_numbered(stream, NUMBERED_BY_PROXY, field.context_id, field.into());
        }
        self.replay_early(stream);
        headers
    }

    /// Whether the client of a flow reads capsules that say why the flow ends, as ours do.
    pub(crate) fn explains_end(&self, stream: StreamId) -> bool {
        let asked = self.flows.get(&stream).and_then(|flow| flow.asked);
        asked.is_some_and(|asked| asked.promised.is_some())
    }

    /// Lets a request stream join a granted flow whose request allowed it. Returns the header
    /// fields of the answer. `None`: the stream may not join.
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
        flow.form = Form::Capsule; // only capsules use several streams
        // Only flows of UDP payloads are joined.
        let mut joined = Flow::new(stream, Form::Capsule, self.decoder(Service::Udp));
        joined.is_granted = true;
        joined.first = Some(first);
        self.flows.insert(stream, Box::new(joined));
        self.prioritise(stream, asked);
        self.dropped.unknown_flow += self.early.on_request(stream) as u64;
        self.replay_early(stream);
        let mut headers = HeaderMap::new();
        Granted { group: Some(group), ..Granted::default() }.write(&mut headers);
        Some(headers)
    }
}

/// The group field of a grant, which has only the group's size.
fn without_first(field: GroupField) -> GroupField {
    GroupField { first: None, ..field }
}

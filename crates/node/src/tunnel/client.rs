//! What only the client's end of a tunnel does: it asks for flows, and finds out what fits.

use std::time::{Duration, Instant};

use http::HeaderMap;
use tandem_wire::{
    CONTEXT_ID_UDP, GroupField, HttpDatagram, QuarterStreamId, RetransmissionLimit, TunnelInfo,
    Urgency, VarInt,
};

use super::{
    Carrier, Flow, Form, Repair, RepairOffer, RepairPlan, Role, TooLarge, Tunnel,
    agreement::{Granted, LIMIT_LEAST, Wishes, limit_to_ask},
    capsules::encode_limit,
    contexts::{Context, NUMBERED_BY_CLIENT},
    queue::NUMBERS,
};
use crate::{limits::Limits, mode::TunnelMode, quic::StreamId};

/// Smallest UDP payload that QUIC needs (RFC 9000 §14).
const MIN_PAYLOAD: usize = 1200;

/// Common first size of QUIC implementations that do not obey `max_udp_payload_size` (1232, 1252,
/// 1280). It passes through every chain of ours, in capsules if it has to.
const COMMON_PAYLOAD: usize = 1280;

/// The payload size that the path beyond a proxy is taken to carry when payloads go in capsules.
///
/// Any size would do for the tunnel. This one fills a packet of it with the frames around it and leaves
/// room for an acknowledgement. A payload that is a little larger takes two packets, the second nearly
/// empty, and the engine ends a connection when 1024 pieces of a stream wait out of order.
const CAPSULE_PAYLOAD: usize = 1260;

/// What a client asks of each of its flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientEnd {
    form: Form,
    /// Request streams of each flow, if the proxy agrees.
    streams: u8,
    repair: Option<Repair>,
    /// Whether the proxy is asked for reports.
    wants_reports: bool,
    /// Reports on this end of the tunnel go to the connection inside, which sends the body.
    reports_inside: bool,
    own_report: Option<TunnelInfo>,
    /// Size of payloads, in bytes, that the connection inside may count on.
    promised: usize,
    /// The proxy has answered as ours do, which keep what comes before they have granted a flow.
    keeps_early: bool,
}

/// What a request for a flow says beside its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flows {
    pub(crate) urgency: Urgency,
    /// Share of the tunnel among flows of the same urgency, 1 to 64.
    pub(crate) weight: u8,
    /// The flow that the request stream joins.
    pub(crate) first: Option<StreamId>,
}

impl Tunnel {
    /// The client's end of a tunnel.
    pub(crate) fn client(mode: TunnelMode, limits: &Limits) -> Self {
        let end = ClientEnd {
            form: match mode {
                TunnelMode::Mdt | TunnelMode::Rmdt(_) | TunnelMode::Tecc(_) => Form::Datagram,
                TunnelMode::Mst | TunnelMode::Msgt(_) => Form::Capsule,
            },
            streams: match mode {
                TunnelMode::Msgt(streams) => streams.clamp(1, GroupField::STREAMS_MAX),
                _ => 1,
            },
            repair: match mode {
                TunnelMode::Mdt | TunnelMode::Mst | TunnelMode::Msgt(_) => None,
                TunnelMode::Rmdt(repair) | TunnelMode::Tecc(repair) => Some(repair),
            },
            wants_reports: matches!(mode, TunnelMode::Tecc(_)),
            reports_inside: false,
            own_report: None,
            promised: CAPSULE_PAYLOAD,
            keeps_early: false,
        };
        Self::new(Role::Client(end), limits)
    }

    /// A client's end that asks for the same as this one, through a new connection.
    pub(crate) fn renewed(&self, limits: &Limits) -> Self {
        let end = ClientEnd { own_report: None, keeps_early: false, ..*self.client_end() };
        Self::new(Role::Client(end), limits)
    }

    fn client_end(&self) -> &ClientEnd {
        match &self.role {
            Role::Client(end) => end,
            Role::Proxy(_) => unreachable!("only clients ask for flows"),
        }
    }

    fn client_end_mut(&mut self) -> &mut ClientEnd {
        match &mut self.role {
            Role::Client(end) => end,
            Role::Proxy(_) => unreachable!("only clients ask for flows"),
        }
    }

    /// Whether the proxy is asked for reports.
    pub(crate) fn wants_reports(&self) -> bool {
        self.client_end().wants_reports
    }

    /// This client sends the body, so that reports of the proxy are of no use. If the end-to-end
    /// connection is inside this tunnel (`is_last`) and would have got the proxy's reports, it gets
    /// those on this end instead.
    pub(crate) fn report_inside(&mut self, is_last: bool) {
        let end = self.client_end_mut();
        end.reports_inside = std::mem::take(&mut end.wants_reports) && is_last;
    }

    /// Begins the reports on this end for the connection that a flow carries.
    pub(crate) fn begin_reports(&mut self, now: Instant, stream: StreamId) {
        let urgency = self.queue.urgency(stream);
        if self.client_end().reports_inside && !self.reporter.insert(now, stream, 1, urgency) {
            tracing::debug!(%stream, "no reports");
        }
    }

    /// The newest report on this end of the tunnel, once.
    pub(crate) fn take_own_report(&mut self) -> Option<TunnelInfo> {
        self.client_end_mut().own_report.take()
    }

    /// The connection is gone, and with it what could be reported.
    pub(crate) fn end_reports(&mut self) {
        self.reporter.clear();
    }

    /// The proxy's SETTINGS came: chooses the form in which payloads go.
    pub(crate) fn on_settings(&mut self, carrier: &mut Carrier<'_>) {
        if !carrier.takes_datagrams() || carrier.max_datagram_size() == 0 {
            self.client_end_mut().form = Form::Capsule; // which every proxy takes (RFC 9297 §3.5)
        }
        if self.fits_now(carrier) < MIN_PAYLOAD {
            // Its size does not matter: this hop is inside another.
            self.client_end_mut().form = Form::Capsule;
        }
        self.client_end_mut().promised = self.fits_now(carrier);
    }

    /// The fields of a request for a flow, or for a request stream that joins one.
    pub(crate) fn request_fields(&self, wishes: &Flows) -> HeaderMap {
        let end = self.client_end();
        let first = wishes.first.map(|stream| VarInt::saturating_from(stream.0));
        let mut headers = HeaderMap::new();
        let wishes = Wishes {
            promised: end.promised.max(COMMON_PAYLOAD),
            urgency: wishes.urgency,
            weight: wishes.weight,
            wants_reports: end.wants_reports && first.is_none() && end.form == Form::Datagram,
            repair: end.wished_repair(),
            group: (end.streams > 1).then_some(GroupField { streams: end.streams, first }),
        };
        wishes.write(&mut headers);
        headers
    }

    /// A request was sent.
    pub(crate) fn on_requested(&mut self, stream: StreamId, wishes: &Flows) {
        let end = self.client_end();
        let mut flow = Flow::new(stream, end.form, self.capsule_max);
        flow.first = wishes.first;
        let repairs_early = end.keeps_early && end.wished_repair().is_some();
        self.flows.insert(stream, flow);
        self.queue.set_urgency(stream, wishes.urgency);
        self.queue.set_weight(stream, wishes.weight);
        if repairs_early {
            // What goes before the grant, whose Context ID nobody knows yet.
            self.queue.set_repair(stream, RepairPlan::unnumbered(LIMIT_LEAST, TooLarge::Drop));
        }
    }

    /// The proxy granted a flow. Returns how many more request streams the flow may have.
    pub(crate) fn on_granted(&mut self, stream: StreamId, headers: &HeaderMap) -> u8 {
        let (granted, ignored) = Granted::read(headers);
        let Some(flow) = self.flows.get_mut(&stream) else { return 0 };
        flow.is_granted = true;
        if let Some(size) = granted.promised {
            flow.too_large = TooLarge::Capsule(size);
            self.client_end_mut().keeps_early = true;
        }
        self.replay_early(stream);
        let Some(flow) = self.flows.get_mut(&stream) else { return 0 };
        if let Some(first) = flow.first {
            if let Some(first) = self.flows.get_mut(&first) {
                first.group.join(stream);
            }
            return 0;
        }
        if let Some(context_id) = granted.reports {
            flow.contexts.register(context_id, Context::Report { newest: None });
        }
        if let Some(wish) = self.client_end().wished_repair() {
            self.fields_ignored += ignored;
            self.agree_on_repair(stream, granted.repair, wish);
        }
        let streams = granted.group.map_or(1, |group| group.streams);
        streams.min(self.client_end().streams).saturating_sub(1)
    }

    fn agree_on_repair(&mut self, stream: StreamId, repair: RepairOffer, wish: Repair) {
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.repair = repair;
        }
        match repair {
            RepairOffer::None => self.queue.end_repair(stream),
            RepairOffer::Draft => self.ask_limit(stream, LIMIT_LEAST),
            RepairOffer::Ours(field) => {
                self.repair_numbered(stream, NUMBERED_BY_CLIENT, field.context_id, wish);
            }
        }
    }

    /// Asks a proxy that speaks the draft how often to send lost datagrams again.
    fn ask_limit(&mut self, stream: StreamId, limit: u8) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        if std::mem::replace(&mut flow.asked_limit, limit) != limit {
            let limit = VarInt::from_u32(limit.into());
            let frame = encode_limit(RetransmissionLimit { context_id: None, limit });
            self.queue.push_capsule(stream, frame);
        }
    }

    /// The RTT of the connection that a flow carries is known, and so is that of the tunnel.
    pub(crate) fn on_rtt_beyond(&mut self, stream: StreamId, beyond: Duration, tunnel: Duration) {
        if self.flows.get(&stream).is_some_and(|flow| flow.repair == RepairOffer::Draft) {
            self.ask_limit(stream, limit_to_ask(beyond, tunnel));
        }
    }

    /// Whether the proxy granted a flow.
    pub(crate) fn is_granted(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| flow.is_granted)
    }

    /// Whether a request stream has joined, or was to join, the flow of another.
    pub(crate) fn has_joined(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| flow.first.is_some())
    }

    /// Largest UDP payload, in bytes, that the connection which a flow carries may count on, both ways.
    ///
    /// A proxy that did not agree to our promise may itself send smaller packets than we do, and some
    /// end a flow when something does not fit: only QUIC's minimum is certain.
    pub(crate) fn max_payload(&self, stream: Option<StreamId>) -> usize {
        let flow = stream.and_then(|stream| self.flows.get(&stream));
        match flow.map(|flow| flow.too_large) {
            Some(TooLarge::Capsule(_)) => self.client_end().promised,
            Some(TooLarge::Drop) | None => MIN_PAYLOAD,
        }
    }

    /// Whether a payload may go to the proxy before its flow is granted.
    ///
    /// RFC 9298 §5: "A client MAY optimistically start sending UDP packets in HTTP Datagrams before
    /// receiving the response to its UDP proxying request." A proxy may drop them, and a handshake
    /// whose first packet is lost takes a second longer: only a proxy that keeps them gets them.
    pub(crate) fn takes_early(&self, carrier: &mut Carrier<'_>, payload: &[u8]) -> bool {
        self.client_end().keeps_early && payload.len() <= self.fits_now(carrier)
    }

    /// Largest UDP payload, in bytes, that fits the tunnel's packets now.
    fn fits_now(&self, carrier: &mut Carrier<'_>) -> usize {
        /// The longest that a quarter stream ID becomes on a connection with thousands of flows.
        const STREAM: StreamId = StreamId(4 * 63);
        let Some(id) = QuarterStreamId::from_stream_id(STREAM.0) else { return 0 };
        let end = self.client_end();
        match end.form {
            Form::Capsule => CAPSULE_PAYLOAD,
            Form::Datagram => {
                let numbers = if end.repair.is_some() { NUMBERS } else { 0 };
                let overhead = HttpDatagram::overhead(id, CONTEXT_ID_UDP) + numbers;
                carrier.max_datagram_size().saturating_sub(overhead)
            }
        }
    }

    /// Hands reports on this end to the connection inside.
    pub(super) fn report_to_inside(&mut self, now: Instant, carrier: &Carrier<'_>) {
        let due = self.reporter.take_due(now, carrier, &self.queue, None);
        if let Some((_, info)) = due.into_iter().next() {
            self.client_end_mut().own_report = Some(info);
        }
    }
}

impl ClientEnd {
    /// How to repair, unless payloads go on streams, which repair by themselves.
    fn wished_repair(&self) -> Option<Repair> {
        self.repair.filter(|_| self.form == Form::Datagram)
    }
}

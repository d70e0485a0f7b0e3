//! One hop: the connection to a proxy, and the flows through it.

mod incoming;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tandem_wire::{
    CAPSULE_PROTOCOL_TRUE, CONTEXT_ID_UDP, CapsuleDecoder, Code, FeedbackField, FieldError,
    GroupField, HttpDatagram, QuarterStreamId, RequestHead, ResponseHead, RetransmissionLimit,
    Template, TunnelInfo, Urgency, VarInt,
};

use super::{
    TunnelMode,
    flow::{Carries, Flow, Target},
    peer::Peer,
    reports::Reports,
};
use crate::{
    error::ClientError,
    fields::FEEDBACK,
    h3::End,
    limits::Limits,
    proxy::Token,
    quic::{self, StreamId},
    repair_fields::{
        self, CONTEXT_ID_OF_CLIENT, LIMIT_LEAST, Repair, Said, Writer, limit_to_ask, wanted_limit,
    },
    reporter::Reporter,
    resequence::ResequencerStats,
    stats::Repaired,
    stream_group::{self, GROUP, StreamGroup},
    tunnel_exit::{ExitPlan, TunnelExit},
    tunnel_queue::{
        Form, LateDrops, NUMBERS, PROMISED_SIZE, Payload, Push, RepairPlan, TooLarge, TunnelQueue,
        promised_size,
    },
};

/// Smallest UDP payload that QUIC needs (RFC 9000 §14).
const MIN_PAYLOAD: usize = 1200;

/// Common first size of QUIC implementations that do not heed `max_udp_payload_size` (1232, 1252,
/// 1280): it is to pass through every chain of ours, if need be in capsules.
const COMMON_PAYLOAD: usize = 1280;

/// What the path beyond a proxy is taken to carry when payloads go in capsules.
///
/// Any size would do for the tunnel, but this one fills a packet of it with the frames around it, room
/// for an acknowledgement left. What is a little larger takes two packets, the second nearly empty,
/// and of 1024 pieces that wait out of order on a stream the engine ends the connection.
const CAPSULE_PAYLOAD: usize = 1260;

/// One hop.
pub(super) struct Hop {
    pub(super) peer: Peer,
    template: Template,
    token: Option<Token>,
    queue: TunnelQueue,
    /// Where the proxy's repaired payloads come out.
    exit: TunnelExit<StreamId>,
    form: Form,
    /// Request streams of each flow, if the proxy agrees.
    streams: u8,
    /// How to repair, if at all.
    repair: Option<Repair>,
    /// Whether the proxy is asked to tell of the tunnel.
    wants_feedback: bool,
    reports: Reports,
    /// Tells the connection inside of this end of the tunnel, if it is ours and follows it.
    reporter: Option<Reporter>,
    own_report: Option<TunnelInfo>,
    /// Size of payloads that the connection inside may count on.
    promised: usize,
    /// The proxy has answered as ours do, which keep what comes before they have granted a flow.
    keeps_early: bool,
    /// Longest value of a capsule.
    capsule_max: usize,
    /// Request streams that may have something to read.
    readable: BTreeSet<StreamId>,
    early_max: usize,
    pub(super) flows: BTreeMap<StreamId, Flow>,
    /// The flow that carries the next peer.
    pub(super) next: Option<StreamId>,
}

impl Hop {
    pub(super) fn new(
        peer: Peer,
        template: Template,
        token: Option<Token>,
        mode: TunnelMode,
        limits: &Limits,
    ) -> Self {
        Self {
            peer,
            template,
            token,
            queue: TunnelQueue::new(limits),
            exit: TunnelExit::new(limits.held_bytes),
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
            wants_feedback: matches!(mode, TunnelMode::Tecc(_)),
            reports: Reports::default(),
            reporter: None,
            own_report: None,
            promised: CAPSULE_PAYLOAD,
            keeps_early: false,
            capsule_max: limits.capsule,
            readable: BTreeSet::new(),
            early_max: limits.early_datagrams_per_flow,
            flows: BTreeMap::new(),
            next: None,
        }
    }

    /// What the proxy lacks, once its SETTINGS came; `None`: they have not come.
    pub(super) fn lacks(&mut self) -> Option<Result<(), &'static str>> {
        let (session, connection) = self.peer.parts()?;
        let settings = session.peer_settings()?;
        // RFC 9220 §3: a client MUST NOT use extended CONNECT before the setting came. RFC 9297
        // §2.1.1: "QUIC DATAGRAM frames MUST NOT be sent until the SETTINGS_H3_DATAGRAM setting has
        // been both sent and received with a value of 1."
        if !settings.enable_connect_protocol {
            return Some(Err("extended CONNECT (RFC 9220)"));
        }
        if !settings.h3_datagram || connection.max_datagram_size().is_none() {
            self.form = Form::Capsule; // which every proxy takes (RFC 9297 §3.5)
        }
        if self.fits_now() < MIN_PAYLOAD {
            self.form = Form::Capsule; // whose size does not matter: this hop is inside another
        }
        self.promised = self.fits_now();
        Some(Ok(()))
    }

    /// Asks for a flow. `Ok(None)`: the proxy allows no more at the moment.
    pub(super) fn request(&mut self, target: &Target, carries: Carries) -> Option<StreamId> {
        let stream = self.send_request(target, carries, None)?;
        if carries == Carries::NextPeer {
            self.next = Some(stream);
        }
        Some(stream)
    }

    fn send_request(
        &mut self,
        target: &Target,
        carries: Carries,
        first: Option<StreamId>,
    ) -> Option<StreamId> {
        let expanded = self.template.expand(&target.host, target.port);
        let mut headers = HeaderMap::new();
        headers.insert(
            HeaderName::from_static("capsule-protocol"),
            HeaderValue::from_static(CAPSULE_PROTOCOL_TRUE),
        );
        headers.insert(PROMISED_SIZE, HeaderValue::from(self.promised.max(COMMON_PAYLOAD)));
        if target.urgency != Urgency::default() {
            headers.insert(Urgency::FIELD, target.urgency.field_value());
        }
        if self.streams > 1 {
            let first = first.map(|stream| VarInt::saturating_from(stream.0));
            headers.insert(GROUP, GroupField { streams: self.streams, first }.encode());
        }
        if let Some(repair) = self.wished_repair() {
            repair_fields::ask(&mut headers, &repair);
        }
        let wants_reports = self.wants_feedback && first.is_none() && self.form == Form::Datagram;
        if wants_reports || target.weight != 1 {
            headers.insert(FEEDBACK, FeedbackField::Request { weight: target.weight }.encode());
        }
        if let Some(token) = &self.token
            && let Ok(mut value) = HeaderValue::from_str(&token.field_value())
        {
            value.set_sensitive(true);
            headers.insert(header::PROXY_AUTHORIZATION, value);
        }
        // RFC 9298 §3.4: ":method" SHALL be "CONNECT", ":protocol" "connect-udp", ":authority" that
        // of the UDP proxy, and ":path" and ":scheme" those of the expanded template.
        let head = RequestHead {
            method: Method::CONNECT,
            scheme: Some(expanded.scheme),
            authority: Some(expanded.authority),
            path: Some(expanded.path),
            protocol: Some("connect-udp".to_owned()),
            headers,
        };
        let (session, connection) = self.peer.parts()?;
        // RFC 9220 §3: "a client MUST NOT" use extended CONNECT before the setting came.
        session.peer_settings()?;
        let stream = session.send_request(connection, &head, End::More)?;
        let flow = Flow {
            carries,
            target: target.clone(),
            is_granted: false,
            early: Vec::new(),
            first,
            group: StreamGroup::new(stream),
            too_large: TooLarge::Drop,
            capsules: CapsuleDecoder::new(self.capsule_max),
            repair: Said::Nothing,
            asked_limit: 0,
        };
        self.flows.insert(stream, flow);
        self.queue.set_urgency(stream, target.urgency);
        self.queue.set_weight(stream, target.weight);
        if self.keeps_early && self.wished_repair().is_some() {
            // What goes before the grant, whose Context ID nobody knows yet.
            self.queue.set_repair(stream, RepairPlan::unnumbered(LIMIT_LEAST, TooLarge::Drop));
        }
        Some(stream)
    }

    /// Largest UDP payload that the connection to the next peer may count on, both ways.
    ///
    /// A proxy that did not agree to our promise may itself send smaller packets than we do, and some
    /// end a flow when something does not fit: QUIC's least is certain.
    pub(super) fn max_payload(&self) -> usize {
        let flow = self.next.and_then(|stream| self.flows.get(&stream));
        match flow.map(|flow| flow.too_large) {
            Some(TooLarge::Capsule(_)) => self.promised,
            Some(TooLarge::Drop) | None => MIN_PAYLOAD,
        }
    }

    /// Whether a payload may go to the proxy before the flow is granted.
    ///
    /// RFC 9298 §5: "A client MAY optimistically start sending UDP packets in HTTP Datagrams before
    /// receiving the response to its UDP proxying request." A proxy may drop them, and a handshake
    /// whose first packet is lost takes a second longer: only one that keeps them gets them.
    pub(super) fn takes_early(&mut self, payload: &[u8]) -> bool {
        self.keeps_early && payload.len() <= self.fits_now()
    }

    fn fits_now(&mut self) -> usize {
        /// The longest that a quarter stream ID becomes on a connection with thousands of flows.
        const STREAM: StreamId = StreamId(4 * 63);
        let Some(id) = QuarterStreamId::from_stream_id(STREAM.0) else { return 0 };
        match self.form {
            Form::Capsule => CAPSULE_PAYLOAD,
            Form::Datagram => {
                let numbers = if self.repair.is_some() { NUMBERS } else { 0 };
                let overhead = HttpDatagram::overhead(id, CONTEXT_ID_UDP) + numbers;
                self.max_datagram_size().saturating_sub(overhead)
            }
        }
    }

    /// The proxy granted a flow. Returns why its word on repair is ignored, if it is.
    pub(super) fn on_granted(
        &mut self,
        stream: StreamId,
        head: &ResponseHead,
    ) -> Option<FieldError> {
        let flow = self.flows.get_mut(&stream)?;
        let target_weight = flow.target.weight;
        flow.is_granted = true;
        if let Some(size) = promised_size(&head.headers) {
            flow.too_large = TooLarge::Capsule(size);
            self.keeps_early = true;
        }
        if let Some(first) = flow.first {
            self.flows.get_mut(&first)?.group.join(stream);
            return None;
        }
        self.invite(stream, &head.headers);
        if self.wants_feedback || target_weight != 1 {
            self.reports.on_granted(stream, &head.headers);
        }
        let repair = self.wished_repair()?;
        let (said, error) = repair_fields::read(&head.headers, Writer::Proxy);
        let flow = self.flows.get_mut(&stream)?;
        flow.repair = said;
        match said {
            Said::Nothing => self.queue.end_repair(stream),
            Said::Draft => self.ask_limit(stream, LIMIT_LEAST),
            Said::Ours(field) => {
                let plan = RepairPlan::numbered(CONTEXT_ID_OF_CLIENT, repair, flow.too_large);
                self.queue.set_repair(stream, plan);
                self.exit.insert(stream, ExitPlan::new(field.context_id, repair));
            }
        }
        error
    }

    /// Asks for the other request streams of a flow if the proxy agreed to them.
    fn invite(&mut self, first: StreamId, headers: &HeaderMap) {
        let Some(flow) = self.flows.get(&first) else { return };
        let (carries, target) = (flow.carries, flow.target.clone());
        let agreed = stream_group::read(headers).0.map_or(1, |field| field.streams);
        for _ in 1..agreed.min(self.streams) {
            // The proxy may allow no more streams at the moment: then the flow has fewer.
            if self.send_request(&target, carries, Some(first)).is_none() {
                return;
            }
        }
    }

    /// Whether a request stream has joined, or was to join, the flow of another.
    pub(super) fn has_joined(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| flow.first.is_some())
    }

    /// Whether the proxy is asked to tell of the tunnel.
    pub(super) const fn wants_feedback(&self) -> bool {
        self.wants_feedback
    }

    /// It is this client that sends: what the proxy could tell is of no use. In mode tecc the
    /// end-to-end connection is told of this end of the tunnel instead, if it is inside of this hop.
    pub(super) fn report_inside(&mut self, is_last: bool) {
        let is_told = std::mem::take(&mut self.wants_feedback);
        self.reporter = (is_told && is_last).then(Reporter::default);
    }

    /// The flow that carries the next peer is granted.
    pub(super) fn begin_reports(&mut self, now: Instant) {
        if let (Some(reporter), Some(stream)) = (&mut self.reporter, self.next)
            && !reporter.insert(now, stream, 1, self.queue.urgency(stream))
        {
            tracing::debug!(%stream, "no reports");
        }
    }

    /// The newest report on this end of the tunnel, once.
    pub(super) fn take_own_report(&mut self) -> Option<TunnelInfo> {
        self.own_report.take()
    }

    /// How to repair, unless payloads go on streams, which repair by themselves.
    fn wished_repair(&self) -> Option<Repair> {
        self.repair.filter(|_| self.form == Form::Datagram)
    }

    /// Asks a proxy that speaks the draft how often to send lost datagrams again.
    fn ask_limit(&mut self, stream: StreamId, limit: u8) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        if std::mem::replace(&mut flow.asked_limit, limit) != limit {
            let limit = VarInt::from_u32(limit.into());
            let mut capsule = Vec::new();
            RetransmissionLimit { context_id: None, limit }.encode(&mut capsule);
            self.queue.push_capsule(stream, &capsule);
        }
    }

    /// The RTT of the connection inside is known.
    pub(super) fn on_rtt_beyond(&mut self, end_to_end: Duration) {
        let Some(stream) = self.next else { return };
        if self.flows.get(&stream).is_some_and(|flow| flow.repair == Said::Draft) {
            let limit = limit_to_ask(end_to_end, self.peer.stats().smoothed_rtt);
            self.ask_limit(stream, limit);
        }
    }

    /// The proxy says how often to send lost datagrams again.
    fn on_limit(&mut self, stream: StreamId, limit: RetransmissionLimit) {
        let Some(flow) = self.flows.get(&stream) else { return };
        if flow.repair == Said::Draft
            && let Some(limit) = wanted_limit(limit)
        {
            self.queue.set_repair(stream, RepairPlan::unnumbered(limit, flow.too_large));
        }
    }

    /// Begins anew with a new connection, whose random choices differ from those before.
    pub(super) fn renew(&mut self, generation: u64, limits: &Limits) {
        let mut settings = self.peer.settings.clone();
        settings.seed = settings.seed.map(|seed| seed.wrapping_add(generation << 32));
        self.peer = Peer::new(settings, limits);
        self.queue = TunnelQueue::new(limits);
        self.exit.clear();
        self.reports = Reports::default();
        self.reporter = self.reporter.take().map(|_| Reporter::default());
        self.keeps_early = false;
        self.readable.clear();
        self.flows.clear();
        self.next = None;
    }

    fn max_datagram_size(&mut self) -> usize {
        self.peer.parts().and_then(|(_, connection)| connection.max_datagram_size()).unwrap_or(0)
    }

    /// Bytes of encoded payloads that wait in the tunnel's queue.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Puts a payload into the tunnel's queue.
    pub(super) fn send(&mut self, now: Instant, stream: StreamId, data: Bytes) -> Push {
        let max_datagram_size = self.max_datagram_size();
        let Self { flows, queue, .. } = self;
        let (mut too_large, mut stream) = (TooLarge::Drop, stream);
        if let Some(flow) = flows.get_mut(&stream) {
            too_large = flow.too_large;
            stream = flow.group.pick(|it| queue.waiting(it)).unwrap_or(stream);
        }
        if let Some(reporter) = &mut self.reporter {
            reporter.on_arrival(now, stream, data.len());
        }
        let payload = Payload { form: self.form, too_large, data };
        self.queue.push(now, stream, payload, max_datagram_size)
    }

    /// Gives the engine as much as it takes. Returns what was dropped and repaired meanwhile.
    pub(super) fn feed(&mut self, now: Instant) -> (LateDrops, Repaired) {
        let Self { peer, queue, reporter, next, .. } = self;
        if let Some((session, connection)) = peer.parts() {
            if let Some(reporter) = reporter {
                let due = reporter.take_due(now, connection, queue, None);
                self.own_report = due.into_iter().map(|(_, info)| info).next();
            }
            queue.feed(now, session, connection);
            if let Some(reporter) = reporter {
                reporter.observe(now, queue);
            }
        } else if let (Some(reporter), Some(stream)) = (reporter, *next) {
            reporter.remove(stream); // so that nothing is due of a connection that has gone
        }
        (self.queue.take_drops(), self.queue.take_repaired())
    }

    pub(super) fn exit_stats(&self) -> ResequencerStats {
        self.exit.stats()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.exit.handle_timeout(now);
    }

    /// When its queue and its exit want to be looked at.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let report = self.reporter.as_ref().and_then(Reporter::next_timeout);
        let next = quic::earliest(self.queue.next_timeout(), self.exit.next_timeout());
        quic::earliest(next, report)
    }

    /// A request stream that was blocked has room again.
    pub(super) fn on_writable(&mut self, stream: StreamId) {
        self.queue.on_writable(stream);
    }

    /// Closes a flow, with what its proxy is told.
    pub(super) fn close_flow(&mut self, stream: StreamId, code: Code) {
        let flow = self.flows.remove(&stream);
        if let Some(first) = flow.and_then(|flow| flow.first) {
            if let Some(first) = self.flows.get_mut(&first) {
                first.group.leave(stream);
            }
        } else if self.streams > 1 {
            let joined = self.flows.iter().filter(|(_, flow)| flow.first == Some(stream));
            for joined in joined.map(|(joined, _)| *joined).collect::<Vec<_>>() {
                self.close_flow(joined, code);
            }
        }
        self.queue.remove(stream);
        self.exit.remove(stream);
        self.reports.remove(stream);
        if let Some(reporter) = &mut self.reporter {
            reporter.remove(stream);
        }
        if let Some((session, connection)) = self.peer.parts() {
            session.reset(connection, stream, code);
        }
    }

    /// What a refusal of this proxy means.
    pub(super) fn refused(&self, target: String, head: &ResponseHead) -> ClientError {
        let proxy_status = head
            .headers
            .get("proxy-status")
            .map(|value| printable(&String::from_utf8_lossy(value.as_bytes())));
        ClientError::Refused {
            peer: self.peer.settings.authority.clone(),
            target,
            status: head.status.as_u16(),
            proxy_status,
        }
    }
}

/// What a stranger wrote, fit for a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

//! The client's end of a tunnel, which requests flows and finds out which payload sizes fit.

use std::time::{Duration, Instant};

use http::HeaderMap;
use tandem_wire::{
    CONTEXT_ID_UDP, FeedbackField, ForwardingGrant, GroupField, HttpDatagram, MAX_UDP_PAYLOAD,
    Order, QuarterStreamId, RepairField, RetransmissionLimit, SealField, TunnelInfo, Urgency,
    VarInt,
};

use super::{
    Arrival, Arrived, ClientTunnel, End, Flow, Form, Repair, RepairOffer, RepairPlan, Reporter,
    TooLarge,
    agreement::{Granted, LIMIT_LEAST, Wishes, limit_to_ask},
    capsules::encode_limit,
    contexts::{NUMBERED_BY_CLIENT, PayloadKind},
    doubt::Doubt,
    queue::NUMBERS,
};
use crate::{
    carrier::{Carrier, QueueCarrier},
    impossible::impossible,
    limits::Limits,
    mode::{Agreement, Lesser, Mode, Oversize, TunnelMode},
    quic::StreamId,
    service::Service,
};

/// The UDP payload size that every path of a QUIC connection must carry (RFC 9000 §14).
const MIN_PAYLOAD: usize = 1200;

/// The largest common initial packet size of QUIC implementations that ignore
/// `max_udp_payload_size` (1232, 1252, 1280). It passes through every chain of ours, in capsules if
/// necessary.
const COMMON_PAYLOAD: usize = 1280;

/// The payload size that a tunnel promises when its payloads go in capsules.
///
/// The tunnel could carry any size. A payload of this size, with the frames around it, fills one
/// packet of the tunnel and leaves room for an acknowledgement. A slightly larger payload would
/// take two packets, the second of them nearly empty. More packets mean more pieces of a stream
/// that wait out of order, and the engine closes a connection at 1024 pieces.
const CAPSULE_PAYLOAD: usize = 1260;

/// The state of a client's end: the parameters of its flows, and the properties of its proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientEnd {
    mode: TunnelMode,
    form: Form,
    /// Why payloads do not travel in the form of the mode.
    lesser: Option<Lesser>,
    /// The agreement on the flow that was granted last.
    agreement: Option<Agreement>,
    /// Whether the agreement changed since the previous flow, or was downgraded on the first.
    is_changed: bool,
    /// Request streams that each flow uses, if the proxy agrees.
    streams: u8,
    repair: Option<Repair>,
    reports: ReportsInUse,
    own_report: Option<TunnelInfo>,
    /// The payload size, in bytes, that the connection inside may rely on.
    promised: usize,
    /// Whether the proxy answered as ours do. Such a proxy keeps payloads that arrive before it has
    /// granted their flow.
    keeps_early: bool,
    /// Whether the proxy's SETTINGS are as ours. It keeps the first payloads of one flow too. Those of many
    /// programs at once would not find room before their requests.
    is_tandem: bool,
}

/// The reports on the tunnel that this client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportsInUse {
    None,
    /// The reports of the proxy, which the client asks for.
    OfProxy,
    /// Reports on this end, for the connection inside, which sends the body.
    OfThisEnd,
}

/// The parameters of a request for a flow, apart from its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flows {
    /// What the flow is for.
    pub(crate) service: Service,
    pub(crate) urgency: Urgency,
    /// Share of the tunnel among flows of the same urgency, 1 to 64.
    pub(crate) weight: u8,
    /// The first request stream of the flow that the request joins.
    pub(crate) first: Option<StreamId>,
    pub(crate) oversize: Oversize,
    /// Whether the flow carries a QUIC connection, which either keeps to the promised size or finds
    /// out by probing what fits.
    pub(crate) carries_quic: bool,
}

impl End for ClientEnd {
    const IS_PROXY: bool = false;

    /// Prepares the report on this end that is due, for the connection inside.
    fn report(tunnel: &mut ClientTunnel, now: Instant, carrier: &mut Carrier<'_>) {
        let mut first = None;
        tunnel.reporter.report_due(now, carrier, &tunnel.queue, None, |_, _, info| {
            first.get_or_insert(info);
        });
        tunnel.end.own_report = first.or(tunnel.end.own_report.take());
    }

    /// Uses datagrams from now on, because the proxy relays no capsules.
    fn distrust_capsules(tunnel: &mut ClientTunnel) {
        let end = &mut tunnel.end;
        (end.form, end.lesser) = (Form::Datagram, Some(Lesser::DropsCapsules));
        end.set_agreement(end.agree(&Granted::default()));
    }

    /// RFC 9297 §2.1: "If a datagram is received after the corresponding stream's receive side is closed, the received
    /// datagrams MUST be silently dropped."
    fn on_unknown_flow(
        tunnel: &mut ClientTunnel,
        _: Instant,
        _: &Carrier<'_>,
        _: &Arrived,
    ) -> Option<Arrival> {
        tunnel.dropped.unknown_flow += 1;
        None
    }
}

impl ClientTunnel {
    /// Whether the proxy is one of ours, as far as it is known.
    pub(crate) const fn is_to_tandem(&self) -> bool {
        self.end.is_tandem
    }

    /// The client's end of a tunnel.
    pub(crate) fn client(mode: TunnelMode, limits: &Limits) -> Self {
        let end = ClientEnd {
            mode,
            lesser: None,
            agreement: None,
            is_changed: false,
            form: match mode {
                // The MASQUE datagram tunnel (MDT), the same with retransmission (RMDT), and RMDT
                // with reports to the origin (TECC).
                // Whatever does not travel beside the connection is in datagrams too.
                TunnelMode::Mdt
                | TunnelMode::Forward
                | TunnelMode::Uack { .. }
                | TunnelMode::Rmdt(_)
                | TunnelMode::Tecc(_)
                | TunnelMode::Auto { .. } => Form::Datagram,
                // The MASQUE stream tunnel (MST), and the stream group tunnel (MSGT).
                TunnelMode::Mst | TunnelMode::Msgt(_) => Form::Capsule,
            },
            streams: match mode {
                TunnelMode::Msgt(streams) => streams.clamp(1, GroupField::STREAMS_MAX),
                _ => 1,
            },
            repair: match mode {
                TunnelMode::Mdt
                | TunnelMode::Forward
                | TunnelMode::Uack { .. }
                | TunnelMode::Mst
                | TunnelMode::Msgt(_) => None,
                TunnelMode::Rmdt(repair)
                | TunnelMode::Tecc(repair)
                | TunnelMode::Auto { repair, .. } => Some(repair),
            },
            reports: match mode {
                TunnelMode::Tecc(_) | TunnelMode::Auto { .. } => ReportsInUse::OfProxy,
                _ => ReportsInUse::None,
            },
            own_report: None,
            promised: CAPSULE_PAYLOAD,
            keeps_early: false,
            is_tandem: false,
        };
        Self::new(end, Reporter::to_inside(), limits)
    }

    /// A client's end for a new connection, with the same settings as this one.
    pub(crate) fn renewed(&self, limits: &Limits) -> Self {
        let mut renewed = Self::client(self.end.mode, limits);
        renewed.end.reports = self.end.reports;
        renewed
    }

    /// Whether payloads travel in datagrams.
    pub(crate) fn sends_datagrams(&self) -> bool {
        self.end.form == Form::Datagram
    }

    /// Whether the proxy is asked for reports.
    pub(crate) fn wants_reports(&self) -> bool {
        self.end.reports == ReportsInUse::OfProxy
    }

    /// Turns the proxy's reports off if the client only uses them where they are for an origin.
    pub(crate) fn report_to_nobody(&mut self) {
        if self.is_auto() {
            self.end.reports = ReportsInUse::None;
        }
    }

    /// Whether the mode is the default.
    pub(crate) fn is_auto(&self) -> bool {
        self.end.mode.name() == Mode::Auto
    }

    /// Turns the proxy's reports off, because this client sends the body itself. If the end-to-end
    /// connection is inside this tunnel (`is_last`) and would have got the proxy's reports, it gets
    /// reports on this end instead.
    pub(crate) fn report_inside(&mut self, is_last: bool) {
        let end = &mut self.end;
        let is_for_inside = end.reports == ReportsInUse::OfProxy && is_last;
        end.reports = if is_for_inside { ReportsInUse::OfThisEnd } else { ReportsInUse::None };
    }

    /// Starts the reports on this end for the connection that a flow carries.
    pub(crate) fn begin_reports(&mut self, now: Instant, stream: StreamId) {
        let urgency = self.queue.urgency(stream);
        if self.end.reports == ReportsInUse::OfThisEnd {
            self.reporter.insert(now, stream, 1, urgency);
        }
    }

    /// Takes the newest report on this end of the tunnel.
    pub(crate) fn take_own_report(&mut self) -> Option<TunnelInfo> {
        self.end.own_report.take()
    }

    /// Ends all reports on this end, because its connection has ended.
    pub(crate) fn end_reports(&mut self) {
        self.reporter.clear();
    }

    /// Handles the proxy's SETTINGS: chooses the form in which payloads are sent.
    pub(crate) fn on_settings(&mut self, carrier: &mut Carrier<'_>) {
        if !carrier.takes_datagrams() || carrier.max_datagram_size() == 0 {
            // Every proxy takes capsules (RFC 9297 §3.5).
            self.end.use_capsules(Lesser::NoDatagrams);
        }
        if self.fits_now(carrier) < MIN_PAYLOAD {
            // This hop is inside another hop whose packets are small, and a stream carries payloads
            // of any size.
            self.end.use_capsules(Lesser::SmallPackets);
        }
        self.end.promised = self.fits_now(carrier);
        self.end.is_tandem = carrier.is_to_tandem();
    }

    /// The fields of a request for a flow, or for a request stream that joins one.
    pub(crate) fn request_fields(&self, wishes: &Flows) -> HeaderMap {
        let end = &self.end;
        let first = wishes.first.map(|stream| VarInt::saturating_from(stream.0));
        let mut headers = HeaderMap::new();
        let wishes = Wishes {
            promised: match wishes.oversize {
                Oversize::Auto if wishes.carries_quic => Some(end.promised.max(COMMON_PAYLOAD)),
                Oversize::Auto | Oversize::Capsule => Some(MAX_UDP_PAYLOAD),
                Oversize::Drop => None,
            },
            urgency: wishes.urgency,
            weight: wishes.weight,
            wants_reports: self.wants_reports() && first.is_none() && end.form == Form::Datagram,
            repair: end.wished_repair(wishes.carries_quic),
            group: (end.streams > 1).then_some(GroupField { streams: end.streams, first }),
        };
        wishes.write(&mut headers);
        headers
    }

    /// Notes that a request was sent.
    pub(crate) fn on_requested(&mut self, stream: StreamId, wishes: &Flows) {
        let end = &self.end;
        let mut flow = Flow::new(stream, end.form, self.decoder(wishes.service));
        flow.first = wishes.first;
        if wishes.oversize == Oversize::Capsule {
            flow.too_large = TooLarge::Capsule(MAX_UDP_PAYLOAD);
        }
        flow.wish = end.wished_repair(wishes.carries_quic);
        let keeps_early = end.keeps_early || end.is_tandem;
        let repairs_early = keeps_early && flow.wish.is_some();
        self.flows.insert(stream, Box::new(flow));
        self.queue.set_urgency(stream, wishes.urgency);
        self.queue.set_weight(stream, wishes.weight);
        if repairs_early {
            // Repairs payloads sent before the grant without numbers, because the grant's Context
            // ID is not known yet.
            self.queue.set_repair(stream, RepairPlan::unnumbered(LIMIT_LEAST, TooLarge::Drop));
        }
    }

    /// Handles the grant of a flow. `beside`: the proxy agreed that payloads travel beside the connection.
    /// Returns how many more request streams the flow may have.
    pub(crate) fn on_granted(&mut self, stream: StreamId, headers: &HeaderMap, beside: bool) -> u8 {
        let (granted, ignored) = Granted::read(headers);
        let granted = Granted { beside, ..granted };
        let Some(flow) = self.flows.get_mut(&stream) else {
            return impossible("only what was requested is granted");
        };
        flow.is_granted = true;
        if let Some(size) = granted.promised {
            flow.too_large = TooLarge::Capsule(size);
            self.end.keeps_early = true;
        }
        self.replay_early(stream);
        let Some(flow) = self.flows.get_mut(&stream) else {
            return impossible("only what was requested is granted");
        };
        if let Some(first) = flow.first {
            if let Some(first) = self.flows.get_mut(&first) {
                first.group.join(stream);
            }
            return 0;
        }
        if granted.promised.is_none() && flow.form == Form::Capsule {
            flow.doubt = Some(Doubt::new()); // a proxy of ours would have answered the field
        }
        let end = &mut self.end;
        end.set_agreement(end.agree(&granted));
        let Some(flow) = self.flows.get_mut(&stream) else {
            return impossible("only what was requested is granted");
        };
        if let Some(context_id) = granted.reports {
            flow.contexts.register(context_id, PayloadKind::Report { newest: None });
        }
        if let Some(wish) = flow.wish {
            self.fields_ignored += ignored;
            self.agree_on_repair(stream, granted.repair, wish);
        }
        let streams = granted.group.map_or(1, |group| group.streams);
        streams.min(self.end.streams).saturating_sub(1)
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

    /// Tells a proxy that speaks draft-yang-masque-dgram-retrans how often to retransmit lost
    /// datagrams.
    fn ask_limit(&mut self, stream: StreamId, limit: u8) {
        let Some(flow) = self.flows.get_mut(&stream) else {
            return impossible("a limit is asked for on a flow");
        };
        if std::mem::replace(&mut flow.asked_limit, limit) != limit {
            let limit = VarInt::from_u32(limit.into());
            let frame = encode_limit(RetransmissionLimit { context_id: None, limit });
            self.queue.push_capsule(stream, frame);
        }
    }

    /// Updates the retransmission limit that the draft's proxies are asked for, from the RTTs of
    /// the connection that a flow carries and of the tunnel.
    pub(crate) fn on_rtt_beyond(&mut self, stream: StreamId, beyond: Duration, tunnel: Duration) {
        if self.flows.get(&stream).is_some_and(|flow| flow.repair == RepairOffer::Draft) {
            self.ask_limit(stream, limit_to_ask(beyond, tunnel));
        }
    }

    /// Whether the proxy has granted a flow.
    pub(crate) fn is_granted(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| flow.is_granted)
    }
    /// The agreement with the proxy, if it has changed since the last call. That of the first flow is
    /// also a change if it is lesser than what the client asked for.
    pub(crate) fn take_change(&mut self) -> Option<Agreement> {
        let end = &mut self.end;
        end.agreement.filter(|_| std::mem::take(&mut end.is_changed))
    }

    /// What was agreed on with the proxy, once it has granted a flow.
    pub(crate) fn agreement(&self) -> Option<Agreement> {
        self.end.agreement
    }

    /// Whether a request stream was opened to join the flow of another.
    pub(crate) fn has_joined(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| flow.first.is_some())
    }

    /// The largest UDP payload, in bytes, that the connection inside a flow may rely on, in both
    /// directions.
    ///
    /// A proxy that did not agree to our promise may send smaller packets than we do, and some
    /// proxies end a flow when a payload does not fit. Then only QUIC's minimum is certain.
    pub(crate) fn max_payload(&self, stream: Option<StreamId>) -> usize {
        let flow = stream.and_then(|stream| self.flows.get(&stream));
        match flow.map(|flow| flow.too_large) {
            Some(TooLarge::Capsule(_)) => self.end.promised,
            Some(TooLarge::Drop) | None => MIN_PAYLOAD,
        }
    }

    /// The largest payload, in bytes, that a granted flow carries at present.
    pub(crate) fn largest_payload(
        &mut self,
        carrier: &mut Carrier<'_>,
        stream: StreamId,
    ) -> Option<usize> {
        let flow = self.flows.get(&stream).filter(|flow| flow.is_granted)?;
        let form = if carrier.takes_datagrams() { flow.form } else { Form::Capsule };
        Some(match form {
            Form::Capsule => MAX_UDP_PAYLOAD,
            Form::Datagram => {
                self.queue.sizes(stream, flow.too_large, carrier.max_datagram_size()).1
            }
        })
    }

    /// The largest UDP payload, in bytes, on which a connection inside a flow may rely before the grant. If the
    /// proxy then does not agree to it, the connection has to begin again. `None`: it must wait for the grant.
    pub(crate) fn max_payload_early(&self) -> Option<usize> {
        let end = &self.end;
        end.is_tandem.then_some(end.promised)
    }

    /// Whether a payload may go to the proxy before its flow is granted.
    ///
    /// RFC 9298 §5: "A client MAY optimistically start sending UDP packets in HTTP Datagrams before
    /// receiving the response to its UDP proxying request." A proxy may also drop them, and a
    /// handshake whose first packet is lost takes a second longer. Early payloads therefore go only
    /// to a proxy that keeps them.
    pub(crate) fn takes_early(&self, carrier: &mut Carrier<'_>, payload: &[u8]) -> bool {
        self.end.keeps_early && payload.len() <= self.fits_now(carrier)
    }

    /// The largest UDP payload, in bytes, that fits the tunnel's packets now.
    fn fits_now(&self, carrier: &mut Carrier<'_>) -> usize {
        /// The last stream whose quarter stream ID takes one byte.
        const STREAM: StreamId = StreamId(4 * 63);
        let Some(id) = QuarterStreamId::from_stream_id(STREAM.0) else { return 0 };
        let end = &self.end;
        match end.form {
            Form::Capsule => CAPSULE_PAYLOAD,
            Form::Datagram => {
                let numbers = if end.repair.is_some() { NUMBERS } else { 0 };
                let overhead = HttpDatagram::overhead(id, CONTEXT_ID_UDP) + numbers;
                carrier.max_datagram_size().saturating_sub(overhead)
            }
        }
    }
}

impl ClientEnd {
    /// Whether the order of each flow follows what it carries and what the client sees.
    pub(super) const fn adapts(&self) -> bool {
        matches!(self.mode, TunnelMode::Auto { .. })
    }

    /// Sends payloads in capsules, although the mode may want datagrams.
    fn use_capsules(&mut self, lesser: Lesser) {
        if self.form == Form::Datagram {
            (self.form, self.lesser) = (Form::Capsule, Some(lesser));
        }
    }

    fn set_agreement(&mut self, agreement: Agreement) {
        self.is_changed |= match self.agreement.replace(agreement) {
            Some(before) => before != agreement,
            None => agreement.lesser.is_some(),
        };
    }

    /// What this end and a proxy with this grant agreed on.
    fn agree(&self, granted: &Granted) -> Agreement {
        let lacks = |field| Some(Lesser::NoField(field));
        let (mode, lesser) = match (self.form, self.mode) {
            (Form::Capsule, TunnelMode::Msgt(_)) if granted.group.is_none() => {
                (Mode::Mst, lacks(GroupField::NAME))
            }
            (Form::Capsule, TunnelMode::Msgt(_)) => (Mode::Msgt, None),
            (Form::Capsule, _) => (Mode::Mst, self.lesser),
            (
                Form::Datagram,
                TunnelMode::Rmdt(_) | TunnelMode::Tecc(_) | TunnelMode::Auto { .. },
            ) => match granted.repair {
                RepairOffer::None => (Mode::Mdt, lacks(RepairField::NAME)),
                RepairOffer::Draft => (Mode::Rmdt, Some(Lesser::WithoutOrder)),
                RepairOffer::Ours(_)
                    if self.reports == ReportsInUse::OfProxy && granted.reports.is_none() =>
                {
                    (Mode::Rmdt, lacks(FeedbackField::NAME))
                }
                RepairOffer::Ours(_) if self.adapts() => match self.reports {
                    ReportsInUse::OfProxy => (Mode::Tecc, None),
                    ReportsInUse::None | ReportsInUse::OfThisEnd => (Mode::Rmdt, None),
                },
                RepairOffer::Ours(_) => (self.mode.name(), None),
            },
            (Form::Datagram, TunnelMode::Forward | TunnelMode::Uack { .. }) if granted.beside => {
                (self.mode.name(), None)
            }
            (Form::Datagram, TunnelMode::Forward) => (Mode::Mdt, lacks(ForwardingGrant::NAME)),
            (Form::Datagram, TunnelMode::Uack { .. }) => (Mode::Mdt, lacks(SealField::NAME)),
            (Form::Datagram, _) => (Mode::Mdt, self.lesser),
        };
        Agreement { asked: self.mode.name(), granted: mode, lesser }
    }

    /// The repair to request. `None` if payloads go on streams, which QUIC repairs.
    fn wished_repair(&self, carries_quic: bool) -> Option<Repair> {
        let repair = self.repair.filter(|_| self.form == Form::Datagram)?;
        // Calls, games and other tunnels lose more by waiting than by reordering.
        let order = if self.adapts() && !carries_quic { Order::Off } else { repair.order };
        Some(Repair { order, ..repair })
    }
}

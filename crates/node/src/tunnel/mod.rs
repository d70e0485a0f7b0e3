//! One end of a tunnel on one connection. The client and the proxy run the same code.
//!
//! Below the tunnel is a `Carrier`, the HTTP/3 connection. Above it are services, such as the UDP
//! sockets of a proxy, or the next connection of a client. Only the tunnel knows how payloads
//! travel: in datagrams or capsules, with numbers or without, on one request stream or several.
//!
//! An outgoing payload enters with `Tunnel::send`, waits in the queue, and leaves with
//! `Tunnel::feed`. An incoming payload leaves with `Tunnel::poll_arrival`, or, if it has a
//! number, with `Tunnel::poll_release`.

mod agreement;
mod capsules;
mod client;
mod contexts;
mod doubt;
mod early;
mod egress;
mod flow;
mod group;
mod proxy;
mod queue;
mod readable;
mod repair;
mod reporter;
pub mod resequence;
pub(crate) mod share;
mod tcp;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use bytes::Bytes;
use tandem_wire::{
    CONTEXT_ID_UDP, CapsuleDecoder, CidCapsule, Code, ErrorScope, HttpDatagram, MAX_UDP_PAYLOAD,
    OwnCapsule, TunnelInfo, VarInt,
};
use tracing::debug;

#[cfg(fuzzing)]
pub use self::queue::model::run as run_queue_model;
use self::{
    agreement::RepairOffer,
    capsules::OnStream,
    client::ClientEnd,
    contexts::{PayloadKind, ReportArrival},
    early::Early,
    egress::Egress,
    flow::Flow,
    proxy::ProxyEnd,
    queue::{Form, Payload, Queue, RepairPlan, TooLarge},
    readable::Readable,
    reporter::Reporter,
};
pub(crate) use self::{
    agreement::{Asked, CAPSULE_PROTOCOL, urgency},
    capsules::{StreamEnd, encode_proxy_status, in_frame},
    client::Flows,
};
pub(crate) use self::{queue::Unsent, reporter::REPORT_INTERVAL, tcp::BACKLOG_SHORT};
use crate::{
    carrier::{Carrier, QueueCarrier},
    h3::ConnectionError,
    limits::Limits,
    mode::Repair,
    quic::{self, StreamId},
    service::Service,
    spare,
    stats::{Dropped, FeedbackStats, Orders, Stats},
};

/// What the two ends of a tunnel do differently.
pub(crate) trait End: Sized {
    /// Whether this is the proxy's end, which grants flows.
    const IS_PROXY: bool;

    /// Delivers the reports that are due.
    fn report(tunnel: &mut Tunnel<Self>, now: Instant, carrier: &mut Carrier<'_>);

    /// Notes that the peer drops capsules, as it has turned out. Only a client has doubted it.
    fn distrust_capsules(_: &mut Tunnel<Self>) {}

    /// Handles a UDP payload of a stream that has no flow.
    fn on_unknown_flow(
        tunnel: &mut Tunnel<Self>,
        now: Instant,
        carrier: &Carrier<'_>,
        arrived: &Arrived,
    ) -> Option<Arrival>;
}

/// The client's end of a tunnel.
pub(crate) type ClientTunnel = Tunnel<ClientEnd>;

/// The proxy's end of a tunnel.
pub(crate) type ProxyTunnel = Tunnel<ProxyEnd>;

/// A payload that arrived through the carrier.
#[derive(Debug)]
pub(crate) struct Arrived {
    stream: StreamId,
    context_id: VarInt,
    payload: Bytes,
    /// The form in which the payload arrived. `None`: it arrived early, and is handled again.
    form: Option<Form>,
}

/// What arrives through a tunnel.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A UDP payload of a flow.
    Payload(StreamId, Bytes),
    /// A report of the proxy on a flow.
    Report(StreamId, TunnelInfo),
    /// A capsule about a connection ID of a flow's QUIC connection.
    Cid(StreamId, CidCapsule),
    /// A capsule that only the flow's service can read.
    Capsule(StreamId, OwnCapsule),
    /// The request stream of a flow has ended, or must be ended.
    Ended(StreamId, StreamEnd),
    /// The peer violated HTTP/3, so the connection must be closed.
    Broken(ConnectionError),
}

/// One end of a tunnel on one connection.
#[derive(Debug)]
pub(crate) struct Tunnel<E> {
    /// The state that only this kind of end has.
    end: E,
    /// In boxes, because a node of a B-tree has room for eleven values.
    flows: BTreeMap<StreamId, Box<Flow>>,
    early: Early,
    queue: Queue,
    egress: Egress,
    reporter: Reporter,
    /// Payloads that arrived early, of flows that have been granted since.
    replayed: VecDeque<Arrived>,
    /// Whether the carrier may hold datagrams.
    has_datagrams: bool,
    /// Request streams that may have something to read.
    readable: Readable,
    capsule_max: usize,
    /// Counts of what arrived and was dropped. The queue counts its own drops.
    dropped: Dropped,
    orders: Orders,
    feedback: FeedbackStats,
    fields_ignored: u64,
    has_ended: bool,
}

impl<E: End> Tunnel<E> {
    fn new(end: E, reporter: Reporter, limits: &Limits) -> Self {
        Self {
            end,
            flows: BTreeMap::new(),
            early: Early::new(limits),
            queue: Queue::new(limits),
            egress: Egress::new(limits.held_bytes),
            reporter,
            replayed: VecDeque::new(),
            has_datagrams: false,
            readable: Readable::default(),
            capsule_max: limits.capsule,
            dropped: Dropped::default(),
            orders: Orders::default(),
            feedback: FeedbackStats::default(),
            fields_ignored: 0,
            has_ended: false,
        }
    }

    /// What reads the capsules of a flow.
    fn decoder(&self, service: Service) -> CapsuleDecoder {
        CapsuleDecoder::new(self.capsule_max).with_own(service.capsules())
    }

    /// Puts a UDP payload of a flow into the queue. With an error the payload was dropped, and
    /// counted.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        carrier: &mut Carrier<'_>,
        stream: StreamId,
        data: &[u8],
    ) -> Result<(), Unsent> {
        let Self { flows, queue, reporter, .. } = self;
        let Some(flow) = flows.get_mut(&stream) else {
            self.dropped.unknown_flow += 1;
            return Err(Unsent::Other);
        };
        let form = if carrier.takes_datagrams() { flow.form } else { Form::Capsule };
        let stream = match form {
            Form::Datagram => stream,
            Form::Capsule => flow.group.pick(|it| queue.waiting(it)).unwrap_or(stream),
        };
        let max_datagram = carrier.max_datagram_size();
        if form == Form::Capsule
            && carrier.takes_datagrams()
            && flow.doubt.as_mut().is_some_and(|doubt| doubt.wants_copy(now))
        {
            let copy = Payload { form: Form::Datagram, too_large: TooLarge::Drop, data };
            // The payload itself goes in a capsule, whatever becomes of the copy.
            queue.push(now, stream, copy, max_datagram).ok();
        }
        let payload = Payload { form, too_large: flow.too_large, data };
        let waiting = reporter.reports_on(stream).then(|| queue.flow_len(stream));
        queue.push(now, stream, payload, max_datagram)?;
        reporter.on_arrival(now, stream, data.len(), waiting);
        Ok(())
    }

    /// Carries payloads of up to this size, on which their sender relies since they travelled beside the
    /// connection. When they have to travel inside again, for instance because a connection ID is new, they
    /// go in capsules if they fit no datagram, and if both ends agreed to that.
    pub(crate) fn promise(&mut self, stream: StreamId, size: usize) {
        if let Some(flow) = self.flows.get_mut(&stream)
            && let TooLarge::Capsule(promised) = &mut flow.too_large
        {
            *promised = size.max(*promised);
        }
    }

    /// Sends a capsule of a flow. Returns how many capsules of the flow wait, because its peer does not read them.
    pub(crate) fn send_capsule(
        &mut self,
        stream: StreamId,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        let mut capsule = Vec::new();
        encode(&mut capsule);
        self.queue.push_capsule(stream, in_frame(&capsule, 0))
    }

    /// Sends the reports that are due, and gives the engine as much of the queue as it takes.
    pub(crate) fn feed(&mut self, now: Instant, carrier: &mut Carrier<'_>) {
        E::report(self, now, carrier);
        self.queue.feed(now, carrier);
        carrier.log_repairs(now, self.queue.repaired().sent_again);
    }

    /// The next arrival. Numbered payloads go to the egress instead.
    pub(crate) fn poll_arrival(
        &mut self,
        now: Instant,
        carrier: &mut Carrier<'_>,
    ) -> Option<Arrival> {
        while let Some(arrived) = self.replayed.pop_front() {
            spare::give_back(&mut self.replayed);
            if let arrival @ Some(_) = self.on_payload(now, carrier, arrived) {
                return arrival;
            }
        }
        while self.has_datagrams {
            let Some(data) = carrier.receive_datagram() else {
                self.has_datagrams = false;
                if let Some(error) = carrier.take_violation() {
                    return Some(Arrival::Broken(error));
                }
                break;
            };
            if let arrival @ Some(_) = self.on_datagram(now, carrier, data) {
                return arrival;
            }
        }
        while let Some(stream) = self.readable.first() {
            let decoder = self.flows.get_mut(&stream).map(|flow| &mut flow.capsules);
            let Some(read) = capsules::read(decoder, carrier, stream) else {
                self.readable.remove(stream);
                continue;
            };
            if let arrival @ Some(_) = self.on_stream(now, carrier, stream, read) {
                return arrival;
            }
        }
        None
    }

    /// Takes a datagram whose request has not arrived.
    pub(crate) fn on_early(&mut self, now: Instant, carrier: &Carrier<'_>, datagram: HttpDatagram) {
        let HttpDatagram { quarter_stream_id, context_id, payload } = datagram;
        let stream = StreamId(quarter_stream_id.stream_id());
        if !self.flows.contains_key(&stream) {
            let arrived = Arrived { stream, context_id, payload, form: Some(Form::Datagram) };
            drop(self.on_unknown_flow(now, carrier, &arrived));
        }
    }

    fn on_datagram(
        &mut self,
        now: Instant,
        carrier: &mut Carrier<'_>,
        data: Bytes,
    ) -> Option<Arrival> {
        match HttpDatagram::decode(data) {
            Ok(HttpDatagram { quarter_stream_id, context_id, payload }) => {
                let stream = StreamId(quarter_stream_id.stream_id());
                let form = Some(Form::Datagram);
                self.on_payload(now, carrier, Arrived { stream, context_id, payload, form })
            }
            Err(error) => {
                self.dropped.malformed += 1;
                // RFC 9297 §2.1: "Receipt of a QUIC DATAGRAM frame whose payload is too short to allow
                // parsing the Quarter Stream ID field MUST be treated as an HTTP/3 connection error of
                // type H3_DATAGRAM_ERROR."
                let is_broken = error.scope() == ErrorScope::Connection;
                is_broken.then(|| Arrival::Broken(error.into()))
            }
        }
    }

    fn on_stream(
        &mut self,
        now: Instant,
        carrier: &mut Carrier<'_>,
        stream: StreamId,
        read: OnStream,
    ) -> Option<Arrival> {
        match read {
            OnStream::Payload(context_id, payload) => {
                let form = Some(Form::Capsule);
                let arrived = Arrived { stream, context_id, payload, form };
                return self.on_payload(now, carrier, arrived);
            }
            OnStream::Malformed => self.dropped.malformed += 1,
            OnStream::Limit(limit) => self.on_limit(stream, limit),
            OnStream::Repair(field) => self.on_repair(now, stream, field),
            OnStream::Cid(capsule) => return Some(Arrival::Cid(stream, capsule)),
            OnStream::Own(capsule) => return Some(Arrival::Capsule(stream, capsule)),
            OnStream::ProxyStatus(value) if !E::IS_PROXY => {
                self.readable.remove(stream);
                return Some(Arrival::Ended(stream, StreamEnd::Failed(value)));
            }
            OnStream::ProxyStatus(_) => {} // a client has nothing to say of a proxy
            OnStream::Ended(end) => {
                self.readable.remove(stream);
                return Some(Arrival::Ended(stream, end));
            }
            OnStream::Broken(error) => {
                self.readable.remove(stream);
                return Some(Arrival::Broken(error));
            }
        }
        None
    }

    /// Handles a payload by its flow and its Context ID.
    fn on_payload(
        &mut self,
        now: Instant,
        carrier: &mut Carrier<'_>,
        arrived: Arrived,
    ) -> Option<Arrival> {
        let Some(flow) = self.flows.get_mut(&arrived.stream) else {
            return self.on_unknown_flow(now, carrier, &arrived);
        };
        let Arrived { stream, context_id, payload, form } = arrived;
        match flow.contexts.get_mut(context_id) {
            Some(PayloadKind::UdpPayload) => {
                if payload.len() > MAX_UDP_PAYLOAD {
                    // RFC 9298 §5: "An endpoint that receives an HTTP Datagram using Context ID zero
                    // whose UDP Proxying Payload field is longer than 65527 MUST abort the
                    // corresponding stream."
                    let reason = "a payload is longer than UDP allows".into();
                    let end = StreamEnd::Malformed(Code::H3_DATAGRAM_ERROR, reason);
                    return Some(Arrival::Ended(stream, end));
                }
                if E::IS_PROXY {
                    flow.update_form(form, payload.len() < carrier.max_datagram_size());
                    if !flow.is_granted {
                        self.keep_early(stream, context_id, &payload);
                        return None;
                    }
                }
                let first = flow.first.unwrap_or(stream);
                if let Some(doubt) = flow.doubt.take()
                    && doubt.is_confirmed()
                    && form == Some(Form::Datagram)
                {
                    flow.form = Form::Datagram;
                    E::distrust_capsules(self);
                }
                Some(Arrival::Payload(first, payload))
            }
            Some(PayloadKind::Numbered) => {
                let smoothed_rtt = carrier.smoothed_rtt();
                if self.egress.push(now, stream, payload, smoothed_rtt).is_err() {
                    self.dropped.malformed += 1;
                }
                None
            }
            Some(PayloadKind::Report { newest }) => {
                let report = ReportArrival::new(newest, payload);
                self.on_report(stream, &report)
            }
            // The grant, which says what this Context ID means, may arrive late.
            None if !flow.is_granted && !E::IS_PROXY => {
                self.keep_early(stream, context_id, &payload);
                None
            }
            None => {
                self.dropped.unknown_context += 1;
                None
            }
        }
    }

    fn on_unknown_flow(
        &mut self,
        now: Instant,
        carrier: &Carrier<'_>,
        arrived: &Arrived,
    ) -> Option<Arrival> {
        if arrived.context_id != CONTEXT_ID_UDP {
            self.dropped.unknown_context += 1;
            return None;
        }
        E::on_unknown_flow(self, now, carrier, arrived)
    }

    fn keep_early(&mut self, stream: StreamId, context_id: VarInt, payload: &[u8]) {
        let is_kept = self.early.keep(stream, context_id, payload);
        self.dropped.unknown_flow += u64::from(!is_kept);
    }

    fn on_report(&mut self, stream: StreamId, report: &ReportArrival) -> Option<Arrival> {
        match report {
            ReportArrival::New(info) => {
                self.feedback.received += 1;
                return Some(Arrival::Report(stream, *info));
            }
            ReportArrival::Stale => self.feedback.stale += 1,
            ReportArrival::Malformed(error) => {
                debug!(%error, "report ignored");
                self.feedback.malformed += 1;
            }
        }
        None
    }

    /// The next numbered payload that may leave the tunnel.
    pub(crate) fn poll_release(&mut self, now: Instant) -> Option<(StreamId, Bytes)> {
        while let Some((stream, payload)) = self.egress.poll_release(now) {
            if payload.len() <= MAX_UDP_PAYLOAD {
                return Some((stream, payload));
            }
            self.dropped.malformed += 1;
        }
        None
    }

    /// Handles again the payloads that arrived before their flow was granted.
    fn replay_early(&mut self, stream: StreamId) {
        let early = self.early.take(stream).into_iter();
        self.replayed.extend(early.map(|(context_id, payload)| Arrived {
            stream,
            context_id,
            payload,
            form: None,
        }));
    }

    /// Notes that datagrams arrived.
    pub(crate) fn on_datagrams(&mut self) {
        self.has_datagrams = true;
    }

    /// Whether a request stream has a flow, or is a part of one.
    pub(crate) fn has(&self, stream: StreamId) -> bool {
        self.flows.contains_key(&stream)
    }

    /// Notes that a request stream may have something to read.
    pub(crate) fn on_readable(&mut self, stream: StreamId) {
        // A proxy reads streams in the order in which they became readable, so that clients take turns. A client reads
        // the streams of a flow in the order in which they were opened.
        let turn = if E::IS_PROXY { self.readable.next_turn() } else { stream.0 };
        self.readable.insert(stream, turn);
    }

    /// Notes that a request stream that was blocked has room again.
    pub(crate) fn on_writable(&mut self, stream: StreamId) {
        self.queue.on_writable(stream);
    }

    /// Removes a flow. Returns the request streams that had joined it, which are removed too.
    ///
    /// RFC 9297 §2.1: "HTTP/3 Datagrams MUST NOT be sent unless the corresponding stream's send side is
    /// open."
    pub(crate) fn close(&mut self, stream: StreamId) -> Vec<StreamId> {
        let mut joined = Vec::new();
        if let Some(flow) = self.flows.remove(&stream) {
            match flow.first.and_then(|first| self.flows.get_mut(&first)) {
                Some(first) => first.group.leave(stream),
                None => joined.extend(flow.group.joined()),
            }
        }
        self.forget(stream);
        for &stream in &joined {
            self.flows.remove(&stream);
            self.forget(stream);
        }
        joined
    }

    fn forget(&mut self, stream: StreamId) {
        self.queue.remove(stream);
        self.reporter.remove(stream);
        self.egress.remove(stream);
        self.dropped.unknown_flow += self.early.take(stream).len() as u64;
        self.replayed.retain(|arrived| arrived.stream != stream);
    }

    /// Whether only a part of a frame has been sent on this stream.
    pub(crate) fn is_within_frame(&self, stream: StreamId) -> bool {
        self.queue.is_within_frame(stream)
    }

    /// Handles the timers that are due. Returns whether the tunnel must be fed, for its queue or
    /// its reporter.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        self.egress.handle_timeout(now);
        self.dropped.unknown_flow += self.early.expire(now) as u64;
        let due = quic::earliest(self.queue.next_timeout(), self.reporter.next_timeout());
        due.is_some_and(|due| due <= now)
    }

    /// When the next timer is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let timers = [
            self.queue.next_timeout(),
            self.reporter.next_timeout(),
            self.egress.next_timeout(),
            self.early.next_timeout(),
        ];
        timers.into_iter().fold(None, quic::earliest)
    }

    /// Whether the peer has not acknowledged all payloads, although it may still do so.
    pub(crate) fn awaits_ack(&self, carrier: &Carrier<'_>) -> bool {
        carrier.is_open() && (!self.queue.is_empty() || carrier.awaits_ack())
    }

    /// Whether payloads of a flow wait in the queue.
    pub(crate) fn holds(&self, stream: StreamId) -> bool {
        self.queue.flow_len(stream) > 0
    }

    /// Whether a flow comes before those with the default urgency.
    pub(crate) fn is_urgent(&self, stream: StreamId) -> bool {
        self.queue.urgency(stream) < tandem_wire::Urgency::default()
    }

    /// Bytes of encoded payloads that wait in the queue: q(t).
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of memory that all buffers of this tunnel take. The cost is one step per flow.
    pub(crate) fn memory(&self) -> usize {
        let of_flow = |flow: &Flow| size_of::<Flow>() + flow.capsules.memory();
        let flows = self.flows.values().map(|flow| of_flow(flow)).sum::<usize>();
        let of_replayed = |arrived: &Arrived| size_of::<Arrived>() + arrived.payload.len();
        let replayed = self.replayed.iter().map(of_replayed).sum::<usize>();
        flows + replayed + self.queue.memory() + self.egress.memory() + self.early.memory()
    }

    /// Bytes of memory that numbered payloads take while they wait for missing ones.
    pub(crate) fn held_bytes(&self) -> usize {
        self.egress.held_bytes()
    }

    /// Bytes of memory that payloads take in the flow that holds most.
    pub(crate) fn longest_held(&self) -> usize {
        self.egress.longest()
    }

    /// Notes that the connection has ended, so that missing payloads cannot arrive any more. Returns
    /// whether payloads waited for them, and can be polled now.
    pub(crate) fn end(&mut self, now: Instant) -> bool {
        !std::mem::replace(&mut self.has_ended, true) && self.egress.flush(now)
    }

    /// Makes the flow that holds most give up its missing payloads.
    pub(crate) fn flush_longest(&mut self, now: Instant) {
        self.egress.flush_longest(now);
    }

    /// Adds the counters of this tunnel.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        stats.dropped.add(&self.dropped);
        stats.dropped.add(self.queue.dropped());
        stats.repaired.add(self.queue.repaired());
        stats.in_capsules += self.queue.in_capsules();
        stats.orders.add(&self.orders);
        stats.resequenced.add(&self.egress.stats());
        stats.feedback.add(&self.feedback);
        stats.fields_ignored += self.fields_ignored;
    }
}

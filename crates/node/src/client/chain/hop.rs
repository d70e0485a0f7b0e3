//! One hop: the connection to a proxy, the tunnel on it, and the flows through it.

use std::{
    collections::BTreeMap,
    iter,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, header};
use tandem_wire::{
    CAPSULE_PROTOCOL_TRUE, CidCapsule, Code, RequestHead, ResponseHead, StrangerText, Template,
    TransportField, Urgency,
};
use tracing::debug;

use super::{
    flow::{Carries, Flow, Request},
    peer::{Peer, PeerSettings},
};
use crate::{
    beside::{Beside, Unwrapped, Violation, Virtual, Wish},
    carrier::Carrier,
    client::{FlowConfig, TunnelMode},
    concealed::ConcealedKey,
    error::ClientError,
    fields::{TRANSPORT, only_line},
    h3::End,
    impossible::impossible,
    limits::Limits,
    quic::{self, StreamId, Tag},
    service::{HostPort, Service},
    stats::Stats,
    token::Token,
    tunnel::{Arrival, CAPSULE_PROTOCOL, ClientTunnel, Unsent},
};

/// One hop.
pub(in crate::client) struct Hop {
    pub(in crate::client) peer: Peer,
    pub(in crate::client) tunnel: ClientTunnel,
    /// The proxies that the hop may use.
    proxies: Vec<Template>,
    /// The place in the list of the proxy that is used.
    proxy: usize,
    /// The number of proxies that failed one after the other.
    pub(in crate::client) failed: usize,
    /// The template of the proxy that is used.
    template: Template,
    token: Option<Token>,
    concealed: Option<ConcealedKey>,
    pub(in crate::client) flows: BTreeMap<StreamId, Flow>,
    /// What travels beside the connection.
    pub(in crate::client) beside: Beside,
    /// The flow that carries the next peer.
    pub(in crate::client) next: Option<StreamId>,
    /// Whether the embedding program was told that the tunnel through this hop is established.
    pub(in crate::client) is_up: bool,
    /// Whether an urgent flow has sent something, see [`Node::take_urgent`](crate::node::Node::take_urgent).
    pub(in crate::client) has_urgent: bool,
    /// Why the tunnel was lost last, or could not be established: this one, or one around it.
    pub(in crate::client) lost: Option<ClientError>,
    /// The counters of the tunnels of earlier connections.
    ended: Stats,
}

impl Hop {
    pub(in crate::client) fn new(
        peer: Peer,
        template: Template,
        others: Vec<Template>,
        (token, concealed): (Option<Token>, Option<ConcealedKey>),
        mode: TunnelMode,
        limits: &Limits,
    ) -> Self {
        let wish = match mode {
            TunnelMode::Forward => Wish::Forward,
            TunnelMode::Uack { both_ways } => Wish::Seal { both_ways },
            _ => Wish::Nothing,
        };
        Self {
            beside: Beside::new(wish, peer.settings.seed),
            peer,
            tunnel: ClientTunnel::client(mode, limits),
            proxies: iter::once(template.clone()).chain(others).collect(),
            proxy: 0,
            failed: 0,
            template,
            token,
            concealed,
            flows: BTreeMap::new(),
            next: None,
            is_up: false,
            has_urgent: false,
            lost: None,
            ended: Stats::default(),
        }
    }

    /// Host and port of all proxies that the hop may use.
    pub(in crate::client) fn places(&self) -> Vec<HostPort> {
        let place =
            |proxy: &Template| HostPort { host: proxy.host().to_owned(), port: proxy.port() };
        self.proxies.iter().map(place).collect()
    }

    /// The settings for a connection to one of the proxies.
    pub(in crate::client) fn settings_of(&self, proxy: usize) -> Option<PeerSettings> {
        let template = self.proxies.get(proxy)?;
        Some(PeerSettings {
            host: template.host().to_owned(),
            port: template.port(),
            authority: template.authority().to_owned(),
            ..self.peer.settings.clone()
        })
    }

    /// Uses this proxy from now on. The hop has no connection.
    pub(in crate::client) fn choose(&mut self, proxy: usize) {
        if proxy != self.proxy
            && let (Some(settings), Some(template)) =
                (self.settings_of(proxy), self.proxies.get(proxy))
        {
            self.peer.settings = settings;
            self.template = template.clone();
            self.proxy = proxy;
        }
    }

    /// Chooses the next proxy of the list after this one has failed. `false`: the list has begun again.
    pub(in crate::client) fn choose_next(&mut self) -> bool {
        self.choose((self.proxy + 1) % self.proxies.len().max(1));
        self.failed = (self.failed + 1) % self.proxies.len().max(1);
        self.failed != 0
    }

    /// The tunnel and its carrier. `None` if there is no connection.
    fn parts(&mut self) -> Option<(&mut ClientTunnel, Carrier<'_>)> {
        Some((&mut self.tunnel, self.peer.carrier()?))
    }

    /// Handles the proxy's SETTINGS. The error names a feature that the proxy lacks. `None`: the
    /// SETTINGS have not arrived.
    ///
    /// A hop that carries only TCP needs no feature: CONNECT is a part of HTTP/3.
    pub(in crate::client) fn lacks(
        &mut self,
        carries_only_tcp: bool,
    ) -> Option<Result<(), &'static str>> {
        let carrier = self.peer.carrier()?;
        // RFC 9220 §3: a client MUST NOT use extended CONNECT before it has received the setting.
        if !carrier.peer_settings()?.enable_connect_protocol && !carries_only_tcp {
            return Some(Err("extended CONNECT (RFC 9220)"));
        }
        let (tunnel, mut carrier) = self.parts()?;
        tunnel.on_settings(&mut carrier);
        Some(Ok(()))
    }

    /// Requests a flow. `None`: the proxy allows no more streams at the moment.
    pub(in crate::client) fn request(
        &mut self,
        request: &Request,
        carries: Carries,
    ) -> Option<StreamId> {
        let stream = self.send_request(request, carries, None)?;
        if carries == Carries::NextPeer {
            self.next = Some(stream);
        }
        Some(stream)
    }

    fn send_request(
        &mut self,
        request: &Request,
        carries: Carries,
        first: Option<StreamId>,
    ) -> Option<StreamId> {
        let wishes = request.wishes(first);
        let mut head = self.head(request)?;
        head.headers = self.tunnel.request_fields(&wishes);
        let offer = self.beside.offer(&mut head.headers);
        self.offer_sealed(&mut head.headers);
        self.add_credentials(request.service, &mut head);
        let mut http = self.peer.carrier()?;
        // RFC 9220 §3: "a client MUST NOT" use extended CONNECT before it has received the setting.
        http.peer_settings()?;
        let stream = http.request(&head, End::More)?;
        self.flows.insert(stream, Flow::new(carries, request.clone()));
        self.beside.on_requested(stream, offer, || http.quic().seal_secrets(stream));
        self.tunnel.on_requested(stream, &wishes);
        Some(stream)
    }

    /// Asks for the sealed transport, if the hop's datagrams can travel in it.
    fn offer_sealed(&mut self, headers: &mut HeaderMap) {
        let is_for_datagrams = self.beside.is_off() && self.tunnel.sends_datagrams();
        let Some(mut carrier) = self.peer.carrier().filter(|_| is_for_datagrams) else { return }; // not in this mode
        if let Some(id) = carrier.quic().sealed_offer() {
            headers.insert(TRANSPORT, TransportField { id, reset: None }.encode());
        }
    }

    /// Requests a TCP connection. `None`: the proxy allows no more streams at the moment.
    pub(in crate::client) fn request_tcp(&mut self, request: &Request) -> Option<StreamId> {
        let FlowConfig { urgency, weight, .. } = request.config;
        let mut head = self.head(request)?;
        if urgency != Urgency::default() {
            head.headers.insert(Urgency::FIELD, urgency.field_value());
        }
        if request.service.has_capsules() {
            let is_true = HeaderValue::from_static(CAPSULE_PROTOCOL_TRUE);
            head.headers.insert(CAPSULE_PROTOCOL, is_true);
        }
        self.add_credentials(request.service, &mut head);
        let mut carrier = self.peer.carrier()?;
        carrier.peer_settings()?;
        let stream = carrier.request(&head, End::More)?;
        self.tunnel.open_bytes(stream, urgency, weight);
        Some(stream)
    }

    fn head(&self, request: &Request) -> Option<RequestHead> {
        let FlowConfig { host, port, .. } = &request.config;
        request.service.request(&self.template, host, *port)
    }

    /// Whether the proxy takes extended CONNECT requests (RFC 9220).
    pub(in crate::client) fn takes_extended_connect(&self) -> bool {
        let settings = self.peer.session.peer_settings();
        settings.is_some_and(|settings| settings.enable_connect_protocol)
    }

    /// Ends the stream of a TCP connection with this code.
    pub(in crate::client) fn end_tcp(&mut self, stream: StreamId, code: Code) {
        self.tunnel.close_bytes(stream);
        if let Some(mut carrier) = self.peer.carrier() {
            carrier.reset(stream, code);
        }
    }

    /// Marks the connection, so that it gets a turn to send.
    pub(in crate::client) fn wake(&mut self) {
        self.peer.wake();
    }

    /// Adds the token of the client, and what it shows with its key. A proxy that reads the second needs no first one.
    fn add_credentials(&mut self, service: Service, head: &mut RequestHead) {
        let token = self.token.as_ref().and_then(|token| {
            let mut value = HeaderValue::from_str(&token.field_value()).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let authority = head.authority.as_deref().unwrap_or_default();
        let carrier = self.peer.carrier();
        let concealed = self.concealed.as_ref().zip(carrier);
        let concealed =
            concealed.and_then(|(key, mut carrier)| key.field_value(carrier.quic(), authority));
        for value in token.into_iter().chain(concealed) {
            for field in service.token_fields() {
                head.headers.append(*field, value.clone());
            }
        }
    }

    /// Gives a flow to another user. `false`: there is no such flow.
    pub(in crate::client) fn hand_over(&mut self, stream: StreamId, carries: Carries) -> bool {
        self.flows.get_mut(&stream).map(|flow| flow.carries = carries).is_some()
    }

    /// The largest UDP payload, in bytes, that the connection to the next peer may rely on, in both
    /// directions.
    pub(in crate::client) fn max_payload(&self) -> usize {
        self.tunnel.max_payload(self.next)
    }

    /// The same before the proxy has granted the flow. `None`: the next peer must wait for the grant.
    pub(in crate::client) fn max_payload_early(&self) -> Option<usize> {
        self.tunnel.max_payload_early()
    }

    /// The largest payload, in bytes, that a granted flow carries at present.
    pub(in crate::client) fn largest_payload(&mut self, stream: StreamId) -> Option<usize> {
        let (tunnel, mut carrier) = self.parts()?;
        tunnel.largest_payload(&mut carrier, stream)
    }

    /// Whether a payload may go to the proxy before its flow is granted.
    pub(in crate::client) fn takes_early(&mut self, payload: &[u8]) -> bool {
        self.parts().is_some_and(|(tunnel, mut carrier)| tunnel.takes_early(&mut carrier, payload))
    }

    /// Handles the grant of a flow. Requests the other request streams that the flow may have.
    ///
    /// # Errors
    ///
    /// The grant has something that was not asked for, so that the request must be aborted.
    pub(in crate::client) fn on_granted(
        &mut self,
        now: Instant,
        stream: StreamId,
        head: &ResponseHead,
    ) -> Result<(), StrangerText> {
        let beside = self.beside.on_granted(stream, &head.headers)?;
        if let Some(Ok(line)) = only_line(&head.headers, &TRANSPORT)
            && let Ok(field) = TransportField::parse(&line)
            && let Some(mut carrier) = self.peer.carrier()
            && carrier.quic().sealed_offer().is_some()
        {
            let is_agreed = carrier.quic().agree_on_sealed(now, field).is_some();
            debug!(authority = self.peer.settings.authority, is_agreed, "sealed transport granted");
        }
        self.send_capsules(stream);
        let more = self.tunnel.on_granted(stream, &head.headers, beside);
        let Some(Flow { carries, request, .. }) = self.flows.get(&stream) else {
            impossible::<()>("only the request of a flow is granted");
            return Ok(());
        };
        let (carries, request) = (*carries, request.clone());
        for _ in 0..more {
            // The proxy may allow no more streams at the moment. The flow then has fewer.
            if self.send_request(&request, carries, Some(stream)).is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Sends the capsules about connection IDs that a flow has to send.
    fn send_capsules(&mut self, stream: StreamId) {
        for capsule in self.beside.take_capsules(stream) {
            self.tunnel.send_capsule(stream, |out| capsule.encode(out));
        }
    }

    /// Handles a capsule about a connection ID of a flow.
    pub(in crate::client) fn on_cid(
        &mut self,
        stream: StreamId,
        capsule: CidCapsule,
    ) -> Result<(), Violation> {
        self.beside.on_capsule(stream, capsule)?;
        self.send_capsules(stream);
        self.wake();
        Ok(())
    }

    /// Registers an ID that the next proxy has chosen for packets beside its connection. They are payloads of
    /// the flow that carries this connection. `false`: there is no room for it.
    pub(in crate::client) fn register_inner(&mut self, id: Virtual) -> bool {
        let Some(stream) = self.next else { return false }; // the tunnel is being rebuilt
        let is_registered = self.beside.register_inner(stream, id);
        self.send_capsules(stream);
        self.wake();
        is_registered
    }

    /// Closes IDs that the next proxy has chosen, and that are no longer used.
    pub(in crate::client) fn close_inner(&mut self, ids: Vec<Virtual>) {
        if let Some(stream) = self.next.filter(|_| !ids.is_empty()) {
            for id in ids {
                self.beside.close_inner(stream, id);
            }
            self.send_capsules(stream);
            self.wake();
        }
    }

    /// Keeps the packets of a flow inside the connection, because the hop before has no room for an ID.
    pub(in crate::client) fn refuse(&mut self, stream: StreamId, id: Virtual) {
        self.beside.refuse(stream, id);
        self.send_capsules(stream);
        self.wake();
    }

    /// Finds out whether a packet from the proxy travelled beside the connection.
    pub(in crate::client) fn unwrap(&mut self, now: Instant, packet: BytesMut) -> Unwrapped {
        let received = (Tag::of(&packet), packet.len());
        let unwrapped = self.beside.unwrap(now, packet);
        if let (Unwrapped::Payload(_, payload), Some(layer)) =
            (&unwrapped, &self.peer.settings.layer)
        {
            layer.on_received_beside(received, payload);
        }
        unwrapped
    }

    /// Notes a payload that arrived inside the connection.
    pub(in crate::client) fn on_tunnelled(&mut self, stream: StreamId, payload: &[u8]) {
        self.beside.on_tunnelled(stream, payload);
        self.send_capsules(stream);
    }

    /// Whether the repair of the flow that carries the next peer may be changed while it lasts.
    pub(in crate::client) fn adapts(&self) -> bool {
        self.next.is_some_and(|stream| self.tunnel.adapts(stream))
    }

    /// Starts the reports on the flow that carries the next peer.
    pub(in crate::client) fn begin_reports(&mut self, now: Instant) {
        if let Some(stream) = self.next {
            self.tunnel.begin_reports(now, stream);
        }
    }

    /// Tells the tunnel the RTT of the connection inside.
    pub(in crate::client) fn on_rtt_beyond(&mut self, end_to_end: Duration) {
        if let Some(stream) = self.next {
            let smoothed_rtt = self.peer.stats().smoothed_rtt;
            self.tunnel.on_rtt_beyond(stream, end_to_end, smoothed_rtt);
        }
    }

    /// Resets the hop for a new connection, whose random choices differ from earlier ones.
    pub(in crate::client) fn renew(&mut self, generation: u64, limits: &Limits) {
        self.peer = self.peer.renewed(generation, limits);
        self.tunnel.add_to(&mut self.ended);
        self.tunnel = self.tunnel.renewed(limits);
        self.beside.renew();
        self.flows.clear();
        self.next = None;
        self.is_up = false;
    }

    /// Sends a payload beside the connection, or puts it into the tunnel's queue. With an error it was
    /// dropped, and counted.
    pub(in crate::client) fn send(
        &mut self,
        now: Instant,
        stream: StreamId,
        data: &[u8],
    ) -> Result<(), Unsent> {
        self.has_urgent |= self.tunnel.is_urgent(stream);
        if self.beside.is_used(stream) && self.send_beside(now, stream, data)? {
            return Ok(());
        }
        let (tunnel, mut carrier) = self.parts().ok_or(Unsent::Other)?;
        tunnel.send(now, &mut carrier, stream, data)
    }

    /// Sends a payload beside the connection, if its flow permits.
    fn send_beside(&mut self, now: Instant, stream: StreamId, data: &[u8]) -> Result<bool, Unsent> {
        let mut carrier = self.peer.carrier().ok_or(Unsent::Other)?;
        let size_max = carrier.quic().packet_size_max();
        if !self.beside.send(now, stream, data, size_max) {
            self.send_capsules(stream); // about the connection IDs in the payload
            return Ok(false);
        }
        if let (Some(layer), Some(sent)) = (&self.peer.settings.layer, self.beside.last_sent()) {
            layer.on_sent_beside(data, sent);
        }
        Ok(true)
    }

    /// Gives the engine as much of the queue as it takes.
    pub(in crate::client) fn feed(&mut self, now: Instant) {
        match self.parts() {
            Some((tunnel, mut carrier)) => tunnel.feed(now, &mut carrier),
            None => self.tunnel.end_reports(), // so that no timer remains without a connection
        }
    }

    /// Handles the timers that are due.
    pub(in crate::client) fn handle_timeout(&mut self, now: Instant) {
        self.tunnel.handle_timeout(now);
        if self.beside.is_due(now)
            && let Some(mut carrier) = self.peer.carrier()
        {
            carrier.quic().ping();
        }
    }

    /// When the next timer of the tunnel is due. A tunnel without a connection has nothing to do: it
    /// is rebuilt, or the client ends.
    pub(in crate::client) fn next_timeout(&mut self) -> Option<Instant> {
        if !self.peer.has_connection() {
            return None;
        }
        let tunnel = quic::earliest(self.tunnel.next_timeout(), self.beside.next_timeout());
        quic::earliest(tunnel, self.peer.silent_at())
    }

    /// Whether the proxy has not acknowledged all payloads that were sent through this hop.
    pub(in crate::client) fn awaits_ack(&mut self) -> bool {
        self.parts().is_some_and(|(tunnel, carrier)| tunnel.awaits_ack(&carrier))
    }

    /// The next arrival through the tunnel, except for numbered payloads.
    pub(in crate::client) fn poll_arrival(&mut self, now: Instant) -> Option<Arrival> {
        let (tunnel, mut carrier) = self.parts()?;
        tunnel.poll_arrival(now, &mut carrier)
    }

    /// Adds the counters of the tunnel and of the tunnels before it.
    pub(in crate::client) fn add_to(&self, stats: &mut Stats) {
        stats.add_tunnels(&self.ended);
        self.tunnel.add_to(stats);
        stats.beside.add(self.beside.stats());
    }

    /// Closes a flow, and the streams that joined it, with this code for the proxy.
    pub(in crate::client) fn close_flow(&mut self, stream: StreamId, code: Code) {
        let joined = self.tunnel.close(stream);
        for stream in std::iter::once(stream).chain(joined) {
            self.flows.remove(&stream);
            self.beside.close(stream);
            if let Some(mut carrier) = self.peer.carrier() {
                carrier.reset(stream, code);
            }
        }
    }

    /// The client's error for a refusal by this proxy.
    pub(in crate::client) fn refused(
        &self,
        target: impl Into<StrangerText>,
        head: &ResponseHead,
    ) -> ClientError {
        let proxy_status = head
            .headers
            .get("proxy-status")
            .map(|value| StrangerText::from_bytes(value.as_bytes()));
        ClientError::Refused {
            peer: self.peer.settings.authority.clone(),
            target: target.into(),
            status: head.status.as_u16(),
            proxy_status,
            retry_after: retry_after(&head.headers),
        }
    }
}

/// The wait for which a proxy asks. The form with a date is ignored, because a client's clock may be
/// wrong.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

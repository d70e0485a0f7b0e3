//! The flows of programs through the last hop.
//!
//! Whatever a flow is for, it has one life: it waits until the proxy allows one more stream, it is requested, it is
//! granted, and it ends. What differs is who is behind it, its [`Source`]. Each source has a file of its own.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    net::SocketAddr,
    time::Instant,
};

use bytes::Bytes;
use tandem_wire::Code;

use super::{
    AssociateId, Context, FlowId,
    direct::Direct,
    room::{ANSWERED, QUESTIONS, Room},
};
use crate::{
    client::{
        Choice,
        chain::{Carries, Hop, Request},
    },
    error::FlowError,
    impossible::impossible,
    limits::Limits,
    node::SocketId,
    quic::{self, StreamId},
    tcp::TcpId,
    tunnel::Unsent,
};

/// A listening socket and the address of a local program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::client) struct LocalFlowId {
    pub(in crate::client) socket: SocketId,
    pub(in crate::client) program: SocketAddr,
}

/// Who is behind a flow. It is also the name of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::client) enum Source {
    /// Nobody yet. The flow was requested ahead of the programs of this UDP listener, to find out whether the proxy
    /// grants it.
    Ahead(usize),
    /// A program that sends to a UDP listener.
    Udp(LocalFlowId),
    /// The embedding program.
    Own(FlowId),
    /// A program that sends to a target through a UDP association (SOCKS5).
    Associate(AssociateId),
    /// A program with a TCP connection.
    Tcp(TcpId),
}

impl Source {
    /// Whether a flow that the proxy has ended without an error stays, and is requested again for the next payload.
    /// The program of a UDP listener gets a new one instead.
    pub(super) const fn is_requested_again(self) -> bool {
        matches!(self, Self::Own(_) | Self::Associate(_))
    }
}

/// The life of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Life {
    /// It is requested as soon as the tunnel is up and the proxy allows one more stream.
    Waiting,
    Requested(StreamId),
    Granted(StreamId),
    /// The proxy has ended it without an error, for example because it was idle. The next payload requests it again.
    Idle,
    /// The program has closed it. Its request stream is closed at this time, so that the last payloads still leave.
    Closing(StreamId, Instant),
}

impl Life {
    /// The request stream of a flow that its program uses.
    pub(super) const fn stream(self) -> Option<StreamId> {
        match self {
            Self::Requested(stream) | Self::Granted(stream) => Some(stream),
            Self::Waiting | Self::Idle | Self::Closing(..) => None,
        }
    }
}

/// When payloads of a flow have passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    pub(super) began: Instant,
    pub(super) last: Instant,
}

/// Where a payload goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    ToTarget,
    ToClient,
}

/// One flow of a program.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) request: Request,
    pub(super) life: Life,
    /// What waits for the grant. Of a TCP connection also what was sent before the grant, in case the request has to
    /// be repeated in another form; its FIN is an empty piece.
    pub(super) early: VecDeque<Bytes>,
    /// How many payloads were sent before the grant.
    sent_early: usize,
    /// The bytes that the program has sent.
    pub(super) to_target_bytes: u64,
    /// The bytes that have come for the program.
    pub(super) to_client_bytes: u64,
    /// `None`: no payload has passed. That of a TCP connection begins when its program asks for it.
    pub(super) activity: Option<Activity>,
    /// The number of payloads of the program, up to one more than [`QUESTIONS`].
    pub(super) sent: u32,
    /// The same of payloads of the target.
    pub(super) received: u32,
    /// Whether the program has sent again after a while.
    pub(super) goes_on: bool,
    /// Flows that began later have larger numbers.
    number: u64,
    /// Whether the first payload began a QUIC connection. `None`: there was no payload yet.
    begins_quic: Option<bool>,
    /// Whether an event has said that payloads do not fit.
    pub(super) is_oversize_told: bool,
    /// The number of its payloads that wait for the embedding program.
    pub(super) queued: usize,
}

impl Flow {
    fn new(request: Request, number: u64) -> Self {
        Self {
            request,
            life: Life::Waiting,
            early: VecDeque::new(),
            sent_early: 0,
            to_target_bytes: 0,
            to_client_bytes: 0,
            activity: None,
            sent: 0,
            received: 0,
            goes_on: false,
            number,
            begins_quic: None,
            is_oversize_told: false,
            queued: 0,
        }
    }

    /// Notes that a payload of the program passes.
    fn on_sent(&mut self, now: Instant, len: usize) {
        // More are not counted, because it has more than a few questions then.
        if self.sent <= QUESTIONS {
            self.sent += 1;
            let began = self.activity.map_or(now, |activity| activity.began);
            self.goes_on |= now > began + ANSWERED;
        }
        self.count(now, Way::ToTarget, len as u64);
    }

    /// Notes that a payload of the target passes.
    pub(super) fn on_received(&mut self, now: Instant, len: usize) {
        if self.received <= QUESTIONS {
            self.received += 1;
        }
        self.count(now, Way::ToClient, len as u64);
    }

    /// Notes that bytes pass.
    pub(super) fn count(&mut self, now: Instant, way: Way, len: u64) {
        self.touch(now);
        match way {
            Way::ToTarget => self.to_target_bytes += len,
            Way::ToClient => self.to_client_bytes += len,
        }
    }

    /// Notes that the flow is used.
    pub(super) fn touch(&mut self, now: Instant) {
        match &mut self.activity {
            Some(activity) => activity.last = now,
            None => self.activity = Some(Activity { began: now, last: now }),
        }
    }

    /// Whether it carries a QUIC connection, as far as is known.
    pub(super) fn is_quic(&self) -> bool {
        self.request.carries_quic || self.begins_quic == Some(true)
    }

    /// Lets the payloads of a QUIC connection leave the tunnel in their order, if the request could not say that the
    /// flow carries one, because it was sent before the first payload.
    fn choose_order(&self, stream: StreamId, cx: &mut Context<'_>) {
        if self.begins_quic == Some(true) && !self.request.carries_quic {
            cx.hop.tunnel.choose(cx.now, stream, Choice::Ordered);
        }
    }
}

/// All flows of programs. There are at most [`Limits::local_flows`] of UDP listeners and associations together, and as
/// many of the embedding program.
#[derive(Debug, Default)]
pub(super) struct Flows {
    all: BTreeMap<Source, Flow>,
    /// The flows that wait to be requested, with their numbers.
    waiting: BTreeSet<(u64, Source)>,
    /// The number of the next flow.
    next: u64,
    pub(super) room: Room,
    /// The flows that their programs have closed, in the order of their ends.
    closing: BTreeSet<(Instant, Source)>,
    /// The request streams of TCP connections. The hop knows those of UDP payloads.
    tcp_streams: BTreeMap<StreamId, TcpId>,
    /// The number of flows of UDP listeners and associations.
    of_programs: usize,
    /// The number of flows of the embedding program.
    own: usize,
    /// The number of request streams of UDP payloads.
    udp_streams: usize,
    /// The ways to targets without the tunnel.
    pub(super) direct: Direct,
}

impl Flows {
    pub(super) fn get(&self, source: Source) -> Option<&Flow> {
        self.all.get(&source)
    }

    pub(super) fn get_mut(&mut self, source: Source) -> Option<&mut Flow> {
        self.all.get_mut(&source)
    }

    /// Whether its program has closed a flow.
    pub(super) fn is_closed(&self, source: Source) -> bool {
        self.get(source).is_some_and(|flow| matches!(flow.life, Life::Closing(..)))
    }

    /// The request stream of a flow that its program uses.
    pub(super) fn stream(&self, source: Source) -> Option<StreamId> {
        self.get(source)?.life.stream()
    }

    /// The TCP connection that a request stream carries.
    pub(super) fn tcp_of(&self, stream: StreamId) -> Option<TcpId> {
        self.tcp_streams.get(&stream).copied()
    }

    /// The TCP connections with a request stream, in the order of their requests.
    pub(super) fn requested_tcp(&self) -> Vec<TcpId> {
        self.tcp_streams.values().copied().collect()
    }

    /// All flows.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Source, &Flow)> {
        self.all.iter()
    }

    /// The number of flows of UDP listeners and associations.
    pub(super) const fn of_programs(&self) -> usize {
        self.of_programs
    }

    /// The number of flows of UDP payloads.
    pub(super) const fn len(&self) -> usize {
        self.of_programs + self.own
    }

    /// The number of request streams of UDP payloads.
    pub(super) const fn udp_streams(&self) -> usize {
        self.udp_streams
    }

    /// The number of request streams.
    pub(super) fn streams(&self) -> usize {
        self.udp_streams + self.tcp_streams.len()
    }

    fn count(&mut self, source: Source) -> Option<&mut usize> {
        match source {
            Source::Udp(_) | Source::Associate(_) => Some(&mut self.of_programs),
            Source::Own(_) => Some(&mut self.own),
            Source::Ahead(_) | Source::Tcp(_) => None, // the listeners and the connections are counted instead
        }
    }

    /// Adds a flow that waits to be requested.
    pub(super) fn insert(&mut self, source: Source, request: Request) {
        let number = self.next;
        self.next += 1;
        if self.all.insert(source, Flow::new(request, number)).is_some() {
            return impossible("a flow has a name of its own");
        }
        self.waiting.insert((number, source));
        if let Some(count) = self.count(source) {
            *count += 1;
        }
    }

    /// Removes a flow, whose request stream has ended or is ended by the caller.
    pub(super) fn remove(&mut self, source: Source) -> Option<Flow> {
        let flow = self.all.remove(&source)?;
        self.on_left(source, flow.number, flow.life);
        if let Some(count) = self.count(source) {
            *count -= 1;
        }
        Some(flow)
    }

    /// Moves a flow on in its life.
    pub(super) fn set_life(&mut self, source: Source, life: Life) {
        let Some(flow) = self.all.get_mut(&source) else {
            return impossible("only a flow that is there moves on");
        };
        let (number, left) = (flow.number, mem::replace(&mut flow.life, life));
        self.on_left(source, number, left);
        match (life, source) {
            (Life::Waiting, _) => drop(self.waiting.insert((number, source))),
            (Life::Requested(stream) | Life::Granted(stream), Source::Tcp(tcp)) => {
                self.tcp_streams.insert(stream, tcp);
            }
            (Life::Closing(_, until), _) => {
                self.closing.insert((until, source));
                self.udp_streams += 1;
            }
            (Life::Requested(_) | Life::Granted(_), _) => self.udp_streams += 1,
            (Life::Idle, _) => {}
        }
    }

    /// Forgets what is known of a flow in a part of its life that is over.
    fn on_left(&mut self, source: Source, number: u64, life: Life) {
        match (life, source) {
            (Life::Waiting, _) => drop(self.waiting.remove(&(number, source))),
            (Life::Requested(stream) | Life::Granted(stream), Source::Tcp(_)) => {
                self.tcp_streams.remove(&stream);
            }
            (Life::Closing(_, until), _) => {
                self.closing.remove(&(until, source));
                self.udp_streams -= 1;
            }
            (Life::Requested(_) | Life::Granted(_), _) => self.udp_streams -= 1,
            (Life::Idle, _) => {}
        }
    }

    /// Opens a flow for the embedding program. It is requested at once if the tunnel is up.
    ///
    /// # Errors
    ///
    /// The target is malformed, or there are too many flows, or there is one of this name.
    pub(super) fn open(
        &mut self,
        source: Source,
        request: Request,
        limits: &Limits,
        hop: &mut Hop,
    ) -> Result<(), FlowError> {
        let most = limits.local_flows;
        request.service.check_target(&request.config.host, request.config.port)?;
        if self.all.contains_key(&source) {
            return Err(FlowError::NotOpen);
        }
        if self.own >= most {
            return Err(FlowError::TooMany { most });
        }
        self.insert(source, request);
        if hop.is_up {
            self.request_waiting_own(hop);
        }
        Ok(())
    }

    /// Requests a flow of UDP payloads. `false`: the tunnel is not up, or the proxy allows no more streams at the
    /// moment.
    pub(super) fn request(&mut self, source: Source, hop: &mut Hop) -> bool {
        let Some(flow) = self.all.get(&source) else {
            return impossible("only a flow that is there is requested");
        };
        let may_ask = hop.is_up || matches!(source, Source::Ahead(_));
        let stream =
            may_ask.then(|| hop.request(&flow.request, Carries::Program(source))).flatten();
        if may_ask && stream.is_none() {
            self.no_more_streams(hop);
        }
        self.set_life(source, stream.map_or(Life::Waiting, Life::Requested));
        stream.is_some()
    }

    /// Requests the flows of the embedding program that wait, as far as the proxy allows more streams.
    pub(super) fn request_waiting_own(&mut self, hop: &mut Hop) {
        let own = |source: &Source| matches!(source, Source::Own(_));
        for source in self.waiting(own) {
            if !self.request(source, hop) {
                return;
            }
        }
    }

    /// The flows that wait to be requested and for which this is true. Those that began first come first.
    pub(super) fn waiting(&self, is_meant: impl Fn(&Source) -> bool) -> Vec<Source> {
        self.waiting.iter().map(|(_, source)| *source).filter(|source| is_meant(source)).collect()
    }

    /// The flows of UDP listeners that wait to be requested.
    pub(super) fn waiting_udp(&self) -> Vec<LocalFlowId> {
        let udp = |source: &Source| if let Source::Udp(id) = source { Some(*id) } else { None };
        self.waiting.iter().filter_map(|(_, source)| udp(source)).collect()
    }

    /// The TCP connections that wait to be requested.
    pub(super) fn waiting_tcp(&self) -> Vec<TcpId> {
        let tcp = |source: &Source| if let Source::Tcp(tcp) = source { Some(*tcp) } else { None };
        self.waiting.iter().filter_map(|(_, source)| tcp(source)).collect()
    }

    /// Gives a flow that was requested ahead to a program.
    pub(super) fn take_over(&mut self, ahead: Source, by: Source, hop: &mut Hop) {
        let Some(Flow { life, .. }) = self.remove(ahead) else {
            return impossible("the flow that was requested ahead is there");
        };
        if let Some(stream) = life.stream()
            && hop.hand_over(stream, Carries::Program(by))
        {
            self.set_life(by, life);
        }
    }

    /// Handles the grant of a flow of UDP payloads: sends what waited for it. Returns the first error.
    pub(super) fn on_granted(&mut self, source: Source, cx: &mut Context<'_>) -> Option<FlowError> {
        let Some(Flow { life, .. }) = self.get(source) else {
            return impossible("the request of a flow that has ended was closed");
        };
        let stream = match *life {
            Life::Requested(stream) => {
                self.set_life(source, Life::Granted(stream));
                stream
            }
            Life::Closing(stream, _) => stream,
            Life::Waiting | Life::Granted(_) | Life::Idle => {
                return impossible("only what was requested is granted, and only once");
            }
        };
        self.get(source)?.choose_order(stream, cx);
        self.send_early(source, cx)
    }

    /// Sends what waited for the grant of a flow. Returns the first error.
    pub(super) fn send_early(&mut self, source: Source, cx: &mut Context<'_>) -> Option<FlowError> {
        let flow = self.get_mut(source)?;
        let (Life::Granted(stream) | Life::Closing(stream, _)) = flow.life else { return None };
        let mut first = None;
        for payload in mem::take(&mut flow.early) {
            first = first.or(transmit(stream, &payload, cx).err());
        }
        first
    }

    /// Sends a payload, or keeps it until the flow is granted.
    ///
    /// # Errors
    ///
    /// The payload was dropped.
    pub(super) fn send(
        &mut self,
        source: Source,
        payload: impl AsRef<[u8]> + Into<Bytes>,
        cx: &mut Context<'_>,
    ) -> Result<(), FlowError> {
        let flow = self.all.get_mut(&source).ok_or(FlowError::NotOpen)?;
        flow.on_sent(cx.now, payload.as_ref().len());
        let is_first = flow.begins_quic.is_none();
        if is_first {
            flow.begins_quic = Some(quic::is_first_of_client(payload.as_ref()));
        }
        match flow.life {
            Life::Granted(stream) => {
                if is_first {
                    flow.choose_order(stream, cx);
                }
                return transmit(stream, payload.as_ref(), cx);
            }
            // Without the round trip of the grant. Programs that embed the tunnel wait for it.
            Life::Requested(stream)
                if matches!(source, Source::Udp(_))
                    && flow.early.is_empty()
                    && flow.sent_early < cx.limits.early_datagrams_per_flow
                    && cx.hop.takes_early(payload.as_ref()) =>
            {
                flow.sent_early += 1;
                return transmit(stream, payload.as_ref(), cx);
            }
            Life::Closing(..) => return Err(FlowError::NotOpen),
            Life::Waiting | Life::Requested(_) | Life::Idle => {}
        }
        let is_kept = flow.early.len() < cx.limits.early_datagrams_per_flow;
        if is_kept {
            flow.early.push_back(payload.into());
        } else {
            cx.stats.dropped.unknown_flow += 1;
        }
        if flow.life == Life::Idle {
            self.set_life(source, Life::Waiting);
            self.request_if_room(source, cx);
        }
        if is_kept { Ok(()) } else { Err(FlowError::QueueFull) }
    }

    /// Closes a flow for its program. Its last payloads leave until this time.
    pub(super) fn close(&mut self, source: Source, until: Instant) {
        let Some(flow) = self.get(source) else { return }; // it has ended already
        match flow.life {
            Life::Requested(stream) | Life::Granted(stream) => {
                self.set_life(source, Life::Closing(stream, until));
            }
            Life::Closing(..) => {}
            Life::Waiting | Life::Idle => drop(self.remove(source)),
        }
    }

    /// When the next closed flow ends, or flows that wait may have room.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let closing = self.closing.first().map(|(until, _)| *until);
        quic::earliest(closing, self.room.next_timeout())
    }

    /// Closes the request streams of closed flows whose last payloads have left, and looks for room for those that
    /// wait.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        while let Some(&(until, source)) = self.closing.first()
            && until <= cx.now
        {
            if let Some(Flow { life: Life::Closing(stream, _), .. }) = self.remove(source) {
                cx.hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
            }
        }
        self.look_for_room(cx);
    }

    /// Removes the flows of UDP listeners for which this is true, and ends their request streams.
    pub(super) fn end_of_listeners(&mut self, hop: &mut Hop, is_over: impl Fn(&Flow) -> bool) {
        let over = self
            .all
            .iter()
            .filter(|(source, flow)| matches!(source, Source::Udp(_)) && is_over(flow));
        for source in over.map(|(source, _)| *source).collect::<Vec<_>>() {
            self.cancel(source, hop);
        }
    }

    /// Removes a flow, and ends its request stream.
    pub(super) fn cancel(&mut self, source: Source, hop: &mut Hop) -> Option<Flow> {
        let flow = self.remove(source)?;
        if let Some(stream) = flow.life.stream() {
            // RFC 9114 §4.1.1: "Clients SHOULD use the error code H3_REQUEST_CANCELLED to cancel requests."
            hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
        }
        Some(flow)
    }

    /// When the last payload passed in the flow of a UDP listener that has been silent for longest.
    pub(super) fn longest_silence_of_listeners(&self) -> Option<Instant> {
        let of_listeners = self.all.iter().filter(|(source, _)| matches!(source, Source::Udp(_)));
        of_listeners.filter_map(|(_, flow)| Some(flow.activity?.last)).min()
    }

    /// Forgets all request streams of UDP payloads, because the tunnel has ended. All flows must be requested again,
    /// except for those that are idle or closed. Those that were requested ahead are forgotten.
    pub(super) fn forget_streams(&mut self) {
        self.room.forget_proxy();
        let with_stream = self.all.iter().filter(|(source, flow)| {
            !matches!(source, Source::Tcp(_))
                && matches!(flow.life, Life::Requested(_) | Life::Granted(_) | Life::Closing(..))
        });
        for (source, life) in with_stream.map(|(it, flow)| (*it, flow.life)).collect::<Vec<_>>() {
            if matches!(source, Source::Ahead(_)) || matches!(life, Life::Closing(..)) {
                self.remove(source);
            } else {
                self.set_life(source, Life::Waiting);
            }
        }
    }
}

/// Puts a payload into the tunnel, and counts it.
fn transmit(stream: StreamId, payload: &[u8], cx: &mut Context<'_>) -> Result<(), FlowError> {
    let sent = cx.hop.send(cx.now, stream, payload);
    cx.stats.count_to_target(sent.is_ok(), payload.len());
    sent.map_err(|error| match error {
        Unsent::TooLarge { fits } => FlowError::TooLarge { len: payload.len(), fits },
        Unsent::Other => FlowError::QueueFull,
    })
}

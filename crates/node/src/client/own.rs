//! The flows that the embedding program opens itself, whose payloads it gives to the client and
//! takes from it.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Instant,
};

use bytes::Bytes;
use tandem_wire::{Code, TargetError, TunnelInfo, uri_template::check_host};

use super::{
    Client, FlowConfig, Life, Work,
    auto::Choice,
    flow::{Carries, Target},
    hop::Hop,
};
use crate::{
    error::{ClientError, FlowError},
    limits::Limits,
    quic::{self, StreamId},
    stats::Stats,
    tunnel::Unsent,
};

/// The name of a flow that the embedding program opens. The program chooses it, less than 2^63, and
/// never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// Names from this one on are for flows that the client itself opens, of which the embedding program is
/// told nothing.
pub(super) const INTERNAL: u64 = 1 << 63;

/// What happened on a flow that the embedding program opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    /// The proxy has granted the flow. This event comes again after the tunnel was rebuilt.
    Opened,
    /// A payload of the target.
    Payload(Bytes),
    /// A report of the proxy on the flow.
    Report(TunnelInfo),
    /// The flow has ended, because the proxy refused it or closed it. This is its last event.
    Ended(ClientError),
}

/// The state of a flow towards the proxy.
#[derive(Debug)]
enum State {
    /// It is requested as soon as the proxy allows one more stream.
    Waiting,
    Requested(StreamId),
    /// The proxy has ended it without an error, for example because it was idle. The next payload
    /// requests it again.
    Idle,
    /// The program has closed it. Its request stream is closed at this time, so that the last
    /// payloads still leave.
    Closing(StreamId, Instant),
}

/// One flow.
#[derive(Debug)]
struct OwnFlow {
    target: Target,
    state: State,
    /// Whether the first payload began a QUIC connection. `None`: there was no payload yet.
    is_quic: Option<bool>,
    /// Payloads that wait for the grant.
    early: VecDeque<Bytes>,
    /// The number of its payloads in [`OwnFlows::events`].
    queued: usize,
}

/// The flows that the embedding program opened.
#[derive(Default)]
pub(super) struct OwnFlows {
    flows: BTreeMap<FlowId, OwnFlow>,
    events: VecDeque<(FlowId, FlowEvent)>,
}

impl OwnFlows {
    /// The number of flows.
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Requests the flows that wait.
    pub(super) fn request_waiting(&mut self, hop: &mut Hop) {
        for (&id, flow) in &mut self.flows {
            if matches!(flow.state, State::Waiting) {
                let Some(stream) = hop.request(&flow.target, Carries::Own(id)) else { return };
                flow.state = State::Requested(stream);
            }
        }
    }

    /// Forgets all request streams, because the tunnel has ended. All flows must be requested
    /// again, except for those that are idle or closed.
    pub(super) fn forget_streams(&mut self) {
        self.flows.retain(|_, flow| !matches!(flow.state, State::Closing(..)));
        for flow in self.flows.values_mut() {
            if matches!(flow.state, State::Requested(_)) {
                flow.state = State::Waiting;
            }
        }
    }

    /// Sends the payloads that waited for the grant.
    pub(super) fn on_granted(
        &mut self,
        now: Instant,
        id: FlowId,
        hop: &mut Hop,
        stats: &mut Stats,
    ) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let (State::Requested(stream) | State::Closing(stream, _)) = flow.state else { return };
        if flow.is_quic == Some(true) {
            hop.tunnel.choose(now, stream, Choice::Ordered);
        }
        for payload in mem::take(&mut flow.early) {
            let is_sent = hop.send(now, stream, &payload).is_ok();
            stats.count_to_target(is_sent, payload.len());
        }
        if matches!(flow.state, State::Requested(_)) {
            self.tell(id, FlowEvent::Opened);
        }
    }

    fn tell(&mut self, id: FlowId, event: FlowEvent) {
        if id.0 < INTERNAL {
            self.events.push_back((id, event));
        }
    }

    /// Handles a payload of the target. It is dropped if the program has not taken those before it.
    pub(super) fn on_payload(
        &mut self,
        id: FlowId,
        payload: Bytes,
        (limits, stats): (&Limits, &mut Stats),
    ) {
        let flow = self.flows.get_mut(&id);
        let Some(flow) = flow.filter(|flow| matches!(flow.state, State::Requested(_))) else {
            stats.dropped.unknown_flow += 1;
            return;
        };
        if flow.queued >= limits.flow_queue {
            stats.dropped.queue_full += 1;
            return;
        }
        flow.queued += 1;
        stats.to_client_datagrams += 1;
        stats.to_client_bytes += payload.len() as u64;
        self.events.push_back((id, FlowEvent::Payload(payload)));
    }

    /// Handles a report of the proxy. It is dropped if many events wait, because the next one follows
    /// soon.
    pub(super) fn on_report(&mut self, id: FlowId, info: TunnelInfo, limits: &Limits) {
        if self.events.len() < limits.flow_queue {
            self.tell(id, FlowEvent::Report(info));
        }
    }

    /// Handles the end of a flow by the proxy. Without an error, it is requested again for the next
    /// payload.
    pub(super) fn on_ended(&mut self, id: FlowId, error: Option<ClientError>) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let is_closing = matches!(flow.state, State::Closing(..));
        match error {
            None if !is_closing => flow.state = State::Idle,
            None => drop(self.flows.remove(&id)),
            Some(error) => {
                self.flows.remove(&id);
                if !is_closing {
                    self.tell(id, FlowEvent::Ended(error));
                }
            }
        }
    }

    /// When the next closed flow ends.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let ends = self.flows.values().filter_map(|flow| match flow.state {
            State::Closing(_, until) => Some(until),
            _ => None,
        });
        ends.min()
    }

    /// Closes the request streams of closed flows whose last payloads have left.
    pub(super) fn handle_timeout(&mut self, now: Instant, hop: &mut Hop) {
        self.flows.retain(|_, flow| match flow.state {
            State::Closing(stream, until) if until <= now => {
                hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
                false
            }
            _ => true,
        });
    }

    fn poll_event(&mut self) -> Option<(FlowId, FlowEvent)> {
        let (id, event) = self.events.pop_front()?;
        if matches!(event, FlowEvent::Payload(_))
            && let Some(flow) = self.flows.get_mut(&id)
        {
            flow.queued = flow.queued.saturating_sub(1);
        }
        Some((id, event))
    }

    /// Sends a payload, or keeps it until the flow is granted.
    fn send(
        &mut self,
        now: Instant,
        (id, payload): (FlowId, &Bytes),
        hop: &mut Hop,
        (limits, stats): (&Limits, &mut Stats),
    ) -> Result<(), FlowError> {
        let flow = self.flows.get_mut(&id).ok_or(FlowError::NotOpen)?;
        let is_first = flow.is_quic.is_none();
        let is_quic = *flow.is_quic.get_or_insert_with(|| quic::is_first_of_client(payload));
        match flow.state {
            State::Closing(..) => return Err(FlowError::NotOpen),
            State::Requested(stream) if hop.tunnel.is_granted(stream) => {
                if is_first && is_quic {
                    hop.tunnel.choose(now, stream, Choice::Ordered);
                }
                let sent = hop.send(now, stream, payload);
                stats.count_to_target(sent.is_ok(), payload.len());
                return sent.map_err(|error| match error {
                    Unsent::TooLarge { fits } => FlowError::TooLarge { len: payload.len(), fits },
                    Unsent::Other => FlowError::QueueFull,
                });
            }
            State::Idle => {
                let stream = hop.request(&flow.target, Carries::Own(id));
                flow.state = stream.map_or(State::Waiting, State::Requested);
            }
            State::Waiting | State::Requested(_) => {}
        }
        if flow.early.len() >= limits.early_datagrams_per_flow {
            stats.dropped.unknown_flow += 1;
            return Err(FlowError::QueueFull);
        }
        flow.early.push_back(payload.clone());
        Ok(())
    }
}

impl Client {
    /// Opens a flow. [`FlowEvent::Opened`] or [`FlowEvent::Ended`] follows. While the tunnel is down,
    /// the flow waits for it.
    ///
    /// # Errors
    ///
    /// The target is malformed, or the client has [`Limits::local_flows`] flows already, or it does not carry flows
    /// ([`Task::Forward`](super::Task)), or it is ending, or the name of the flow is in use.
    pub fn open_flow(&mut self, id: FlowId, config: FlowConfig) -> Result<(), FlowError> {
        let most = self.limits.local_flows;
        check_host(&config.host)?;
        if config.port == 0 {
            return Err(TargetError::Port("0".into()).into());
        }
        if !matches!(self.life, Life::New | Life::Running) {
            return Err(FlowError::NotOpen);
        }
        let Some((forward, hop)) = self.forward() else { return Err(FlowError::NotOpen) };
        let own = &mut forward.own;
        if own.flows.contains_key(&id) {
            return Err(FlowError::NotOpen);
        }
        if own.len() >= most {
            return Err(FlowError::TooMany { most });
        }
        let target = Target { config, carries_quic: false };
        let flow = OwnFlow {
            target,
            state: State::Waiting,
            is_quic: None,
            early: VecDeque::new(),
            queued: 0,
        };
        own.flows.insert(id, flow);
        if hop.is_up {
            own.request_waiting(hop);
        }
        self.stats.flows += 1;
        Ok(())
    }

    /// Sends a payload on a flow. While the flow is not granted, the client keeps as many payloads
    /// as [`Limits::early_datagrams_per_flow`] says.
    ///
    /// # Errors
    ///
    /// The payload was dropped.
    pub fn send_on_flow(
        &mut self,
        now: Instant,
        id: FlowId,
        payload: &Bytes,
    ) -> Result<(), FlowError> {
        let Self { work, chain, limits, stats, .. } = self;
        match (work, chain.hops.last_mut()) {
            (Work::Forward(forward), Some(hop)) => {
                forward.own.send(now, (id, payload), hop, (limits, stats))
            }
            _ => Err(FlowError::NotOpen),
        }
    }

    /// The largest payload in bytes that a flow carries at present. `None`: the proxy has not granted
    /// the flow, or there is no such flow.
    pub fn max_payload(&mut self, id: FlowId) -> Option<usize> {
        let (forward, hop) = self.forward()?;
        match forward.own.flows.get(&id)?.state {
            State::Requested(stream) => hop.largest_payload(stream),
            _ => None,
        }
    }

    /// Closes a flow. Its last payloads have [`Limits::last_words`] to leave, then its request stream
    /// is closed. There are no further events of the flow.
    pub fn close_flow(&mut self, now: Instant, id: FlowId) {
        let until = now + self.limits.last_words;
        let Some((forward, _)) = self.forward() else { return };
        let own = &mut forward.own;
        own.events.retain(|(of, _)| *of != id);
        let Some(flow) = own.flows.get_mut(&id) else { return };
        match flow.state {
            State::Requested(stream) => flow.state = State::Closing(stream, until),
            State::Closing(..) => {}
            State::Waiting | State::Idle => drop(own.flows.remove(&id)),
        }
    }

    /// Whether the innermost tunnel's queue is so short that a program that can wait should send
    /// more. A program that sends without waiting fills the queue, which then drops payloads.
    pub fn takes_payloads(&self) -> bool {
        /// A share of the queue that keeps a link of 100 Mbit/s busy for 20 ms.
        const SHARE: usize = 4;
        let queued = self.chain.hops.last().map_or(0, |hop| hop.tunnel.queued());
        queued < self.limits.tunnel_queue / SHARE
    }

    /// The next event of a flow that the program opened. Take all events after each round of outputs:
    /// a flow drops payloads when [`Limits::flow_queue`] of them wait.
    pub fn poll_flow_event(&mut self) -> Option<(FlowId, FlowEvent)> {
        self.forward()?.0.own.poll_event()
    }
}

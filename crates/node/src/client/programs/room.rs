//! Room for the UDP flows of programs: how many have a request stream, which of them end for others, and how long new
//! ones wait.
//!
//! Each question of a resolver comes from another port and each peer of a game or a file-sharing network is another
//! target, so that one program may want thousands of flows, of which most have done their work after one answer. All
//! programs share the streams that the proxy allows. So the flows of UDP payloads leave an eighth of them to TCP
//! connections, and flows that have done their work end for new ones: first those with one question and its answer,
//! then those that have been silent for a second, then one of the socket that has most.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tracing::warn;

use super::{
    Context, Source,
    associate::AssociateId,
    flows::{Flow, Flows, Life},
};
use crate::{client::chain::Hop, impossible::impossible, node::SocketId, quic, seldom::Seldom};

/// The silence after which a flow with an answer to each of a few questions ends for another one, and the time within
/// which its questions were asked.
pub(super) const ANSWERED: Duration = Duration::from_millis(250);

/// The most questions that such a flow has asked. A stub resolver asks for the IPv4 and the IPv6 addresses of a name
/// from the same port.
pub(super) const QUESTIONS: u32 = 2;

/// The silence after which any flow ends for another one.
const SILENCE: Duration = Duration::from_secs(1);

/// The longest time that a flow waits for a stream while the tunnel is up.
const WAIT: Duration = Duration::from_secs(3);

/// The most answered flows that end together, so that not each new flow has to look for one.
const TOGETHER: usize = 32;

/// The most sockets without room at one look, so that a look ends soon.
const SHARES: usize = 16;

/// What flows know about room.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Whether an eighth of the streams is left to TCP connections.
    pub(super) leaves_some_to_tcp: bool,
    /// The largest number of streams that was open when the proxy allowed no more. `None`: it has always allowed more.
    streams: Option<usize>,
    /// When to look for room for the flows that wait.
    next: Option<Instant>,
    /// The flows of associations that have ended for others, which the associations have not heard of yet.
    ended: Vec<AssociateId>,
    /// The socket for which there was no place last, and until when there is none.
    no_place: Option<(SocketId, Instant)>,
    /// The same for request streams.
    no_stream: Option<(SocketId, Instant)>,
    /// Limits the warnings.
    full: Seldom,
}

/// What a new flow needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// A place among all flows that are kept.
    Place,
    /// A request stream.
    Stream,
}

impl Need {
    /// Whether the end of a flow that lives so helps.
    const fn is_met_by(self, life: Life) -> bool {
        match self {
            Self::Place => true,
            Self::Stream => life.stream().is_some(),
        }
    }
}

impl Room {
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// Forgets what was known of a proxy.
    pub(super) const fn forget_proxy(&mut self) {
        (self.streams, self.next, self.no_stream) = (None, None, None);
    }

    const fn none(&mut self, need: Need) -> &mut Option<(SocketId, Instant)> {
        match need {
            Need::Place => &mut self.no_place,
            Need::Stream => &mut self.no_stream,
        }
    }
}

/// A flow that may end for another one.
struct Candidate {
    source: Source,
    socket: SocketId,
    last: Instant,
    /// From when on it may.
    from: Instant,
    is_answered: bool,
}

impl Source {
    /// The socket to which the program of a UDP flow sends. All its flows are one share.
    const fn socket(self) -> Option<SocketId> {
        match self {
            Self::Udp(id) => Some(id.socket),
            Self::Associate(id) => Some(id.socket),
            Self::Ahead(_) | Self::Own(_) | Self::Tcp(_) => None,
        }
    }
}

impl Flow {
    /// Whether a few questions have their answers.
    fn is_answered(&self) -> bool {
        let is_short = !self.goes_on && (1..=QUESTIONS).contains(&self.sent);
        is_short && self.received >= self.sent && !self.is_quic()
    }

    fn candidate(&self, source: Source) -> Option<Candidate> {
        let (socket, last) = (source.socket()?, self.activity?.last);
        let is_answered = self.is_answered();
        let from = last + if is_answered { ANSWERED } else { SILENCE };
        Some(Candidate { source, socket, last, from, is_answered })
    }
}

impl Flows {
    /// The number of request streams that UDP flows of programs may have.
    pub(super) fn streams_for_udp(&self, cx: &Context<'_>) -> usize {
        let streams =
            self.room.streams.map_or(cx.limits.local_flows, |it| it.min(cx.limits.local_flows));
        let others = if self.room.leaves_some_to_tcp { streams.div_ceil(8) } else { 0 };
        streams.saturating_sub(others).max(1)
    }

    /// Notes that the proxy allows no more streams at the moment.
    pub(super) fn no_more_streams(&mut self, hop: &mut Hop) {
        if hop.is_up && hop.peer.carrier().is_some() {
            let open = self.streams();
            self.room.streams = Some(self.room.streams.map_or(open, |most| most.max(open)));
        }
    }

    /// Makes room for one more flow among all that are kept. `false`: each of them is in use.
    pub(super) fn make_place(&mut self, asker: SocketId, cx: &mut Context<'_>) -> bool {
        let has_place = self.of_programs() < cx.limits.local_flows;
        let is_made = has_place || self.end_for(asker, Need::Place, cx);
        if !is_made {
            self.warn_full(cx);
        }
        is_made
    }

    /// Requests a flow of a program, or lets it wait for room.
    pub(super) fn request_if_room(&mut self, source: Source, cx: &mut Context<'_>) {
        if !cx.hop.is_up {
            return;
        }
        let has_room = source.socket().is_none_or(|socket| self.make_stream(socket, cx));
        let is_requested = has_room && self.request(source, cx.hop);
        if !is_requested && self.room.next.is_none() {
            self.look_again(cx.now);
        }
    }

    /// Makes room for the stream of one more UDP flow. `false`: each stream is in use.
    fn make_stream(&mut self, asker: SocketId, cx: &mut Context<'_>) -> bool {
        self.udp_streams() < self.streams_for_udp(cx) || self.end_for(asker, Need::Stream, cx)
    }

    /// Ends a flow that has done its work, so that a TCP connection can have its stream soon.
    pub(super) fn make_stream_for_tcp(&mut self, cx: &mut Context<'_>) {
        let done = self.candidates(Need::Stream).filter(|it| it.from <= cx.now);
        if let Some(source) = done.min_by_key(|it| it.last).map(|it| it.source) {
            self.end_one(source, cx);
        }
    }

    /// The flows whose ends would help a new one.
    fn candidates(&self, need: Need) -> impl Iterator<Item = Candidate> {
        let all = self.all().filter(move |(_, flow)| need.is_met_by(flow.life));
        all.filter_map(|(source, flow)| flow.candidate(*source))
    }

    /// Ends flows for a new one of this socket. `false`: all are in use.
    fn end_for(&mut self, asker: SocketId, need: Need, cx: &mut Context<'_>) -> bool {
        if self.room.none(need).is_some_and(|(socket, until)| socket == asker && until > cx.now) {
            return false;
        }
        let mut all: Vec<_> = self.candidates(need).collect();
        all.sort_by_key(|it| (it.from > cx.now, !it.is_answered, it.last));
        let done = |it: &&Candidate| it.from <= cx.now;
        let answered = all.iter().filter(done).take_while(|it| it.is_answered).take(TOGETHER);
        let mut ended: Vec<_> = answered.map(|it| it.source).collect();
        if ended.is_empty() {
            ended.extend(all.first().filter(done).map(|it| it.source));
        }
        if ended.is_empty() {
            ended.extend(of_largest_share(&all, asker));
        }
        if ended.is_empty() {
            let next = all.iter().map(|it| it.from).min();
            *self.room.none(need) = next.map(|until| (asker, until));
        }
        for source in &ended {
            self.end_one(*source, cx);
        }
        !ended.is_empty()
    }

    fn end_one(&mut self, source: Source, cx: &mut Context<'_>) {
        let Some(flow) = self.cancel(source, cx.hop) else {
            return impossible("only a flow that is there ends for others");
        };
        if let Source::Associate(id) = source {
            self.room.ended.push(id);
        }
        cx.stats.dropped.too_many_flows += flow.early.len() as u64;
        cx.stats.flows_ended.for_others += 1;
    }

    /// The flows of associations that have ended for others since the last call.
    pub(super) fn take_ended(&mut self) -> Vec<AssociateId> {
        std::mem::take(&mut self.room.ended)
    }

    /// Requests the UDP flows of programs that wait, as far as there is room. Those that have waited for too long end.
    pub(super) fn request_waiting_udp(&mut self, cx: &mut Context<'_>) {
        self.room.next = None;
        if !cx.hop.is_up {
            return;
        }
        let mut full = BTreeSet::new();
        for source in self.waiting_for_room() {
            let Some(socket) = source.socket().filter(|socket| !full.contains(socket)) else {
                continue;
            };
            if !self.make_stream(socket, cx) {
                full.insert(socket);
                if full.len() >= SHARES {
                    break;
                }
            } else if !self.request(source, cx.hop) {
                break;
            }
        }
        self.give_up(cx);
        self.look_again(cx.now);
    }

    /// The UDP flows of programs that wait for a stream.
    fn waiting_for_room(&self) -> Vec<Source> {
        self.waiting(|source| source.socket().is_some())
    }

    /// Ends the flows that have waited for a stream for too long.
    fn give_up(&mut self, cx: &mut Context<'_>) {
        let waited = |flow: &Flow| flow.activity.is_some_and(|it| it.began + WAIT <= cx.now);
        let over = self.waiting_for_room().into_iter();
        let over: Vec<_> = over.filter(|source| self.get(*source).is_some_and(waited)).collect();
        for source in &over {
            self.end_one(*source, cx);
        }
        if !over.is_empty() {
            self.warn_full(cx);
        }
    }

    /// Determines when to look for room again for the flows that still wait.
    fn look_again(&mut self, now: Instant) {
        let waiting = self.waiting_for_room();
        let began = |source: &Source| Some(self.get(*source)?.activity?.began + WAIT);
        let Some(give_up) = waiting.iter().filter_map(began).min() else { return }; // none waits
        let free = self.candidates(Need::Stream).map(|it| it.from);
        let next = quic::earliest(free.filter(|from| *from > now).min(), Some(give_up));
        self.room.next = next.map(|next| next.max(now));
    }

    /// Looks for room for the flows that wait, if that is due.
    pub(super) fn look_for_room(&mut self, cx: &mut Context<'_>) {
        if self.room.next.take_if(|next| *next <= cx.now).is_some() {
            self.request_waiting_udp(cx);
        }
    }

    /// Warns that programs want more flows than there may be.
    pub(super) fn warn_full(&mut self, cx: &mut Context<'_>) {
        if let Some(left_out) = self.room.full.due(cx.now) {
            warn!(
                streams = self.streams_for_udp(cx),
                ended = cx.stats.flows_ended.for_others,
                dropped = cx.stats.dropped.too_many_flows,
                left_out,
                "programs send to more UDP targets at a time than there is room for: packets of new flows are dropped \
                 until others are silent; the counts are totals since the start"
            );
        }
    }
}

/// The most silent flow of the socket that has most flows, if the asker has less than its share.
fn of_largest_share(all: &[Candidate], asker: SocketId) -> Option<Source> {
    let mut shares = BTreeMap::<SocketId, usize>::new();
    for it in all {
        *shares.entry(it.socket).or_default() += 1;
    }
    let (largest, most) = shares.iter().max_by_key(|(_, count)| **count)?;
    let own = shares.get(&asker).copied().unwrap_or(0);
    let of_largest = all.iter().filter(|it| it.socket == *largest);
    // The new flow must not make the asker's share larger than what is left to the other.
    if own + 1 >= *most { None } else { of_largest.min_by_key(|it| it.last).map(|it| it.source) }
}

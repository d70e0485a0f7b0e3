//! How a chain comes up, hop by hop, and what happens when a part of it fails: flows are requested, granted, refused
//! and ended, and connections are opened, lost and opened again.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use tandem_wire::{Code, ResponseHead};

use super::{
    Client, ClientPhase, Work,
    chain::{Carries, FlowEnd, INSIDE_TUNNEL, Request, grants},
    first::{self, First, RaceOutcome},
    migration::{Migration, MigrationContext},
    programs::{Direct, Ending, Programs, Source, Verdict},
};
use crate::{
    OsError,
    error::ClientError,
    impossible::impossible,
    node::{Event, Output, Progress, QueryId, ResolveError, ServiceEndpoint, SocketId},
    quic::{Mtu, StreamId, Transport},
};

impl Client {
    /// Lets the choice of the first peer do something, and then does what follows from it.
    pub(super) fn with_first(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut First, &mut first::ChoiceContext<'_>) -> Option<RaceOutcome>,
    ) {
        let Self { first, chain, outputs, next_socket, limits, recovery, .. } = self;
        let random = recovery.jitter.generator();
        let mut cx = first::ChoiceContext { now, chain, outputs, next_socket, limits, random };
        if let Some(outcome) = act(first, &mut cx) {
            self.on_race_over(now, outcome);
        }
    }

    /// Lets the way to the first peer change.
    pub(super) fn with_migration(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Migration, &mut MigrationContext<'_>),
    ) {
        if self.life == ClientPhase::Running {
            let Self { migration, chain, outputs, next_socket, .. } = self;
            act(migration, &mut MigrationContext { now, chain, outputs, next_socket });
        }
    }

    fn on_race_over(&mut self, now: Instant, outcome: RaceOutcome) {
        match outcome {
            RaceOutcome::Lost(error) => self.on_peer_failed(now, 0, error),
            RaceOutcome::Won(mut won) => {
                // The hops are reset before they get the new connection.
                if let Some(error) = won.left.take() {
                    self.tell_of_loss(0, error, Duration::ZERO);
                    self.rebuild(now, 0, None);
                }
                self.first.adopt(*won, now, &mut self.chain);
                self.on_connected(0);
            }
        }
    }

    /// Looks for another proxy, if the one in use drains or is silent.
    pub(super) fn look_elsewhere(&mut self, now: Instant) {
        if self.life == ClientPhase::Running {
            // TCP connections would not survive the move; the proxy lets them go on for a while.
            let may_leave = match &self.work {
                Work::Programs(programs) => !programs.has_connections(),
                Work::Transfer(_) => true,
            };
            let is_away = self.migration.is_long_away(now);
            self.with_first(now, |first, cx| first.look_elsewhere(may_leave, is_away, cx));
        }
    }

    pub(super) fn on_resolved(
        &mut self,
        now: Instant,
        query: QueryId,
        result: (Result<Vec<IpAddr>, ResolveError>, Progress),
    ) {
        if Direct::asked(query) {
            self.with_programs(now, |programs, cx| programs.on_resolved(query, result, cx));
        } else {
            self.with_first(now, |first, cx| first.on_resolved(query, result, cx));
        }
    }

    pub(super) fn on_service_resolved(
        &mut self,
        now: Instant,
        query: QueryId,
        result: (Result<Vec<ServiceEndpoint>, ResolveError>, Progress),
    ) {
        self.with_first(now, |first, cx| first.on_service_resolved(query, result, cx));
    }

    pub(super) fn on_socket_opened(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
    ) {
        if self.life != ClientPhase::Running {
            return; // the sockets of a client that ends are of no use
        }
        if let Some(attempt) = self.first.attempt_of(socket) {
            self.with_first(now, |first, cx| first.on_opened(attempt, result, cx));
        } else if self.migration.is_look(socket) {
            self.with_migration(now, |migration, cx| migration.on_opened(socket, result, cx));
            self.look_elsewhere(now);
        } else {
            self.with_programs(now, |programs, cx| programs.on_socket_opened(socket, result, cx));
        }
    }

    /// Handles an error of the operating system about the first peer's address. If no program listens there, an ICMP
    /// packet has said so. All others say that this host, or a router, has no way there, which may pass.
    pub(super) fn on_socket_failed(&mut self, now: Instant, socket: SocketId, kind: io::ErrorKind) {
        if let Some(attempt) = self.first.attempt_of(socket) {
            self.with_first(now, |first, cx| first.on_refused(attempt, kind, cx));
        } else if socket == self.chain.outer_socket
            && self.chain.outer.is_some()
            && !matches!(kind, io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset)
        {
            self.with_migration(now, Migration::look);
        } else if socket == self.chain.outer_socket
            && self.chain.outer.is_some()
            && let Some(peer) = self.chain.peer(0)
        {
            peer.suspect(now, kind);
            self.check_suspicion(now);
        }
    }

    /// Gives the first peer up if the reported ICMP error has not been disproved in time.
    pub(super) fn check_suspicion(&mut self, now: Instant) {
        let Some(first) = self.chain.peer(0) else {
            return impossible("a chain has a connection");
        };
        if let Some(kind) = first.confirmed_suspicion(now) {
            let peer = first.settings.authority.clone();
            self.on_peer_failed(now, 0, ClientError::Refusing { peer, kind });
        }
    }

    fn connect(&mut self, now: Instant, index: usize, remote: SocketAddr) {
        let limits = self.chain.limits_of(index, &self.limits);
        let place = self.chain.place(now, index);
        let Some(peer) = self.chain.peer(index) else {
            return impossible("who is connected to is in the chain");
        };
        if let Err(error) = peer.connect(now, remote, place, &limits) {
            self.end(now, Err(error));
        }
    }

    /// Handles the SETTINGS of a hop. Requests a flow to the next peer, or lets local programs use the
    /// tunnel. An attempt to recover from the loss of the next peer begins here, too.
    pub(super) fn on_hop_settings(&mut self, now: Instant, index: usize) {
        let is_last = index + 1 == self.chain.hops.len();
        let carries_only_tcp =
            is_last && matches!(&self.work, Work::Programs(programs) if programs.has_only_tcp());
        let next = self.chain.peer(index + 1).map(|peer| peer.settings.place());
        let Some(hop) = self.chain.hops.get_mut(index) else {
            return impossible("only hops are asked for flows");
        };
        match hop.lacks(carries_only_tcp) {
            None => return, // the SETTINGS of a hop that is being opened again are still to come
            Some(Err(what)) => {
                let peer = hop.peer.settings.authority.clone();
                return self.end(now, Err(ClientError::Unsupported { peer, what }));
            }
            Some(Ok(())) => {}
        }
        let has_next = next.is_some();
        if let Some(next) = next
            && hop.request(&Request::for_quic(next.host, next.port), Carries::NextPeer).is_none()
        {
            let peer = hop.peer.settings.authority.clone();
            let reason = "it accepts no more requests".into();
            return self.on_hop_failed(now, index, ClientError::ConnectionLost { peer, reason });
        }
        // After a rebuild the connection of this hop may be old, and its first deadline is no longer
        // set.
        hop.peer.deadline.get_or_insert(now + self.limits.setup_timeout);
        match hop.max_payload_early() {
            _ if !has_next => self.open_for_programs(now),
            Some(size) => self.connect_inside(now, index + 1, size),
            None => {} // `start_inner` follows the grant
        }
    }

    /// Lets the programs use the tunnel, as soon as the targets or the right to use the proxy have been checked.
    pub(super) fn open_for_programs(&mut self, now: Instant) {
        let is_checked =
            self.recovery.was_up || self.with_programs(now, Programs::request_ahead) == Some(true);
        if is_checked {
            self.hop_is_up(now, self.chain.hops.len().saturating_sub(1));
            self.on_chain_up(now);
            self.with_programs(now, Programs::on_up);
        }
    }

    fn hop_is_up(&mut self, now: Instant, index: usize) {
        let Some(hop) = self.chain.hops.get_mut(index) else {
            return impossible("only hops come up");
        };
        hop.peer.deadline = None;
        hop.failed = 0;
        if std::mem::replace(&mut hop.is_up, true) {
            return;
        }
        let setup = hop.peer.started().map_or_else(Default::default, |started| now - started);
        let authority = hop.peer.settings.authority.clone();
        let agreement = hop.tunnel.agreement();
        hop.tunnel.take_change(); // this event tells it
        self.tell(Event::HopUp { hop: index, authority, setup, agreement });
    }

    /// Handles the answer to a request for a flow.
    pub(super) fn on_flow_response(
        &mut self,
        now: Instant,
        index: usize,
        stream: StreamId,
        head: &ResponseHead,
    ) {
        let Some(hop) = self.chain.hops.get_mut(index) else {
            return impossible("only hops answer requests for flows");
        };
        // The client may have closed the flow before the answer came.
        let Some(flow) = hop.flows.get(&stream) else { return };
        // RFC 9298 §3.1: "Any response other than a successful response indicates that the request
        // has failed", and the client MUST abort the request.
        if !head.status.is_success() {
            let (carries, target) = (flow.carries, flow.target());
            let has_joined = hop.tunnel.has_joined(stream);
            let error = hop.refused(target, head);
            hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
            match carries {
                _ if has_joined => {} // the flow goes on over its other streams
                Carries::NextPeer => self.on_refused(now, index, error),
                Carries::Program(source) => {
                    self.on_program_ended(now, source, Ending::Refused, error);
                }
            }
            return;
        }
        if grants(head) {
            self.on_granted(now, index, stream, head);
        } else {
            let end = FlowEnd::new(Code::H3_MESSAGE_ERROR, "the grant is malformed");
            self.on_flow_closed(now, index, stream, &end);
        }
    }

    /// Handles the grant of a flow. First the hop agrees with it, because that decides how payloads travel. Then the
    /// client may refuse the mode that was agreed on, before any payload has travelled in it. Only then what waited
    /// for the flow is sent.
    fn on_granted(&mut self, now: Instant, index: usize, stream: StreamId, head: &ResponseHead) {
        let Some(hop) = self.chain.hops.get_mut(index) else {
            return impossible("only hops answer requests for flows");
        };
        let Some(carries) = hop.flows.get(&stream).map(|flow| flow.carries) else {
            return impossible("only the request of a flow is granted");
        };
        hop.begin_reports(now);
        if let Err(reason) = hop.on_granted(now, stream, head) {
            // The draft's §3 demands it for a transform that was not offered.
            let end = FlowEnd::new(Code::H3_MESSAGE_ERROR, reason);
            return self.on_flow_closed(now, index, stream, &end);
        }
        let has_joined = hop.tunnel.has_joined(stream);
        if self.is_refused_mode(now, index) || has_joined {
            return; // a flow that another one joins is up already
        }
        match carries {
            Carries::NextPeer => {
                self.hop_is_up(now, index);
                self.start_inner(now, index + 1);
            }
            Carries::Program(source) => {
                self.with_programs(now, |programs, cx| programs.on_granted(source, cx));
                if matches!(source, Source::Ahead(_)) && !self.recovery.was_up {
                    self.open_for_programs(now);
                }
            }
        }
    }

    /// Ends the client if it requires its mode and a proxy granted another.
    pub(super) fn is_refused_mode(&mut self, now: Instant, index: usize) -> bool {
        if !self.requires_mode {
            return false;
        }
        let Some(hop) = self.chain.hops.get(index) else {
            return impossible("only hops have modes");
        };
        let agreement = hop.tunnel.agreement().filter(|agreement| agreement.lesser.is_some());
        let Some(agreement) = agreement else { return false }; // it is what was asked for
        let peer = hop.peer.settings.authority.clone();
        self.end(now, Err(ClientError::LesserMode { peer, agreement }));
        true
    }

    fn on_program_ended(
        &mut self,
        now: Instant,
        source: Source,
        ending: Ending,
        error: ClientError,
    ) {
        self.with_programs(now, |programs, cx| programs.on_ended(source, ending, error, cx));
    }

    /// Does what programs want of the client.
    pub(super) fn obey(&mut self, now: Instant, verdict: Verdict) {
        let last = self.chain.hops.len().saturating_sub(1);
        match verdict {
            Verdict::End(result) => self.end(now, result),
            Verdict::Broken(error) => self.protocol_error(now, last, &error),
            // At the start the client tries again or ends. Later a program's own flow will tell.
            Verdict::AheadFailed(error) if !self.recovery.was_up => {
                // The hop has answered, so that its silence while the client waits is no failure.
                if let Some(hop) = self.chain.hops.last_mut() {
                    hop.peer.deadline = None;
                }
                self.on_hop_failed(now, last + 1, error);
            }
            Verdict::Checked if !self.recovery.was_up => self.open_for_programs(now),
            Verdict::Checked | Verdict::AheadFailed(_) => {}
        }
    }

    /// Opens the connection to a peer inside a tunnel that is granted, with the packet size that is certain to fit.
    fn start_inner(&mut self, now: Instant, index: usize) {
        let Some(fits) = self.chain.around(index).map(|outer| outer.max_payload()) else {
            return impossible("a tunnel is around its next peer");
        };
        if self.chain.is_origin(index) {
            self.on_chain_up(now);
        }
        if let Some(peer) = self.chain.peer(index)
            && peer.started().is_some()
            && !peer.is_connected()
            && usize::from(peer.settings.transport.mtu.start) > fits
        {
            // It began before the grant with packets that the proxy does not promise to carry.
            let generation = self.recovery.next_generation();
            *peer = peer.renewed(generation, &self.limits);
        }
        self.connect_inside(now, index, fits);
    }

    /// Opens the connection to a peer inside a tunnel, which carries payloads of this size in bytes. Before the
    /// grant, its first packets travel with the request for the tunnel, which saves one round trip.
    ///
    /// After a rebuild the end-to-end connection continues and is not opened again.
    fn connect_inside(&mut self, now: Instant, index: usize, size: usize) {
        let rtt = self.chain.around(index).map(|outer| outer.peer.stats().smoothed_rtt);
        let Some(peer) = self.chain.peer(index).filter(|peer| peer.started().is_none()) else {
            return; // it is open already
        };
        let mtu = Mtu::inside_tunnel(u16::try_from(size).unwrap_or(u16::MAX));
        let transport = Transport { mtu, ..peer.settings.transport.clone() };
        peer.settings.transport = transport.inside_tunnel(rtt.unwrap_or_default());
        self.connect(now, index, INSIDE_TUNNEL);
    }

    /// Handles the end of the handshake with a hop or the origin.
    pub(super) fn on_connected(&mut self, index: usize) {
        let end_to_end = self.chain.peer(index).map(|peer| peer.stats().smoothed_rtt);
        if let (Some(outer), Some(end_to_end)) = (self.chain.around(index), end_to_end) {
            outer.on_rtt_beyond(end_to_end);
        }
        if !self.chain.is_origin(index) {
            return;
        }
        self.on_success();
        if let Some((fetch, origin)) = self.transfer() {
            origin.deadline = None;
            fetch.start(origin);
        }
    }

    pub(super) fn on_flow_closed(
        &mut self,
        now: Instant,
        index: usize,
        stream: StreamId,
        FlowEnd { code, reason, cause, is_orderly }: &FlowEnd,
    ) {
        let is_last = index + 1 == self.chain.hops.len();
        let Some(hop) = self.chain.hops.get_mut(index) else {
            return impossible("only hops carry flows");
        };
        // The client may have closed the flow itself a moment ago.
        let Some(flow) = hop.flows.get(&stream) else { return };
        let (carries, target) = (flow.carries, flow.target());
        let has_joined = hop.tunnel.has_joined(stream);
        hop.close_flow(stream, *code);
        if has_joined {
            return; // the flow continues over its other streams
        }
        let peer = hop.peer.settings.authority.clone();
        let (target, reason, cause) = (target.into(), reason.clone(), *cause);
        let error = ClientError::FlowClosed { peer, target, reason, cause };
        match carries {
            // The next proxy may be restarting, so the hop is rebuilt. An origin that restarts has
            // lost our connection.
            Carries::NextPeer if is_last && self.is_origin_connected() => {
                self.end(now, Err(error));
            }
            Carries::NextPeer => self.on_hop_failed(now, index + 1, error),
            Carries::Program(source) => {
                let ending = if *is_orderly { Ending::Orderly } else { Ending::Failed };
                self.on_program_ended(now, source, ending, error);
            }
        }
    }

    /// Handles a connection that failed, or could not be opened.
    pub(super) fn on_peer_failed(&mut self, now: Instant, index: usize, error: ClientError) {
        if self.chain.is_origin(index) && self.is_origin_connected() {
            self.end(now, Err(error));
        } else {
            self.on_hop_failed(now, index, error);
        }
    }

    /// Handles a connection that failed or could not be opened: that of a hop, or that to the origin
    /// before it was established.
    fn on_hop_failed(&mut self, now: Instant, index: usize, error: ClientError) {
        if self.life != ClientPhase::Running || self.moves_on(now, index, &error) {
            return;
        }
        let is_waiting_for_origin = self.chain.is_origin(index) && !self.is_origin_connected();
        let has_worked = self.recovery.was_up && !is_waiting_for_origin;
        let begin = if has_worked { None } else { Some(self.chain.began.unwrap_or(now)) };
        let patience = self.patience(has_worked);
        let wait = self.recovery.wait_after(now, &error, begin, patience, &self.limits);
        match wait {
            None => self.end(now, Err(error)),
            Some(retry_in) => {
                self.tell_of_loss(index, error, retry_in);
                self.rebuild(now, index, Some(retry_in));
            }
        }
    }

    fn tell_of_loss(&mut self, hop: usize, error: ClientError, retry_in: Duration) {
        if let Some(last) = self.chain.hops.last_mut() {
            last.lost = Some(error.clone());
        }
        self.tell(Event::HopLost { hop, error, retry_in });
    }

    /// Tries another proxy at once instead of one that has failed, if the hop has one that has not failed
    /// since the tunnel was last up.
    fn moves_on(&mut self, now: Instant, index: usize, error: &ClientError) -> bool {
        let has_other = match (index, self.chain.hops.get_mut(index)) {
            (0, None) => {
                self.first.forgive(); // an origin without a tunnel
                false
            }
            (_, None) => false,
            (0, Some(_)) => self.first.has_failed(&self.chain),
            (_, Some(hop)) => hop.choose_next(),
        };
        if has_other {
            if index == 0 {
                self.chain.leave_first(now, &self.limits); // it may only have refused
            }
            self.tell_of_loss(index, error.clone(), Duration::ZERO);
            self.rebuild(now, index, Some(Duration::ZERO));
        }
        has_other
    }

    /// Handles the refusal of a proxy to open a tunnel to the next peer. If it is the fault of the first
    /// proxy, another one is tried.
    fn on_refused(&mut self, now: Instant, index: usize, error: ClientError) {
        let is_busy = index == 0 && matches!(error, ClientError::Refused { status: 503, .. });
        let moves = is_busy && self.first.has_other(&self.chain);
        let failed = if moves { index } else { index + 1 };
        self.on_hop_failed(now, failed, error);
    }

    /// The longest time for which attempts are repeated.
    fn patience(&self, has_worked: bool) -> Duration {
        match (self.limits.retry, &self.work) {
            (Some(patience), _) => patience,
            (None, _) if !has_worked => Duration::ZERO,
            (None, Work::Transfer(_)) => self.limits.reconnect,
            // Local programs may wait without limit, but the connection of a transfer does not.
            (None, Work::Programs(_)) => Duration::MAX,
        }
    }

    /// Whether the handshake with the origin is complete.
    pub(super) fn is_origin_connected(&self) -> bool {
        self.chain.origin.as_ref().is_some_and(|origin| origin.is_connected())
    }

    /// Resets the connections from this one on that have to be opened again, and starts them again
    /// after a while. `None`: the connection to the first proxy is open already.
    fn rebuild(&mut self, now: Instant, index: usize, wait: Option<Duration>) {
        let (index, generation) = self.recovery.rebuild(now, index, wait);
        self.lost.retain(|(lost, _)| *lost < index); // these are opened again
        // It may have begun together with the request for the last tunnel.
        let is_waiting = !self.is_origin_connected();
        for hop in self.chain.hops.iter_mut().skip(index) {
            hop.renew(generation, &self.limits);
        }
        if let Some(origin) = self.chain.origin.as_mut().filter(|_| is_waiting) {
            **origin = origin.renewed(generation, &self.limits);
        }
        if index == 0 {
            self.first.reset(now, &mut self.chain);
            self.migration.reset(&mut self.outputs);
            if self.chain.outer.take().is_some() {
                self.outputs.push_back(Output::CloseSocket(self.chain.outer_socket));
            }
        } else if let Some(hop) = self.chain.around(index)
            && let Some(stream) = hop.next.take()
        {
            hop.close_flow(stream, Code::H3_REQUEST_CANCELLED);
        }
        if !self.chain.is_origin(index) {
            self.with_programs(now, Programs::forget_streams);
        }
    }

    /// Starts an attempt that is due.
    pub(super) fn recover(&mut self, now: Instant) {
        match self.recovery.take_due(now) {
            None => {}
            Some(0) => self.with_first(now, First::begin),
            Some(index) => self.on_hop_settings(now, index - 1),
        }
        self.nudge(now);
    }

    /// Sends the origin a packet over its new path, if one is due.
    fn nudge(&mut self, now: Instant) {
        let has_hops = !self.chain.hops.is_empty();
        if let Some(origin) = &mut self.chain.origin
            && self.recovery.nudge(now, origin)
            && has_hops
        {
            self.rebuild(now, self.chain.hops.len(), Some(Duration::ZERO));
        }
    }

    /// Notes that an attempt was successful.
    fn on_success(&mut self) {
        self.recovery.on_success();
        self.first.forgive();
    }

    /// Notes that the whole chain is up.
    fn on_chain_up(&mut self, now: Instant) {
        let is_rebuilt = std::mem::replace(&mut self.recovery.was_up, true);
        let Some(origin) = &mut self.chain.origin else { return self.on_success() };
        if !origin.is_connected() {
            return; // its handshake comes next
        }
        let arrived = origin.stats().received_datagrams;
        self.on_success();
        if is_rebuilt {
            self.recovery.begin_nudges(now, arrived);
            self.nudge(now);
        }
    }
}

//! One QUIC connection: streams and datagrams.

mod datagrams;
mod log;
mod path;
mod streams;

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use bytes::Bytes;
use noq_proto::{ConnectionEvent, Dir, PathId, UdpStats, WriteError};
use rustls::pki_types::CertificateDer;
use tandem_congestion::{Applied, Feedback, Passed};
use tandem_transport::PacketCounts;
use tandem_units::{ByteCount, Rate};
use tandem_wire::{Code, Slice, StrangerText, TunnelInfo};

pub(crate) use self::streams::{Direction, SendDatagram, StreamGone, Write};
use super::{
    AckPolicy, Read, StreamId,
    ack_gate::AckGate,
    certificate,
    config::{RECEIVE_WINDOW, SEND_WINDOW, Windows},
    control::Control,
    convert::{from_noq, to_noq, to_varint},
    delivery::Deliveries,
    ecn::{EcnUse, Marks},
    endpoint::earliest,
    observed::{HEADERS, Observer},
    pep::Passage,
    receiver::{Receiver, UNREAD_MAX},
    sealed::SealedTransport,
    stream_credit::StreamCredit,
};
use crate::{beside::Path, node::Transmit, seal::Secrets, stats::ConnectionStats, status::Glance};

/// The most datagrams in one system call. At moderate rates the pacing burst of the engine is ten
/// datagrams of 1452 bytes. GSO (generic segmentation offload) would take more than five times as
/// many.
const MAX_SEGMENTS: NonZeroUsize = NonZeroUsize::new(10).expect("ten is not zero");

/// The estimates that a connection's congestion controller has of its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathEstimate {
    pub(crate) congestion_window: ByteCount,
    pub(crate) initial_window: ByteCount,
    pub(crate) pacing_rate: Option<Rate>,
    /// The bandwidth of the path, if the controller estimates it.
    pub(crate) bandwidth: Option<Rate>,
    /// Whether the controller is in slow start.
    pub(crate) is_starting: bool,
    pub(crate) min_rtt: Duration,
    pub(crate) smoothed_rtt: Duration,
}

/// What the parts of a connection that the engine calls share with the rest of it.
#[derive(Clone, Default)]
pub(super) struct Hooks {
    /// The delivery of tracked datagrams, as reported by the controllers.
    pub(super) deliveries: Deliveries,
    /// The way for reports to the controller.
    pub(super) feedback: Feedback,
    /// What the packets of the connection contain.
    pub(super) observer: Observer,
    /// Which packet numbers its packets have, if the endpoint listens to PEPs.
    pub(super) passage: Option<Passage>,
    /// The controller of all packets, if a sealed transport may carry the datagrams.
    pub(super) control: Option<Control>,
}

/// One QUIC connection.
pub(crate) struct Connection {
    inner: noq_proto::Connection,
    pub(super) hooks: Hooks,
    /// When to acknowledge what arrives.
    acks: AckGate,
    /// The receiving sides of the streams.
    receiver: Receiver,
    credit: StreamCredit,
    /// The limit that [`Connection::hold_burst`] set last.
    send_window: u64,
    /// How the last packet with a short header came.
    at: Option<ArrivedBy>,
    /// How often the peer has moved to another path on purpose.
    moves: u64,
    /// The slices and numbers of the packets that were made last.
    slices: Vec<(Slice, u64)>,
    pub(super) ecn: EcnUse,
    is_client: bool,
    /// Whether the handshake is confirmed (RFC 9001 §4.1.2).
    pub(super) is_confirmed: bool,
    /// When the first packet of a client left that has to be acknowledged, since an authentic packet came.
    awaits: Option<Instant>,
    has_qlog: bool,
    /// What carries the datagrams, if the peer agrees. `None`: DATAGRAM frames do.
    pub(super) sealed: Option<SealedTransport>,
    /// What the peer has done against the rules of the sealed transport.
    violation: Option<StrangerText>,
}

/// How a packet came.
#[derive(Clone, Copy)]
struct ArrivedBy {
    /// The peer's address.
    remote: SocketAddr,
    /// The connection ID of ours in the packet.
    id: tandem_wire::ConnectionId,
    /// When the peer's address changed last.
    changed: Option<Instant>,
}

/// The memory of an idle connection in bytes, with its sessions of TLS and HTTP/3. It was measured
/// over 1000 connections of a proxy (`lab/tests/memory`).
const IDLE_MEMORY: u64 = 62_000;

/// The largest piece of a stream in one packet, in bytes.
pub(super) const PIECE_MAX: u64 = 1472;

impl Connection {
    pub(super) fn new(
        inner: noq_proto::Connection,
        hooks: Hooks,
        acks: Option<AckPolicy>,
        windows: Windows,
    ) -> Self {
        let receiver = Receiver::new(windows);
        let acks = AckGate::new(acks);
        let has_qlog = hooks.observer.has_qlog();
        let is_client = inner.side().is_client();
        let credit = StreamCredit::new(&inner);
        Self {
            inner,
            hooks,
            acks,
            receiver,
            credit,
            send_window: 0,
            at: None,
            moves: 0,
            slices: Vec::new(),
            ecn: EcnUse::new(is_client),
            is_client,
            is_confirmed: false,
            awaits: None,
            has_qlog,
            sealed: None,
            violation: None,
        }
    }

    /// Whether this end is a client that has the whole handshake of the server, and does not know yet whether the
    /// server has that of the client.
    pub(super) fn owes_end_of_handshake(&self) -> bool {
        self.is_client && !self.is_confirmed && !self.inner.is_handshaking()
    }

    pub(super) fn inner(&mut self) -> &mut noq_proto::Connection {
        &mut self.inner
    }

    /// Notes that the engine may have something to send.
    pub(super) const fn wake_engine(&mut self) {
        self.acks.open();
    }

    /// Opens a stream. `None`: the peer allows no more streams at the moment.
    pub(crate) fn open(&mut self, direction: Direction) -> Option<StreamId> {
        let dir = match direction {
            Direction::Bidirectional => Dir::Bi,
            Direction::Unidirectional => Dir::Uni,
        };
        self.inner.streams().open(dir).map(|id| StreamId(id.into()))
    }

    /// Takes the streams of one direction that the peer has opened.
    pub(super) fn accept(&mut self, dir: Dir, mut opened: impl FnMut(StreamId)) {
        self.acks.touch();
        while let Some(stream) = self.inner.streams().accept(dir) {
            if dir == Dir::Bi {
                self.credit.on_opened();
            }
            opened(StreamId(stream.into()));
        }
    }

    /// Reads at most `max` bytes.
    pub(crate) fn read(&mut self, stream: StreamId, max: usize) -> Read {
        self.acks.touch(); // there may be new credit for the peer
        self.receiver.read(&mut self.inner, stream, max)
    }

    /// Notes that something arrived on a stream. It must be called before the next packet if [`Self::must_collect`].
    pub(super) fn on_readable(&mut self, stream: StreamId) {
        self.acks.touch();
        self.receiver.on_readable(&mut self.inner, stream);
    }

    /// Whether stream data that arrived out of order are held.
    #[cfg(test)]
    pub(super) const fn holds_data(&self) -> bool {
        self.receiver.has_held()
    }

    /// The stream of which most waits to be read, if so much waits on all streams that the others might
    /// have to stop.
    pub(crate) fn stalled(&self) -> Option<StreamId> {
        self.receiver.stalled()
    }

    /// Takes the code with which the peer has reset a stream. The stream can then not be read any more.
    pub(crate) fn take_reset(&mut self, stream: StreamId) -> Option<Code> {
        self.acks.touch();
        let code = self.inner.recv_stream(to_noq(stream)).received_reset().ok()??;
        self.receiver.forget(&mut self.inner, stream);
        Some(Code(code.into_inner()))
    }

    /// Writes as much of `data` as there is room for, and removes that part from its front.
    pub(crate) fn write(
        &mut self,
        stream: StreamId,
        data: &mut Bytes,
    ) -> Result<Write, StreamGone> {
        self.wake_engine();
        let mut stream = self.inner.send_stream(to_noq(stream));
        while !data.is_empty() {
            match stream.write_chunks(&mut std::slice::from_mut(data)) {
                Ok(_) => {}
                Err(WriteError::Blocked) => return Ok(Write::Blocked),
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return Err(StreamGone),
            }
        }
        Ok(Write::Done)
    }

    /// Ends a stream after the data that was written.
    pub(crate) fn finish(&mut self, stream: StreamId) -> Result<(), StreamGone> {
        self.wake_engine();
        self.inner.send_stream(to_noq(stream)).finish().map_err(|_| StreamGone)
    }

    /// Resets the sending side of a stream. No effect if it is closed already.
    pub(crate) fn reset(&mut self, stream: StreamId, code: Code) {
        self.wake_engine();
        let result = self.inner.send_stream(to_noq(stream)).reset(to_varint(code));
        if result.is_err() {
            tracing::trace!(%stream, "reset of a closed stream");
        }
    }

    /// Asks the peer to stop sending on a stream. No effect if the stream is closed already.
    pub(crate) fn stop(&mut self, stream: StreamId, code: Code) {
        self.wake_engine();
        let result = self.inner.recv_stream(to_noq(stream)).stop(to_varint(code));
        if result.is_err() {
            tracing::trace!(%stream, "stop of a closed stream");
        }
        self.receiver.forget(&mut self.inner, stream);
    }

    /// Limits the stream data in the engine to two congestion windows: one in flight and one to
    /// send. Further data waits in the tunnel's queue, where it is counted and can be dropped.
    pub(crate) fn hold_two_windows(&mut self) {
        /// The least limit: enough for the first flight.
        const LEAST: u64 = 20_000;
        /// The largest limit, which applies without congestion control. A path with 1 Gbit/s and
        /// 100 ms needs this much.
        const MOST: u64 = SEND_WINDOW / 2;
        let window = self.congestion_window().get();
        self.inner.set_send_window(window.saturating_mul(2).clamp(LEAST, MOST));
    }

    /// Limits the stream data in the engine to what is in flight and two bursts: one that is being
    /// sent and one that is next. Further data waits in the tunnel's queue, where it takes turns with
    /// other flows.
    pub(crate) fn hold_burst(&mut self) {
        /// Two times as much as one call of the engine sends.
        const BURST: u64 = 2 * MAX_SEGMENTS.get() as u64 * PIECE_MAX;
        let window = self.congestion_window().get();
        let in_flight = self.hooks.deliveries.in_flight().min(window.max(BURST));
        self.send_window = in_flight + BURST;
        self.inner.set_send_window(self.send_window);
    }

    /// Whether only [`Self::hold_burst`], and no flow control, keeps a stream from taking more.
    pub(crate) fn is_held(&mut self, stream: StreamId) -> bool {
        self.inner.set_send_window(u64::MAX);
        // An empty write is blocked only by flow control.
        let nothing: &mut [Bytes] = &mut [];
        let is_held = self.inner.send_stream(to_noq(stream)).write_chunks(&mut { nothing }).is_ok();
        self.inner.set_send_window(self.send_window);
        is_held
    }

    /// Sends a packet that the peer has to acknowledge.
    pub(crate) fn ping(&mut self) {
        self.wake_engine();
        self.inner.ping();
    }

    /// Passes a report on the tunnel around this connection to its controller.
    pub(crate) fn apply_feedback(&self, now: Instant, info: &TunnelInfo) -> Applied {
        self.hooks.feedback.apply(now, info)
    }

    /// Tells the controller which packets have passed a PEP.
    pub(super) fn on_passed(&self, now: Instant, passed: &Passed<'_>) {
        self.hooks.feedback.apply(now, passed.clone());
    }

    /// Takes the slices and numbers of the packets that were made last.
    pub(super) fn take_slices(&mut self) -> Vec<(Slice, u64)> {
        std::mem::take(&mut self.slices)
    }

    /// Closes the connection with a code and a reason for the peer.
    pub(crate) fn close(&mut self, now: Instant, code: Code, reason: &str) {
        self.wake_engine();
        self.log_close(now, code, reason);
        self.inner.close(now, to_varint(code), Bytes::copy_from_slice(reason.as_bytes()));
    }

    /// The first 16 hexadecimal digits of the SHA-256 fingerprint of the peer's certificate. `None`
    /// if the peer showed none.
    pub(crate) fn certificate_name(&self) -> Option<String> {
        let identity = self.inner.crypto_session().peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        certificate::name_of(chain.first()?)
    }

    /// The present path to the peer.
    pub(crate) fn path(&self) -> Option<Path> {
        let path = self.inner.network_path(PathId::ZERO).ok()?;
        // RFC 9000 §9: a server validates the address of a new path. What is acknowledged was received.
        let changed = self.at.and_then(|at| at.changed);
        let is_validated = changed.is_none_or(|at| self.hooks.deliveries.has_acked_since(at));
        Some(Path { client: path.remote(), is_validated, moves: self.moves })
    }

    /// Notes that a packet with this connection ID of ours arrived.
    pub(super) fn on_arrived_at(&mut self, now: Instant, id: tandem_wire::ConnectionId) {
        let Ok(path) = self.inner.network_path(PathId::ZERO) else { return }; // it has ended
        let remote = path.remote();
        let at = self.at.get_or_insert(ArrivedBy { remote, id, changed: None });
        if at.remote != remote {
            // RFC 9000 §9.5: an endpoint that moves on purpose uses a new connection ID on its new path.
            self.moves += u64::from(at.id != id);
            let is_new_path = at.id != id || at.remote.ip() != remote.ip();
            *at = ArrivedBy { remote, id, changed: Some(now) };
            self.ecn.on_path_changed();
            return self.on_peer_moved(now, is_new_path);
        }
        at.id = id;
    }

    /// The secrets of a flow's sealed packets. `None`: the handshake is not complete.
    pub(crate) fn seal_secrets(&self, stream: StreamId) -> Option<Secrets> {
        let session = self.inner.crypto_session();
        let stream = tandem_wire::VarInt::saturating_from(stream.0);
        Secrets::export(stream, |secrets, label, context| {
            session.export_keying_material(secrets, label, context)
        })
        .ok()
    }

    /// Fills `output` with secrets of this connection (RFC 8446 §7.5). `false`: its handshake is not complete.
    pub(crate) fn export(&self, output: &mut [u8], label: &[u8], context: &[u8]) -> bool {
        self.inner.crypto_session().export_keying_material(output, label, context).is_ok()
    }

    /// Whether the connection has been closed by either end.
    pub(crate) fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Counters and estimates.
    pub(crate) fn stats(&mut self) -> ConnectionStats {
        let stats = self.inner.stats();
        let (mut sent, mut received) = self.hooks.observer.lock().traffic();
        if let Some(sealed) = &self.sealed {
            sealed.add_to(&mut sent, &mut received);
        }
        let counts = self.sealed_counts();
        let estimate = self.path_estimate();
        ConnectionStats {
            datagrams: self.datagram_transport(),
            smoothed_rtt: estimate.smoothed_rtt,
            congestion_window: estimate.congestion_window,
            pacing_rate: estimate.pacing_rate,
            sent_packets: stats.sent_packets + counts.sent.packets,
            lost_packets: stats.lost_packets + counts.recovery.lost_packets,
            received_datagrams: stats.udp_rx.datagrams + counts.received.packets,
            sent_ack_frames: stats.frame_tx.acks
                + stats.frame_tx.path_acks
                + counts.sent.ack_frames,
            sent,
            received,
            domains: self.hooks.feedback.domains(),
        }
    }

    /// The few counters that are looked at for all connections in a row.
    pub(crate) fn glance(&mut self) -> Glance {
        let stats = self.inner.stats();
        let counts = self.sealed_counts();
        Glance {
            smoothed_rtt: self.smoothed_rtt(),
            sent_packets: stats.sent_packets + counts.sent.packets,
            lost_packets: stats.lost_packets + counts.recovery.lost_packets,
            to_peer_bytes: stats.udp_tx.bytes + counts.sent.bytes,
            from_peer_bytes: stats.udp_rx.bytes + counts.received.bytes,
        }
    }

    /// The bytes of IPv4 packets that came from the peer.
    pub(crate) fn received_bytes(&mut self) -> ByteCount {
        on_the_wire(self.inner.stats().udp_rx) + self.received_sealed()
    }

    /// Those of them that came in the sealed transport.
    pub(crate) fn received_sealed(&self) -> ByteCount {
        packets_on_the_wire(self.sealed_counts().received)
    }

    /// The bytes of IPv4 packets in both directions, if nothing was around them.
    pub(crate) fn wire_bytes(&mut self) -> ByteCount {
        let stats = self.inner.stats();
        let counts = self.sealed_counts();
        on_the_wire(stats.udp_tx)
            + on_the_wire(stats.udp_rx)
            + packets_on_the_wire(counts.sent)
            + packets_on_the_wire(counts.received)
    }

    /// An estimate of the memory that the engine uses for this connection, in bytes.
    ///
    /// The engine does not say how much it holds. Stream data that were not read are counted as the
    /// frames that were not read, at most the flow control window. Data to send are two congestion
    /// windows (see [`Self::hold_two_windows`]).
    pub(crate) fn memory(&mut self) -> u64 {
        let frames = self.inner.stats().frame_rx.stream;
        let unread = frames.saturating_sub(self.receiver.taken) * PIECE_MAX;
        let unsent = self.congestion_window().get().saturating_mul(2);
        IDLE_MEMORY
            + self.receiver.memory()
            + unread.min(2 * u64::from(RECEIVE_WINDOW) + UNREAD_MAX)
            + unsent.min(SEND_WINDOW)
            + self.sealed.as_ref().map_or(0, SealedTransport::memory) as u64
    }

    /// The next packets to send, at the end of `buf`.
    pub(super) fn poll_transmit(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Transmit> {
        if self.is_sealed_first() {
            let transmit = self.poll_sealed(now, buf);
            transmit.or_else(|| self.poll_segments(now, MAX_SEGMENTS, buf))
        } else {
            let transmit = self.poll_segments(now, MAX_SEGMENTS, buf);
            transmit.or_else(|| self.poll_sealed(now, buf))
        }
    }

    /// The next packets to send in one UDP payload, at the end of `buf`.
    pub(super) fn poll_transmit_one(
        &mut self,
        now: Instant,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.poll_segments(now, NonZeroUsize::MIN, buf)
    }

    fn poll_segments(
        &mut self,
        now: Instant,
        segments_max: NonZeroUsize,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.hooks.deliveries.settle_unsent();
        if self.credit.opened > self.credit.enough && self.credit.update(&mut self.inner) {
            self.wake_engine();
        }
        // While the sealed transport carries the datagrams, the engine seldom has anything to send. Otherwise it is
        // asked also when it was quiet: the time that passes may let a packet leave before its pacing timer.
        let is_beside = self.sealed.as_ref().is_some_and(SealedTransport::is_agreed);
        if self.acks.holds(now) || is_beside && self.acks.is_quiet() {
            return None;
        }
        let start = buf.len();
        if let Some(passage) = &self.hooks.passage {
            passage.before_packets();
        }
        self.begin_log(now);
        let transmit = self.inner.poll_transmit(now, segments_max, buf);
        self.end_log();
        if let (Some(passage), Some(transmit)) = (&self.hooks.passage, &transmit) {
            let payloads = buf.get(start..).unwrap_or_default();
            let size_max = self.packet_size_max();
            self.slices = passage.slices(now, (payloads, transmit.segment_size), size_max);
        }
        if transmit.is_none() {
            self.acks.close(now, self.hooks.observer.lock().take_has_acked());
        }
        let mut transmit = from_noq(&transmit?);
        if let Some(sealed) = self.sealed.as_mut().filter(|_| is_beside)
            && self.hooks.observer.lock().take_has_streamed()
        {
            sealed.on_stream_sent(now);
        }
        if self.is_client && self.awaits.is_none() && self.hooks.observer.lock().take_has_elicited()
        {
            self.awaits = Some(now);
        }
        let is_settled = matches!(self.ecn.marks, Marks::Arrive);
        if transmit.ecn.is_some() && !is_settled && !self.may_mark(now) {
            transmit.ecn = None;
        }
        Some(transmit)
    }

    /// Handles an event of the engine's endpoint, such as a packet that arrived.
    pub(super) fn handle_event(&mut self, now: Instant, event: ConnectionEvent) {
        self.begin_log(now);
        self.inner.handle_event(event);
        self.end_log();
        let arrived = self.note_arrivals();
        let may_send = arrived.has_acks && self.hooks.deliveries.take_held_back();
        let smoothed_rtt = self.smoothed_rtt();
        self.acks.on_arrived(now, &arrived, may_send, smoothed_rtt);
    }

    /// Notes that a packet with a CE mark arrived. RFC 9000 §13.2.1: such packets "SHOULD be acknowledged
    /// immediately".
    pub(super) const fn on_congestion_experienced(&mut self) {
        self.wake_engine();
    }

    /// Runs the timers that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let awaits_ack = self.hooks.deliveries.awaits_ack();
        if self.sealed.as_mut().is_some_and(|sealed| sealed.handle_timeout(now, awaits_ack)) {
            self.ping();
        }
        if self.engine_timeout().is_some_and(|due| due <= now) {
            self.begin_log(now);
            self.inner.handle_timeout(now);
            self.end_log();
            self.wake_engine();
        }
    }

    fn engine_timeout(&self) -> Option<Instant> {
        earliest(self.inner.poll_timeout(), self.acks.next_timeout())
    }

    /// When the first timer is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let open = self.sealed.as_ref().filter(|_| !self.inner.is_closed());
        let sealed = open.and_then(SealedTransport::next_timeout);
        earliest(self.engine_timeout(), sealed)
    }

    /// The largest UDP payload that this connection sends at present, in bytes.
    pub(crate) fn packet_size_max(&self) -> usize {
        self.inner.current_mtu().into()
    }
}

/// The bytes of IPv4 packets with these UDP payloads.
const fn on_the_wire(udp: UdpStats) -> ByteCount {
    ByteCount::new(udp.bytes + HEADERS * udp.datagrams)
}

/// The same for the packets of the sealed transport.
const fn packets_on_the_wire(packets: PacketCounts) -> ByteCount {
    ByteCount::new(packets.bytes + HEADERS * packets.packets)
}

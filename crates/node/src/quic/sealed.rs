//! The sealed transport of a connection: it carries the datagrams between two ends of ours in packets beside the
//! connection's own (`docs/design/wire.md`, "Sealed transport").
//!
//! The tunnel's queue stays the only one: what waits here is one burst.

mod ids;
mod owner;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tandem_transport::{
    AckWait, CloseReason, Config, Counts, Sealed, Transmit, Transport,
    seal::{Opener, Sealer, Secrets},
};
use tandem_units::Rate;
use tandem_wire::{ResetToken, TransportField};

pub(super) use self::ids::SealedIds;
use self::owner::Owner;
use super::{
    AckPolicy, DatagramId, Delivery, Layer, SendDatagram, Tag, control::Control,
    convert::ecn_to_transport, observed::Observer, qlog::Metrics,
};
use crate::{node::Ecn, spare, stats::Traffic};

/// The connection ID at which an end receives the packets of its sealed transport.
pub(crate) type SealedId = tandem_wire::ConnectionId;

/// The most packets in one system call.
const SEGMENTS_MAX: usize = 16;

/// Bytes of datagrams that wait for the transport: one batch. All others wait in the tunnel's queue.
const SEND_BUFFER: usize = 24_000;

/// Bytes of received datagrams that wait between two polls of the node. The oldest of more are dropped.
const RECEIVE_BUFFER: usize = 4_000_000;

/// How often a client whose datagrams travel in the sealed transport lets the connection itself send something. If the
/// client's address has changed, the server learns it from that (RFC 9000 §9), and the connection does not become idle.
const BEAT: Duration = Duration::from_secs(1);

/// A PING follows stream data after an RTT divided by this, so that its acknowledgement comes when the data count as
/// lost if they are not acknowledged (after 9/8 of an RTT, RFC 9002 §6.1.2).
const TRAILER: u32 = 4;

/// The least time after which a PING follows stream data.
const TRAILER_LEAST: Duration = Duration::from_millis(1);

/// What a connection has of a sealed transport.
pub(super) struct SealedTransport {
    /// The ID at which this end receives.
    id: SealedId,
    is_client: bool,
    seed: u64,
    acks: Option<AckPolicy>,
    has_ecn: bool,
    packet_size_min: u16,
    running: Option<Box<Running>>,
}

/// A transport on which both ends have agreed.
struct Running {
    transport: Transport<Sealed>,
    owner: Owner,
    /// The place of the connection in a chain whose bytes are accounted for.
    layer: Option<Layer>,
    arrived: VecDeque<Bytes>,
    arrived_bytes: usize,
    /// Whether datagrams leave in it. A server waits for the first packet of its client, which shows that the client
    /// has got the grant.
    is_used: bool,
    /// The stateless reset token of the peer's ID. Only servers have some.
    reset: Option<ResetToken>,
    /// When the client lets the connection send something.
    next_beat: Option<Instant>,
    /// When the connection sends a PING behind stream data that it has sent.
    next_trailer: Option<Instant>,
    /// Since when the peer has an address that is not validated.
    unvalidated: Option<Instant>,
    /// How many probe timeouts the client has answered with a packet of the connection.
    probe_timeouts: u64,
    /// Whether anything has come since the client let the connection send something.
    has_heard: bool,
}

/// What became of a packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealedArrival {
    /// It was not authentic, or there is no transport. It was dropped.
    Dropped,
    /// It was authentic. `is_first`: it has the first datagrams that wait to be taken.
    Taken { is_first: bool },
    /// The peer has broken the rules, so that the connection must be closed.
    Violation(CloseReason),
}

/// What a transport starts with.
pub(super) struct Start<'a> {
    pub(super) now: Instant,
    pub(super) peer: TransportField,
    pub(super) secrets: Secrets,
    pub(super) control: &'a Control,
    pub(super) packet_size: u16,
    /// RFC 9002's `smoothed_rtt` and `min_rtt` of the engine.
    pub(super) rtt: (Duration, Option<Duration>),
    /// The place of the connection in a chain whose bytes are accounted for.
    pub(super) layer: Option<Layer>,
    /// Where the qlog of the connection is, if it has one.
    pub(super) log: Option<Observer>,
}

impl SealedTransport {
    pub(super) fn new(
        (id, seed): (SealedId, u64),
        is_client: bool,
        acks: Option<AckPolicy>,
        (has_ecn, packet_size_min): (bool, u16),
    ) -> Self {
        Self { id, is_client, seed, acks, has_ecn, packet_size_min, running: None }
    }

    /// The ID at which this end receives.
    pub(super) const fn id(&self) -> SealedId {
        self.id
    }

    /// Whether both ends have agreed on it.
    pub(super) const fn is_agreed(&self) -> bool {
        self.running.is_some()
    }

    /// Starts the transport, on which the ends have agreed.
    pub(super) fn start(&mut self, start: Start<'_>) {
        let Start { now, peer, secrets, control, packet_size, rtt, layer, log } = start;
        let Secrets { to_proxy, to_client } = secrets;
        let (own, peers) =
            if self.is_client { (to_proxy, to_client) } else { (to_client, to_proxy) };
        let config = Config {
            packet_size,
            packet_size_min: self.packet_size_min,
            initial_rtt: rtt.0,
            min_rtt: rtt.1,
            has_ecn: self.has_ecn,
            ack_wait: self
                .acks
                .map(|AckPolicy { delay, threshold }| AckWait { share: delay, threshold }),
            seed: self.seed,
        };
        let opener = Opener::new(peers, self.id.len());
        let protection = Sealed { sealer: Sealer::new(own, peer.id), opener };
        let mut transport = Transport::new(config, protection, control.for_sealed(), now);
        if self.is_client {
            // It shows the server that the client has got the grant.
            transport.ping();
        }
        self.running = Some(Box::new(Running {
            transport,
            owner: Owner::new(layer.is_some(), log),
            layer,
            arrived: VecDeque::new(),
            arrived_bytes: 0,
            is_used: self.is_client,
            reset: peer.reset.filter(|_| self.is_client),
            next_beat: None,
            next_trailer: None,
            unvalidated: None,
            probe_timeouts: 0,
            has_heard: true,
        }));
    }

    /// Whether a packet with these last bytes says that the peer has forgotten the connection.
    pub(super) fn is_reset_by(&self, token: &ResetToken) -> bool {
        self.running.as_ref().is_some_and(|running| running.reset.as_ref() == Some(token))
    }

    /// Whether datagrams leave in it now.
    pub(super) fn is_used(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_used)
    }

    fn used(&self) -> Option<&Running> {
        self.running.as_deref().filter(|running| running.is_used)
    }

    fn used_mut(&mut self) -> Option<&mut Running> {
        self.running.as_deref_mut().filter(|running| running.is_used)
    }

    /// The largest datagram in bytes. `None`: datagrams do not leave in it.
    pub(super) fn datagram_max(&self) -> Option<usize> {
        self.used().map(|running| running.transport.datagram_max())
    }

    /// Whether there is room for a datagram of this size now. `None`: datagrams do not leave in it.
    pub(super) fn has_room(&self, len: usize) -> Option<bool> {
        self.used().map(|running| running.owner.bytes() + len <= SEND_BUFFER)
    }

    /// Takes a datagram. `id`: its fate is reported. The datagram comes back if datagrams do not leave here.
    pub(super) fn send(
        &mut self,
        id: Option<DatagramId>,
        data: Bytes,
    ) -> Result<SendDatagram, Bytes> {
        let has_room = self.has_room(data.len());
        let Some(running) = self.used_mut() else { return Err(data) };
        if data.len() > running.transport.datagram_max() {
            return Ok(SendDatagram::TooLarge);
        }
        if has_room == Some(false) {
            return Ok(SendDatagram::Blocked(data));
        }
        running.owner.push(id, data);
        Ok(SendDatagram::Taken)
    }

    /// The next datagram that has arrived.
    pub(super) fn receive(&mut self) -> Option<Bytes> {
        let running = self.running.as_mut()?;
        let data = running.arrived.pop_front()?;
        running.arrived_bytes -= data.len();
        spare::give_back(&mut running.arrived);
        Some(data)
    }

    /// The next fate of a datagram.
    pub(super) fn poll_delivery(&mut self) -> Option<(DatagramId, Delivery)> {
        self.running.as_mut()?.owner.poll_verdict()
    }

    /// The tracked datagram that was sent last and when it was sent, while its fate is not known.
    pub(super) fn newest(&self) -> Option<(DatagramId, Instant)> {
        self.running.as_ref()?.owner.newest()
    }

    /// Whether the peer has not acknowledged everything that was sent to it.
    pub(super) fn awaits_ack(&self) -> bool {
        let of = |running: &Running| {
            running.owner.bytes() > 0 || !running.transport.bytes_in_flight().is_zero()
        };
        self.running.as_deref().is_some_and(of)
    }

    /// RFC 9002's `smoothed_rtt` and `min_rtt`. `None`: there is no sample.
    pub(super) fn rtt(&self) -> Option<(Duration, Duration)> {
        let transport = &self.used()?.transport;
        Some((transport.smoothed_rtt()?, transport.min_rtt()?))
    }

    /// What was counted. `None`: there is no transport.
    pub(super) fn counts(&self) -> Option<Counts> {
        self.running.as_ref().map(|running| running.transport.counts())
    }

    /// Handles a packet with this end's ID.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        ecn: Option<Ecn>,
        mut packet: BytesMut,
    ) -> SealedArrival {
        let Some(running) = &mut self.running else { return SealedArrival::Dropped };
        let Running { transport, owner, layer, arrived, arrived_bytes, .. } = &mut **running;
        owner.set_now(now);
        let before = layer.is_some().then(|| (Tag::of(&packet), packet.len(), transport.counts()));
        let ecn = ecn.map(ecn_to_transport);
        let Ok(mut datagrams) = transport.handle_packet(now, &mut packet, ecn, owner) else {
            return transport.closed().map_or(SealedArrival::Dropped, SealedArrival::Violation);
        };
        let is_first = arrived.is_empty();
        let mut packet = packet.freeze();
        let mut next = datagrams.next(&packet);
        let mut count = 0;
        while let Some(range) = next {
            next = datagrams.next(&packet);
            count += 1;
            let datagram = if next.is_some() {
                packet.slice(range)
            } else {
                // Of most packets the first datagram is the last one, for which the buffer is not shared once more.
                packet.truncate(range.end);
                packet.split_off(range.start)
            };
            *arrived_bytes += datagram.len();
            arrived.push_back(datagram);
        }
        while *arrived_bytes > RECEIVE_BUFFER
            && let Some(oldest) = arrived.pop_front()
        {
            *arrived_bytes -= oldest.len();
        }
        if let (Some(layer), Some((tag, size, before))) = (layer, before) {
            let inner: Vec<_> =
                arrived.iter().rev().take(count).map(|data| Tag::of(data)).collect();
            let counted = (before.received, transport.counts().received);
            layer.on_received_sealed((tag, size), counted, &inner);
        }
        (running.is_used, running.has_heard) = (true, true);
        running.note_traffic(now, self.is_client);
        running.log_metrics();
        SealedArrival::Taken { is_first: is_first && count > 0 }
    }

    /// The next packets to send, at the end of `buf`.
    pub(super) fn poll_transmit(
        &mut self,
        now: Instant,
        buf: &mut Vec<u8>,
        packet_size: u16,
    ) -> Option<Transmit> {
        let running = self.running.as_mut()?;
        let Running { transport, owner, layer, .. } = &mut **running;
        transport.set_packet_size(packet_size);
        owner.set_now(now);
        owner.drop_larger_than(transport.datagram_max());
        let start = buf.len();
        let before = layer.is_some().then(|| transport.counts());
        // What a packet has inside is known of one packet at a time.
        let segments = if layer.is_some() { 1 } else { SEGMENTS_MAX };
        let transmit = transport.poll_transmit(now, buf, segments, owner)?;
        if let (Some(layer), Some(before)) = (layer, before) {
            let packet = buf.get(start..).unwrap_or_default();
            let counted = (before.sent, transport.counts().sent);
            layer.on_sent_sealed((Tag::of(packet), packet.len()), counted, &owner.take_inner());
        }
        running.note_traffic(now, self.is_client);
        running.log_metrics();
        Some(transmit)
    }

    /// When the first timer is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let running = self.running.as_ref()?;
        let own = super::earliest(running.next_beat, running.next_trailer);
        super::earliest(running.transport.next_timeout(), own)
    }

    /// The connection has sent stream data. If it sends no more within a quarter of an RTT, a PING follows them, whose
    /// acknowledgement shows whether they were lost. With DATAGRAM frames the acknowledgements of payloads do so.
    /// Without either, a request that is lost takes a probe timeout of the engine, which seldom measures the RTT.
    pub(super) fn on_stream_sent(&mut self, now: Instant) {
        if let Some(running) = &mut self.running {
            let rtt = running.transport.smoothed_rtt().unwrap_or_default();
            running.next_trailer = Some(now + (rtt / TRAILER).max(TRAILER_LEAST));
        }
    }

    /// Does what is due. Returns whether the connection itself has to send something. `awaits_ack`: whether the peer
    /// has not acknowledged everything that the connection has sent.
    pub(super) fn handle_timeout(&mut self, now: Instant, awaits_ack: bool) -> bool {
        let Some(running) = &mut self.running else { return false };
        let Running { transport, owner, .. } = &mut **running;
        owner.set_now(now);
        if transport.next_timeout().is_some_and(|due| due <= now) {
            transport.handle_timeout(now, owner);
            running.log_metrics();
        }
        let probes = running.transport.counts().recovery.probe_timeouts;
        let is_new = std::mem::replace(&mut running.probe_timeouts, probes) != probes;
        let beats = running.next_beat.take_if(|due| *due <= now).is_some();
        let trails = running.next_trailer.take_if(|due| *due <= now).is_some() && awaits_ack;
        let is_due = self.is_client && (is_new || beats);
        // The client may have another address, of which the server cannot be sure before it has sent something there.
        if is_due && !std::mem::replace(&mut running.has_heard, false) {
            running.transport.ping_padded();
        }
        trails || is_due
    }

    /// Lets no packet leave, because the peer has another address since this time, which is not validated.
    pub(super) fn hold_until_validated(&mut self, since: Instant) {
        if let Some(running) = &mut self.running {
            running.unvalidated = Some(since);
            running.transport.set_may_send(false);
        }
    }

    /// Whether no packet leaves, because the peer's address is not validated.
    pub(super) fn is_held(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.unvalidated.is_some())
    }

    /// Whether packets may leave. `is_validated`: whether the address that the peer has since a time is validated now.
    pub(super) fn may_send(&mut self, is_validated: impl FnOnce(Instant) -> bool) -> bool {
        let Some(running) = &mut self.running else { return false };
        if let Some(since) = running.unvalidated {
            if !is_validated(since) {
                return false;
            }
            running.unvalidated = None;
            running.transport.set_may_send(true);
        }
        true
    }

    /// The path is another one, about which nothing is known.
    pub(super) fn on_new_path(&mut self, now: Instant, control: &Control) {
        if let Some(running) = &mut self.running {
            running.transport.on_new_path(now, control.for_sealed());
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.running.as_ref().map_or(0, |running| {
            running.transport.memory() + running.owner.bytes() + running.arrived_bytes
        })
    }

    /// Adds what was sent and received.
    pub(super) fn add_to(&self, sent: &mut Traffic, received: &mut Traffic) {
        let Some(counts) = self.counts() else { return }; // the ends have not agreed on it
        for (traffic, counts) in [(sent, counts.sent), (received, counts.received)] {
            traffic.packets += counts.packets;
            traffic.bytes += counts.bytes;
            traffic.ack_frames += counts.ack_frames;
            traffic.ack_bytes += counts.ack_bytes;
            traffic.ack_only_packets += counts.ack_only_packets;
            traffic.ack_only_bytes += counts.ack_only_bytes;
        }
    }
}

impl Running {
    /// Writes in the qlog, if there is one, what has changed.
    fn log_metrics(&self) {
        let Self { transport, owner, .. } = self;
        owner.log_metrics(|| Metrics {
            smoothed_rtt: transport.smoothed_rtt().unwrap_or_default(),
            min_rtt: transport.min_rtt(),
            congestion_window: transport.congestion_window().get(),
            bytes_in_flight: transport.bytes_in_flight().get(),
            pacing_rate: transport.pacing_rate().map(Rate::bits_per_second),
            mtu: u16::try_from(transport.packet_size()).unwrap_or(u16::MAX),
        });
    }

    fn note_traffic(&mut self, now: Instant, is_client: bool) {
        if is_client {
            self.next_beat.get_or_insert(now + BEAT);
        }
    }
}

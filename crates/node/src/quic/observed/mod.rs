//! What the packets of a connection contain, told by its packet protection.
//!
//! The engine counts frames, but does not say which packet has which, nor how long they are. Its TLS
//! session is replaceable, and sees each packet's payload before it is encrypted and after it is
//! decrypted. Nothing is changed there, only read.

mod ledger;
#[cfg(test)]
mod tests;

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::BytesMut;
use noq_proto::{
    ConnectError, ConnectionId, PathId, Side, TransportError,
    crypto::{
        ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
        ServerConfig, Session, UnsupportedVersion,
    },
    transport_parameters::TransportParameters,
};
use tandem_transport::PacketCounts;
use tandem_wire::{QuicFrameKind, QuicFrames, VarInt};

pub(super) use self::ledger::HEADERS;
use self::ledger::LayerPacket;
pub(crate) use self::ledger::{Layer, Ledger, Tag};
use super::qlog::{PacketType, Place, Qlog, Qlogs, Who};
use crate::stats::Traffic;

/// What was sent and received on one connection. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Observer(Arc<Mutex<Observed>>);

/// What was sent and received on one connection, in packets with keys of TLS. Initial packets are left
/// out.
#[derive(Debug, Default)]
pub(super) struct Observed {
    sent: Traffic,
    received: Traffic,
    /// The 1-RTT packets that arrived since this was last taken.
    arrived: Arrived,
    new: SentKinds,
    /// The largest packet number of a 1-RTT packet that has arrived.
    largest: Option<u64>,
    /// The largest packet number of a 1-RTT packet that was sent.
    largest_sent: Option<u64>,
    /// The largest one that was acknowledged, while somebody wants to know it.
    largest_acked: Option<u64>,
    wants_acked: bool,
    /// The place of the connection in a chain.
    layer: Option<Layer>,
    /// The tags of the packets inside the last packet, if the connection has a place in a chain.
    inner: Vec<Tag>,
    /// What the qlog begins with, until it has begun.
    qlog_start: Option<QlogStart>,
    qlog: Option<Qlog>,
}

/// Which kinds of 1-RTT packets were sent since each of these was last taken.
#[derive(Debug, Default)]
struct SentKinds {
    /// One that must be acknowledged.
    has_elicited: bool,
    /// One with a STREAM frame.
    has_streamed: bool,
    /// One with an ACK frame.
    has_acked: bool,
}

/// What the qlog of a connection begins with.
#[derive(Debug)]
struct QlogStart {
    qlogs: Qlogs,
    now: Instant,
    place: Option<Place>,
    /// Our transport parameters in their encoded form.
    parameters: Vec<u8>,
}

/// What arrived, as far as it matters for when to acknowledge it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrived {
    /// How many packets with data arrived.
    pub(super) with_data: u64,
    /// Whether a packet had an ACK frame.
    pub(super) has_acks: bool,
    /// Whether a packet had another frame than STREAM, DATAGRAM, ACK or PADDING. It may have to be answered
    /// at once.
    pub(super) is_urgent: bool,
    /// Whether a packet number was missing, or arrived late.
    pub(super) is_out_of_order: bool,
}

impl Arrived {
    /// Whether a packet arrived that has more than padding.
    pub(super) const fn has_any(&self) -> bool {
        self.with_data > 0 || self.has_acks || self.is_urgent
    }
}

/// How far the two ends of a connection have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The number of authentic packets that have arrived.
    pub(super) received: u64,
    /// The largest packet number of a 1-RTT packet that was sent.
    pub(super) largest_sent: Option<u64>,
    /// The largest one that the peer has acknowledged.
    pub(super) largest_acked: Option<u64>,
}

/// The contents of one packet.
#[derive(Clone, Copy, Debug, Default)]
struct PacketContents {
    ack_frames: u64,
    ack_bytes: u64,
    has_stream: bool,
    has_datagram: bool,
    has_others: bool,
}

impl PacketContents {
    fn read(payload: &[u8], mut on_datagram: impl FnMut(&[u8])) -> Self {
        let mut contents = Self::default();
        for frame in QuicFrames::new(payload) {
            match frame.kind {
                QuicFrameKind::Padding => {}
                QuicFrameKind::Ack => {
                    contents.ack_frames += 1;
                    contents.ack_bytes += frame.frame.len() as u64;
                }
                QuicFrameKind::Stream => contents.has_stream = true,
                QuicFrameKind::Datagram => {
                    contents.has_datagram = true;
                    on_datagram(frame.data);
                }
                QuicFrameKind::Other => contents.has_others = true,
            }
        }
        contents
    }

    /// The contents of a packet of the sealed transport, with these packets inside. `before` and `after`: what the
    /// transport had counted before it, and with it.
    const fn of_sealed((before, after): (PacketCounts, PacketCounts), inner: &[Tag]) -> Self {
        let is_ack_only = after.ack_only_packets > before.ack_only_packets;
        Self {
            ack_frames: after.ack_frames - before.ack_frames,
            ack_bytes: after.ack_bytes - before.ack_bytes,
            has_stream: false,
            has_datagram: !inner.is_empty(),
            has_others: inner.is_empty() && !is_ack_only,
        }
    }

    const fn has_data(&self) -> bool {
        self.has_stream || self.has_datagram
    }

    /// Whether the packet acknowledges packets and does nothing else.
    const fn is_ack_only(&self) -> bool {
        self.ack_frames > 0 && !self.has_data() && !self.has_others
    }

    fn add_to(&self, traffic: &mut Traffic, size: usize) {
        let size = size as u64;
        traffic.packets += 1;
        traffic.bytes += size;
        traffic.stream_packets += u64::from(self.has_stream);
        traffic.ack_frames += self.ack_frames;
        traffic.ack_bytes += self.ack_bytes;
        if self.is_ack_only() {
            traffic.ack_only_packets += 1;
            traffic.ack_only_bytes += size;
        }
    }
}

impl Observer {
    /// An observer of a connection that begins now, which may have a place in a chain, and a qlog.
    pub(super) fn new(
        now: Instant,
        layer: Option<Layer>,
        (qlogs, place): (Option<Qlogs>, Option<Place>),
    ) -> Self {
        let start = |qlogs| QlogStart { qlogs, now, place, parameters: Vec::new() };
        let qlog_start = qlogs.map(start);
        Self(Arc::new(Mutex::new(Observed { layer, qlog_start, ..Observed::default() })))
    }

    /// Whether there is a qlog.
    pub(super) fn has_qlog(&self) -> bool {
        self.lock().qlog.is_some()
    }

    /// Writes something in the qlog, if there is one.
    pub(super) fn log(&self, write: impl FnOnce(&mut Qlog)) {
        if let Some(qlog) = &mut self.lock().qlog {
            write(qlog);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Observed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same TLS settings of a client, which tell this observer of all packets.
    pub(super) fn client(&self, tls: Arc<dyn ClientConfig>) -> Arc<dyn ClientConfig> {
        Arc::new(ObservedTls { tls, observer: self.clone() })
    }

    /// The same TLS settings of a server, which tell this observer of all packets.
    pub(super) fn server(&self, tls: Arc<dyn ServerConfig>) -> Arc<dyn ServerConfig> {
        Arc::new(ObservedTls { tls, observer: self.clone() })
    }

    fn keys(
        &self,
        packet_type: PacketType,
        keys: KeyPair<Box<dyn PacketKey>>,
    ) -> KeyPair<Box<dyn PacketKey>> {
        let observed = |key| -> Box<dyn PacketKey> {
            Box::new(ObservedKey { key, packet_type, observer: self.clone() })
        };
        KeyPair { local: observed(keys.local), remote: observed(keys.remote) }
    }

    /// Begins the qlog, if there has to be one that has not begun. `id` is the connection ID that the client has
    /// chosen for the server.
    fn begin_qlog(&self, id: ConnectionId, side: Side) {
        let mut observed = self.lock();
        let Some(QlogStart { qlogs, now, place, parameters }) = observed.qlog_start.take() else {
            return; // it has begun, or there is none
        };
        observed.qlog = Qlog::begin(&qlogs, now, (side.is_client(), place), &id);
        if let Some(qlog) = &mut observed.qlog {
            qlog.parameters(Who::Local, &parameters);
        }
    }

    fn session(&self, session: Box<dyn Session>, ours: &TransportParameters) -> Box<dyn Session> {
        if let Some(start) = &mut self.lock().qlog_start {
            ours.write(&mut start.parameters);
        }
        let (observer, next_keys) = (self.clone(), PacketType::Handshake);
        Box::new(ObservedSession { session, observer, next_keys })
    }
}

impl Observed {
    /// The place of the connection in a chain.
    pub(super) fn layer(&self) -> Option<Layer> {
        self.layer.clone()
    }

    /// Takes what has arrived since the last call.
    pub(super) fn take_arrived(&mut self) -> Arrived {
        std::mem::take(&mut self.arrived)
    }

    /// Takes whether a 1-RTT packet was sent since the last call that must be acknowledged.
    pub(super) fn take_has_elicited(&mut self) -> bool {
        std::mem::take(&mut self.new.has_elicited)
    }

    /// Takes whether a 1-RTT packet with a STREAM frame was sent since the last call.
    pub(super) fn take_has_streamed(&mut self) -> bool {
        std::mem::take(&mut self.new.has_streamed)
    }

    /// Takes whether an ACK frame was sent since the last call.
    pub(super) fn take_has_acked(&mut self) -> bool {
        std::mem::take(&mut self.new.has_acked)
    }

    /// Sets whether somebody wants to know which packets are acknowledged.
    pub(super) const fn want_acked(&mut self, is_wanted: bool) {
        self.wants_acked = is_wanted;
    }

    /// How far the two ends have come.
    pub(super) const fn progress(&self) -> Progress {
        let Self { received, largest_sent, largest_acked, .. } = self;
        Progress {
            received: received.packets,
            largest_sent: *largest_sent,
            largest_acked: *largest_acked,
        }
    }

    /// What was sent, and what was received.
    pub(super) const fn traffic(&self) -> (Traffic, Traffic) {
        (self.sent, self.received)
    }

    /// Reads the payload of a packet.
    fn read(&mut self, payload: &[u8]) -> PacketContents {
        self.inner.clear();
        PacketContents::read(payload, |packet| {
            if self.layer.is_some() {
                self.inner.push(Tag::of(packet));
            }
        })
    }

    fn on_arrived(&mut self, contents: &PacketContents, packet_number: u64) {
        let is_next = self.largest.is_none_or(|largest| packet_number == largest + 1);
        self.largest = self.largest.max(Some(packet_number));
        let arrived = &mut self.arrived;
        arrived.with_data += u64::from(contents.has_data());
        arrived.has_acks |= contents.ack_frames > 0;
        arrived.is_urgent |= contents.has_others;
        arrived.is_out_of_order |= !is_next;
    }
}

/// The largest packet number that a packet acknowledges. RFC 9000 §19.3: the field Largest Acknowledged follows the
/// type of an ACK frame, which has one byte.
fn largest_acked(payload: &[u8]) -> Option<u64> {
    let acks = QuicFrames::new(payload).filter(|it| it.kind == QuicFrameKind::Ack);
    let largest = acks.map(|ack| VarInt::decode(&mut ack.frame.get(1..)?).ok().map(VarInt::get));
    largest.max().flatten()
}

/// TLS settings that tell an observer of all packets.
struct ObservedTls<C: ?Sized> {
    tls: Arc<C>,
    observer: Observer,
}

impl ClientConfig for ObservedTls<dyn ClientConfig> {
    fn start_session(
        &self,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let session = Arc::clone(&self.tls).start_session(version, server_name, params)?;
        Ok(self.observer.session(session, params))
    }
}

impl ServerConfig for ObservedTls<dyn ServerConfig> {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        self.tls.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.tls.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(&self, version: u32, params: &TransportParameters) -> Box<dyn Session> {
        self.observer.session(self.tls.start_session(version, params), params)
    }
}

/// A session whose keys tell an observer of each packet.
struct ObservedSession {
    session: Box<dyn Session>,
    observer: Observer,
    /// The type of the packets for which TLS provides keys next.
    next_keys: PacketType,
}

impl Session for ObservedSession {
    fn initial_keys(&self, dst_cid: ConnectionId, side: Side) -> Keys {
        let Keys { header, packet } = self.session.initial_keys(dst_cid, side);
        self.observer.begin_qlog(dst_cid, side);
        Keys { header, packet: self.observer.keys(PacketType::Initial, packet) }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.session.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.session.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.session.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.session.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.session.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let parameters = self.session.transport_parameters()?;
        if let Some(parameters) = &parameters {
            self.observer.log(|qlog| {
                let mut encoded = Vec::new();
                parameters.write(&mut encoded);
                qlog.parameters(Who::Remote, &encoded);
            });
        }
        Ok(parameters)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let Keys { header, packet } = self.session.write_handshake(buf)?;
        let packet_type = std::mem::replace(&mut self.next_keys, PacketType::OneRtt);
        Some(Keys { header, packet: self.observer.keys(packet_type, packet) })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        Some(self.observer.keys(PacketType::OneRtt, self.session.next_1rtt_keys()?))
    }

    fn is_valid_retry(&self, orig_dst_cid: ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.session.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.session.export_keying_material(output, label, context)
    }
}

/// A key that tells an observer of each packet.
struct ObservedKey {
    key: Box<dyn PacketKey>,
    packet_type: PacketType,
    observer: Observer,
}

impl ObservedKey {
    /// Whether the packets are counted.
    fn counts(&self) -> bool {
        self.packet_type != PacketType::Initial
    }
}

impl PacketKey for ObservedKey {
    fn encrypt(&self, path_id: PathId, packet: u64, buf: &mut [u8], header_len: usize) {
        let mut observed = self.observer.lock();
        let (len, id) = (buf.len(), (self.packet_type, packet));
        let parts = buf.split_at_checked(header_len).unwrap_or_default();
        let payload_len = parts.1.len().saturating_sub(self.key.tag_len());
        let parts = (parts.0, parts.1.get(..payload_len).unwrap_or_default());
        if let Some(qlog) = &mut observed.qlog {
            qlog.packet(Who::Local, id, parts, len);
        }
        if !self.counts() {
            return self.key.encrypt(path_id, packet, buf, header_len);
        }
        let contents = observed.read(parts.1);
        contents.add_to(&mut observed.sent, len);
        observed.new.has_acked |= contents.ack_frames > 0;
        if self.packet_type == PacketType::OneRtt {
            observed.largest_sent = Some(packet);
            observed.new.has_elicited |= !contents.is_ack_only();
            observed.new.has_streamed |= contents.has_stream;
        }
        self.key.encrypt(path_id, packet, buf, header_len);
        if let Some(layer) = &observed.layer {
            let (tag, inner) = (Tag::of(buf), &observed.inner);
            layer.on_sent(&LayerPacket { tag, size: len as u64, contents, inner });
        }
    }

    fn decrypt(
        &self,
        path_id: PathId,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let (tag, size) = (Tag::of(payload), header.len() + payload.len());
        self.key.decrypt(path_id, packet, header, payload)?;
        let mut observed = self.observer.lock();
        if let Some(qlog) = &mut observed.qlog {
            qlog.packet(Who::Remote, (self.packet_type, packet), (header, payload), size);
        }
        if !self.counts() {
            return Ok(());
        }
        let contents = observed.read(payload);
        contents.add_to(&mut observed.received, size);
        if self.packet_type == PacketType::OneRtt {
            observed.on_arrived(&contents, packet);
            if observed.wants_acked && contents.ack_frames > 0 {
                observed.largest_acked = observed.largest_acked.max(largest_acked(payload));
            }
        }
        if let Some(layer) = &observed.layer {
            let inner = &observed.inner;
            layer.on_received(&LayerPacket { tag, size: size as u64, contents, inner });
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

//! A client that writes QUIC packets (RFC 9000) without cryptography and without an engine of its
//! own. It keeps no rule of QUIC that its caller does not keep, and acknowledges what it gets.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    time::Instant,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tandem_wire::{Capsule, CapsuleDecoder, CidCapsule, ConnectionId, QuicFrames, VarInt};

use crate::bed::Client;

/// The version of QUIC.
pub(crate) const VERSION: u32 = 1;

/// The number of received packets that an end remembers and acknowledges.
pub(crate) const REMEMBERED: usize = 64;

/// RFC 9000 §17.2: the types of long headers.
pub(crate) const INITIAL: u8 = 0;
pub(crate) const HANDSHAKE: u8 = 2;
const RETRY: u8 = 3;

/// A client of a proxy with [`NullCrypto`](crate::null_crypto::NullCrypto).
pub struct RawClient {
    address: SocketAddr,
    /// The client's own connection ID.
    own: [u8; 4],
    /// The connection ID that the proxy chose.
    proxy: Option<Bytes>,
    window: u32,
    next_number: u32,
    received: BTreeSet<u64>,
    owes_acknowledgement: bool,
    /// Whether the client acknowledges what it receives.
    pub acknowledges: bool,
    packets: VecDeque<BytesMut>,
    waiting: VecDeque<Vec<u8>>,
    /// The ID and the sent bytes of each opened stream, in order.
    streams: Vec<(u64, u64)>,
    opened: [u64; 2],
    is_closed: bool,
    /// The virtual connection IDs that the proxy has chosen, and for which ID of the client or target.
    pub virtual_ids: Vec<(ConnectionId, Bytes)>,
    /// The connection IDs of the server, each with the token that ends the connection (RFC 9000 §19.15).
    pub issued: Vec<(Bytes, [u8; 16])>,
}

/// The direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A stream for requests.
    Both,
    /// A stream of the client only.
    Out,
}

impl RawClient {
    /// Starts a connection. `window` bounds the data of the proxy on each stream.
    pub fn connect(address: SocketAddr, window: u32) -> Self {
        let mut client = Self {
            address,
            own: [1, 2, 3, address.ip().is_ipv4().into()],
            proxy: None,
            window,
            next_number: 0,
            received: BTreeSet::new(),
            owes_acknowledgement: false,
            acknowledges: true,
            packets: VecDeque::new(),
            waiting: VecDeque::new(),
            streams: Vec::new(),
            opened: [0; 2],
            is_closed: false,
            virtual_ids: Vec::new(),
            issued: Vec::new(),
        };
        // The engine finds a new connection by this ID, so each address needs another one.
        let mut destination = *b"first at";
        destination[6..].copy_from_slice(&address.port().to_be_bytes());
        client.begin(&destination, &[]);
        client
    }

    /// Sends the first message of the handshake. The second one has to wait for an answer: the proxy
    /// states its connection ID in handshake packets only, and sends none when both messages come
    /// at once.
    fn begin(&mut self, destination: &[u8], token: &[u8]) {
        let frames = crypto(&self.parameters());
        let mut packet = self.long(INITIAL, (destination, token), &frames);
        // RFC 9000 §14.1 wants 1200 bytes. These belong to no packet, because the engine would read
        // them one by one as PADDING frames.
        packet.resize(1200, 0);
        self.packets.push_back(packet);
    }

    /// The transport parameters (RFC 9000 §18.2, RFC 9221 §3).
    fn parameters(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (id, value) in [
            (0x04, 1_000_000),   // initial_max_data
            (0x05, self.window), // initial_max_stream_data_bidi_local
            (0x06, self.window), // initial_max_stream_data_bidi_remote
            (0x07, 65_536),      // initial_max_stream_data_uni
            (0x08, 8),           // initial_max_streams_bidi
            (0x09, 8),           // initial_max_streams_uni
            (0x20, 65_535),      // max_datagram_frame_size
        ] {
            number(&mut out, id);
            let value = VarInt::from_u32(value);
            number(&mut out, value.encoded_len() as u64);
            value.encode(&mut out);
        }
        number(&mut out, 0x0f); // initial_source_connection_id
        number(&mut out, self.own.len() as u64);
        out.extend(self.own);
        out
    }

    /// Encodes a packet with a long header.
    fn long(&mut self, kind: u8, (destination, token): (&[u8], &[u8]), frames: &[u8]) -> BytesMut {
        let mut out = BytesMut::new();
        out.put_u8(0xc3 | kind << 4); // four bytes of packet number
        out.put_u32(VERSION);
        out.put_u8(destination.len() as u8);
        out.put_slice(destination);
        out.put_u8(self.own.len() as u8);
        out.put_slice(&self.own);
        if kind == INITIAL {
            number(&mut out, token.len() as u64);
            out.put_slice(token);
        }
        out.put_u16(0x4000 | (frames.len() + 4) as u16);
        out.put_u32(self.next_number);
        self.next_number += 1;
        out.put_slice(frames);
        out
    }

    /// The client's own connection ID.
    pub fn own(&self) -> &[u8] {
        &self.own
    }

    /// Sends these frames in a packet, once the proxy has answered.
    pub fn frames(&mut self, frames: Vec<u8>) {
        if self.is_closed {
            return;
        }
        let Some(proxy) = &self.proxy else { return self.waiting.push_back(frames) };
        let mut out = BytesMut::with_capacity(13 + frames.len());
        out.put_u8(0x43); // a short header with four bytes of packet number
        out.put_slice(proxy);
        out.put_u32(self.next_number);
        self.next_number += 1;
        out.put_slice(&frames);
        self.packets.push_back(out);
    }

    /// Sends a UDP payload beside the connection.
    pub fn beside(&mut self, packet: &[u8]) {
        self.packets.push_back(BytesMut::from(packet));
    }

    fn stream(&self, index: u8) -> Option<usize> {
        usize::from(index).checked_rem(self.streams.len())
    }

    /// Returns the ID of an opened stream. The index wraps around.
    pub fn stream_id(&self, index: u8) -> Option<u64> {
        self.stream(index).map(|index| self.streams[index].0)
    }

    /// Opens a stream and sends data on it.
    pub fn open(&mut self, direction: Direction, data: &[u8]) {
        let kind = usize::from(direction == Direction::Out);
        let id = self.opened[kind] * 4 + 2 * kind as u64;
        self.opened[kind] += 1;
        self.streams.push((id, 0));
        self.write_at(self.streams.len() - 1, data, 0);
    }

    /// Sends data on a stream. `skip`: this number of bytes before the data is never sent.
    pub fn write(&mut self, stream: u8, data: &[u8], skip: u8) {
        if let Some(index) = self.stream(stream) {
            self.write_at(index, data, skip.into());
        }
    }

    fn write_at(&mut self, index: usize, data: &[u8], skip: u64) {
        let (id, offset) = &mut self.streams[index];
        *offset += skip;
        let mut frame = Vec::with_capacity(data.len() + 20);
        frame.push(0x0e); // STREAM with offset and length
        number(&mut frame, *id);
        number(&mut frame, *offset);
        number(&mut frame, data.len() as u64);
        frame.extend_from_slice(data);
        *offset += data.len() as u64;
        self.frames(frame);
    }

    /// Ends a stream: with FIN (0x0f), `RESET_STREAM` (0x04) or `STOP_SENDING` (0x05).
    pub fn end(&mut self, stream: u8, kind: u8, code: u16) {
        let Some(index) = self.stream(stream) else { return };
        let (id, offset) = self.streams[index];
        let mut frame = vec![kind];
        number(&mut frame, id);
        match kind {
            0x04 => {
                number(&mut frame, code.into());
                number(&mut frame, offset);
            }
            0x05 => number(&mut frame, code.into()),
            _ => {
                number(&mut frame, offset);
                number(&mut frame, 0);
            }
        }
        self.frames(frame);
    }

    /// Sends a DATAGRAM frame (RFC 9221 §4).
    pub fn datagram(&mut self, data: &[u8]) {
        let mut frame = vec![0x31];
        number(&mut frame, data.len() as u64);
        frame.extend_from_slice(data);
        self.frames(frame);
    }

    /// Reads the packets of one UDP payload.
    fn read(&mut self, mut packet: Bytes) -> Option<()> {
        while let Some(&first) = packet.first() {
            if first & 0x80 == 0 {
                return self.read_short(packet);
            }
            packet.advance(5);
            let destination = usize::from(packet.try_get_u8().ok()?);
            packet.try_split_to(destination)?;
            let source = usize::from(packet.try_get_u8().ok()?);
            let source = packet.try_split_to(source)?;
            match first >> 4 & 3 {
                RETRY => {
                    let token = packet.try_split_to(packet.len().checked_sub(16)?)?;
                    self.begin(&source, &token);
                    return Some(());
                }
                INITIAL => {
                    let token = VarInt::decode(&mut packet).ok()?.get() as usize;
                    packet.try_split_to(token)?;
                }
                _ => {}
            }
            let len = VarInt::decode(&mut packet).ok()?.get() as usize;
            packet.try_split_to(len)?;
            if self.proxy.is_none() {
                let finished = self.long(HANDSHAKE, (&source, &[]), &crypto(&[1]));
                self.packets.push_back(finished);
                self.proxy = Some(source);
                for frames in std::mem::take(&mut self.waiting) {
                    self.frames(frames);
                }
            }
        }
        Some(())
    }

    fn read_short(&mut self, mut packet: Bytes) -> Option<()> {
        let len = usize::from(packet.try_get_u8().ok()? & 3) + 1;
        packet.try_split_to(self.own.len())?;
        let truncated = packet.try_split_to(len)?;
        self.received.insert(full_number(&self.received, &truncated));
        if self.received.len() > REMEMBERED {
            self.received.pop_first();
        }
        self.read_frames(packet)
    }

    /// Learns the virtual connection IDs in a packet, wherever the capsules about them are.
    fn learn(&mut self, frames: &Bytes) {
        for at in 0..frames.len() {
            let Some([0x80, 0xff, 0xe7, 2 | 4]) = frames.get(at..at + 4) else { continue };
            let mut capsules = CapsuleDecoder::new(100);
            capsules.push(frames.slice(at..));
            if let Ok(Some(Capsule::Cid(
                CidCapsule::AckClient { cid, vcid } | CidCapsule::AckTarget { cid, vcid, .. },
            ))) = capsules.next()
                && let Ok(id) = ConnectionId::try_from(&vcid[..])
                && self.virtual_ids.len() < REMEMBERED
            {
                self.virtual_ids.push((id, cid));
            }
        }
    }

    /// Finds out whether the packet wants an acknowledgement (RFC 9000 §13.2.1).
    fn read_frames(&mut self, mut frames: Bytes) -> Option<()> {
        self.learn(&frames);
        for frame in QuicFrames::new(&frames).map(|frame| frame.frame) {
            // NEW_CONNECTION_ID: two numbers, a length, the ID and the token.
            if frame.first() == Some(&0x18)
                && let Some((before, token)) = frame.split_last_chunk()
                && let Some((_, mut rest)) = before.split_first()
                && VarInt::decode(&mut rest).is_ok()
                && VarInt::decode(&mut rest).is_ok()
                && let Some((_, id)) = rest.split_first()
                && self.issued.len() < REMEMBERED
            {
                self.issued.push((Bytes::copy_from_slice(id), *token));
            }
        }
        while frames.has_remaining() {
            match frames.get_u8() {
                0x00 => {}
                0x02 => {
                    VarInt::decode(&mut frames).ok()?;
                    VarInt::decode(&mut frames).ok()?;
                    let ranges = VarInt::decode(&mut frames).ok()?.get();
                    for _ in 0..1 + 2 * ranges {
                        VarInt::decode(&mut frames).ok()?;
                    }
                }
                0x1c | 0x1d => {
                    self.is_closed = true;
                    return Some(());
                }
                _ => {
                    self.owes_acknowledgement = true;
                    return Some(());
                }
            }
        }
        Some(())
    }
}

impl Client for RawClient {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn handle(&mut self, _: Instant, _: SocketAddr, packet: BytesMut) {
        // What the client cannot read is of no interest.
        let _ = self.read(packet.freeze());
    }

    fn poll(&mut self, _: Instant) -> Option<BytesMut> {
        if self.packets.is_empty()
            && self.acknowledges
            && std::mem::take(&mut self.owes_acknowledgement)
            && let Some(frame) = acknowledgement(&self.received)
        {
            self.frames(frame);
        }
        self.packets.pop_front()
    }

    fn close(&mut self, _: Instant) {
        let mut frame = vec![0x1d]; // CONNECTION_CLOSE of the application
        number(&mut frame, 0x100);
        number(&mut frame, 0);
        self.frames(frame);
        self.is_closed = true;
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) {}
}

/// The packet number that these bytes stand for (RFC 9000 §A.3, without the correction downwards: the
/// packets of a node arrive in order).
pub(crate) fn full_number(received: &BTreeSet<u64>, truncated: &[u8]) -> u64 {
    let mask = (1_u64 << (8 * truncated.len())) - 1;
    let truncated = truncated.iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
    let next = received.last().map_or(0, |last| last + 1);
    let full = next & !mask | truncated;
    if full < next { full + mask + 1 } else { full }
}

/// Encodes an ACK frame (RFC 9000 §19.3).
pub(crate) fn acknowledgement(received: &BTreeSet<u64>) -> Option<Vec<u8>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in received.iter().rev() {
        match ranges.last_mut() {
            Some((first, _)) if *first == number + 1 => *first = number,
            _ => ranges.push((number, number)),
        }
    }
    let (&(first, last), others) = ranges.split_first()?;
    let mut frame = vec![0x02];
    for value in [last, 0, others.len() as u64, last - first] {
        number(&mut frame, value);
    }
    let mut before = first;
    for &(first, last) in others {
        number(&mut frame, before - last - 2);
        number(&mut frame, last - first);
        before = first;
    }
    Some(frame)
}

/// A CRYPTO frame at the start of its stream (RFC 9000 §19.6).
pub(crate) fn crypto(data: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x06, 0];
    number(&mut frame, data.len() as u64);
    frame.extend_from_slice(data);
    frame
}

pub(crate) fn number(out: &mut impl BufMut, value: u64) {
    VarInt::saturating_from(value).encode(out);
}

/// Splits bytes that may be too few.
pub(crate) trait TrySplit: Sized {
    fn try_split_to(&mut self, len: usize) -> Option<Self>;
}

impl TrySplit for Bytes {
    fn try_split_to(&mut self, len: usize) -> Option<Self> {
        (len <= self.len()).then(|| self.split_to(len))
    }
}

//! A server that writes QUIC packets (RFC 9000) without cryptography and without an engine of its own. It
//! keeps no rule of QUIC that its caller does not keep, and acknowledges what it gets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Buf, Bytes, BytesMut};
use tandem_wire::{Capsule, CapsuleDecoder, CidCapsule, QuicFrameKind, QuicFrames, VarInt};

use crate::raw_client::{
    HANDSHAKE, INITIAL, REMEMBERED, TrySplit, VERSION, acknowledgement, crypto, full_number, number,
};

/// The length of the server's own connection ID.
const ID_LEN: usize = 8;

/// The most datagrams of the client that wait.
const DATAGRAMS_MAX: usize = 256;

/// A server for one connection of a client with [`NullCrypto`](crate::null_crypto::NullCrypto).
pub struct RawServer {
    /// The connection ID that the client chose for itself.
    client: Bytes,
    own: [u8; ID_LEN],
    window: u32,
    next_number: u32,
    received: BTreeSet<u64>,
    owes_acknowledgement: bool,
    /// Whether the server acknowledges what it receives.
    pub acknowledges: bool,
    packets: VecDeque<BytesMut>,
    is_closed: bool,
    /// The number of request streams that the client has opened.
    pub requests: u64,
    /// The bytes that were sent on each stream.
    sent: BTreeMap<u64, u64>,
    /// The number of streams of its own that the server has opened.
    opened: u64,
    /// The datagrams that have come.
    pub datagrams: VecDeque<Bytes>,
    /// The connection IDs that the client has registered, and whether each is the client's own.
    pub registered: Vec<(Bytes, bool)>,
}

/// The connection IDs of a client's first packet, its own first. `None`: it is none.
pub fn ids_of_initial(packet: &[u8]) -> Option<(Bytes, Bytes)> {
    let mut packet = Bytes::copy_from_slice(packet);
    let first = packet.try_get_u8().ok()?;
    if first & 0x80 == 0 || first >> 4 & 3 != INITIAL {
        return None;
    }
    let (destination, source) = ids(&mut packet)?;
    Some((source, destination))
}

/// Reads the destination and the source of a long header after its first byte.
fn ids(packet: &mut Bytes) -> Option<(Bytes, Bytes)> {
    packet.try_get_u32().ok()?;
    let len = usize::from(packet.try_get_u8().ok()?);
    let destination = packet.try_split_to(len)?;
    let len = usize::from(packet.try_get_u8().ok()?);
    Some((destination, packet.try_split_to(len)?))
}

impl RawServer {
    /// Answers the first packet of a client, which has these connection IDs. `number` makes the server's own
    /// ID, and `window` bounds the client's data on each stream.
    pub fn accept((client, first): (Bytes, Bytes), number: u8, window: u32) -> Self {
        let mut server = Self {
            client,
            own: [number; ID_LEN],
            window,
            next_number: 0,
            received: BTreeSet::new(),
            owes_acknowledgement: false,
            acknowledges: true,
            packets: VecDeque::new(),
            is_closed: false,
            requests: 0,
            sent: BTreeMap::new(),
            opened: 0,
            datagrams: VecDeque::new(),
            registered: Vec::new(),
        };
        let mut packet = server.long(INITIAL, &crypto(&server.parameters(&first)));
        packet.unsplit(server.long(HANDSHAKE, &crypto(&[1])));
        server.packets.push_back(packet);
        server.frames(&[0x1e]); // HANDSHAKE_DONE
        server
    }

    /// The transport parameters (RFC 9000 §18.2, RFC 9221 §3).
    fn parameters(&self, first: &[u8]) -> Vec<u8> {
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
        // original_destination_connection_id, initial_source_connection_id, stateless_reset_token
        for (id, value) in [(0x00, first), (0x0f, &self.own[..]), (0x02, &self.reset_token()[..])] {
            number(&mut out, id);
            number(&mut out, value.len() as u64);
            out.extend(value);
        }
        out
    }

    /// The token by which the server may end the connection without its keys.
    fn reset_token(&self) -> [u8; 16] {
        [self.own[0]; 16]
    }

    fn long(&mut self, kind: u8, frames: &[u8]) -> BytesMut {
        let mut out = vec![0xc3 | kind << 4]; // four bytes of packet number
        out.extend(VERSION.to_be_bytes());
        for id in [&self.client[..], &self.own[..]] {
            out.push(id.len() as u8);
            out.extend(id);
        }
        if kind == INITIAL {
            out.push(0); // no token
        }
        out.extend((0x4000 | (frames.len() + 4) as u16).to_be_bytes());
        out.extend(self.next_number.to_be_bytes());
        self.next_number += 1;
        out.extend(frames);
        BytesMut::from(&out[..])
    }

    /// Sends these frames in a packet.
    pub fn frames(&mut self, frames: &[u8]) {
        if self.is_closed {
            return;
        }
        let mut out = vec![0x43]; // a short header with four bytes of packet number
        out.extend(&self.client);
        out.extend(self.next_number.to_be_bytes());
        self.next_number += 1;
        out.extend(frames);
        self.packets.push_back(BytesMut::from(&out[..]));
    }

    /// Sends a UDP payload that is no packet of the connection.
    pub fn beside(&mut self, packet: &[u8]) {
        self.packets.push_back(BytesMut::from(packet));
    }

    /// Sends a stateless reset of this length (RFC 9000 §10.3).
    pub fn reset(&mut self, len: usize) {
        let mut packet = vec![0x40; len.max(5)];
        packet.extend(self.reset_token());
        self.beside(&packet);
        self.is_closed = true;
    }

    /// Sends data on a stream of the client. `skip`: this number of bytes before the data is never sent.
    pub fn write(&mut self, stream: u8, data: &[u8], skip: u8) {
        if let Some(request) = u64::from(stream).checked_rem(self.requests) {
            self.write_at(request * 4, data, skip.into());
        }
    }

    /// Opens a stream of the server and sends data on it.
    pub fn open(&mut self, data: &[u8]) {
        let id = self.opened * 4 + 3;
        self.opened += 1;
        self.write_at(id, data, 0);
    }

    /// Sends more data on a stream of the server.
    pub fn write_own(&mut self, stream: u8, data: &[u8], skip: u8) {
        if let Some(index) = u64::from(stream).checked_rem(self.opened) {
            self.write_at(index * 4 + 3, data, skip.into());
        }
    }

    fn write_at(&mut self, id: u64, data: &[u8], skip: u64) {
        // A packet has room for so much.
        for piece in data.chunks(1000).chain(data.is_empty().then_some(&[][..])) {
            let offset = self.sent.entry(id).or_default();
            *offset += if piece.as_ptr() == data.as_ptr() { skip } else { 0 };
            let mut frame = vec![0x0e]; // STREAM with offset and length
            number(&mut frame, id);
            number(&mut frame, *offset);
            number(&mut frame, piece.len() as u64);
            frame.extend(piece);
            *offset += piece.len() as u64;
            self.frames(&frame);
        }
    }

    /// Ends a stream of the client: with FIN (0x0f), `RESET_STREAM` (0x04) or `STOP_SENDING` (0x05).
    pub fn end(&mut self, stream: u8, kind: u8, code: u16) {
        let Some(request) = u64::from(stream).checked_rem(self.requests) else { return };
        let offset = self.sent.get(&(request * 4)).copied().unwrap_or(0);
        let mut frame = vec![kind];
        number(&mut frame, request * 4);
        let values = match kind {
            0x04 => vec![code.into(), offset],
            0x05 => vec![code.into()],
            _ => vec![offset, 0],
        };
        values.into_iter().for_each(|value| number(&mut frame, value));
        self.frames(&frame);
    }

    /// Closes the connection with this code and reason: by HTTP/3 (0x1d), or by QUIC (0x1c).
    pub fn close(&mut self, kind: u8, code: u16, reason: &[u8]) {
        let mut frame = vec![kind];
        number(&mut frame, code.into());
        if kind == 0x1c {
            number(&mut frame, 0);
        }
        number(&mut frame, reason.len() as u64);
        frame.extend(reason);
        self.frames(&frame);
        self.is_closed = true;
    }

    /// Sends a DATAGRAM frame (RFC 9221 §4).
    pub fn datagram(&mut self, data: &[u8]) {
        let mut frame = vec![0x31];
        number(&mut frame, data.len() as u64);
        frame.extend(data);
        self.frames(&frame);
    }

    /// Receives a UDP payload.
    pub fn handle(&mut self, packet: &[u8]) {
        // What the server cannot read is of no interest.
        let _ = self.read(Bytes::copy_from_slice(packet));
    }

    fn read(&mut self, mut packet: Bytes) -> Option<()> {
        while let Some(&first) = packet.first() {
            if first & 0x80 == 0 {
                return self.read_short(packet);
            }
            packet.advance(1);
            ids(&mut packet)?;
            if first >> 4 & 3 == INITIAL {
                let token = VarInt::decode(&mut packet).ok()?.get() as usize;
                packet.try_split_to(token)?;
            }
            let len = VarInt::decode(&mut packet).ok()?.get() as usize;
            packet.try_split_to(len)?;
        }
        Some(())
    }

    fn read_short(&mut self, mut packet: Bytes) -> Option<()> {
        let len = usize::from(packet.try_get_u8().ok()? & 3) + 1;
        packet.try_split_to(ID_LEN).filter(|id| *id == self.own[..])?;
        let truncated = packet.try_split_to(len)?;
        self.received.insert(full_number(&self.received, &truncated));
        if self.received.len() > REMEMBERED {
            self.received.pop_first();
        }
        self.learn(&packet);
        for frame in QuicFrames::new(&packet) {
            match frame.kind {
                QuicFrameKind::Padding | QuicFrameKind::Ack => continue,
                QuicFrameKind::Stream => {
                    let mut rest = frame.frame.get(1..)?;
                    let id = VarInt::decode(&mut rest).ok()?.get();
                    if id.is_multiple_of(4) {
                        self.requests = self.requests.max(id / 4 + 1);
                    }
                }
                QuicFrameKind::Datagram if self.datagrams.len() < DATAGRAMS_MAX => {
                    self.datagrams.push_back(Bytes::copy_from_slice(frame.data));
                }
                _ if matches!(frame.frame.first(), Some(0x1c | 0x1d)) => self.is_closed = true,
                _ => {}
            }
            self.owes_acknowledgement = true;
        }
        Some(())
    }

    /// Learns the connection IDs that a packet registers, wherever the capsules about them are.
    fn learn(&mut self, frames: &Bytes) {
        for at in 0..frames.len() {
            let Some([0x80, 0xff, 0xe7, 0 | 1]) = frames.get(at..at + 4) else { continue };
            let mut capsules = CapsuleDecoder::new(100);
            capsules.push(frames.slice(at..));
            let registered = match capsules.next() {
                Ok(Some(Capsule::Cid(CidCapsule::RegisterClient { cid, .. }))) => (cid, true),
                Ok(Some(Capsule::Cid(CidCapsule::RegisterTarget { cid, .. }))) => (cid, false),
                _ => continue,
            };
            if self.registered.len() < REMEMBERED {
                self.registered.push(registered);
            }
        }
    }

    /// The next packet. `None`: the server waits.
    pub fn poll(&mut self) -> Option<BytesMut> {
        if self.packets.is_empty()
            && self.acknowledges
            && std::mem::take(&mut self.owes_acknowledgement)
            && let Some(frame) = acknowledgement(&self.received)
        {
            self.frames(&frame);
        }
        self.packets.pop_front()
    }
}

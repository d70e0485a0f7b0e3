//! What a `ClientHello` says before its connection begins, also if it comes in several packets.
//!
//! With X25519MLKEM768, a `ClientHello` takes two packets, and extensions stand in any order. The engine takes the
//! settings of a connection with the first packet, and shows of that packet only what is whole.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};
use noq_proto::{
    ConnectionId, Incoming, PathId,
    crypto::{Keys, ServerConfig},
};
use rustls::server::Acceptor;
use tandem_wire::VarInt;

use super::{
    demux::{INITIAL_SIZE_MIN, VERSION},
    header::Header,
};
use crate::node::Ecn;

/// How long the rest of a `ClientHello` is waited for. Two packets of 1200 bytes need 20 ms at 1 Mbit/s. A lost one
/// comes again later than this, and the connection begins without it.
const PATIENCE: Duration = Duration::from_millis(50);

/// The most connections whose rest is waited for. One holds its packets, of which there are two or three.
pub(super) const HELD_MAX: usize = 64;

/// The longest `ClientHello` that is read, in bytes. One with X25519MLKEM768 has 1,700.
const HELLO_LEN_MAX: usize = 8192;

/// The most pieces of a `ClientHello` that are kept. Browsers divide theirs on purpose, into some tens of pieces.
const PIECES_MAX: usize = 128;

/// The head of a handshake message: its type, and its length (RFC 8446 §4).
const HANDSHAKE_HEAD: usize = 4;

/// The Destination Connection ID of a client's Initial packet, if a UDP payload begins with one of our version.
fn destination(payload: &[u8]) -> Option<&[u8]> {
    /// RFC 9000 §17.2: the fixed bit is set, and the type of Initial packets is 0.
    const INITIAL: u8 = 0b1100_0000;
    match Header::read(payload)? {
        Header::Long { first, version: VERSION, destination, .. }
            if first & 0xf0 == INITIAL && payload.len() >= INITIAL_SIZE_MIN =>
        {
            Some(destination)
        }
        Header::Long { .. } | Header::Short { .. } => None,
    }
}

/// A copy of a UDP payload that may be a part of a `ClientHello`. The engine takes the payload itself.
pub(super) fn copy_of_initial(payload: &[u8]) -> Option<BytesMut> {
    destination(payload).map(|_| payload.into())
}

/// The packets of a `ClientHello` that have come.
struct ClientHello {
    keys: Keys,
    /// What CRYPTO frames have brought, by its offset.
    pieces: BTreeMap<usize, Bytes>,
}

impl ClientHello {
    /// For the packets with this Destination Connection ID, from which their keys follow (RFC 9001 §5.2).
    fn new(crypto: &dyn ServerConfig, destination: ConnectionId) -> Option<Self> {
        let keys = crypto.initial_keys(VERSION, destination).ok()?;
        Some(Self { keys, pieces: BTreeMap::new() })
    }

    /// Reads the Initial packet with which a UDP payload begins. `None`: it cannot be read, or too much has come.
    fn read(&mut self, mut payload: BytesMut) -> Option<()> {
        // RFC 9000 §17.2.2: type and version, connection IDs, token, length, packet number.
        let Header::Long { destination, source, .. } = Header::read(&payload)? else { return None };
        let (mut rest, ids) = (&payload[..], 7 + destination.len() + source.len());
        rest = rest.get(ids..)?;
        let token_len = varint(&mut rest)?;
        rest = rest.get(token_len..)?;
        let len = varint(&mut rest)?;
        let number_at = payload.len() - rest.len();
        payload.truncate(number_at.checked_add(len)?.min(payload.len()));
        let header = self.keys.header.remote.as_ref();
        if len < 4 + header.sample_size() || payload.len() < number_at + len {
            return None; // there is no whole sample behind the packet number (RFC 9001 §5.4.2)
        }
        header.decrypt(number_at, &mut payload);
        let number_len = usize::from(payload.first()? & 3) + 1;
        let mut body = payload.split_off(number_at + number_len);
        let number = payload.get(number_at..)?.iter();
        // RFC 9000 §17.1: numbers begin at 0, so that those of a first flight are whole.
        let number = number.fold(0, |number, byte| number << 8 | u64::from(*byte));
        self.keys.packet.remote.decrypt(PathId::ZERO, number, &payload, &mut body).ok()?;
        self.take(body.freeze())
    }

    /// Takes the CRYPTO frames of a packet. Others that stand before one in a first flight are PADDING, PING and ACK.
    fn take(&mut self, mut frames: Bytes) -> Option<()> {
        /// RFC 9000 §19.
        const PADDING: u64 = 0;
        const PING: u64 = 1;
        const CRYPTO: u64 = 6;
        while frames.has_remaining() {
            match VarInt::decode(&mut frames).ok()?.get() {
                PADDING | PING => {}
                CRYPTO => {
                    let (offset, len) = (varint(&mut frames)?, varint(&mut frames)?);
                    if len > frames.len() || offset.checked_add(len)? > HELLO_LEN_MAX {
                        return None;
                    }
                    self.pieces.insert(offset, frames.split_to(len));
                    if self.pieces.len() > PIECES_MAX {
                        return None;
                    }
                }
                _ => return Some(()), // acknowledgements, of which there is no use here
            }
        }
        Some(())
    }

    /// The message, once all of it has come.
    fn message(&self) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        for (offset, piece) in &self.pieces {
            let known = message.len().checked_sub(*offset)?; // `None`: there is a gap
            message.extend_from_slice(piece.get(known..).unwrap_or_default());
        }
        let &[_, a, b, c] = message.first_chunk::<HANDSHAKE_HEAD>()?;
        let len = HANDSHAKE_HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
        message.truncate(len);
        (message.len() == len).then_some(message)
    }
}

fn varint(bytes: &mut impl Buf) -> Option<usize> {
    VarInt::decode(bytes).ok().and_then(|value| usize::try_from(value.get()).ok())
}

/// Whether a `ClientHello` offers this protocol (RFC 7301).
fn offers(hello: &[u8], protocol: &[u8]) -> bool {
    /// The type and version of a TLS record with a handshake message (RFC 8446 §5.1). QUIC has no records.
    const RECORD: [u8; 3] = [22, 3, 1];
    let Ok(len) = u16::try_from(hello.len()) else { return false }; // it is longer than `HELLO_LEN_MAX`
    let record = [&RECORD[..], &len.to_be_bytes(), hello].concat();
    let mut acceptor = Acceptor::default();
    if acceptor.read_tls(&mut &record[..]).is_err() {
        return false; // reading from memory does not fail
    }
    let Ok(Some(accepted)) = acceptor.accept() else { return false }; // the engine says what is wrong with it
    let hello = accepted.client_hello();
    hello.alpn().is_some_and(|mut protocols| protocols.any(|it| it == protocol))
}

/// A connection that has not begun.
pub(super) struct First {
    pub(super) incoming: Incoming,
    /// What has come, in bytes of UDP payload.
    pub(super) len: usize,
    pub(super) ecn: Option<Ecn>,
}

/// A connection that waits for the rest of its `ClientHello`.
struct Held {
    first: First,
    hello: ClientHello,
    due: Instant,
}

/// The connections of a server that begin when it is known what their clients offer.
#[derive(Default)]
pub(super) struct Hellos {
    /// In the order in which they are due.
    held: VecDeque<Held>,
}

impl Hellos {
    /// Takes the first packet of a connection. Returns the connection, and whether its client offers this protocol, if
    /// that is known.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        first: First,
        packet: BytesMut,
        crypto: &dyn ServerConfig,
        protocol: &[u8],
    ) -> Option<(First, bool)> {
        let hello = ClientHello::new(crypto, first.incoming.orig_dst_cid());
        let Some(mut hello) = hello.filter(|_| self.held.len() < HELD_MAX) else {
            return Some((first, false));
        };
        if hello.read(packet).is_none() {
            return Some((first, false));
        }
        if let Some(message) = hello.message() {
            return Some((first, offers(&message, protocol)));
        }
        self.held.push_back(Held { first, hello, due: now + PATIENCE });
        None
    }

    /// Takes a further packet of this client, which the engine keeps for its connection. Returns the connection if what
    /// its client offers is known now.
    pub(super) fn go_on(
        &mut self,
        client: SocketAddr,
        packet: BytesMut,
        protocol: &[u8],
    ) -> Option<(First, bool)> {
        let id = destination(&packet)?;
        let is_its = |Held { first: First { incoming, .. }, .. }: &Held| {
            incoming.remote_address() == client && incoming.orig_dst_cid()[..] == *id
        };
        let index = self.held.iter().position(is_its)?;
        let Held { first, hello, .. } = self.held.get_mut(index)?;
        first.len += packet.len();
        let is_read = hello.read(packet).is_some();
        let message = hello.message();
        if is_read && message.is_none() {
            return None;
        }
        let Held { first, .. } = self.held.remove(index)?;
        Some((first, message.is_some_and(|message| offers(&message, protocol))))
    }

    /// When the next connection begins with what is known.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.held.front().map(|held| held.due)
    }

    /// The next connection that has waited long enough.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<First> {
        self.held.front().filter(|held| held.due <= now)?;
        self.held.pop_front().map(|held| held.first)
    }
}

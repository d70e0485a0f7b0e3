//! The state machine of a whole proxy node, fast: several clients without cryptography and without
//! a QUIC engine of their own, hostile targets, an operating system that reports errors, and time.
//!
//! The bounds hold, no target gets a payload twice, sockets are used only while they are open, and
//! everything is given back at the end. `proxy_input` covers the path through TLS.

#![no_main]

use std::{io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tandem_fuzz::{
    bed::{Bed, Client as _, Fate, once, proxy_config},
    input::{Reader, capsule, cid_capsule, control_stream, datagram, request, resolved},
    null_crypto::NullCrypto,
    raw_client::{Direction, RawClient},
};
use tandem_node::{Proxy, quic::ServerTls};
use tandem_wire::{Sequenced, VarInt};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 100;

/// The largest number of clients, one more than the proxy accepts.
const CLIENTS_MAX: usize = 5;

/// The fields with which a request asks for more than plain datagrams.
const FORMS: [&[(&str, &str)]; 11] = [
    &[],
    &[("tandem-repair", "1;context=2;order=ordered")],
    &[("tandem-repair", "1;context=2;order=window")],
    &[("tandem-repair", "1;context=2;order=off;limit=1")],
    &[("tandem-repair", "1;context=2;order=ordered;deadline=50")],
    &[("tandem-repair", "1;context=2;order=ordered"), ("tandem-feedback", "1;weight=4")],
    &[("tandem-group", "4;first=0"), ("tandem-promised-size", "1280")],
    &[("dg-retrans", "?1")],
    &[("proxy-quic-forwarding", "?1;accept-transform=\"identity\"")],
    &[("proxy-quic-forwarding", SCRAMBLED), ("tandem-repair", "1;context=2;order=ordered")],
    &[("tandem-seal", "1;id=:AAECAwQFBgc=:"), ("tandem-feedback", "1;weight=4")],
];

/// A wish for forwarded packets, with a key of 32 bytes.
const SCRAMBLED: &str = "?1;accept-transform=\"scramble-dt\";\
                         scramble-key=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:";

struct World {
    bed: Bed<RawClient>,
    /// The number of payloads that were sent without a number of their own.
    sent: u32,
}

fuzz_target!(|input: &[u8]| {
    let mut reader = Reader::new(input);
    let tls = ServerTls::replaced_by(Arc::new(NullCrypto));
    let proxy = Proxy::with_tls(proxy_config(), &tls).expect("the settings are sound");
    let mut world = World { bed: Bed::new(proxy), sent: 0 };
    world.connect(reader.byte());
    for _ in 0..STEPS_MAX {
        if reader.is_empty() {
            break;
        }
        world.step(&mut reader);
    }
    world.bed.end();
});

impl World {
    /// Lets one more client connect. `how`: whether it sends settings and acknowledgements, and the
    /// size of its windows.
    fn connect(&mut self, how: u8) {
        let index = self.bed.clients.len();
        if index >= CLIENTS_MAX {
            return;
        }
        let address = SocketAddr::from(([192, 0, 2, 1 + index as u8 % 3], 50_000 + index as u16));
        let window = if how & 4 == 0 { 65_536 } else { 64 };
        let mut client = RawClient::connect(address, window);
        client.acknowledges = how & 2 == 0;
        if how & 1 == 0 {
            client.open(Direction::Out, &control_stream());
        }
        self.bed.clients.push(client);
        self.bed.exchange();
    }

    fn client(&mut self, index: u8) -> &mut RawClient {
        let count = self.bed.clients.len();
        &mut self.bed.clients[usize::from(index) % count]
    }

    fn step(&mut self, reader: &mut Reader) {
        match reader.byte() {
            b'a' => self.connect(reader.byte()),
            b'b' => self.bed.fates.push_back(Fate::Lost),
            b'c' => self.bed.fates.push_back(Fate::Twice),
            b'd' => self.bed.send_all(),
            b'e' => self.bed.wait(Duration::from_millis(reader.number().into())),
            b'f' => self.bed.wait(Duration::from_secs(reader.byte().into())),
            b'g' => self.bed.shut_down(),
            b'h' => {
                let host = reader.byte();
                self.bed.from_other_host(host, &reader.bytes());
            }
            letter @ b'i'..=b'n' => self.operating_system(letter, reader),
            letter @ b'o'..=b'z' => {
                let client = reader.byte();
                self.streams(letter, client, reader);
            }
            letter @ b'E'..=b'H' => {
                let client = reader.byte();
                self.beside(letter, client, reader);
            }
            letter @ b'A'..=b'D' => {
                let client = reader.byte();
                self.payloads(letter, client, reader);
            }
            _ => self.bed.exchange(),
        }
    }

    fn operating_system(&mut self, letter: u8, reader: &mut Reader) {
        let (bed, index) = (&mut self.bed, reader.byte());
        match letter {
            b'i' => {
                let (len, count) = (reader.number() % 2000, reader.byte());
                for _ in 0..count % 32 {
                    bed.from_target(index, BytesMut::zeroed(len.into()));
                }
            }
            b'j' => bed.fail_socket(index),
            b'k' => drop(bed.answer_socket(index, Ok(()))),
            b'l' => drop(bed.answer_socket(index, Err(ErrorKind::AddrInUse))),
            _ => bed.answer_query(index, resolved(reader.byte())),
        }
    }

    fn streams(&mut self, letter: u8, client: u8, reader: &mut Reader) {
        let now = self.bed.now;
        let client = self.client(client);
        match letter {
            b'o' | b'p' => {
                let (target, form) = (reader.byte(), reader.byte());
                let fields = FORMS[usize::from(form) % FORMS.len()];
                client.open(Direction::Both, &request(target, fields));
            }
            b'q' => client.open(Direction::Both, &reader.bytes()),
            b'r' => client.open(Direction::Out, &reader.bytes()),
            b's' => {
                let (stream, skip) = (reader.byte(), reader.byte());
                client.write(stream, &reader.bytes(), skip);
            }
            b't' => client.end(reader.byte(), 0x0f, 0),
            b'u' => client.end(reader.byte(), 0x04, reader.number()),
            b'v' => client.end(reader.byte(), 0x05, reader.number()),
            b'w' => client.close(now),
            b'x' => client.acknowledges = !client.acknowledges,
            b'y' => client.datagram(&reader.bytes()),
            // Frames of any kind, such as acknowledgements of packets that were never sent.
            _ => client.frames(reader.bytes()),
        }
    }

    /// Registers connection IDs, and sends packets beside a client's connection.
    fn beside(&mut self, letter: u8, client: u8, reader: &mut Reader) {
        let (kind, index) = (reader.byte(), reader.byte());
        let len = usize::from(reader.number() % 1500);
        let client = self.client(client);
        let known = usize::from(index).checked_rem(client.virtual_ids.len());
        let known = known.and_then(|at| client.virtual_ids.get(at)).cloned();
        // A packet with a header of this form, for an ID.
        let packet = |id: &[u8]| [&[kind], id, &[index][..]].concat();
        match (letter, known) {
            (b'E', _) => {
                let cid = vec![index; len % 22];
                client.write(reader.byte(), &cid_capsule(kind, cid, vec![kind; 8]), 0);
            }
            (b'F', Some((vcid, cid))) => {
                client.write(reader.byte(), &cid_capsule(3, cid.into(), vcid.to_vec()), 0);
            }
            (b'G', Some((vcid, _))) => {
                let mut packet = packet(&vcid);
                packet.resize(packet.len().max(len), kind);
                client.beside(&packet);
            }
            (b'H', Some((_, cid))) => {
                let mut packet = BytesMut::from(&packet(&cid)[..]);
                packet.resize(packet.len().max(len), kind);
                self.bed.from_target(index, packet);
            }
            _ => {}
        }
    }

    fn payloads(&mut self, letter: u8, client: u8, reader: &mut Reader) {
        let (stream, context_id) = (reader.byte(), reader.byte());
        let len = usize::from(reader.number() % 1500);
        self.sent += 1;
        let sent = self.sent;
        let client = self.client(client);
        let Some(id) = client.stream_id(stream) else { return };
        // The same number stands for the same payload, so that a copy of it must be dropped.
        let (number, distance) = match letter {
            b'C' | b'D' => (reader.number(), reader.byte()),
            _ => (0, 0),
        };
        let numbered = |payload: Vec<u8>| {
            let sequence = VarInt::from_u32(number.into());
            let floor = VarInt::from_u32(number.saturating_sub(distance.into()).into());
            let mut out = BytesMut::new();
            Sequenced { sequence, floor, payload: payload.into() }.encode(&mut out);
            out
        };
        match letter {
            b'A' => client.datagram(&datagram(id / 4, context_id, &filled(sent, len))),
            b'B' => client.write(stream, &capsule(context_id, &filled(sent, len)), 0),
            b'C' => {
                let payload = numbered(filled(number.into(), 8));
                client.datagram(&datagram(id / 4, 2, &payload));
            }
            _ => {
                let payload = numbered(filled(number.into(), 8));
                client.write(stream, &capsule(2, &payload), 0);
            }
        }
    }
}

/// A payload that a target must get at most once, with this number and about this length.
fn filled(number: u32, len: usize) -> Vec<u8> {
    let mut content = number.to_be_bytes().to_vec();
    content.resize(len.max(4), 0);
    once(&content)
}

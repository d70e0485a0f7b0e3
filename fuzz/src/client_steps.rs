//! What happens around a client, as the input says: what servers send that keep no rule, what local programs
//! do, and what the operating system reports.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tandem_node::{
    Client, ClientConfig,
    client::{
        FetchConfig, FlowConfig, FlowId, ForwardConfig, HopConfig, Order, Repair, Task, TcpService,
        Template, TunnelMode,
    },
    mode::Mode,
    quic::ClientTls,
};
use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{Sequenced, TunnelInfo, VarInt};

use crate::{
    bed::certificate,
    client_bed::{ClientBed, Manners, limits},
    input::{Reader, capsule, cid_capsule, data_frame, datagram, response, server_control_stream},
    null_crypto::NullCrypto,
    raw_server::RawServer,
};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 200;

/// Who is malicious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malicious {
    /// The proxies, and the origin behind them.
    Proxy,
    /// Only the origin, which is reached directly or through polite proxies.
    Origin,
}

/// The fields with which a proxy grants more than plain datagrams.
const GRANTS: [&[(&str, &str)]; 10] = [
    &[("capsule-protocol", "?1")],
    &[("capsule-protocol", "?1"), ("tandem-repair", "1;context=2;order=ordered")],
    &[("capsule-protocol", "?1"), ("tandem-repair", "1;context=2;order=window;limit=1")],
    &[
        ("capsule-protocol", "?1"),
        ("tandem-repair", "1;context=2;order=ordered"),
        ("tandem-feedback", "1;context=3"),
    ],
    &[("capsule-protocol", "?1"), ("tandem-group", "2;first=0"), ("tandem-promised-size", "1280")],
    &[("proxy-quic-forwarding", "?1;transform=\"identity\""), ("capsule-protocol", "?1")],
    &[("proxy-quic-forwarding", SCRAMBLED), ("capsule-protocol", "?1")],
    &[("tandem-seal", "1;id=:AAECAwQFBgc=:"), ("capsule-protocol", "?1")],
    &[("dg-retrans", "?1"), ("capsule-protocol", "?1")],
    &[],
];

/// An agreement to forward packets, with a key of 32 bytes.
const SCRAMBLED: &str = "?1;transform=\"scramble-dt\";\
                         scramble-key=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:";

/// The status and the fields with which an origin answers, and the body.
const FILES: [(u16, &[(&str, &str)], &[u8]); 9] = [
    (200, &[("content-length", "11")], b"hello world"),
    (200, &[("content-length", "5000"), ("etag", "\"1\""), ("accept-ranges", "bytes")], b"hello"),
    (206, &[("content-range", "bytes 0-10/11"), ("etag", "\"1\"")], b"hello world"),
    (206, &[("content-range", "bytes 5-10/100"), ("content-length", "6")], b" world"),
    (206, &[("content-range", "bytes 0-18446744073709551614/18446744073709551615")], b"x"),
    (404, &[("content-length", "4"), ("retry-after", "99999999999")], b"gone"),
    (301, &[("location", "https://other.test/")], b""),
    (503, &[("retry-after", "1"), ("proxy-status", "a; error=dns_error; details=\"b\"")], b""),
    (103, &[("link", "</a>; rel=preload")], b"early"),
];

/// Drives a client as the input says. Returns a digest of all that it did.
///
/// # Panics
///
/// A promise is broken.
pub fn run(input: &[u8], malicious: Malicious) -> u64 {
    ClientTls::replace_by(Arc::new(NullCrypto));
    let mut reader = Reader::new(input);
    let (task, mode, how) = (reader.byte(), reader.byte(), reader.byte());
    let hops = match malicious {
        Malicious::Origin => usize::from(how & 1),
        Malicious::Proxy => 1 + usize::from(how & 1),
    };
    let mode = self::mode(mode);
    let client = client(task, mode, hops, malicious);
    let is_polite = malicious == Malicious::Origin;
    let manners = Manners {
        grant: (is_polite || how & 2 == 0)
            .then(|| GRANTS[if is_polite { 0 } else { usize::from(how >> 4) % GRANTS.len() }]),
        file: (how & 4 == 0).then(|| FILES[usize::from(how >> 4) % FILES.len()]),
        window: if how & 8 == 0 { 65_536 } else { 64 },
        addresses: reader.byte() % 4,
    };
    let bed = ClientBed::new(client, hops, manners);
    let mut run = Run { bed, malicious, next_flow: 0, sent: 0 };
    for _ in 0..STEPS_MAX {
        if reader.is_empty() {
            break;
        }
        run.step(&mut reader);
    }
    run.bed.end()
}

fn mode(mode: u8) -> TunnelMode {
    let repair = Repair {
        order: if mode & 0x40 == 0 { Order::Ordered } else { Order::Off },
        deadline: (mode & 0x20 != 0).then_some(Duration::from_millis(50)),
        limit: (mode & 0x10 != 0).then_some(1),
    };
    match mode % 8 {
        0 => TunnelMode::Mdt,
        1 => TunnelMode::Forward,
        2 => TunnelMode::Uack { both_ways: mode & 0x80 == 0 },
        3 => TunnelMode::Mst,
        4 => TunnelMode::Msgt(2),
        5 => TunnelMode::Rmdt(repair),
        6 => TunnelMode::Auto { repair, asked: Mode::Auto },
        _ => TunnelMode::Tecc(repair),
    }
}

fn client(task: u8, mode: TunnelMode, hops: usize, malicious: Malicious) -> Client {
    let tls = || certificate().client();
    let hop = |host: &str| HopConfig { mode, ..HopConfig::new(template(host), tls()) };
    let names = ["proxy.test", "192.0.2.3"];
    let fetch = || {
        let host = if task & 0x80 == 0 { "origin.test" } else { "192.0.2.2" };
        let (host, path) = (host.to_owned(), "/file".to_owned());
        let mut fetch = FetchConfig::new(host, 443, path, tls());
        fetch.streams = 1 + usize::from(task >> 4 & 3);
        fetch.upload = (task & 0x40 != 0).then(|| ByteCount::new(30_000));
        Task::Fetch(Box::new(fetch))
    };
    let listen = ([127, 0, 0, 1], 1000).into();
    let is_fetch = malicious == Malicious::Origin || task.is_multiple_of(2);
    let config = ClientConfig {
        hops: names[..hops].iter().map(|host| hop(host)).collect(),
        task: if is_fetch {
            fetch()
        } else {
            Task::Forward(vec![ForwardConfig::new(listen, "target.test", 443)])
        },
        limits: limits(),
        seed: Some(1),
    };
    let mut client = Client::new(config).expect("the settings are sound");
    if !is_fetch {
        let target = FlowConfig::new("target.test", 22);
        client.add_tcp_service(TcpService::Proxy { listen, password: None });
        client.add_tcp_service(TcpService::Forward { listen, target });
        if task & 0x20 != 0 {
            client.check_targets();
        }
    }
    client
}

fn template(host: &str) -> Template {
    let path = "/.well-known/masque/udp/{target_host}/{target_port}/";
    Template::parse(&format!("https://{host}{path}")).expect("it is a template")
}

struct Run {
    bed: ClientBed,
    malicious: Malicious,
    /// The name of the next flow of the embedding program.
    next_flow: u64,
    /// The number of payloads of proxies.
    sent: u32,
}

impl Run {
    fn server(&mut self, index: u8) -> Option<&mut RawServer> {
        match self.malicious {
            Malicious::Proxy => self.bed.server(index),
            Malicious::Origin => self.bed.origin(index),
        }
    }

    fn step(&mut self, reader: &mut Reader) {
        match reader.byte() {
            b'a' => self.bed.wait(Duration::from_millis(reader.number().into())),
            b'b' => self.bed.wait(Duration::from_secs(reader.byte().into())),
            b'c' => self.bed.shut_down(),
            b'd' => self.bed.fails_socket = true,
            b'e' => self.bed.fail_socket(reader.byte()),
            b'f' => self.bed.answer_query(reader.byte() % 4),
            letter @ b'g'..=b'm' => self.program(letter, reader),
            letter @ b'n'..=b'z' => {
                let index = reader.byte();
                if let Some(server) = self.server(index) {
                    streams(server, letter, reader);
                }
            }
            letter @ b'A'..=b'G' => {
                let index = reader.byte();
                self.sent += 1;
                let sent = self.sent;
                if let Some(server) = self.server(index) {
                    payloads(server, letter, sent, reader);
                }
            }
            b'H' => {
                let host = reader.byte();
                self.bed.change_network((host > 0).then_some(host));
            }
            _ => self.bed.exchange(),
        }
    }

    /// What local programs, and the embedding program, do.
    fn program(&mut self, letter: u8, reader: &mut Reader) {
        let (bed, index) = (&mut self.bed, reader.byte());
        let now = bed.now;
        match letter {
            b'g' => {
                let mut payload = vec![reader.byte(); usize::from(reader.number() % 2000)];
                payload.extend(reader.bytes());
                bed.from_program(index, &payload);
            }
            b'h' => bed.connect_program(index),
            b'i' => bed.program_says(index, &reader.bytes()),
            b'j' => bed.program_fails(index),
            b'k' => {
                let id = FlowId(self.next_flow);
                self.next_flow += 1;
                // Only a client that forwards has such flows, and not more than its bound.
                drop(bed.client().open_flow(id, FlowConfig::new("flow.test", 53)));
            }
            b'l' => {
                let id = FlowId(u64::from(index).checked_rem(self.next_flow).unwrap_or(0));
                let payload = Bytes::from(vec![index; usize::from(reader.number() % 2000)]);
                drop(bed.client().send_on_flow(now, id, &payload));
            }
            _ => {
                let id = FlowId(u64::from(index).checked_rem(self.next_flow).unwrap_or(0));
                bed.client().close_flow(now, id);
            }
        }
    }
}

/// What a server sends on streams, and about its connection.
fn streams(server: &mut RawServer, letter: u8, reader: &mut Reader) {
    match letter {
        b'n' => {
            let (stream, status) = (reader.byte(), reader.byte());
            let fields = GRANTS[usize::from(reader.byte()) % GRANTS.len()];
            let all = [200, 204, 103, 403, 407, 429, 500, 502];
            let status = all[usize::from(status) % all.len()];
            server.write(stream, &response(status, fields), 0);
        }
        b'o' => {
            let stream = reader.byte();
            let (status, fields, body) = FILES[usize::from(reader.byte()) % FILES.len()];
            server.write(stream, &response(status, fields), 0);
            server.write(stream, &data_frame(body), 0);
        }
        b'p' => {
            let stream = reader.byte();
            server.write(stream, &data_frame(&reader.bytes()), 0);
        }
        b'q' => {
            let (stream, skip) = (reader.byte(), reader.byte());
            server.write(stream, &reader.bytes(), skip);
        }
        b'r' => server.open(&reader.bytes()),
        b's' => {
            let (stream, skip) = (reader.byte(), reader.byte());
            server.write_own(stream, &reader.bytes(), skip);
        }
        b't' => server.end(reader.byte(), 0x0f, 0),
        b'u' => server.end(reader.byte(), 0x04, reader.number()),
        b'v' => server.end(reader.byte(), 0x05, reader.number()),
        b'w' => {
            let kind = 0x1c | reader.byte() & 1;
            server.close(kind, reader.number(), &reader.bytes());
        }
        b'x' => {
            let len = usize::from(reader.number() % 2000);
            server.write(reader.byte(), &data_frame(&vec![0; len]), 0);
        }
        b'y' => match reader.byte() % 4 {
            0 => server.acknowledges = !server.acknowledges,
            1 => server.reset(reader.byte().into()),
            2 => server.open(&server_control_stream()),
            _ => server.beside(&reader.bytes()),
        },
        _ => server.frames(&reader.bytes()),
    }
}

/// What a proxy sends through its tunnel.
fn payloads(server: &mut RawServer, letter: u8, sent: u32, reader: &mut Reader) {
    let (stream, context_id) = (reader.byte(), reader.byte());
    let len = usize::from(reader.number() % 1500);
    let id = u64::from(stream).checked_rem(server.requests).unwrap_or(0);
    let mut payload = sent.to_be_bytes().to_vec();
    payload.resize(len.max(4), context_id);
    match letter {
        b'A' => server.datagram(&datagram(id, context_id, &payload)),
        b'B' => server.write(stream, &capsule(context_id, &payload), 0),
        b'C' | b'D' => {
            let (number, distance) = (reader.number(), reader.byte());
            let sequence = VarInt::from_u32(number.into());
            let floor = VarInt::from_u32(number.saturating_sub(distance.into()).into());
            let mut out = BytesMut::new();
            Sequenced { sequence, floor, payload: payload.into() }.encode(&mut out);
            if letter == b'C' {
                server.datagram(&datagram(id, 2, &out));
            } else {
                server.write(stream, &capsule(2, &out), 0);
            }
        }
        b'E' => {
            let rate = Rate::from_mbps(1 + u64::from(context_id));
            let info = TunnelInfo {
                sequence: VarInt::from_u32(len as u32),
                sending_rate: rate,
                bandwidth: (context_id & 1 == 0).then_some(rate),
                queue: ByteCount::new(u64::from(context_id) << 8),
                retransmit_ratio: Ratio::ZERO,
                min_rtt: Duration::from_millis(len as u64),
                smoothed_rtt: Duration::from_millis(len as u64 + 1),
                arrival_rate: None,
            };
            let mut out = Vec::new();
            info.encode(&mut out);
            server.datagram(&datagram(id, 3, &out));
        }
        // The right answer to an ID that the client has registered, and packets for it.
        b'F' => {
            let at = usize::from(context_id).checked_rem(server.registered.len());
            let Some((cid, is_own)) = at.and_then(|at| server.registered.get(at)).cloned() else {
                return;
            };
            let (vcid, kind) = (vec![sent as u8; 8], if is_own { 2 } else { 4 });
            server.write(stream, &cid_capsule(kind, cid.to_vec(), vcid), 0);
        }
        _ => {
            let kind = context_id;
            let cid = reader.bytes();
            server.write(stream, &cid_capsule(kind, cid, vec![stream; 8]), 0);
        }
    }
}

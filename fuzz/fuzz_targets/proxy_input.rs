//! A complete proxy with a hostile client, hostile targets and an operating system that reports
//! errors. The proxy never panics, always becomes idle, uses its sockets only while they are open,
//! and forgets a client whose connection has ended.
//!
//! The TLS handshake uses the system's randomness. Everything else is a function of the input.

#![no_main]

#[path = "proxy_input/bed.rs"]
mod bed;
#[path = "proxy_input/client.rs"]
mod client;

use std::{io::ErrorKind, time::Duration};

use bed::{Bed, Fate};
use bytes::{Bytes, BytesMut};
use client::Permits;
use libfuzzer_sys::fuzz_target;
use noq_proto::Dir;
use tandem_node::node::ResolveError;
use tandem_wire::{
    HttpDatagram, QuarterStreamId, RequestHead, Settings, VarInt, encode_data_header,
    encode_datagram_capsule, encode_headers, encode_settings,
};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 100;

/// One step. The input has a letter for it, followed by its fields.
#[derive(Debug)]
enum Step {
    /// Another host sends arbitrary bytes, which may be QUIC.
    OtherHost {
        host: u8,
        payload: Vec<u8>,
    },
    /// The next packet of the client meets this fate.
    Meet(Fate),
    Open {
        dir: Dir,
        data: Vec<u8>,
    },
    Write {
        stream: u8,
        data: Vec<u8>,
    },
    Finish {
        stream: u8,
    },
    Reset {
        stream: u8,
        code: u16,
    },
    Stop {
        stream: u8,
        code: u16,
    },
    /// The client sends a well-formed CONNECT-UDP request for a target of some kind.
    Request {
        target: u8,
    },
    Capsule {
        stream: u8,
        context_id: u8,
        len: u16,
    },
    Datagram {
        data: Vec<u8>,
    },
    Payload {
        stream: u8,
        context_id: u8,
        len: u16,
    },
    /// The client sends a datagram for a request that may arrive later.
    Early {
        quarter_stream_id: u8,
        len: u8,
    },
    FromTarget {
        socket: u8,
        len: u16,
        count: u8,
    },
    SocketFailed {
        socket: u8,
    },
    SocketOpened {
        socket: u8,
        result: Result<(), ErrorKind>,
    },
    Resolved {
        query: u8,
        answer: u8,
    },
    /// The client sends its packets, but the proxy is not polled yet.
    Send,
    Exchange,
    Wait {
        milliseconds: u16,
    },
    Close,
    Shutdown,
}

/// Reads the input, which is followed by zeros.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn number(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Reads a length and this number of bytes.
    fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte()).min(self.0.len());
        self.0.split_off(..len).unwrap_or_default().to_vec()
    }

    fn step(&mut self) -> Option<Step> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.byte() {
            b'a' => Step::OtherHost { host: self.byte(), payload: self.bytes() },
            b'b' => Step::Meet(Fate::Lost),
            b'c' => Step::Meet(Fate::Twice),
            b'd' => Step::Meet(Fate::Changed(self.number(), self.byte())),
            b'e' => Step::Open { dir: Dir::Bi, data: self.bytes() },
            b'f' => Step::Open { dir: Dir::Uni, data: self.bytes() },
            b'g' => Step::Write { stream: self.byte(), data: self.bytes() },
            b'h' => Step::Finish { stream: self.byte() },
            b'i' => Step::Reset { stream: self.byte(), code: self.number() },
            b'j' => Step::Stop { stream: self.byte(), code: self.number() },
            b'k' => Step::Request { target: self.byte() },
            b'l' => {
                let (stream, context_id) = (self.byte(), self.byte());
                Step::Capsule { stream, context_id, len: self.number() }
            }
            b'm' => Step::Datagram { data: self.bytes() },
            b'n' => {
                let (stream, context_id) = (self.byte(), self.byte());
                Step::Payload { stream, context_id, len: self.number() }
            }
            b'o' => Step::Early { quarter_stream_id: self.byte(), len: self.byte() },
            b'p' => {
                let (socket, len) = (self.byte(), self.number());
                Step::FromTarget { socket, len, count: self.byte() }
            }
            b'q' => Step::SocketFailed { socket: self.byte() },
            b'r' => Step::SocketOpened { socket: self.byte(), result: Ok(()) },
            b's' => Step::SocketOpened { socket: self.byte(), result: Err(ErrorKind::AddrInUse) },
            b't' => Step::Resolved { query: self.byte(), answer: self.byte() },
            b'u' => Step::Send,
            b'v' => Step::Wait { milliseconds: self.number() },
            b'w' => Step::Close,
            b'x' => Step::Shutdown,
            _ => Step::Exchange,
        })
    }
}

fuzz_target!(|input: &[u8]| {
    let mut reader = Reader(input);
    let flags = reader.byte();
    // The client's engine announces a window of zero endlessly.
    let stream_window = reader.number().max(64);
    let permits = Permits { stream_window, datagrams: flags & 1 == 0, reads: flags & 2 == 0 };
    let mut bed = Bed::new(permits);
    if flags & 4 == 0 {
        bed.client.open(Dir::Uni, &control_stream());
    }
    for _ in 0..STEPS_MAX {
        let Some(step) = reader.step() else { break };
        perform(&mut bed, step);
    }
    bed.end();
});

fn perform(bed: &mut Bed, step: Step) {
    match step {
        Step::OtherHost { host, payload } => bed.from_other_host(host, &payload),
        Step::Meet(fate) => bed.fates.push_back(fate),
        Step::Open { dir, data } => bed.client.open(dir, &data),
        Step::Write { stream, data } => bed.client.write(stream, &data),
        Step::Finish { stream } => bed.client.finish(stream),
        Step::Reset { stream, code } => bed.client.reset(stream, code),
        Step::Stop { stream, code } => bed.client.stop(stream, code),
        Step::Request { target } => bed.client.open(Dir::Bi, &request(target)),
        Step::Capsule { stream, context_id, len } => {
            bed.client.write(stream, &capsule(context_id, len));
        }
        Step::Datagram { data } => bed.client.datagram(data.into()),
        Step::Payload { stream, context_id, len } => {
            if let Some(id) = bed.client.quarter_stream_id(stream) {
                bed.client.datagram(datagram(id, context_id, len));
            }
        }
        Step::Early { quarter_stream_id, len } => {
            bed.client.datagram(datagram(quarter_stream_id.into(), 0, len.into()));
        }
        Step::FromTarget { socket, len, count } => {
            for _ in 0..count {
                bed.from_target(socket, BytesMut::zeroed(usize::from(len % 2000)));
            }
        }
        Step::SocketFailed { socket } => bed.fail_socket(socket),
        Step::SocketOpened { socket, result } => {
            bed.answer_socket(socket, result);
        }
        Step::Resolved { query, answer } => bed.answer_query(query, resolved(answer)),
        Step::Send => bed.send_all(),
        Step::Exchange => bed.exchange(),
        Step::Wait { milliseconds } => bed.wait(Duration::from_millis(milliseconds.into())),
        Step::Close => bed.client.close(bed.now),
        Step::Shutdown => bed.shut_down(),
    }
}

fn control_stream() -> Vec<u8> {
    let mut stream = vec![0]; // RFC 9114 §6.2.1: the type of a control stream
    encode_settings(&Settings { h3_datagram: true, ..Settings::default() }, &mut stream);
    stream
}

fn request(target: u8) -> Vec<u8> {
    let target = match target % 6 {
        0 | 1 => "10.0.0.1/53",
        2 => "target.test/443",
        3 => "192.168.0.1/53",
        4 => "fe80%3A%3A1/53",
        _ => "/0",
    };
    let mut headers = http::HeaderMap::new();
    headers.insert("capsule-protocol", http::HeaderValue::from_static("?1"));
    let head = RequestHead {
        method: http::Method::CONNECT,
        scheme: Some("https".to_owned()),
        authority: Some("proxy.test".to_owned()),
        path: Some(format!("/.well-known/masque/udp/{target}/")),
        protocol: Some("connect-udp".to_owned()),
        headers,
    };
    let mut stream = Vec::new();
    encode_headers(&head.encode(), &mut stream);
    stream
}

fn capsule(context_id: u8, len: u16) -> Vec<u8> {
    let mut capsule = Vec::new();
    encode_datagram_capsule(
        VarInt::from(u32::from(context_id)),
        &vec![0; len.into()],
        &mut capsule,
    );
    let mut frame = Vec::new();
    encode_data_header(capsule.len(), &mut frame);
    frame.extend(capsule);
    frame
}

fn datagram(quarter_stream_id: u64, context_id: u8, len: u16) -> Bytes {
    let id = QuarterStreamId::from_stream_id(quarter_stream_id * 4).expect("it is small");
    let payload = Bytes::from(vec![0; usize::from(len % 1500)]);
    HttpDatagram { quarter_stream_id: id, context_id: VarInt::from(u32::from(context_id)), payload }
        .encode_to_bytes()
}

fn resolved(answer: u8) -> Result<Vec<std::net::IpAddr>, ResolveError> {
    let address = |text: &str| text.parse().expect("it is an address");
    match answer % 5 {
        0 => Ok(vec![address("10.0.0.2")]),
        1 => Ok(vec![address("127.0.0.1"), address("10.0.0.3"), address("::1")]),
        2 => Ok(vec![]),
        3 => Err(ResolveError::NotFound),
        _ => Err(ResolveError::Unreachable),
    }
}

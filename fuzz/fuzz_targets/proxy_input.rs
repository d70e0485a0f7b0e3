//! A complete proxy with a hostile client, hostile targets and an operating system that reports
//! errors. The proxy never panics, always becomes idle, uses its sockets only while they are open,
//! and forgets a client whose connection has ended.
//!
//! The TLS handshake uses the system's randomness. Everything else is a function of the input.

#![no_main]

#[path = "proxy_input/client.rs"]
mod client;

use std::{io::ErrorKind, time::Duration};

use bytes::BytesMut;
use client::{Permits, QuicClient};
use libfuzzer_sys::fuzz_target;
use noq_proto::Dir;
use tandem_fuzz::bed::{Bed, Client as _, Fate, proxy_config};
use tandem_fuzz::input::{Reader, capsule, control_stream, datagram, request, resolved};
use tandem_node::Proxy;

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

fn step(reader: &mut Reader) -> Option<Step> {
    if reader.is_empty() {
        return None;
    }
    Some(match reader.byte() {
        b'a' => Step::OtherHost { host: reader.byte(), payload: reader.bytes() },
        b'b' => Step::Meet(Fate::Lost),
        b'c' => Step::Meet(Fate::Twice),
        b'd' => Step::Meet(Fate::Changed(reader.number(), reader.byte())),
        b'e' => Step::Open { dir: Dir::Bi, data: reader.bytes() },
        b'f' => Step::Open { dir: Dir::Uni, data: reader.bytes() },
        b'g' => Step::Write { stream: reader.byte(), data: reader.bytes() },
        b'h' => Step::Finish { stream: reader.byte() },
        b'i' => Step::Reset { stream: reader.byte(), code: reader.number() },
        b'j' => Step::Stop { stream: reader.byte(), code: reader.number() },
        b'k' => Step::Request { target: reader.byte() },
        b'l' => {
            let (stream, context_id) = (reader.byte(), reader.byte());
            Step::Capsule { stream, context_id, len: reader.number() }
        }
        b'm' => Step::Datagram { data: reader.bytes() },
        b'n' => {
            let (stream, context_id) = (reader.byte(), reader.byte());
            Step::Payload { stream, context_id, len: reader.number() }
        }
        b'o' => Step::Early { quarter_stream_id: reader.byte(), len: reader.byte() },
        b'p' => {
            let (socket, len) = (reader.byte(), reader.number());
            Step::FromTarget { socket, len, count: reader.byte() }
        }
        b'q' => Step::SocketFailed { socket: reader.byte() },
        b'r' => Step::SocketOpened { socket: reader.byte(), result: Ok(()) },
        b's' => Step::SocketOpened { socket: reader.byte(), result: Err(ErrorKind::AddrInUse) },
        b't' => Step::Resolved { query: reader.byte(), answer: reader.byte() },
        b'u' => Step::Send,
        b'v' => Step::Wait { milliseconds: reader.number() },
        b'w' => Step::Close,
        b'x' => Step::Shutdown,
        _ => Step::Exchange,
    })
}

fuzz_target!(|input: &[u8]| {
    let mut reader = Reader::new(input);
    let flags = reader.byte();
    // The client's engine announces a window of zero endlessly.
    let stream_window = reader.number().max(64);
    let permits = Permits { stream_window, datagrams: flags & 1 == 0, reads: flags & 2 == 0 };
    let mut bed = Bed::new(Proxy::new(proxy_config()).expect("the settings are sound"));
    bed.clients.push(QuicClient::connect(bed.now, permits));
    bed.exchange();
    assert!(bed.clients[0].is_connected(), "the handshake is complete");
    if flags & 4 == 0 {
        bed.clients[0].open(Dir::Uni, &control_stream());
    }
    for _ in 0..STEPS_MAX {
        let Some(step) = step(&mut reader) else { break };
        perform(&mut bed, step);
    }
    bed.end();
});

fn client(bed: &mut Bed<QuicClient>) -> &mut QuicClient {
    &mut bed.clients[0]
}

fn perform(bed: &mut Bed<QuicClient>, step: Step) {
    match step {
        Step::OtherHost { host, payload } => bed.from_other_host(host, &payload),
        Step::Meet(fate) => bed.fates.push_back(fate),
        Step::Open { dir, data } => client(bed).open(dir, &data),
        Step::Write { stream, data } => client(bed).write(stream, &data),
        Step::Finish { stream } => client(bed).finish(stream),
        Step::Reset { stream, code } => client(bed).reset(stream, code),
        Step::Stop { stream, code } => client(bed).stop(stream, code),
        Step::Request { target } => client(bed).open(Dir::Bi, &request(target, &[])),
        Step::Capsule { stream, context_id, len } => {
            client(bed).write(stream, &capsule(context_id, &vec![0; len.into()]));
        }
        Step::Datagram { data } => client(bed).datagram(data.into()),
        Step::Payload { stream, context_id, len } => {
            if let Some(id) = client(bed).quarter_stream_id(stream) {
                client(bed).datagram(datagram(id, context_id, &vec![0; usize::from(len % 1500)]));
            }
        }
        Step::Early { quarter_stream_id, len } => {
            client(bed).datagram(datagram(quarter_stream_id.into(), 0, &vec![0; len.into()]));
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
        Step::Close => {
            let now = bed.now;
            client(bed).close(now);
        }
        Step::Shutdown => bed.shut_down(),
    }
}

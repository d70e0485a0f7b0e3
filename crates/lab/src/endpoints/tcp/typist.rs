use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tandem_node::{Input, Node, Output, tcp::TcpOutput};

use super::{
    Reading, TcpReport,
    stream::{Stream, name_of},
};

/// The only connection of a typist.
const CONNECTION: usize = 0;

/// A program like a terminal: it sends a few bytes at regular times over one connection, and measures
/// how long it takes until a server has sent as many bytes back.
#[derive(Debug)]
pub struct TcpTypist {
    target: SocketAddr,
    interval: Duration,
    /// The bytes of each message.
    len: u64,
    /// The messages that have yet to be sent.
    left: u32,
    stream: Option<Stream>,
    next: Option<Instant>,
    /// The times of the messages that have not come back.
    on_the_way: VecDeque<Instant>,
    round_trips: Vec<Duration>,
    outputs: VecDeque<TcpOutput>,
}

impl TcpTypist {
    /// Makes a typist that connects to a server at once and sends `count` messages of `len` bytes,
    /// the first one after the connection is open.
    pub const fn new(target: SocketAddr, interval: Duration, count: u32, len: u64) -> Self {
        Self {
            target,
            interval,
            len,
            left: count,
            stream: None,
            next: None,
            on_the_way: VecDeque::new(),
            round_trips: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    /// The times of the messages that have come back.
    pub fn round_trips(&self) -> &[Duration] {
        &self.round_trips
    }

    /// What became of the connection. `None` until the world has run.
    pub fn report(&self) -> Option<&TcpReport> {
        self.stream.as_ref().map(|stream| &stream.report)
    }

    fn type_if_due(&mut self, now: Instant) {
        let (Some(stream), Some(next)) = (&mut self.stream, self.next) else { return };
        if now < next || self.left == 0 {
            return;
        }
        stream.to_send += self.len;
        self.left -= 1;
        stream.finishes = self.left == 0;
        self.on_the_way.push_back(now);
        self.next = Some(next + self.interval).filter(|_| self.left > 0);
        stream.proceed(now, &mut self.outputs);
    }

    fn note_round_trips(&mut self, now: Instant) {
        let received = self.stream.as_ref().map_or(0, |stream| stream.report.received);
        while (self.round_trips.len() as u64 + 1) * self.len <= received
            && let Some(sent) = self.on_the_way.pop_front()
        {
            self.round_trips.push(now - sent);
        }
    }
}

impl Node for TcpTypist {
    fn handle(&mut self, now: Instant, input: Input) {
        let (Input::Tcp(input), Some(stream)) = (input, &mut self.stream) else { return };
        stream.handle(now, input);
        stream.proceed(now, &mut self.outputs);
        if self.next.is_none() && self.left > 0 {
            self.next = stream.report.opened;
        }
        self.note_round_trips(now);
    }

    fn poll(&mut self, now: Instant, _buf: &mut Vec<u8>) -> Output {
        if self.stream.is_none() {
            let tcp = name_of(CONNECTION);
            self.stream = Some(Stream::new(now, tcp, Reading::All));
            return Output::Tcp(TcpOutput::Connect { tcp, peer: self.target, user: None });
        }
        self.type_if_due(now);
        self.outputs.pop_front().map_or(Output::Wait(self.next), Output::Tcp)
    }
}

use std::{
    collections::VecDeque,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use tandem_node::{
    Input, Node, Output,
    tcp::{ListenerId, TcpInput, TcpOutput},
};

use super::{
    Reading, TcpReport,
    stream::{Stream, index_of, name_of, subject},
};

const LISTENER: ListenerId = ListenerId(0);

/// What a server does with each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// It sends everything back, and sends FIN after the peer's FIN.
    Echo,
    /// It sends this many bytes of the pattern and then FIN. It reads to the end beside it.
    Source(u64),
    /// It counts what comes, and sends FIN after the peer's FIN.
    Sink,
    /// It sends a response for each complete request, and FIN after the peer's FIN.
    Respond {
        /// The bytes of a request.
        request: u64,
        /// The bytes of a response.
        response: u64,
    },
    /// It never reads and never sends.
    Deaf,
    /// As [`Self::Sink`], but it reads at most this many bytes in each interval.
    Slow {
        /// The bytes.
        bytes: usize,
        /// The interval.
        interval: Duration,
    },
    /// It resets the connection after this many bytes have come.
    ResetAfter(u64),
    /// It does not listen.
    Refuse,
}

/// A server of TCP connections at one port of all IPv4 addresses.
#[derive(Debug)]
pub struct TcpServer {
    behaviour: Behaviour,
    streams: Vec<Stream>,
    outputs: VecDeque<TcpOutput>,
    failure: Option<ErrorKind>,
}

impl TcpServer {
    /// Makes a server that listens at a port.
    pub fn new(port: u16, behaviour: Behaviour) -> Self {
        let mut outputs = VecDeque::new();
        if behaviour != Behaviour::Refuse {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            outputs.push_back(TcpOutput::Listen { listener: LISTENER, address });
        }
        Self { behaviour, streams: Vec::new(), outputs, failure: None }
    }

    /// What became of the connections, in the order in which they came.
    pub fn reports(&self) -> impl ExactSizeIterator<Item = &TcpReport> {
        self.streams.iter().map(|stream| &stream.report)
    }

    /// The bytes that came on all connections.
    pub fn received(&self) -> u64 {
        self.reports().map(|report| report.received).sum()
    }

    /// The reason why the server does not listen.
    pub const fn failure(&self) -> Option<ErrorKind> {
        self.failure
    }

    fn accept(&mut self) {
        let tcp = name_of(self.streams.len());
        self.outputs.push_back(TcpOutput::Accept { listener: LISTENER, tcp });
    }

    fn add_stream(&mut self, now: Instant) {
        let reading = match self.behaviour {
            Behaviour::Deaf => Reading::Nothing,
            Behaviour::Slow { bytes, interval } => Reading::Slowly { bytes, interval },
            _ => Reading::All,
        };
        let mut stream = Stream::new(now, name_of(self.streams.len()), reading);
        if let Behaviour::Source(bytes) = self.behaviour {
            stream.to_send = bytes;
            stream.finishes = true;
        }
        self.streams.push(stream);
    }

    fn on_stream(&mut self, now: Instant, input: TcpInput) {
        let Some(tcp) = subject(&input) else { return };
        let Some(stream) = self.streams.get_mut(index_of(tcp)) else { return };
        let data = stream.handle(now, input);
        let received = stream.report.received;
        match self.behaviour {
            Behaviour::Echo if !data.is_empty() => stream.to_echo.push_back(data),
            Behaviour::Respond { request, response } => {
                let before = received - data.len() as u64;
                stream.to_send += (received / request - before / request) * response;
            }
            Behaviour::ResetAfter(bytes) if received >= bytes => {
                stream.reset(now, &mut self.outputs);
            }
            _ => {}
        }
        stream.finishes |= stream.report.read_end.is_some();
        stream.proceed(now, &mut self.outputs);
    }
}

impl Node for TcpServer {
    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Tcp(TcpInput::Listening { result: Ok(_), .. }) => self.accept(),
            Input::Tcp(TcpInput::Listening { result: Err(error), .. }) => {
                self.failure = Some(error.kind);
            }
            Input::Tcp(input) => {
                let is_new = matches!(input, TcpInput::Opened { .. });
                if is_new {
                    self.add_stream(now);
                }
                self.on_stream(now, input);
                if is_new {
                    self.accept();
                }
            }
            Input::Timeout => {
                let Self { streams, outputs, .. } = self;
                for stream in streams {
                    stream.proceed(now, outputs);
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Instant, _buf: &mut Vec<u8>) -> Output {
        let wait = || self.streams.iter().filter_map(|stream| stream.deadline(now)).min();
        let output = self.outputs.pop_front();
        output.map_or_else(|| Output::Wait(wait()), Output::Tcp)
    }
}

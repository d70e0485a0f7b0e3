use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tandem_node::{Input, Node, Output, tcp::TcpOutput};

use super::{
    Reading, TcpReport,
    stream::{Stream, index_of, name_of, subject},
};

/// One connection that a program opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTask {
    /// The address to connect to.
    pub target: SocketAddr,
    /// The time at which to connect, counted from the start of the program.
    pub after: Duration,
    /// The bytes of the pattern to send.
    pub send: u64,
    /// Whether the program sends FIN after them. If not, it does so after the peer's FIN.
    pub finishes: bool,
    /// How the program reads what comes.
    pub reading: Reading,
}

impl TcpTask {
    /// A connection at the start, on which the program sends this many bytes and then FIN, and reads
    /// everything.
    pub fn new(target: SocketAddr, send: u64) -> Self {
        Self { target, after: Duration::ZERO, send, finishes: true, reading: Reading::All }
    }
}

/// A program that opens TCP connections.
#[derive(Debug)]
pub struct TcpProgram {
    tasks: Vec<TcpTask>,
    began: Option<Instant>,
    /// The connections that were opened, in the order of time. Their tasks are the first ones.
    streams: Vec<Stream>,
    outputs: VecDeque<TcpOutput>,
}

impl TcpProgram {
    /// Makes a program with these connections, which must be in the order of time.
    pub const fn new(tasks: Vec<TcpTask>) -> Self {
        Self { tasks, began: None, streams: Vec::new(), outputs: VecDeque::new() }
    }

    /// What became of the connections that have begun, in the order of the tasks.
    pub fn reports(&self) -> impl ExactSizeIterator<Item = &TcpReport> {
        self.streams.iter().map(|stream| &stream.report)
    }

    /// What became of a connection.
    ///
    /// # Panics
    /// It panics if the program has not begun to open the connection.
    pub fn report(&self, task: usize) -> &TcpReport {
        self.reports().nth(task).expect("the connection has begun")
    }

    /// Whether all connections have ended.
    pub fn is_done(&self) -> bool {
        self.streams.len() == self.tasks.len()
            && self.reports().all(|report| report.result.is_some())
    }

    /// Resets a connection.
    pub fn reset(&mut self, now: Instant, task: usize) {
        if let Some(stream) = self.streams.get_mut(task) {
            stream.reset(now, &mut self.outputs);
        }
    }

    fn begin(&mut self, now: Instant, task: TcpTask) {
        let tcp = name_of(self.streams.len());
        let mut stream = Stream::new(now, tcp, task.reading);
        stream.to_send = task.send;
        stream.finishes = task.finishes;
        self.streams.push(stream);
        self.outputs.push_back(TcpOutput::Connect { tcp, peer: task.target, user: None });
    }

    /// The time at which the next connection begins.
    fn next_start(&self, now: Instant) -> Option<(Instant, TcpTask)> {
        let task = self.tasks.get(self.streams.len())?;
        Some((self.began.unwrap_or(now) + task.after, *task))
    }
}

impl Node for TcpProgram {
    fn handle(&mut self, now: Instant, input: Input) {
        let Self { streams, outputs, .. } = self;
        match input {
            Input::Tcp(input) => {
                let index = subject(&input).map(index_of);
                let Some(stream) = index.and_then(|index| streams.get_mut(index)) else { return };
                stream.handle(now, input);
                stream.finishes |= stream.report.read_end.is_some();
                stream.proceed(now, outputs);
            }
            Input::Timeout => streams.iter_mut().for_each(|stream| stream.proceed(now, outputs)),
            _ => {}
        }
    }

    fn poll(&mut self, now: Instant, _buf: &mut Vec<u8>) -> Output {
        self.began.get_or_insert(now);
        while let Some((_, task)) = self.next_start(now).filter(|(at, _)| *at <= now) {
            self.begin(now, task);
        }
        if let Some(output) = self.outputs.pop_front() {
            return Output::Tcp(output);
        }
        let starts = self.next_start(now).map(|(at, _)| at);
        let reads = self.streams.iter().filter_map(|stream| stream.deadline(now));
        Output::Wait(reads.chain(starts).min())
    }
}

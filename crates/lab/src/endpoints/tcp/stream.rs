use std::{collections::VecDeque, io::ErrorKind, time::Instant};

use bytes::Bytes;
use tandem_netem::Seed;
use tandem_node::tcp::{TcpId, TcpInput, TcpOutput};
use tandem_units::ByteCount;

use super::{Reading, TcpReport};
use crate::Contents;

/// The bytes that an endpoint writes and reads at a time, and that it has waiting to be written.
const CHUNK: usize = 64 * 1024;

/// What all endpoints send.
const PATTERN: Contents = Contents::Generated { len: ByteCount::new(u64::MAX), seed: Seed(0x7c9) };

/// One connection, as an endpoint uses it.
#[derive(Debug)]
pub(super) struct Stream {
    tcp: TcpId,
    pub(super) report: TcpReport,
    /// The bytes of the pattern that have yet to be written, from this position on.
    pub(super) to_send: u64,
    position: u64,
    /// Bytes that came and are sent back before anything else.
    pub(super) to_echo: VecDeque<Bytes>,
    unwritten: usize,
    /// Whether the endpoint sends FIN once everything is sent.
    pub(super) finishes: bool,
    has_finished: bool,
    reading: Reading,
    /// The time of the next read, if the endpoint reads slowly.
    next_read: Option<Instant>,
    is_reading: bool,
}

impl Stream {
    pub(super) const fn new(now: Instant, tcp: TcpId, reading: Reading) -> Self {
        Self {
            tcp,
            report: TcpReport::new(now),
            to_send: 0,
            position: 0,
            to_echo: VecDeque::new(),
            unwritten: 0,
            finishes: false,
            has_finished: false,
            reading,
            next_read: None,
            is_reading: false,
        }
    }

    /// Notes an input, and returns the bytes that came with it.
    pub(super) fn handle(&mut self, now: Instant, input: TcpInput) -> Bytes {
        let report = &mut self.report;
        match input {
            TcpInput::Opened { result: Ok(_), .. } => report.opened = Some(now),
            TcpInput::Opened { result: Err(error), .. } => self.end(now, Err(error.kind)),
            TcpInput::Failed { error, .. } => self.end(now, Err(error)),
            TcpInput::Written { bytes, .. } => {
                report.sent += bytes as u64;
                self.unwritten -= bytes;
            }
            TcpInput::Read { data, .. } => return self.take(now, data),
            TcpInput::Listening { .. } | TcpInput::UdpPorts { .. } => {}
        }
        Bytes::new()
    }

    fn take(&mut self, now: Instant, data: Bytes) -> Bytes {
        let report = &mut self.report;
        self.is_reading = false;
        if data.is_empty() {
            report.read_end = Some(now);
            return data;
        }
        report.first_byte.get_or_insert(now);
        report.is_intact &= PATTERN.read(report.received, data.len()) == data;
        report.received += data.len() as u64;
        if let Reading::Slowly { interval, .. } = self.reading {
            self.next_read = Some(now + interval);
        }
        data
    }

    /// Resets the connection, unless it has ended.
    pub(super) fn reset(&mut self, now: Instant, outputs: &mut VecDeque<TcpOutput>) {
        if self.report.result.is_none() {
            outputs.push_back(TcpOutput::Reset(self.tcp));
            self.end(now, Err(ErrorKind::ConnectionAborted));
        }
    }

    fn end(&mut self, now: Instant, result: Result<(), ErrorKind>) {
        self.report.ended = Some(now);
        self.report.result = Some(result);
    }

    /// Asks for everything that can be done now.
    pub(super) fn proceed(&mut self, now: Instant, outputs: &mut VecDeque<TcpOutput>) {
        if self.report.opened.is_none() || self.report.result.is_some() {
            return;
        }
        let tcp = self.tcp;
        while self.unwritten < CHUNK
            && let Some(data) = self.next_chunk()
        {
            self.unwritten += data.len();
            outputs.push_back(TcpOutput::Write { tcp, data });
        }
        let is_sent = self.to_send == 0 && self.to_echo.is_empty();
        if is_sent && self.finishes && !self.has_finished {
            self.has_finished = true;
            outputs.push_back(TcpOutput::Finish(tcp));
        }
        if let Some(max) = self.next_read(now) {
            self.is_reading = true;
            outputs.push_back(TcpOutput::Read { tcp, max });
        }
        if self.has_finished && self.report.read_end.is_some() && self.unwritten == 0 {
            outputs.push_back(TcpOutput::Close(tcp));
            self.end(now, Ok(()));
        }
    }

    fn next_chunk(&mut self) -> Option<Bytes> {
        if let Some(data) = self.to_echo.pop_front() {
            return Some(data);
        }
        let len = usize::try_from(self.to_send).map_or(CHUNK, |left| left.min(CHUNK));
        if len == 0 {
            return None;
        }
        let data = PATTERN.read(self.position, len);
        self.position += len as u64;
        self.to_send -= len as u64;
        Some(data)
    }

    /// The number of bytes that the endpoint asks for now.
    fn next_read(&self, now: Instant) -> Option<usize> {
        let is_late = self.next_read.is_some_and(|at| now < at);
        let waits = self.is_reading || self.report.read_end.is_some() || !self.to_echo.is_empty();
        match self.reading {
            _ if waits || is_late => None,
            Reading::All => Some(CHUNK),
            Reading::Nothing => None,
            Reading::Slowly { bytes, .. } => Some(bytes),
        }
    }

    /// The time at which to call [`Self::proceed`] again.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        self.next_read.filter(|at| *at > now && self.report.result.is_none())
    }
}

/// The position of a connection in a list whose numbers are the names of the connections.
pub(super) fn index_of(tcp: TcpId) -> usize {
    usize::try_from(tcp.0).unwrap_or(usize::MAX)
}

/// The name of the connection at this position of a list.
pub(super) const fn name_of(index: usize) -> TcpId {
    TcpId(index as u64)
}

/// The connection that an input is about.
pub(super) const fn subject(input: &TcpInput) -> Option<TcpId> {
    match input {
        TcpInput::Opened { tcp, .. }
        | TcpInput::Read { tcp, .. }
        | TcpInput::Written { tcp, .. }
        | TcpInput::Failed { tcp, .. }
        | TcpInput::UdpPorts { tcp, .. } => Some(*tcp),
        TcpInput::Listening { .. } => None,
    }
}

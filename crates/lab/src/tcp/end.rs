use std::{collections::VecDeque, io::ErrorKind, net::SocketAddr, time::Instant};

use bytes::{Bytes, BytesMut};
use tandem_node::tcp::{TcpId, TcpInput};

use super::Segment;
use crate::HostId;

/// One end of a connection, with everything that the operating system of its host knows of it.
#[derive(Debug)]
pub(crate) struct End {
    /// This host and the host of the other end.
    between: (HostId, HostId),
    /// The address of the other end.
    peer: SocketAddr,
    /// What the process calls the connection. `None`: it has not been accepted yet, or the process has
    /// closed it.
    name: Option<TcpId>,
    state: TcpState,
    /// How the process's request to open a connection ended, if it has yet to be told.
    opened: Option<Result<SocketAddr, ErrorKind>>,
    /// What the process wrote and the operating system has not taken yet.
    unsent: VecDeque<Bytes>,
    /// The bytes that the operating system took since it last told the process.
    written: usize,
    /// The bytes that were sent and of which it is not known that the peer read them.
    outstanding: usize,
    sending: Sending,
    /// What has come and the process has not read yet.
    received: VecDeque<Bytes>,
    fin_received: bool,
    /// What the process wants to read.
    read: Option<usize>,
    /// The arrival of the last segment that was sent. Segments do not overtake each other.
    last_arrival: Option<Instant>,
    /// Whether the agenda contains a look at what to tell the process.
    pub(crate) is_scheduled: bool,
}

/// The sending direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Going,
    /// The process ended it. What it wrote before is still sent.
    Finishing,
    /// The FIN has left.
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcpState {
    /// A SYN is on its way, or its answer.
    Opening,
    Open,
    /// The process has closed the connection. What it wrote before is still sent.
    Leaving,
    /// The peer ended the connection with an error, which the process does not know yet.
    Failed(ErrorKind),
    /// The operating system forgets the connection.
    Gone,
}

/// What an end sends after something has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) segments: Vec<Segment>,
    /// Whether the operating system then forgets the end.
    pub(crate) is_last: bool,
}

impl End {
    pub(crate) const fn opening(
        between: (HostId, HostId),
        peer: SocketAddr,
        name: Option<TcpId>,
    ) -> Self {
        Self {
            between,
            peer,
            name,
            state: TcpState::Opening,
            opened: None,
            unsent: VecDeque::new(),
            written: 0,
            outstanding: 0,
            sending: Sending::Going,
            received: VecDeque::new(),
            fin_received: false,
            read: None,
            last_arrival: None,
            is_scheduled: false,
        }
    }

    /// An end that waits for `accept`.
    pub(crate) fn accepting(between: (HostId, HostId), peer: SocketAddr) -> Self {
        Self { state: TcpState::Open, ..Self::opening(between, peer, None) }
    }

    pub(crate) const fn host(&self) -> HostId {
        self.between.0
    }

    pub(crate) const fn between(&self) -> (HostId, HostId) {
        self.between
    }

    pub(crate) const fn is_opening(&self) -> bool {
        matches!(self.state, TcpState::Opening)
    }

    /// Keeps segments in order if the delay of the route becomes shorter.
    pub(crate) fn arrival(&mut self, at: Instant) -> Instant {
        let at = self.last_arrival.map_or(at, |last| at.max(last));
        self.last_arrival = Some(at);
        at
    }
}

/// What the process does.
impl End {
    pub(crate) const fn accept(&mut self, name: TcpId) {
        self.name = Some(name);
        self.opened = Some(Ok(self.peer));
    }

    pub(crate) fn ask_to_read(&mut self, max: usize) {
        assert!(max > 0, "{:?} is read with room for no byte", self.name);
        let earlier = self.read.replace(max);
        assert_eq!(earlier, None, "{:?} is read twice at a time", self.name);
    }

    pub(crate) fn write(&mut self, data: Bytes) {
        assert!(!data.is_empty(), "nothing is written to {:?}", self.name);
        assert_eq!(self.sending, Sending::Going, "{:?} is written to after its end", self.name);
        self.unsent.push_back(data);
    }

    pub(crate) fn finish(&mut self) {
        if self.sending == Sending::Going {
            self.sending = Sending::Finishing;
        }
    }

    pub(crate) fn close(&mut self) {
        self.name = None;
        self.state = match self.state {
            TcpState::Open | TcpState::Leaving => TcpState::Leaving,
            TcpState::Opening | TcpState::Failed(_) | TcpState::Gone => TcpState::Gone,
        };
    }

    /// The process has died. What the operating system had not taken from it is lost.
    pub(crate) fn abandon(&mut self) {
        self.unsent.clear();
        self.close();
    }
}

/// What comes from the peer.
impl End {
    pub(crate) const fn opened(&mut self) {
        self.state = TcpState::Open;
        self.opened = Some(Ok(self.peer));
    }

    pub(crate) fn fail(&mut self, error: ErrorKind) {
        self.state = match self.state {
            TcpState::Opening => {
                self.opened = Some(Err(error));
                TcpState::Gone
            }
            TcpState::Open | TcpState::Failed(_) => TcpState::Failed(error),
            TcpState::Leaving | TcpState::Gone => TcpState::Gone,
        };
    }

    /// Takes bytes. It returns false if the process has closed the connection.
    pub(crate) fn receive(&mut self, data: Bytes) -> bool {
        let is_read = self.state != TcpState::Leaving;
        if is_read {
            self.received.push_back(data);
        }
        is_read
    }

    pub(crate) const fn receive_fin(&mut self) {
        self.fin_received = true;
    }

    pub(crate) const fn credit(&mut self, bytes: usize) {
        self.outstanding -= bytes;
    }
}

/// What becomes of it.
impl End {
    /// What leaves now. `buffer` is the bound on bytes that the peer has not read.
    pub(crate) fn depart(&mut self, buffer: usize) -> Departure {
        let is_leaving = self.state == TcpState::Leaving;
        if self.state != TcpState::Open && !is_leaving {
            let is_last = self.state == TcpState::Gone && self.opened.is_none();
            return Departure { segments: Vec::new(), is_last };
        }
        let mut segments = Vec::new();
        while let Some(chunk) = self.unsent.front_mut().filter(|_| self.outstanding < buffer) {
            let data = chunk.split_to(chunk.len().min(buffer - self.outstanding));
            if chunk.is_empty() {
                self.unsent.pop_front();
            }
            self.outstanding += data.len();
            self.written += data.len();
            segments.push(Segment::Data(data));
        }
        let is_last = is_leaving && self.unsent.is_empty();
        if is_last && !self.received.is_empty() {
            segments.push(Segment::Rst);
        } else if self.unsent.is_empty() && self.ends_sending(is_last) {
            self.sending = Sending::Finished;
            segments.push(Segment::Fin);
        }
        Departure { segments, is_last }
    }

    fn ends_sending(&self, is_leaving: bool) -> bool {
        match self.sending {
            Sending::Going => is_leaving,
            Sending::Finishing => true,
            Sending::Finished => false,
        }
    }

    /// The next input of the process. After a failure, what came before it is read first, unless
    /// something waits to be written.
    pub(crate) fn next_input(&mut self) -> Option<TcpInput> {
        let tcp = self.name?;
        if let Some(result) = self.opened.take() {
            let result = result.map(Into::into).map_err(Into::into);
            return Some(TcpInput::Opened { tcp, result });
        }
        match self.state {
            TcpState::Failed(error) if self.received.is_empty() || !self.unsent.is_empty() => {
                return Some(TcpInput::Failed { tcp, error });
            }
            TcpState::Opening | TcpState::Leaving | TcpState::Gone => return None,
            TcpState::Open | TcpState::Failed(_) => {}
        }
        if self.written > 0 {
            let bytes = std::mem::take(&mut self.written);
            return Some(TcpInput::Written { tcp, bytes });
        }
        if self.received.is_empty() && !self.fin_received {
            return None;
        }
        let data = take(&mut self.received, self.read.take()?);
        Some(TcpInput::Read { tcp, data })
    }
}

/// Takes at most `max` of the first bytes.
fn take(received: &mut VecDeque<Bytes>, max: usize) -> Bytes {
    let Some(first) = received.front_mut() else { return Bytes::new() };
    if first.len() > max {
        return first.split_to(max);
    }
    if first.len() == max || received.len() == 1 {
        return received.pop_front().unwrap_or_default();
    }
    let mut data = BytesMut::new();
    while let Some(chunk) = received.front_mut().filter(|_| data.len() < max) {
        data.extend_from_slice(&chunk.split_to(chunk.len().min(max - data.len())));
        if chunk.is_empty() {
            received.pop_front();
        }
    }
    data.freeze()
}

//! One TCP connection and the request stream that carries it. A proxy and a client run the same code.
//!
//! Bytes are pulled from the connection while the stream's backlog in the tunnel's queue is short, and
//! from the stream while the operating system takes what it gets. Neither direction holds more than
//! its bound, and a slow reader at either end stops only its own sender.

use std::collections::VecDeque;

use bytes::Bytes;
use tandem_wire::Code;

use super::{
    TcpId, TcpOutput,
    framing::{Form, Framing, Next},
};
use crate::{
    h3::ConnectionError,
    node::Output,
    quic::StreamId,
    tunnel::{Carrier, Tunnel},
};

/// The most bytes of one read from a connection.
const READ_MAX: usize = 64 * 1024;

/// The bytes that one connection has been given and the operating system has not taken. At 1 Gbit/s
/// they are 2 ms.
const UNWRITTEN_MAX: usize = 256 * 1024;

/// One TCP connection and its request stream.
#[derive(Debug)]
pub(crate) struct Splice {
    tcp: TcpId,
    form: Form,
    framing: Framing,
    /// Whether the connection was asked for bytes.
    is_reading: bool,
    /// Whether the owner wants no more bytes of the connection at present.
    is_halted: bool,
    /// Whether the connection's FIN has been passed on.
    has_read_fin: bool,
    /// Bytes that the connection was given and the operating system has not taken.
    unwritten: usize,
    /// Whether the stream has something to read that waits for [`Self::unwritten`] to shrink.
    is_paused: bool,
    /// Whether the stream's FIN has been passed on.
    has_written_fin: bool,
    /// Whether the stream has been read to its end.
    has_read_end: bool,
    pub(crate) from_tcp: u64,
    pub(crate) to_tcp: u64,
}

/// What became of a splice after it has handled something.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The connection goes on.
    Open,
    /// Both directions are finished. The connection is closed, and the stream ends by itself.
    Finished,
    /// The stream was cut off. The peer may have said why in the form of a `Proxy-Status` field. The
    /// connection is reset.
    Cut(Option<String>),
    /// The peer sent something that it must not send. The connection is reset, and the caller resets
    /// the stream with this code.
    Malformed(Code),
    /// The peer violated HTTP/3. The caller ends the connection of the tunnel.
    Broken(ConnectionError),
}

impl Splice {
    pub(crate) fn new(tcp: TcpId, form: Form) -> Self {
        Self {
            tcp,
            form,
            framing: form.framing(),
            is_reading: false,
            is_halted: false,
            has_read_fin: false,
            unwritten: 0,
            is_paused: false,
            has_written_fin: false,
            has_read_end: false,
            from_tcp: 0,
            to_tcp: 0,
        }
    }

    pub(crate) const fn tcp(&self) -> TcpId {
        self.tcp
    }

    pub(crate) const fn form(&self) -> Form {
        self.form
    }

    /// Bytes of memory that wait for the connection.
    pub(crate) const fn unwritten(&self) -> usize {
        self.unwritten
    }

    /// Stops or continues to ask the connection for bytes.
    pub(crate) const fn halt(&mut self, is_halted: bool) {
        self.is_halted = is_halted;
    }

    /// Asks the connection for bytes if the stream's backlog is short.
    pub(crate) fn pull(
        &mut self,
        tunnel: &Tunnel,
        stream: StreamId,
        outputs: &mut VecDeque<Output>,
    ) {
        let is_short = tunnel.backlog(stream) < Tunnel::BACKLOG_SHORT;
        let may_read = is_short && !self.has_read_fin && !self.is_halted;
        if may_read && !std::mem::replace(&mut self.is_reading, true) {
            let read = TcpOutput::Read { tcp: self.tcp, max: READ_MAX };
            outputs.push_back(Output::Tcp(read));
        }
    }

    /// Passes bytes of the connection to the stream. No bytes are a FIN.
    pub(crate) fn on_read(
        &mut self,
        data: Bytes,
        tunnel: &mut Tunnel,
        stream: StreamId,
        outputs: &mut VecDeque<Output>,
    ) -> Outcome {
        self.is_reading = false;
        self.from_tcp += data.len() as u64;
        self.send(data, tunnel, stream);
        if self.has_read_fin {
            return self.outcome(outputs);
        }
        self.pull(tunnel, stream, outputs);
        Outcome::Open
    }

    /// Sends what was read so far again, on another stream and in another form.
    pub(crate) fn repeat(
        &mut self,
        form: Form,
        early: Vec<Bytes>,
        tunnel: &mut Tunnel,
        stream: StreamId,
    ) {
        (self.form, self.framing) = (form, form.framing());
        for data in early {
            self.send(data, tunnel, stream);
        }
    }

    /// Puts bytes of the connection into the stream's backlog. No bytes are a FIN.
    fn send(&mut self, data: Bytes, tunnel: &mut Tunnel, stream: StreamId) {
        if data.is_empty() {
            self.has_read_fin = true;
            tunnel.send_bytes(stream, self.form.fin(), data);
            tunnel.finish_bytes(stream);
        } else {
            tunnel.send_bytes(stream, self.form.header(data.len()), data);
        }
    }

    /// Passes what has arrived on the stream to the connection, as much as it may hold.
    pub(crate) fn push(
        &mut self,
        carrier: &mut Carrier<'_>,
        stream: StreamId,
        outputs: &mut VecDeque<Output>,
    ) -> Outcome {
        loop {
            self.is_paused = self.unwritten >= UNWRITTEN_MAX;
            if self.is_paused {
                return Outcome::Open;
            }
            match self.framing.read(carrier, stream) {
                Next::Data(data) => {
                    self.unwritten += data.len();
                    self.to_tcp += data.len() as u64;
                    outputs.push_back(Output::Tcp(TcpOutput::Write { tcp: self.tcp, data }));
                }
                Next::Fin => self.write_fin(outputs),
                Next::End => {
                    self.write_fin(outputs);
                    self.has_read_end = true;
                    return self.outcome(outputs);
                }
                Next::Blocked => return Outcome::Open,
                Next::Cut(status) => {
                    self.reset(outputs);
                    return Outcome::Cut(status);
                }
                Next::Malformed(code) => {
                    self.reset(outputs);
                    return Outcome::Malformed(code);
                }
                Next::Broken(error) => return Outcome::Broken(error),
            }
        }
    }

    fn write_fin(&mut self, outputs: &mut VecDeque<Output>) {
        if !std::mem::replace(&mut self.has_written_fin, true) {
            outputs.push_back(Output::Tcp(TcpOutput::Finish(self.tcp)));
        }
    }

    /// Notes that the operating system took bytes. Returns whether the stream must be read again
    /// ([`Self::push`]).
    pub(crate) const fn on_written(&mut self, bytes: usize) -> bool {
        self.unwritten = self.unwritten.saturating_sub(bytes);
        self.is_paused && self.unwritten < UNWRITTEN_MAX
    }

    /// Resets the connection.
    pub(crate) fn reset(&self, outputs: &mut VecDeque<Output>) {
        outputs.push_back(Output::Tcp(TcpOutput::Reset(self.tcp)));
    }

    /// Closes the connection if both directions are finished.
    fn outcome(&self, outputs: &mut VecDeque<Output>) -> Outcome {
        if !self.has_read_fin || !self.has_read_end {
            return Outcome::Open;
        }
        outputs.push_back(Output::Tcp(TcpOutput::Close(self.tcp)));
        Outcome::Finished
    }
}

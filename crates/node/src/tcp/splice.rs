//! One TCP connection and the request stream that carries it. A proxy and a client run the same code.
//!
//! Bytes are pulled from the connection while the stream's backlog in the tunnel's queue is short, and
//! from the stream while the operating system takes what it gets. Neither direction holds more than
//! its bound, and a slow reader at either end stops only its own sender.

use std::collections::VecDeque;

use bytes::Bytes;
use tandem_wire::{Code, StrangerText};

use super::{
    Socket,
    framing::{Form, Framing, Next},
};
use crate::{
    carrier::Carrier,
    h3::ConnectionError,
    node::Output,
    quic::StreamId,
    tunnel::{BACKLOG_SHORT, End, Tunnel},
};

/// The request stream of a TCP connection.
#[derive(Debug)]
pub(crate) struct TunnelStream {
    form: Form,
    framing: Framing,
    /// Whether the stream has been read to its end.
    has_ended: bool,
}

impl TunnelStream {
    pub(crate) fn new(form: Form) -> Self {
        Self { form, framing: form.framing(), has_ended: false }
    }

    pub(crate) const fn form(&self) -> Form {
        self.form
    }

    /// Puts bytes into the stream's backlog. No bytes are the connection's FIN.
    pub(crate) fn send(&self, data: Bytes, tunnel: &mut Tunnel<impl End>, stream: StreamId) {
        if data.is_empty() {
            tunnel.send_bytes(stream, self.form.fin(), data);
            tunnel.finish_bytes(stream);
        } else {
            tunnel.send_bytes(stream, self.form.header(data.len()), data);
        }
    }

    /// The next thing that has arrived.
    pub(crate) fn read(&mut self, carrier: &mut Carrier<'_>, stream: StreamId) -> Next {
        if self.has_ended {
            return Next::Blocked;
        }
        let next = self.framing.read(carrier, stream);
        self.has_ended = matches!(next, Next::End);
        next
    }
}

/// One TCP connection and its request stream.
#[derive(Debug)]
pub(crate) struct Splice {
    pub(crate) socket: Socket,
    pub(crate) stream: TunnelStream,
    /// Whether the owner wants no more bytes of the connection at present.
    is_halted: bool,
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
    /// The peer has reset the stream without an error, because it needs the connection no more. The
    /// connection is closed.
    Closed,
    /// The stream was cut off. The peer may have said why in the form of a `Proxy-Status` field. The
    /// connection is reset.
    Cut(Option<StrangerText>),
    /// The peer sent something that it must not send. The connection is reset, and the caller resets
    /// the stream with this code.
    Malformed(Code),
    /// The peer violated HTTP/3. The caller ends the connection of the tunnel.
    Broken(ConnectionError),
}

impl Splice {
    pub(crate) const fn new(socket: Socket, stream: TunnelStream) -> Self {
        Self { socket, stream, is_halted: false, from_tcp: 0, to_tcp: 0 }
    }

    /// Stops or continues to ask the connection for bytes.
    pub(crate) const fn halt(&mut self, is_halted: bool) {
        self.is_halted = is_halted;
    }

    pub(crate) const fn is_halted(&self) -> bool {
        self.is_halted
    }

    /// Asks the connection for bytes if the stream's backlog is short.
    pub(crate) fn pull(
        &mut self,
        tunnel: &Tunnel<impl End>,
        stream: StreamId,
        outputs: &mut VecDeque<Output>,
    ) {
        if !self.is_halted && tunnel.backlog(stream) < BACKLOG_SHORT {
            self.socket.read(outputs);
        }
    }

    /// Passes bytes of the connection to the stream. No bytes are a FIN.
    pub(crate) fn on_read(
        &mut self,
        data: Bytes,
        tunnel: &mut Tunnel<impl End>,
        stream: StreamId,
        outputs: &mut VecDeque<Output>,
    ) -> Outcome {
        self.socket.on_read(&data);
        self.from_tcp += data.len() as u64;
        self.stream.send(data, tunnel, stream);
        self.pull(tunnel, stream, outputs);
        self.outcome(outputs)
    }

    /// Passes what has arrived on the stream to the connection, as much as it may hold.
    pub(crate) fn push(
        &mut self,
        carrier: &mut Carrier<'_>,
        stream: StreamId,
        outputs: &mut VecDeque<Output>,
    ) -> Outcome {
        while !self.socket.is_full() {
            match self.stream.read(carrier, stream) {
                Next::Data(data) => {
                    self.to_tcp += data.len() as u64;
                    self.socket.write(data, outputs);
                }
                Next::Fin => self.socket.finish(outputs),
                Next::End => {
                    self.socket.finish(outputs);
                    return self.outcome(outputs);
                }
                Next::Blocked => return Outcome::Open,
                Next::Reset(Code::H3_NO_ERROR) => {
                    self.socket.close(outputs);
                    return Outcome::Closed;
                }
                Next::Reset(_) => {
                    self.socket.reset(outputs);
                    return Outcome::Cut(None);
                }
                Next::Cut(status) => {
                    self.socket.reset(outputs);
                    return Outcome::Cut(status);
                }
                Next::Malformed(code) => {
                    self.socket.reset(outputs);
                    return Outcome::Malformed(code);
                }
                Next::Broken(error) => return Outcome::Broken(error),
            }
        }
        Outcome::Open
    }

    /// Closes the connection if both directions are finished.
    fn outcome(&mut self, outputs: &mut VecDeque<Output>) -> Outcome {
        if !self.socket.has_read_fin() || !self.stream.has_ended {
            return Outcome::Open;
        }
        self.socket.close(outputs);
        Outcome::Finished
    }
}

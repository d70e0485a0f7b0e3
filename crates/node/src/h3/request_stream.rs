//! One request and its response on a bidirectional stream (RFC 9114 §4.1).

use std::collections::VecDeque;

use bytes::Bytes;
use tandem_wire::{Code, ErrorScope, Frame, FrameDecoder, StreamKind, VarInt};

use super::{ConnectionError, End, Side, StreamError, continuation::Incoming, read};
use crate::quic::{Connection, Read, StreamGone, StreamId, Write};

/// The next item of a stream.
#[derive(Debug)]
pub(super) enum Next {
    /// An encoded header section.
    Head(Bytes),
    /// An encoded trailer section.
    Trailers(Bytes),
    /// A part of a body.
    Data(Bytes),
    /// There is no item at present.
    Blocked,
    /// The peer has finished the stream.
    End,
    /// The peer has reset the stream.
    Reset(Code),
}

/// One request stream.
#[derive(Debug)]
pub(super) struct RequestStream {
    side: Side,
    /// Whether a CONNECT request of this node opened the stream.
    pub(super) is_connect: bool,
    decoder: FrameDecoder,
    /// The stream whose bytes come next, before those that follow in `decoder`.
    continuation: Option<Box<Continuation>>,
    phase: Phase,
    /// Whether the reader got [`Next::Blocked`] and waits for an event.
    is_reader_waiting: bool,
    is_at_end: bool,
    /// The frames that could not be sent yet: a header section, and the header of a DATA frame.
    unsent: VecDeque<Bytes>,
    finish: Finish,
}

/// A stream of the peer that continues a request stream.
#[derive(Debug)]
struct Continuation {
    stream: StreamId,
    decoder: FrameDecoder,
}

/// The phase of a received message. It determines which frames may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The final header section has not arrived. Only HEADERS may follow.
    Head,
    /// The final header section has arrived. DATA, and HEADERS once, may follow.
    Body,
    /// The trailer section has arrived. Neither DATA nor HEADERS may follow.
    Trailers,
    /// The stream carries a tunnel. Only DATA may follow.
    Tunnel,
}

/// The data that follows a header section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// A body follows, and possibly a trailer section.
    Body,
    /// The data of a tunnel follows, because the method is CONNECT.
    Tunnel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    No,
    WhenSent,
    Done,
}

impl RequestStream {
    /// Bytes of memory that the stream takes here, with the frames that are incomplete or not sent.
    pub(super) fn memory(&self) -> usize {
        let unsent: usize = self.unsent.iter().map(Bytes::len).sum();
        size_of::<Self>() + self.decoder.memory() + unsent
    }

    /// Whether this end has sent its whole message.
    pub(super) fn is_sent(&self) -> bool {
        self.finish == Finish::Done
    }

    pub(super) fn new(side: Side, field_section_max: usize) -> Self {
        Self {
            side,
            is_connect: false,
            decoder: FrameDecoder::new(StreamKind::Request, field_section_max),
            continuation: None,
            phase: Phase::Head,
            is_reader_waiting: false,
            is_at_end: false,
            unsent: VecDeque::new(),
            finish: Finish::No,
        }
    }

    /// Returns whether the final header section has arrived.
    pub(super) fn has_head(&self) -> bool {
        self.phase != Phase::Head
    }

    /// Whether the stream carries a tunnel.
    pub(super) fn is_tunnel(&self) -> bool {
        self.phase == Phase::Tunnel
    }

    /// Notes that the final header section was accepted. The reader gets an event for it and then
    /// reads the body.
    pub(super) fn on_head_accepted(&mut self, follows: Follows) {
        self.phase = match follows {
            Follows::Body => Phase::Body,
            Follows::Tunnel => Phase::Tunnel,
        };
        self.is_reader_waiting = false;
    }

    /// Returns whether the reader needs an event because it may have more to read. It is true once
    /// after each [`Next::Blocked`].
    pub(super) fn wants_body_event(&mut self) -> bool {
        std::mem::take(&mut self.is_reader_waiting)
    }

    /// Discards the data that the peer has sent or will send.
    pub(super) fn stop_reading(&mut self) {
        self.decoder = FrameDecoder::new(StreamKind::Request, 0);
        self.continuation = None;
        self.is_at_end = true;
    }

    /// Returns whether both directions have ended without an error.
    pub(super) fn is_done(&self) -> bool {
        self.is_at_end && self.finish == Finish::Done
    }

    /// Whether this stream is the one that is read next.
    pub(super) fn reads(&self, stream: StreamId) -> bool {
        self.continuation.as_ref().is_some_and(|it| it.stream == stream)
    }

    /// Returns the next item of the stream.
    pub(super) fn next(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        incoming: &mut Incoming,
    ) -> Result<Next, StreamError> {
        let side = self.side;
        loop {
            let continued_on = self.continuation.as_ref().map(|it| it.stream);
            let decoder = match &mut self.continuation {
                Some(continuation) => &mut continuation.decoder,
                None => &mut self.decoder,
            };
            match decoder.next().map_err(|error| StreamError::of(&error, side))? {
                Some(Frame::Headers(section)) => return self.on_headers(section),
                Some(Frame::Data(data)) => return self.on_data(data),
                Some(Frame::Continued(id)) => {
                    self.on_continued(id)?;
                    continue;
                }
                Some(_) => continue, // unknown types are ignored; the decoder refuses forbidden ones
                None if self.is_at_end && continued_on.is_none() => return Ok(Next::End),
                None => {}
            }
            let source = match continued_on.map(|source| (source, incoming.request_of(source))) {
                None => stream,
                Some((source, Some(request))) if request == stream => source,
                Some((_, Some(_))) => return Err(wrong_continuation()),
                Some((_, None)) => return Ok(self.blocked(connection, stream)),
            };
            match read(connection, source) {
                Read::Data(data) => decoder.push(data),
                Read::Blocked => return Ok(self.blocked(connection, stream)),
                Read::Finished => {
                    decoder.finish().map_err(|error| StreamError::of(&error, side))?;
                    if continued_on.is_some() {
                        incoming.remove(source);
                        self.continuation = None;
                    } else {
                        self.is_at_end = true;
                    }
                }
                Read::Reset(code) => return Ok(Next::Reset(code)),
            }
        }
    }

    /// The item while nothing has arrived. A request stream can be reset while another is read.
    fn blocked(&mut self, connection: &mut Connection, stream: StreamId) -> Next {
        if self.continuation.is_some()
            && let Some(code) = connection.take_reset(stream)
        {
            return Next::Reset(code);
        }
        self.is_reader_waiting = true;
        Next::Blocked
    }

    fn on_continued(&mut self, id: VarInt) -> Result<(), StreamError> {
        if self.phase != Phase::Tunnel {
            return Err(StreamError::unexpected("CONTINUED is not in the body of a tunnel"));
        }
        let stream = StreamId(id.get());
        let is_peers = stream.is_client_initiated() == (self.side == Side::Server);
        if stream.is_bidirectional() || !is_peers {
            return Err(wrong_continuation());
        }
        let decoder = FrameDecoder::new(StreamKind::Continuation, 0);
        self.continuation = Some(Box::new(Continuation { stream, decoder }));
        Ok(())
    }

    // RFC 9114 §4.1: "Receipt of an invalid sequence of frames MUST be treated as a connection
    // error of type H3_FRAME_UNEXPECTED. In particular, a DATA frame before any HEADERS frame, or a
    // HEADERS or DATA frame after the trailing HEADERS frame, is considered invalid."
    fn on_headers(&mut self, section: Bytes) -> Result<Next, StreamError> {
        match self.phase {
            Phase::Head => Ok(Next::Head(section)),
            Phase::Body => {
                self.phase = Phase::Trailers;
                Ok(Next::Trailers(section))
            }
            Phase::Trailers => Err(StreamError::unexpected("HEADERS follows the trailer section")),
            // RFC 9114 §4.4: "Once the CONNECT method has completed, only DATA frames are permitted
            // to be sent on the stream."
            Phase::Tunnel => Err(StreamError::unexpected("HEADERS follows a CONNECT request")),
        }
    }

    fn on_data(&mut self, data: Bytes) -> Result<Next, StreamError> {
        match self.phase {
            Phase::Body | Phase::Tunnel => Ok(Next::Data(data)),
            Phase::Head => Err(StreamError::unexpected("DATA precedes the header section")),
            Phase::Trailers => Err(StreamError::unexpected("DATA follows the trailer section")),
        }
    }

    /// Whether frames wait to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Appends a frame to the queue of frames that will be sent.
    pub(super) fn queue(&mut self, frame: Bytes, end: End) {
        if !frame.is_empty() {
            self.unsent.push_back(frame);
        }
        if end == End::Last && self.finish == Finish::No {
            self.finish = Finish::WhenSent;
        }
    }

    /// Gives back the memory of frames that were sent. A tunnel may have nothing more to send for hours.
    pub(super) fn release_memory(&mut self) {
        self.unsent.shrink_to_fit();
    }

    /// Sends the queued frames as far as flow control and buffers allow.
    pub(super) fn flush(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<Write, StreamGone> {
        while let Some(frame) = self.unsent.front_mut() {
            match connection.write(stream, frame)? {
                Write::Done => self.unsent.pop_front(),
                Write::Blocked => return Ok(Write::Blocked),
            };
        }
        if self.finish == Finish::WhenSent {
            self.finish = Finish::Done;
            connection.finish(stream)?;
        }
        Ok(Write::Done)
    }
}

fn wrong_continuation() -> StreamError {
    let reason = "CONTINUED names a stream that does not continue this request".into();
    let error = ConnectionError { code: Code::H3_ID_ERROR, reason };
    StreamError { scope: ErrorScope::Connection, error }
}

//! One request and its response on a bidirectional stream (RFC 9114 §4.1).

use std::collections::VecDeque;

use bytes::Bytes;
use tandem_wire::{Code, Frame, FrameDecoder, StreamKind};

use super::{End, Side, StreamError, read};
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
    phase: Phase,
    /// Whether the reader got [`Next::Blocked`] and waits for an event.
    is_reader_waiting: bool,
    is_at_end: bool,
    /// The frames that could not be sent yet: a header section, and the header of a DATA frame.
    unsent: VecDeque<Bytes>,
    finish: Finish,
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
        self.is_at_end = true;
    }

    /// Returns whether both directions have ended without an error.
    pub(super) fn is_done(&self) -> bool {
        self.is_at_end && self.finish == Finish::Done
    }

    /// Returns the next item of the stream.
    pub(super) fn next(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<Next, StreamError> {
        let side = self.side;
        loop {
            match self.decoder.next().map_err(|error| StreamError::of(&error, side))? {
                Some(Frame::Headers(section)) => return self.on_headers(section),
                Some(Frame::Data(data)) => return self.on_data(data),
                Some(_) => continue, // unknown types are ignored; the decoder refuses forbidden ones
                None if self.is_at_end => return Ok(Next::End),
                None => {}
            }
            match read(connection, stream) {
                Read::Data(data) => self.decoder.push(data),
                Read::Blocked => {
                    self.is_reader_waiting = true;
                    return Ok(Next::Blocked);
                }
                Read::Finished => {
                    self.decoder.finish().map_err(|error| StreamError::of(&error, side))?;
                    self.is_at_end = true;
                }
                Read::Reset(code) => return Ok(Next::Reset(code)),
            }
        }
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

    /// Appends a frame to the queue of frames that will be sent.
    pub(super) fn queue(&mut self, frame: Bytes, end: End) {
        if !frame.is_empty() {
            self.unsent.push_back(frame);
        }
        if end == End::Last && self.finish == Finish::No {
            self.finish = Finish::WhenSent;
        }
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

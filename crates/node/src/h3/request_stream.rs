//! One request and its answer on a bidirectional stream (RFC 9114 §4.1).

use std::collections::VecDeque;

use bytes::Bytes;
use tandem_wire::{Code, Frame, FrameDecoder, StreamKind};

use super::{End, Side, StreamError, read};
use crate::quic::{Connection, Read, StreamGone, StreamId, Write};

/// What came next on a stream.
#[derive(Debug)]
pub(super) enum Next {
    /// An encoded header section.
    Head(Bytes),
    /// An encoded trailer section.
    Trailers(Bytes),
    /// A part of a body.
    Data(Bytes),
    /// Nothing at the moment.
    Blocked,
    /// The peer has finished.
    End,
    /// The peer gave it up.
    Reset(Code),
}

/// One request stream.
#[derive(Debug)]
pub(super) struct RequestStream {
    side: Side,
    /// Whether it was opened by a CONNECT request of ours.
    pub(super) is_connect: bool,
    decoder: FrameDecoder,
    phase: Phase,
    /// The reader was told that it is blocked, so it waits for an event.
    is_reader_waiting: bool,
    is_at_end: bool,
    /// Frames that had no room yet: a head, and the header of a DATA frame.
    unsent: VecDeque<Bytes>,
    finish: Finish,
}

/// How far a message has come, and thereby which frames may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The final head has not come: HEADERS only.
    Head,
    /// DATA, and HEADERS once.
    Body,
    /// The trailers have come: nothing more.
    Trailers,
    /// The stream carries a tunnel: DATA only.
    Tunnel,
}

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// A body, and maybe trailers.
    Body,
    /// The bytes of a tunnel: this is CONNECT.
    Tunnel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    No,
    WhenSent,
    Done,
}

impl RequestStream {
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

    /// Whether the final head came.
    pub(super) fn has_head(&self) -> bool {
        self.phase != Phase::Head
    }

    /// The reader is told of the head, and looks for a body then.
    pub(super) fn on_head_accepted(&mut self, follows: Follows) {
        self.phase = match follows {
            Follows::Body => Phase::Body,
            Follows::Tunnel => Phase::Tunnel,
        };
        self.is_reader_waiting = false;
    }

    /// Whether the reader is to be told that there may be more. True once for each time that it
    /// was told that there was none.
    pub(super) fn wants_body_event(&mut self) -> bool {
        std::mem::take(&mut self.is_reader_waiting)
    }

    /// What the peer sent is of no interest any more.
    pub(super) fn stop_reading(&mut self) {
        self.decoder = FrameDecoder::new(StreamKind::Request, 0);
        self.is_at_end = true;
    }

    /// Whether both directions have ended well.
    pub(super) fn is_done(&self) -> bool {
        self.is_at_end && self.finish == Finish::Done
    }

    /// What comes next.
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
                Some(_) => continue, // unknown types; the decoder refuses the forbidden ones
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

    // RFC 9114 §4.1: "Receipt of an invalid sequence of frames MUST be treated as a connection error
    // of type H3_FRAME_UNEXPECTED. In particular, a DATA frame before any HEADERS frame, or a
    // HEADERS or DATA frame after the trailing HEADERS frame, is considered invalid."
    fn on_headers(&mut self, section: Bytes) -> Result<Next, StreamError> {
        match self.phase {
            Phase::Head => Ok(Next::Head(section)),
            Phase::Body => {
                self.phase = Phase::Trailers;
                Ok(Next::Trailers(section))
            }
            Phase::Trailers => Err(StreamError::unexpected("HEADERS after the trailers")),
            // RFC 9114 §4.4: "Once the CONNECT method has completed, only DATA frames are permitted
            // to be sent on the stream."
            Phase::Tunnel => Err(StreamError::unexpected("HEADERS in a tunnel")),
        }
    }

    fn on_data(&mut self, data: Bytes) -> Result<Next, StreamError> {
        match self.phase {
            Phase::Body | Phase::Tunnel => Ok(Next::Data(data)),
            Phase::Head => Err(StreamError::unexpected("DATA before the head")),
            Phase::Trailers => Err(StreamError::unexpected("DATA after the trailers")),
        }
    }

    /// Puts a frame at the end of what is to be sent.
    pub(super) fn queue(&mut self, frame: Bytes, end: End) {
        if !frame.is_empty() {
            self.unsent.push_back(frame);
        }
        if end == End::Last && self.finish == Finish::No {
            self.finish = Finish::WhenSent;
        }
    }

    /// Sends what is queued as far as there is room.
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

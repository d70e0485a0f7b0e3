//! One request and its answer on a bidirectional stream (RFC 9114 §4.1).

use std::collections::VecDeque;

use bytes::Bytes;
use tandem_wire::{Code, DecodeError, Frame, FrameDecoder, StreamKind};

use super::{End, read};
use crate::quic::{Connection, Read, StreamGone, StreamId, Write};

/// What came next on a stream.
#[derive(Debug)]
pub(super) enum Next {
    /// An encoded header section.
    Head(Bytes),
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
    decoder: FrameDecoder,
    has_head: bool,
    /// The reader was told that it is blocked, so it waits for an event.
    is_reader_waiting: bool,
    is_at_end: bool,
    /// Frames that had no room yet: a head, and the header of a DATA frame.
    unsent: VecDeque<Bytes>,
    finish: Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    No,
    WhenSent,
    Done,
}

impl RequestStream {
    pub(super) fn new(field_section_max: usize) -> Self {
        Self {
            decoder: FrameDecoder::new(StreamKind::Request, field_section_max),
            has_head: false,
            is_reader_waiting: false,
            is_at_end: false,
            unsent: VecDeque::new(),
            finish: Finish::No,
        }
    }

    /// Whether the final head came.
    pub(super) fn has_head(&self) -> bool {
        self.has_head
    }

    /// The reader is told of the head, and looks for a body then.
    pub(super) fn on_head_accepted(&mut self) {
        self.has_head = true;
        self.is_reader_waiting = false;
    }

    /// Whether the reader is to be told that there may be more. True once for each time that it
    /// was told that there was none.
    pub(super) fn wants_body_event(&mut self) -> bool {
        std::mem::take(&mut self.is_reader_waiting)
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
    ) -> Result<Next, DecodeError> {
        loop {
            match self.decoder.next()? {
                Some(Frame::Headers(section)) => return Ok(Next::Head(section)),
                Some(Frame::Data(data)) => return Ok(Next::Data(data)),
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
                    self.decoder.finish()?;
                    self.is_at_end = true;
                }
                Read::Reset(code) => return Ok(Next::Reset(code)),
            }
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

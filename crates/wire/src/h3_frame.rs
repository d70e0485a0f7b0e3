//! HTTP/3 frames ([RFC 9114 §7.2]) and stream types ([RFC 9114 §6.2]).
//!
//! [RFC 9114 §7.2]: https://www.rfc-editor.org/rfc/rfc9114#section-7.2
//! [RFC 9114 §6.2]: https://www.rfc-editor.org/rfc/rfc9114#section-6.2

use std::fmt;

use bytes::{BufMut, Bytes};

use crate::chunks::{Chunks, HeaderBuffer, ValueBuffer};
use crate::{DecodeError, Settings, VarInt};

/// The type of the control stream, which begins with SETTINGS ([RFC 9114 §6.2.1]).
///
/// [RFC 9114 §6.2.1]: https://www.rfc-editor.org/rfc/rfc9114#section-6.2.1
pub const STREAM_TYPE_CONTROL: VarInt = VarInt::from_u32(0x00);

/// The type of a push stream, which Tandem never allows ([RFC 9114 §6.2.2]).
///
/// [RFC 9114 §6.2.2]: https://www.rfc-editor.org/rfc/rfc9114#section-6.2.2
pub const STREAM_TYPE_PUSH: VarInt = VarInt::from_u32(0x01);

/// The type of QPACK's encoder stream ([RFC 9204 §4.2]).
///
/// [RFC 9204 §4.2]: https://www.rfc-editor.org/rfc/rfc9204#section-4.2
pub const STREAM_TYPE_QPACK_ENCODER: VarInt = VarInt::from_u32(0x02);

/// The type of QPACK's decoder stream ([RFC 9204 §4.2]).
///
/// [RFC 9204 §4.2]: https://www.rfc-editor.org/rfc/rfc9204#section-4.2
pub const STREAM_TYPE_QPACK_DECODER: VarInt = VarInt::from_u32(0x03);

/// The type of a continuation stream, on which bytes of a request stream travel. It is Tandem's own.
pub const STREAM_TYPE_CONTINUATION: VarInt = VarInt::from_u32(0x2c4b_1d7a);

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
const CANCEL_PUSH: u64 = 0x03;
const SETTINGS: u64 = 0x04;
const PUSH_PROMISE: u64 = 0x05;
const GOAWAY: u64 = 0x07;
const MAX_PUSH_ID: u64 = 0x0d;
const CONTINUED: u64 = 0x2c4b_1d7a;

/// One frame, or a piece of a DATA frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A piece of a DATA frame's payload. It is never empty, and shares memory with the pushed
    /// bytes.
    Data(Bytes),
    /// A HEADERS frame with its encoded field section.
    Headers(Bytes),
    /// A SETTINGS frame with the peer's settings.
    Settings(Settings),
    /// A GOAWAY frame with the ID of the first request or push that the peer will not process.
    GoAway(VarInt),
    /// A `MAX_PUSH_ID` frame with the highest push ID that a client allows.
    MaxPushId(VarInt),
    /// A `CANCEL_PUSH` frame with the ID of a push that is no longer needed.
    CancelPush(VarInt),
    /// A CONTINUED frame, which is Tandem's own, with the ID of a continuation stream. All bytes of that
    /// stream come before what follows the frame.
    Continued(VarInt),
    /// A frame of another type. The decoder skips its payload, which may have any length.
    Unknown {
        /// The frame's type.
        frame_type: VarInt,
        /// The length of its payload in bytes.
        len: u64,
    },
}

/// The kind of stream that carries the frames. It determines which frames are allowed
/// ([RFC 9114 §7.2], Table 1).
///
/// [RFC 9114 §7.2]: https://www.rfc-editor.org/rfc/rfc9114#section-7.2
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The control stream after its stream type.
    Control,
    /// A request stream, in either direction.
    Request,
    /// A continuation stream after its header. It is Tandem's own.
    Continuation,
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Control => "control",
            Self::Request => "request",
            Self::Continuation => "continuation",
        })
    }
}

/// Decodes frames from a stream of bytes that arrives in arbitrary pieces.
///
/// It keeps at most `max_frame_len` bytes of an unfinished frame. After an error it returns the
/// same error at every call.
#[derive(Debug)]
pub struct FrameDecoder {
    kind: StreamKind,
    max_frame_len: usize,
    has_settings: bool,
    chunks: Chunks,
    state: FrameState,
}

#[derive(Debug)]
enum FrameState {
    Header(HeaderBuffer),
    Data { remaining: u64 },
    Whole { frame_type: VarInt, payload: ValueBuffer },
    Skip { remaining: u64 },
    Failed(DecodeError),
}

impl FrameDecoder {
    /// Bytes of memory that an incomplete frame takes.
    pub fn memory(&self) -> usize {
        match &self.state {
            FrameState::Whole { payload, .. } => payload.memory(),
            FrameState::Header(_)
            | FrameState::Data { .. }
            | FrameState::Skip { .. }
            | FrameState::Failed(_) => 0,
        }
    }

    /// Creates a decoder at the beginning of a stream. It accepts HEADERS and SETTINGS frames whose
    /// payloads have at most `max_frame_len` bytes.
    pub fn new(kind: StreamKind, max_frame_len: usize) -> Self {
        Self {
            kind,
            max_frame_len,
            has_settings: false,
            chunks: Chunks::default(),
            state: FrameState::Header(HeaderBuffer::default()),
        }
    }

    /// Adds bytes from the stream. The caller has to call [`next`](Self::next) until it returns
    /// `None` before the following push; otherwise the bytes accumulate.
    pub fn push(&mut self, data: Bytes) {
        self.chunks.push(data);
    }

    /// Returns the next frame or piece of DATA, or `None` if the decoder needs more bytes.
    ///
    /// An unknown frame is returned when its header is complete; its payload may still be arriving.
    /// A DATA frame without payload is not returned.
    ///
    /// # Errors
    ///
    /// A frame is malformed, too long, or not allowed on this stream at this time.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator ends with None, but this decoder goes on"
    )]
    pub fn next(&mut self) -> Result<Option<Frame>, DecodeError> {
        let result = self.step();
        if let Err(error) = &result {
            self.state = FrameState::Failed(error.clone());
        }
        result
    }

    /// Returns whether the decoder is between two frames.
    pub fn is_at_boundary(&self) -> bool {
        let state_is = match &self.state {
            FrameState::Header(header) => header.is_empty(),
            FrameState::Data { remaining } | FrameState::Skip { remaining } => *remaining == 0,
            FrameState::Whole { .. } | FrameState::Failed(_) => false,
        };
        state_is && self.chunks.is_empty()
    }

    /// Checks that the stream ends between two frames. The caller calls it when the stream has
    /// ended and [`next`](Self::next) returns `None`.
    ///
    /// # Errors
    ///
    /// [`DecodeError::FrameTruncated`] if the stream ends inside a frame.
    pub fn finish(&self) -> Result<(), DecodeError> {
        // RFC 9114 §7.1: "When a stream terminates cleanly, if the last frame on the stream was
        // truncated, this MUST be treated as a connection error of type H3_FRAME_ERROR."
        match &self.state {
            FrameState::Failed(error) => Err(error.clone()),
            _ if self.is_at_boundary() => Ok(()),
            _ => Err(DecodeError::FrameTruncated),
        }
    }

    fn step(&mut self) -> Result<Option<Frame>, DecodeError> {
        loop {
            match &mut self.state {
                FrameState::Header(header) => {
                    let Some((frame_type, len)) = header.fill(&mut self.chunks) else {
                        return Ok(None);
                    };
                    self.check_allowed(frame_type)?;
                    self.state = self.begin(frame_type, len.get())?;
                    if matches!(self.state, FrameState::Skip { .. }) {
                        return Ok(Some(Frame::Unknown { frame_type, len: len.get() }));
                    }
                }
                FrameState::Data { remaining: 0 } | FrameState::Skip { remaining: 0 } => {
                    self.state = FrameState::Header(HeaderBuffer::default());
                }
                FrameState::Data { remaining } => {
                    let piece = self.chunks.take_piece(*remaining);
                    *remaining -= piece.as_ref().map_or(0, Bytes::len) as u64;
                    return Ok(piece.map(Frame::Data));
                }
                FrameState::Skip { remaining } => match self.chunks.take_piece(*remaining) {
                    Some(piece) => *remaining -= piece.len() as u64,
                    None => return Ok(None),
                },
                FrameState::Whole { frame_type, payload } => {
                    let Some(payload) = payload.fill(&mut self.chunks) else {
                        return Ok(None);
                    };
                    let frame = decode_whole(*frame_type, payload)?;
                    self.state = FrameState::Header(HeaderBuffer::default());
                    return Ok(Some(frame));
                }
                FrameState::Failed(error) => return Err(error.clone()),
            }
        }
    }

    fn check_allowed(&mut self, frame_type: VarInt) -> Result<(), DecodeError> {
        let unexpected = DecodeError::FrameUnexpected { frame_type, stream: self.kind };
        match (self.kind, frame_type.get()) {
            (StreamKind::Control, SETTINGS) => {
                // RFC 9114 §7.2.4: "If an endpoint receives a second SETTINGS frame on the control
                // stream, the endpoint MUST respond with a connection error of type
                // H3_FRAME_UNEXPECTED."
                if self.has_settings {
                    return Err(DecodeError::SettingsRepeated);
                }
                self.has_settings = true;
                Ok(())
            }
            // RFC 9114 §6.2.1: "If the first frame of the control stream is any other frame type,
            // this MUST be treated as a connection error of type H3_MISSING_SETTINGS."
            (StreamKind::Control, _) if !self.has_settings => {
                Err(DecodeError::SettingsMissing(frame_type))
            }
            // RFC 9114 §7.2.8: "Frame types that were used in HTTP/2 where there is no
            // corresponding HTTP/3 frame type [...] receipt MUST be treated as a connection error
            // of type H3_FRAME_UNEXPECTED."
            (_, 0x02 | 0x06 | 0x08 | 0x09)
            | (StreamKind::Control, DATA | HEADERS | PUSH_PROMISE | CONTINUED)
            | (StreamKind::Request, CANCEL_PUSH | SETTINGS | GOAWAY | MAX_PUSH_ID)
            // Only DATA follows a CONNECT request (RFC 9114 §4.4), wherever its bytes travel.
            | (
                StreamKind::Continuation,
                HEADERS | CANCEL_PUSH | SETTINGS | PUSH_PROMISE | GOAWAY | MAX_PUSH_ID | CONTINUED,
            ) => Err(unexpected),
            // RFC 9114 §7.2.5: "A client MUST treat receipt of a PUSH_PROMISE frame that contains
            // a larger push ID than the client has advertised as a connection error of
            // H3_ID_ERROR." We advertise none.
            (StreamKind::Request, PUSH_PROMISE) => Err(DecodeError::PushPromise),
            _ => Ok(()),
        }
    }

    fn begin(&self, frame_type: VarInt, len: u64) -> Result<FrameState, DecodeError> {
        let len_max = match frame_type.get() {
            DATA => return Ok(FrameState::Data { remaining: len }),
            HEADERS | SETTINGS => self.max_frame_len,
            CANCEL_PUSH | GOAWAY | MAX_PUSH_ID | CONTINUED if len > VarInt::LEN_MAX as u64 => {
                return Err(DecodeError::FrameMalformed { frame_type, len });
            }
            CANCEL_PUSH | GOAWAY | MAX_PUSH_ID | CONTINUED => VarInt::LEN_MAX,
            // RFC 9114 §9: "Implementations MUST ignore unknown or unsupported values in all
            // extensible protocol elements."
            _ => return Ok(FrameState::Skip { remaining: len }),
        };
        match usize::try_from(len) {
            Ok(len) if len <= len_max => {
                Ok(FrameState::Whole { frame_type, payload: ValueBuffer::new(len) })
            }
            Ok(_) | Err(_) => Err(DecodeError::FrameTooLong { frame_type, len, len_max }),
        }
    }
}

fn decode_whole(frame_type: VarInt, payload: Bytes) -> Result<Frame, DecodeError> {
    match frame_type.get() {
        HEADERS => Ok(Frame::Headers(payload)),
        SETTINGS => Settings::decode(payload).map(Frame::Settings),
        CANCEL_PUSH => decode_id(frame_type, payload).map(Frame::CancelPush),
        MAX_PUSH_ID => decode_id(frame_type, payload).map(Frame::MaxPushId),
        CONTINUED => decode_id(frame_type, payload).map(Frame::Continued),
        _ => decode_id(frame_type, payload).map(Frame::GoAway),
    }
}

/// Decodes the payload of a frame whose only field is an ID.
fn decode_id(frame_type: VarInt, mut payload: Bytes) -> Result<VarInt, DecodeError> {
    let malformed = DecodeError::FrameMalformed { frame_type, len: payload.len() as u64 };
    // RFC 9114 §7.1: "A frame payload that contains additional bytes after the identified fields
    // or a frame payload that terminates before the end of the identified fields MUST be treated
    // as a connection error of type H3_FRAME_ERROR."
    match VarInt::decode(&mut payload) {
        Ok(id) if payload.is_empty() => Ok(id),
        Ok(_) | Err(_) => Err(malformed),
    }
}

/// Appends a HEADERS frame with an encoded field section to `out`.
pub fn encode_headers(field_section: &[u8], out: &mut impl BufMut) {
    encode_frame(HEADERS, field_section, out);
}

/// Appends the header of a DATA frame whose payload has `len` bytes to `out`.
pub fn encode_data_header(len: usize, out: &mut impl BufMut) {
    VarInt::saturating_from(DATA).encode(out);
    VarInt::from_len(len).encode(out);
}

/// Appends a GOAWAY frame to `out`.
pub fn encode_goaway(id: VarInt, out: &mut impl BufMut) {
    encode_id(GOAWAY, id, out);
}

/// Appends a CONTINUED frame with the ID of a continuation stream to `out`.
pub fn encode_continued(stream: VarInt, out: &mut impl BufMut) {
    encode_id(CONTINUED, stream, out);
}

/// Appends the beginning of a continuation stream of the request stream `request` to `out`.
pub fn encode_continuation_header(request: VarInt, out: &mut impl BufMut) {
    STREAM_TYPE_CONTINUATION.encode(out);
    request.encode(out);
}

fn encode_id(frame_type: u64, id: VarInt, out: &mut impl BufMut) {
    let mut payload = Vec::with_capacity(VarInt::LEN_MAX);
    id.encode(&mut payload);
    encode_frame(frame_type, &payload, out);
}

/// Appends a SETTINGS frame to `out`.
pub fn encode_settings(settings: &Settings, out: &mut impl BufMut) {
    let mut payload = Vec::new();
    settings.encode(&mut payload);
    encode_frame(SETTINGS, &payload, out);
}

fn encode_frame(frame_type: u64, payload: &[u8], out: &mut impl BufMut) {
    VarInt::saturating_from(frame_type).encode(out);
    VarInt::from_len(payload.len()).encode(out);
    out.put_slice(payload);
}

#[cfg(test)]
mod tests;

//! Capsules on a request stream ([RFC 9297 §3.2]).
//!
//! [RFC 9297 §3.2]: https://www.rfc-editor.org/rfc/rfc9297#section-3.2

use bytes::{BufMut, Bytes};

use crate::chunks::{Chunks, HeaderBuffer, ValueBuffer};
use crate::{DecodeError, VarInt};

/// The type of the DATAGRAM capsule ([RFC 9297 §3.5]).
///
/// [RFC 9297 §3.5]: https://www.rfc-editor.org/rfc/rfc9297#section-3.5
pub const CAPSULE_TYPE_DATAGRAM: VarInt = VarInt::from_u32(0x00);

/// One capsule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capsule {
    /// An HTTP Datagram's payload; see [`split_context_id`](crate::split_context_id).
    Datagram(Bytes),
    /// A capsule of another type. Its value is skipped, however long.
    Unknown {
        /// The capsule's type.
        capsule_type: VarInt,
        /// Length of its value in bytes.
        len: u64,
    },
}

/// Reads capsules from a stream of bytes that comes in arbitrary pieces.
///
/// It keeps at most `max_value_len` bytes of an unfinished capsule. After an error it returns the
/// same error for ever.
#[derive(Debug)]
pub struct CapsuleDecoder {
    max_value_len: usize,
    chunks: Chunks,
    state: State,
}

#[derive(Debug)]
enum State {
    Header(HeaderBuffer),
    Datagram(ValueBuffer),
    Skip { remaining: u64 },
    Failed(DecodeError),
}

impl CapsuleDecoder {
    /// A decoder at the beginning of a stream that takes DATAGRAM capsules of at most
    /// `max_value_len` bytes.
    pub fn new(max_value_len: usize) -> Self {
        Self {
            max_value_len,
            chunks: Chunks::default(),
            state: State::Header(HeaderBuffer::default()),
        }
    }

    /// Adds bytes from the stream. Call [`next`](Self::next) until it has no more before the
    /// following push, or they pile up.
    pub fn push(&mut self, data: Bytes) {
        self.chunks.push(data);
    }

    /// The next capsule, or `None` until more is pushed.
    ///
    /// An unknown capsule is reported when its header is complete; its value may still be coming.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator is over after None, this is not"
    )]
    pub fn next(&mut self) -> Result<Option<Capsule>, DecodeError> {
        loop {
            match &mut self.state {
                State::Header(header) => {
                    let Some((capsule_type, len)) = header.fill(&mut self.chunks) else {
                        return Ok(None);
                    };
                    if let Some(capsule) = self.begin(capsule_type, len.get())? {
                        return Ok(Some(capsule));
                    }
                }
                State::Datagram(value) => {
                    let Some(value) = value.fill(&mut self.chunks) else {
                        return Ok(None);
                    };
                    self.state = State::Header(HeaderBuffer::default());
                    return Ok(Some(Capsule::Datagram(value)));
                }
                State::Skip { remaining: 0 } => {
                    self.state = State::Header(HeaderBuffer::default());
                }
                State::Skip { remaining } => match self.chunks.take_piece(*remaining) {
                    Some(piece) => *remaining -= piece.len() as u64,
                    None => return Ok(None),
                },
                State::Failed(error) => return Err(error.clone()),
            }
        }
    }

    /// Checks that the stream ends between two capsules. Call it when the stream has ended and
    /// [`next`](Self::next) has no more.
    pub fn finish(&self) -> Result<(), DecodeError> {
        // RFC 9297 §3.3: "When a stream carrying capsules terminates cleanly, if the last capsule
        // on the stream was truncated, this MUST be treated as if the message were malformed or
        // incomplete."
        match &self.state {
            State::Header(header) if header.is_empty() && self.chunks.is_empty() => Ok(()),
            State::Skip { remaining: 0 } if self.chunks.is_empty() => Ok(()),
            State::Failed(error) => Err(error.clone()),
            State::Header(_) | State::Datagram(_) | State::Skip { .. } => {
                Err(DecodeError::CapsuleTruncated)
            }
        }
    }

    fn begin(&mut self, capsule_type: VarInt, len: u64) -> Result<Option<Capsule>, DecodeError> {
        if capsule_type != CAPSULE_TYPE_DATAGRAM {
            // RFC 9297 §3.2: "endpoints that receive capsules with unknown types MUST silently
            // drop that capsule and skip over it to parse the next capsule."
            self.state = State::Skip { remaining: len };
            return Ok(Some(Capsule::Unknown { capsule_type, len }));
        }
        match usize::try_from(len) {
            Ok(len) if len <= self.max_value_len => {
                self.state = State::Datagram(ValueBuffer::new(len));
                Ok(None)
            }
            Ok(_) | Err(_) => {
                let len_max = self.max_value_len;
                let error = DecodeError::DatagramCapsuleTooLong { len, len_max };
                self.state = State::Failed(error.clone());
                Err(error)
            }
        }
    }
}

/// Appends a capsule to `out`.
pub fn encode_capsule(capsule_type: VarInt, value: &[u8], out: &mut impl BufMut) {
    capsule_type.encode(out);
    VarInt::from_len(value.len()).encode(out);
    out.put_slice(value);
}

/// Appends a DATAGRAM capsule with the payload of CONNECT-UDP to `out` ([RFC 9298 §5]).
///
/// [RFC 9298 §5]: https://www.rfc-editor.org/rfc/rfc9298#section-5
pub fn encode_datagram_capsule(context_id: VarInt, payload: &[u8], out: &mut impl BufMut) {
    CAPSULE_TYPE_DATAGRAM.encode(out);
    VarInt::from_len(context_id.encoded_len() + payload.len()).encode(out);
    context_id.encode(out);
    out.put_slice(payload);
}

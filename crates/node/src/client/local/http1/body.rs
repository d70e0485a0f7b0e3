//! The body of a message: where it ends, and its parts as they are passed on.

use bytes::Bytes;
use httparse::{EMPTY_HEADER, Status};

use super::super::inbox::Inbox;
use crate::limits::LocalProxyLimits;

/// A part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyPart {
    /// Bytes of the content.
    Content(Bytes),
    /// What stands between the chunks. It is passed on if the other side gets chunks too.
    Framing(Bytes),
}

/// The rest of a body that has not arrived yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyRest {
    /// This number of bytes.
    Length(u64),
    /// The line with the size of the next chunk.
    ChunkSize,
    /// This number of bytes of a chunk.
    Chunk(u64),
    /// The line end after a chunk.
    ChunkEnd,
    /// The trailers, of which this number of bytes has come. They are dropped, which RFC 9110 §6.5.1
    /// allows.
    Trailers(usize),
    /// Everything until the connection ends.
    UntilEnd,
}

/// The message has no body, or its body is complete.
pub(super) const NO_BODY: BodyRest = BodyRest::Length(0);

/// The chunks of a body are malformed, or a line of them is too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadChunk;

impl BodyRest {
    pub(super) fn is_complete(&self) -> bool {
        *self == NO_BODY
    }

    /// Takes the next part. `None`: it has not arrived yet, or the body is complete.
    pub(super) fn take(
        &mut self,
        inbox: &mut Inbox,
        limits: &LocalProxyLimits,
    ) -> Result<Option<BodyPart>, BadChunk> {
        if inbox.is_empty() {
            return Ok(None);
        }
        Ok(match self {
            Self::UntilEnd => Some(BodyPart::Content(inbox.take_all())),
            Self::Length(0) => None,
            Self::Length(left) => Some(take_content(left, inbox)),
            Self::Chunk(left) => {
                let part = take_content(left, inbox);
                if *left == 0 {
                    *self = Self::ChunkEnd;
                }
                Some(part)
            }
            Self::ChunkSize => match inbox.take_line(limits.chunk_line).map_err(|_| BadChunk)? {
                Some(line) => self.begin_chunk(&line)?,
                None => None,
            },
            Self::ChunkEnd => match inbox.bytes() {
                b"\r" => None,
                [b'\r', b'\n', ..] => {
                    *self = Self::ChunkSize;
                    Some(BodyPart::Framing(inbox.take(2)))
                }
                _ => return Err(BadChunk),
            },
            Self::Trailers(len) => {
                let left = limits.head.saturating_sub(*len);
                let Some(line) = inbox.take_line(left).map_err(|_| BadChunk)? else {
                    return Ok(None);
                };
                *len += line.len();
                self.check_trailer(&line)?
            }
        })
    }

    /// Reads the line before a chunk. Its extensions are left out; RFC 9112 §7.1.1: "A recipient
    /// MUST ignore unrecognized chunk extensions."
    fn begin_chunk(&mut self, line: &[u8]) -> Result<Option<BodyPart>, BadChunk> {
        // httparse takes a line without digits for a chunk of size 0, and control characters in
        // extensions for a part of them.
        let (text, has_digit) = match line {
            [text @ .., b'\r', b'\n'] => (text, text.first().is_some_and(u8::is_ascii_hexdigit)),
            _ => return Err(BadChunk),
        };
        if !has_digit || text.iter().any(|&byte| byte.is_ascii_control() && byte != b'\t') {
            return Err(BadChunk);
        }
        let Ok(Status::Complete((_, size))) = httparse::parse_chunk_size(line) else {
            return Err(BadChunk);
        };
        *self = if size == 0 { Self::Trailers(0) } else { Self::Chunk(size) };
        // The last chunk leaves with the end of the body.
        Ok((size > 0).then(|| BodyPart::Framing(format!("{size:x}\r\n").into())))
    }

    fn check_trailer(&mut self, line: &[u8]) -> Result<Option<BodyPart>, BadChunk> {
        if line == b"\r\n" {
            *self = NO_BODY;
            return Ok(Some(BodyPart::Framing(Bytes::from_static(b"0\r\n\r\n"))));
        }
        // A field without the empty line after it is well-formed and incomplete.
        let is_field = httparse::parse_headers(line, &mut [EMPTY_HEADER]) == Ok(Status::Partial);
        if is_field && line.ends_with(b"\r\n") { Ok(None) } else { Err(BadChunk) }
    }
}

fn take_content(left: &mut u64, inbox: &mut Inbox) -> BodyPart {
    let bytes = inbox.take(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= bytes.len() as u64;
    BodyPart::Content(bytes)
}

//! Bytes that have arrived and were not interpreted yet.

use std::{fmt, mem};

use bytes::{Bytes, BytesMut};

/// Bytes of one direction in their order. What is taken from them is never copied; bytes are copied
/// only when some arrive while others wait.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Bytes,
    /// The number of bytes in which the end of a line was looked for already.
    scanned: usize,
    /// Where the line begins whose end is looked for.
    line: usize,
    /// Whether the first line of the head was checked.
    is_line_checked: bool,
}

/// The bytes may contain a password, so only their number is shown.
impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({} bytes)", self.len())
    }
}

/// The head does not end within its limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Inbox {
    pub(super) fn push(&mut self, more: Bytes) {
        if self.bytes.is_empty() {
            self.bytes = more;
        } else {
            let mut joined = mem::take(&mut self.bytes).try_into_mut().unwrap_or_else(|shared| {
                let mut copy = BytesMut::with_capacity(shared.len() + more.len());
                copy.extend_from_slice(&shared);
                copy
            });
            joined.extend_from_slice(&more);
            self.bytes = joined.freeze();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the first bytes, or all if there are fewer.
    pub(super) fn take(&mut self, len: usize) -> Bytes {
        (self.scanned, self.line, self.is_line_checked) = (0, 0, false);
        self.bytes.split_to(len.min(self.bytes.len()))
    }

    pub(super) fn take_all(&mut self) -> Bytes {
        self.take(usize::MAX)
    }

    /// Takes a line with its end. `None`: it has not arrived completely.
    pub(super) fn take_line(&mut self, len_max: usize) -> Result<Option<Bytes>, TooLong> {
        match self.end_of_line(len_max) {
            Some(end) => Ok(Some(self.take(end))),
            None if self.len() >= len_max => Err(TooLong),
            None => Ok(None),
        }
    }

    /// The offset at which the next line ends, if it ends within the first `len_max` bytes of the inbox.
    fn end_of_line(&mut self, len_max: usize) -> Option<usize> {
        let unseen = self.bytes.get(self.scanned..len_max.min(self.len()))?;
        let index = unseen.iter().position(|&byte| byte == b'\n');
        self.scanned += index.map_or(unseen.len(), |index| index + 1);
        index.map(|_| self.scanned)
    }

    /// Takes the head of a message with the empty line after it. `None`: it has not arrived
    /// completely. Empty lines before it are dropped, as RFC 9112 §2.2 asks for.
    ///
    /// The first line is checked as soon as it is there, so that bytes of another protocol do not
    /// wait for an empty line. All depends on the bytes only, and not on how they were cut.
    pub(super) fn take_head<E: From<TooLong>>(
        &mut self,
        len_max: usize,
        check_line: impl Fn(&[u8]) -> Result<(), E>,
    ) -> Result<Option<Bytes>, E> {
        self.drop_empty_lines();
        while let Some(end) = self.end_of_line(len_max) {
            let line = self.bytes.get(self.line..end).unwrap_or_default();
            if !self.is_line_checked {
                check_line(line)?;
                self.is_line_checked = true;
            } else if matches!(line, b"\n" | b"\r\n") {
                return Ok(Some(self.take(end)));
            }
            self.line = end;
        }
        if self.len() >= len_max {
            return Err(TooLong.into());
        }
        if !self.is_line_checked {
            check_line(self.bytes.get(..1).unwrap_or_default())?;
        }
        Ok(None)
    }

    fn drop_empty_lines(&mut self) {
        while !self.is_line_checked {
            match *self.bytes {
                [b'\r', b'\n', ..] => self.take(2),
                [b'\n', ..] => self.take(1),
                _ => break,
            };
        }
    }
}

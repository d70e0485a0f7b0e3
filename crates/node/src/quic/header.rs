//! The part of a packet's header that all versions of QUIC share (RFC 8999).

/// The header of a UDP payload, if that is a QUIC packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Header<'a> {
    /// A long header (RFC 8999 §5.1).
    Long {
        /// The first byte.
        first: u8,
        version: u32,
        /// The Destination Connection ID, of 0 to 255 bytes.
        destination: &'a [u8],
        /// The Source Connection ID, of 0 to 255 bytes.
        source: &'a [u8],
    },
    /// A short header (RFC 8999 §5.2).
    Short {
        /// What follows the first byte. It begins with the Destination Connection ID, whose length only
        /// the receiver knows.
        rest: &'a [u8],
    },
}

impl<'a> Header<'a> {
    /// `None`: the payload is empty, or ends before the connection IDs of a long header do.
    pub(crate) fn read(payload: &'a [u8]) -> Option<Self> {
        /// RFC 8999 §5.1: the most significant bit of the first byte is set in a long header.
        const LONG: u8 = 0x80;
        let (&first, rest) = payload.split_first()?;
        if first & LONG == 0 {
            return Some(Self::Short { rest });
        }
        let (version, rest) = rest.split_first_chunk()?;
        let (destination, rest) = take_connection_id(rest)?;
        let (source, _) = take_connection_id(rest)?;
        let version = u32::from_be_bytes(*version);
        Some(Self::Long { first, version, destination, source })
    }
}

/// Takes a connection ID, and the byte with its length, off the front of a long header.
fn take_connection_id(header: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = header.split_first()?;
    rest.split_at_checked(len.into())
}

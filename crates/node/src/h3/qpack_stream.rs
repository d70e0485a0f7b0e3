//! The peer's QPACK streams (RFC 9204 §4.2). Tandem neither announces nor uses a dynamic table, so
//! only few instructions are allowed on them.

use tandem_wire::Code;

use super::ConnectionError;

/// One of the peer's QPACK streams.
#[derive(Debug)]
pub(super) enum QpackStream {
    /// The stream with the peer's changes of its encoder's dynamic table.
    Encoder,
    /// The stream with the peer's acknowledgements for this node's encoder.
    Decoder {
        /// Whether the next byte continues an integer.
        is_in_number: bool,
    },
}

impl QpackStream {
    pub(super) fn decoder() -> Self {
        Self::Decoder { is_in_number: false }
    }

    /// Checks instructions, which may arrive in arbitrary pieces.
    pub(super) fn take(&mut self, data: &[u8]) -> Result<(), ConnectionError> {
        data.iter().try_for_each(|byte| match self {
            Self::Encoder => encoder_byte(*byte),
            Self::Decoder { is_in_number } => decoder_byte(*byte, is_in_number),
        })
    }
}

/// Checks one byte of the encoder stream. RFC 9204 §4.3: an instruction that begins with `001` sets
/// the capacity; all others insert or duplicate an entry.
fn encoder_byte(byte: u8) -> Result<(), ConnectionError> {
    const CAPACITY_0: u8 = 0b0010_0000;
    if byte == CAPACITY_0 {
        return Ok(());
    }
    // RFC 9204 §4.3.1: "The decoder MUST treat a new dynamic table capacity value that exceeds this
    // limit as a connection error of type QPACK_ENCODER_STREAM_ERROR." §3.2.2: "It is an error if
    // the encoder attempts to add an entry that is larger than the dynamic table capacity; the
    // decoder MUST treat this as a connection error of type QPACK_ENCODER_STREAM_ERROR."
    let reason = "the peer uses a dynamic table, whose capacity is zero".into();
    Err(ConnectionError { code: Code::QPACK_ENCODER_STREAM_ERROR, reason })
}

/// Checks one byte of the decoder stream. RFC 9204 §4.4: an instruction that begins with `1`
/// acknowledges a section, and one that begins with `00` acknowledges insertions. One that begins
/// with `01`, with an integer from its six other bits on, cancels a stream. Only the last one is
/// allowed.
fn decoder_byte(byte: u8, is_in_number: &mut bool) -> Result<(), ConnectionError> {
    if *is_in_number {
        *is_in_number = byte & 0x80 != 0;
        return Ok(());
    }
    if byte >> 6 == 0b01 {
        *is_in_number = byte & 0x3f == 0x3f;
        return Ok(());
    }
    // RFC 9204 §4.4.1: "If an encoder receives a Section Acknowledgment instruction referring to a
    // stream on which every encoded field section with a non-zero Required Insert Count has already
    // been acknowledged, this MUST be treated as a connection error of type
    // QPACK_DECODER_STREAM_ERROR." §4.4.3: "An encoder that receives an Increment field equal to
    // zero, or one that increases the Known Received Count beyond what the encoder has sent, MUST
    // treat this as a connection error of type QPACK_DECODER_STREAM_ERROR."
    let reason = "the peer acknowledges a dynamic table that is not used".into();
    Err(ConnectionError { code: Code::QPACK_DECODER_STREAM_ERROR, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cancelled_streams_may_be_named_on_a_decoder_stream() {
        for (bytes, is_allowed) in [
            (&[0x40][..], true),
            (&[0x7e, 0x41], true),
            (&[0x7f, 0x00, 0x40], true),
            (&[0x7f, 0x80, 0xff, 0x01, 0x40], true),
            (&[0x7f], true),
            (&[0x80], false),
            (&[0x40, 0x00], false),
            (&[0x7f, 0x00, 0x80], false),
        ] {
            assert_eq!(QpackStream::decoder().take(bytes).is_ok(), is_allowed, "{bytes:02x?}");
        }
    }
}

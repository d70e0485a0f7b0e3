//! Field sections without a dynamic table ([RFC 9204]): what we send refers to the static table
//! only, and with the default settings the peer must do so too.
//!
//! [RFC 9204]: https://www.rfc-editor.org/rfc/rfc9204

use std::borrow::Cow;

use bytes::Bytes;
use qpack::{DecoderError, HeaderField};

use crate::DecodeError;

/// One field line. Names and values from the static table are borrowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldLine {
    /// The name as it came, maybe with uppercase letters.
    pub name: Cow<'static, [u8]>,
    /// The value as it came.
    pub value: Cow<'static, [u8]>,
}

/// Reads a field section whose size is at most `max_size` bytes, counted as in
/// [RFC 9114 §4.2.2]: name, value and 32 for each line.
///
/// [RFC 9114 §4.2.2]: https://www.rfc-editor.org/rfc/rfc9114#section-4.2.2
pub fn decode_field_section(
    mut section: Bytes,
    max_size: u64,
) -> Result<Vec<FieldLine>, DecodeError> {
    // RFC 9204 §4.5.1.1: a Required Insert Count that "could not have been produced by a
    // conformant encoder [...] MUST [be treated] as a connection error of type
    // QPACK_DECOMPRESSION_FAILED". Without a dynamic table any but zero is such; the library
    // does not look.
    if section.first().is_some_and(|&required_insert_count| required_insert_count != 0) {
        return Err(DecodeError::FieldSectionDynamic);
    }
    let decoded = qpack::decode_stateless(&mut section, max_size).map_err(|error| match error {
        DecoderError::MissingRefs(_) => DecodeError::FieldSectionDynamic,
        DecoderError::HeaderTooLong(_) => DecodeError::FieldSectionTooLarge { size_max: max_size },
        error => DecodeError::FieldSectionMalformed(error.to_string()),
    })?;
    Ok(decoded.fields.into_iter().map(FieldLine::from).collect())
}

/// Encodes field lines in order.
#[expect(clippy::missing_panics_doc, reason = "the Huffman code has every byte")]
pub fn encode_field_section<'a>(lines: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Bytes {
    let fields = lines.into_iter().map(HeaderField::from);
    let mut section = Vec::new();
    qpack::encode_stateless(&mut section, fields).expect("the Huffman code has every byte");
    section.into()
}

impl From<HeaderField> for FieldLine {
    fn from(field: HeaderField) -> Self {
        let (name, value) = field.into_inner();
        Self { name, value }
    }
}

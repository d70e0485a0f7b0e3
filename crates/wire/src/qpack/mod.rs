//! QPACK without a dynamic table ([RFC 9204]). The encoder refers only to the static table.
//! Tandem's settings leave the dynamic table's capacity at its default, zero, so the peer must do
//! the same.
//!
//! [RFC 9204]: https://www.rfc-editor.org/rfc/rfc9204

mod huffman;
mod static_table;

use bytes::{Buf, Bytes};

use self::huffman::HuffmanError;
use crate::DecodeError;

/// One field line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldLine {
    /// The name as received; it may have uppercase letters.
    pub name: Bytes,
    /// The value as received.
    pub value: Bytes,
}

impl FieldLine {
    /// Returns the line's size in bytes, as RFC 9114 §4.2.2 counts it.
    fn size(&self) -> u64 {
        (self.name.len() + self.value.len()) as u64 + LINE_OVERHEAD
    }
}

/// The size of a line in addition to its name and value, in bytes ([RFC 9114 §4.2.2]).
///
/// [RFC 9114 §4.2.2]: https://www.rfc-editor.org/rfc/rfc9114#section-4.2.2
const LINE_OVERHEAD: u64 = 32;

/// The reason why a field section is not well-formed QPACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSectionError {
    /// The field section ends inside a line.
    #[error("it ends inside a field line")]
    Truncated,
    /// An integer is larger than a decoder has to support ([RFC 9204 §4.1.1]).
    ///
    /// [RFC 9204 §4.1.1]: https://www.rfc-editor.org/rfc/rfc9204#section-4.1.1
    #[error("it has an integer above 2^62 - 1")]
    IntegerTooLarge,
    /// The field section refers to an entry that the static table does not have.
    #[error("static table index {0} is above 98")]
    StaticIndex(u64),
    /// The field section refers to the dynamic table, whose capacity is zero.
    #[error("it refers to the dynamic table, whose size is 0")]
    DynamicTable,
    /// A Huffman-encoded string contains EOS.
    #[error("a Huffman-encoded string contains EOS")]
    HuffmanEos,
    /// A Huffman-encoded string does not end with a padding of at most seven ones.
    #[error("the padding of a Huffman-encoded string is wrong")]
    HuffmanPadding,
}

/// Decodes a field section of at most `max_size` bytes. The size counts the name, the value and 32
/// bytes for each line ([RFC 9114 §4.2.2]).
///
/// # Errors
///
/// The field section is malformed or too large.
///
/// [RFC 9114 §4.2.2]: https://www.rfc-editor.org/rfc/rfc9114#section-4.2.2
pub fn decode_field_section(
    mut section: Bytes,
    max_size: u64,
) -> Result<Vec<FieldLine>, DecodeError> {
    let (_, required_insert_count) = decode_integer(&mut section, 8)?;
    let (_, _delta_base) = decode_integer(&mut section, 7)?; // it has no meaning without insertions
    // RFC 9204 §4.5.1.1: "If the decoder encounters a value of EncodedInsertCount that could not
    // have been produced by a conformant encoder, it MUST treat this as a connection error of type
    // QPACK_DECOMPRESSION_FAILED." Without a dynamic table, every value except zero is such a
    // value.
    if required_insert_count != 0 {
        return Err(FieldSectionError::DynamicTable.into());
    }
    let mut lines = Vec::new();
    let mut size = 0;
    while section.has_remaining() {
        let line = decode_line(&mut section)?;
        size += line.size();
        if size > max_size {
            return Err(DecodeError::FieldSectionTooLarge { size_max: max_size });
        }
        lines.push(line);
    }
    Ok(lines)
}

/// Decodes one field line (RFC 9204 §4.5.2 to §4.5.6).
fn decode_line(section: &mut Bytes) -> Result<FieldLine, FieldSectionError> {
    let first = *section.first().ok_or(FieldSectionError::Truncated)?;
    match first {
        // §4.5.2: an indexed field line of the static table.
        0b1100_0000.. => {
            let (_, index) = decode_integer(section, 6)?;
            let (name, value) = static_entry(index)?;
            Ok(FieldLine { name: Bytes::from_static(name), value: Bytes::from_static(value) })
        }
        // §4.5.4: a literal field line with a name reference to the static table.
        0b0101_0000..=0b0101_1111 | 0b0111_0000..=0b0111_1111 => {
            let (_, index) = decode_integer(section, 4)?;
            let (name, _) = static_entry(index)?;
            Ok(FieldLine { name: Bytes::from_static(name), value: decode_string(section, 7)? })
        }
        // §4.5.6: a literal field line with a literal name.
        0b0010_0000..=0b0011_1111 => {
            let name = decode_string(section, 3)?;
            Ok(FieldLine { name, value: decode_string(section, 7)? })
        }
        // The other representations refer to the dynamic table.
        _ => Err(FieldSectionError::DynamicTable),
    }
}

fn static_entry(index: u64) -> Result<(&'static [u8], &'static [u8]), FieldSectionError> {
    static_table::entry(index).ok_or(FieldSectionError::StaticIndex(index))
}

/// Decodes a string literal. Its length is in the lowest `prefix_bits` bits of the first byte, and
/// its Huffman flag is in the bit above them ([RFC 9204 §4.1.2]).
///
/// [RFC 9204 §4.1.2]: https://www.rfc-editor.org/rfc/rfc9204#section-4.1.2
fn decode_string(section: &mut Bytes, prefix_bits: u32) -> Result<Bytes, FieldSectionError> {
    let (flags, len) = decode_integer(section, prefix_bits)?;
    let len = usize::try_from(len).map_err(|_| FieldSectionError::Truncated)?;
    if section.remaining() < len {
        return Err(FieldSectionError::Truncated);
    }
    let string = section.split_to(len);
    let is_huffman = flags & 1 == 1;
    if !is_huffman {
        return Ok(string);
    }
    match huffman::decode(&string) {
        Ok(decoded) => Ok(decoded.into()),
        Err(HuffmanError::Eos) => Err(FieldSectionError::HuffmanEos),
        Err(HuffmanError::Padding) => Err(FieldSectionError::HuffmanPadding),
    }
}

/// Decodes an integer that begins in the lowest `prefix_bits` bits of the first byte. Returns the
/// other bits of that byte and the integer ([RFC 7541 §5.1]).
///
/// [RFC 7541 §5.1]: https://www.rfc-editor.org/rfc/rfc7541#section-5.1
fn decode_integer(section: &mut Bytes, prefix_bits: u32) -> Result<(u8, u64), FieldSectionError> {
    let mut next = || section.try_get_u8().map_err(|_| FieldSectionError::Truncated);
    let first = u64::from(next()?);
    let prefix_max = (1 << prefix_bits) - 1;
    let flags = u8::try_from(first >> prefix_bits).expect("a byte, shifted to the right");
    let mut value = first & prefix_max;
    if value < prefix_max {
        return Ok((flags, value));
    }
    // RFC 9204 §4.1.1: "QPACK implementations MUST be able to decode integers up to and including
    // 62 bits long." Such an integer has at most nine bytes of seven bits.
    for shift in (0..63).step_by(7) {
        let byte = next()?;
        value += u64::from(byte & 0x7f) << shift; // at most 255 + (2^63 - 1)
        if byte & 0x80 == 0 {
            let is_in_range = value <= crate::VarInt::MAX;
            return if is_in_range {
                Ok((flags, value))
            } else {
                Err(FieldSectionError::IntegerTooLarge)
            };
        }
    }
    Err(FieldSectionError::IntegerTooLarge)
}

/// Encodes field lines in order.
pub fn encode_field_section<'a>(lines: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Bytes {
    let mut section = vec![0, 0]; // RFC 9204 §4.5.1: Required Insert Count and Base are zero
    for (name, value) in lines {
        // RFC 9204 §4.5.4: the N bit requires that intermediaries also encode the line as a
        // literal.
        let never_indexed = u8::from(is_secret(name));
        if let Some(index) = static_table::find_line(name, value) {
            encode_integer(0b11, 6, index, &mut section);
            continue;
        }
        match static_table::find_name(name) {
            Some(index) => encode_integer(0b0101 | never_indexed << 1, 4, index, &mut section),
            None => encode_string(0b0010 | never_indexed, 3, name, &mut section),
        }
        encode_string(0, 7, value, &mut section);
    }
    section.into()
}

/// Returns whether values of this field are "considered to be highly valuable or sensitive to
/// recovery" (RFC 9204 §7.1.3).
fn is_secret(name: &[u8]) -> bool {
    [&b"authorization"[..], b"proxy-authorization", b"cookie", b"set-cookie"].contains(&name)
}

/// Appends a string literal after `flags`, Huffman-encoded if that is shorter.
fn encode_string(flags: u8, prefix_bits: u32, text: &[u8], out: &mut Vec<u8>) {
    let huffman_len = huffman::encoded_len(text);
    if huffman_len < text.len() {
        encode_integer(flags << 1 | 1, prefix_bits, huffman_len as u64, out);
        huffman::encode(text, out);
    } else {
        encode_integer(flags << 1, prefix_bits, text.len() as u64, out);
        out.extend_from_slice(text);
    }
}

fn encode_integer(flags: u8, prefix_bits: u32, value: u64, out: &mut Vec<u8>) {
    let prefix_max = u8::MAX >> (8 - prefix_bits);
    let flags = flags << prefix_bits;
    let Some(mut rest) = value.checked_sub(prefix_max.into()) else {
        out.push(flags | u8::try_from(value).expect("below the largest prefix"));
        return;
    };
    out.push(flags | prefix_max);
    while rest >= 0x80 {
        out.push(0x80 | u8::try_from(rest & 0x7f).expect("seven bits"));
        rest >>= 7;
    }
    out.push(u8::try_from(rest).expect("seven bits"));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(name: &'static [u8], value: &'static [u8]) -> FieldLine {
        FieldLine { name: Bytes::from_static(name), value: Bytes::from_static(value) }
    }

    #[test]
    fn each_representation_decodes() {
        for (section, lines) in [
            (&[0, 0][..], vec![]),
            // RFC 9204 §B.1: a literal with a name reference.
            (b"\x00\x00\x51\x0b/index.html", vec![line(b":path", b"/index.html")]),
            // RFC 9204 §A: entry 17.
            (b"\x00\x00\xd1", vec![line(b":method", b"GET")]),
            // RFC 9204 §4.5.6: a literal with a literal name.
            (b"\x00\x00\x23abc\x01d", vec![line(b"abc", b"d")]),
            // RFC 7541 §C.4.1: Huffman.
            (
                b"\x00\x00\x50\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
                vec![line(b":authority", b"www.example.com")],
            ),
        ] {
            let decoded = decode_field_section(Bytes::from_static(section), 1000);
            assert_eq!(decoded, Ok(lines), "{section:02x?}");
        }
    }

    #[test]
    fn references_to_a_dynamic_table_are_refused() {
        for section in [
            &[1, 0][..],          // Required Insert Count
            &[0xff, 0, 0],        // the same, in more bytes
            &[0, 0, 0x80],        // indexed, dynamic
            &[0, 0, 0x10],        // indexed, post-base
            &[0, 0, 0x40, 1, 97], // literal, dynamic name
            &[0, 0, 0x00, 1, 97], // literal, post-base name
        ] {
            let decoded = decode_field_section(Bytes::from_static(section), 1000);
            assert_eq!(decoded, Err(FieldSectionError::DynamicTable.into()), "{section:02x?}");
        }
    }

    #[test]
    fn malformed_sections_are_refused() {
        use FieldSectionError::{
            HuffmanEos, HuffmanPadding, IntegerTooLarge, StaticIndex, Truncated,
        };
        for (section, error) in [
            (&[][..], Truncated),
            (&[0], Truncated),
            (&[0, 0, 0xff], Truncated),        // in an index
            (&[0, 0, 0x51], Truncated),        // before a value
            (&[0, 0, 0x51, 5, 97], Truncated), // in a value
            (&[0, 0, 0x51, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3e], Truncated),
            (&[0, 0, 0xff, 36], StaticIndex(99)),
            (&[0, 0, 0x5f, 84, 0], StaticIndex(99)),
            (&[0, 0, 0x51, 0x81, 0xff], HuffmanPadding),
            (&[0, 0, 0x51, 0x81, 0x00], HuffmanPadding),
            (&[0, 0, 0x51, 0x84, 0xff, 0xff, 0xff, 0xff], HuffmanEos),
            (
                &[0, 0, 0x51, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
                IntegerTooLarge, // 2^63 - 1 + 127
            ),
            (
                &[0, 0, 0x51, 0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
                IntegerTooLarge, // ten bytes
            ),
        ] {
            let decoded = decode_field_section(Bytes::from_static(section), 1000);
            assert_eq!(decoded, Err(error.into()), "{section:02x?}");
        }
    }

    #[test]
    fn secrets_are_marked_as_never_indexed() {
        for (name, flags) in [
            (&b"authorization"[..], 0b0111_0000),
            (b"proxy-authorization", 0b0011_0000),
            (b"user-agent", 0b0101_0000),
            (b"tandem", 0b0010_0000),
        ] {
            let section = encode_field_section([(name, &b"x"[..])]);
            assert_eq!(section[2] & 0b1111_0000, flags, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn a_section_up_to_the_limit_is_accepted() {
        let section = encode_field_section([(&b"abc"[..], &b"de"[..])]);
        assert!(decode_field_section(section.clone(), 37).is_ok());
        let error = DecodeError::FieldSectionTooLarge { size_max: 36 };
        assert_eq!(decode_field_section(section, 36), Err(error));
    }

    /// Generates names and values of every kind; those of the static table are more frequent.
    fn lines() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
        let known = (0..99_u64).prop_map(|index| static_table::entry(index).unwrap());
        let known = known.prop_map(|(name, value)| (name.to_vec(), value.to_vec()));
        let known_name =
            (known.clone(), any::<Vec<u8>>()).prop_map(|((name, _), value)| (name, value));
        let line = prop_oneof![known, known_name, any::<(Vec<u8>, Vec<u8>)>()];
        proptest::collection::vec(line, 0..10)
    }

    fn encode(lines: &[(Vec<u8>, Vec<u8>)]) -> Bytes {
        encode_field_section(lines.iter().map(|(name, value)| (&name[..], &value[..])))
    }

    fn pairs(lines: Vec<FieldLine>) -> Vec<(Vec<u8>, Vec<u8>)> {
        lines.into_iter().map(|line| (line.name.into(), line.value.into())).collect()
    }

    /// Decodes a section with the crate `qpack`, which shares no code with this implementation.
    fn decode_elsewhere(mut section: Bytes) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let decoded = qpack::decode_stateless(&mut section, u64::MAX).ok()?;
        let fields = decoded.fields.into_iter().map(qpack::HeaderField::into_inner);
        Some(fields.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    proptest! {
        #[test]
        fn encoded_sections_decode_to_themselves_here_and_elsewhere(lines in lines()) {
            let section = encode(&lines);
            let decoded = decode_field_section(section.clone(), u64::MAX).unwrap();
            prop_assert_eq!(&pairs(decoded), &lines);
            prop_assert_eq!(decode_elsewhere(section), Some(lines));
        }

        #[test]
        fn sections_that_are_encoded_elsewhere_decode_here(lines in lines()) {
            let mut section = Vec::new();
            let fields = lines.iter().map(|(name, value)| qpack::HeaderField::from((name, value)));
            qpack::encode_stateless(&mut section, fields).unwrap();
            let decoded = decode_field_section(section.into(), u64::MAX).unwrap();
            prop_assert_eq!(pairs(decoded), lines);
        }

        #[test]
        fn sections_that_decode_here_decode_elsewhere_and_are_within_the_limit(
            rest in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let section = Bytes::from([&[0, 0], &rest[..]].concat());
            if let Ok(lines) = decode_field_section(section.clone(), 1000) {
                prop_assert!(lines.iter().map(FieldLine::size).sum::<u64>() <= 1000);
                prop_assert_eq!(decode_elsewhere(section), Some(pairs(lines)));
            }
        }
    }
}

//! The Huffman code of HPACK and QPACK ([RFC 7541 §5.2], [RFC 7541 §B]).
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols, and
//! the codes of each length continue those of the next shorter one. The lengths therefore determine
//! the code.
//!
//! [RFC 7541 §5.2]: https://www.rfc-editor.org/rfc/rfc7541#section-5.2
//! [RFC 7541 §B]: https://www.rfc-editor.org/rfc/rfc7541#appendix-B

/// The length in bits of each byte's code, followed by that of EOS, the end-of-string symbol
/// ([RFC 7541 §B]).
///
/// [RFC 7541 §B]: https://www.rfc-editor.org/rfc/rfc7541#appendix-B
#[rustfmt::skip]
const CODE_LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SYMBOLS: usize = 257;
const CODE_LENGTH_MAX: usize = 30;

const CODE: HuffmanCode = HuffmanCode::from_lengths();

struct HuffmanCode {
    /// Each symbol's code, in its lowest bits.
    codes: [u32; SYMBOLS],
    /// The symbols, shortest code first.
    symbols: [u16; SYMBOLS],
    /// For each length: the first code, the number of codes, and the position of their symbols in
    /// `symbols`.
    lengths: [Length; CODE_LENGTH_MAX + 1],
}

#[derive(Clone, Copy)]
struct Length {
    first_code: u32,
    count: u32,
    symbols_start: usize,
}

impl HuffmanCode {
    #[expect(clippy::indexing_slicing, reason = "in a constant, a wrong index does not compile")]
    #[expect(clippy::cast_possible_truncation, reason = "there are 257 symbols")]
    const fn from_lengths() -> Self {
        let mut codes = [0; SYMBOLS];
        let mut symbols = [0; SYMBOLS];
        let mut lengths =
            [Length { first_code: 0, count: 0, symbols_start: 0 }; CODE_LENGTH_MAX + 1];
        let (mut code, mut placed, mut length) = (0_u32, 0, 1);
        while length <= CODE_LENGTH_MAX {
            code <<= 1;
            lengths[length] = Length { first_code: code, count: 0, symbols_start: placed };
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if CODE_LENGTHS[symbol] as usize == length {
                    codes[symbol] = code;
                    symbols[placed] = symbol as u16;
                    code += 1;
                    placed += 1;
                    lengths[length].count += 1;
                }
                symbol += 1;
            }
            length += 1;
        }
        assert!(placed == SYMBOLS);
        assert!(code == 1 << CODE_LENGTH_MAX, "every sequence of bits has a meaning");
        Self { codes, symbols, lengths }
    }

    /// Returns the symbol of the code `code` of `length` bits, or `None` if more bits are needed.
    fn symbol(&self, code: u32, length: usize) -> Option<u16> {
        let row = self.lengths.get(length)?;
        let offset = code.checked_sub(row.first_code).filter(|offset| *offset < row.count)?;
        self.symbols.get(row.symbols_start + usize::try_from(offset).ok()?).copied()
    }
}

/// The reason why an encoded string is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HuffmanError {
    /// The string contains the end-of-string symbol.
    Eos,
    /// The bits after the last symbol are not a valid padding.
    Padding,
}

/// Decodes a string. The result is at most 8/5 as long as the input.
pub(super) fn decode(encoded: &[u8]) -> Result<Vec<u8>, HuffmanError> {
    let mut decoded = Vec::with_capacity(encoded.len() * 8 / 5);
    let (mut code, mut length) = (0_u32, 0);
    for byte in encoded {
        for shift in (0..8).rev() {
            code = code << 1 | u32::from(byte >> shift & 1);
            length += 1;
            let Some(symbol) = CODE.symbol(code, length) else { continue };
            // RFC 7541 §5.2: "A Huffman-encoded string literal containing the EOS symbol MUST be
            // treated as a decoding error."
            decoded.push(u8::try_from(symbol).map_err(|_| HuffmanError::Eos)?);
            (code, length) = (0, 0);
        }
    }
    // RFC 7541 §5.2: "A padding strictly longer than 7 bits MUST be treated as a decoding error. A
    // padding not corresponding to the most significant bits of the code for the EOS symbol MUST
    // be treated as a decoding error." The code for EOS has only ones.
    let is_padding = length <= 7 && code == (1 << length) - 1;
    if is_padding { Ok(decoded) } else { Err(HuffmanError::Padding) }
}

/// Returns the length of the encoded string in bytes.
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| code(byte).1).sum();
    bits.div_ceil(8)
}

/// Appends the encoded string to `out`.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut pending, mut pending_len) = (0_u64, 0);
    for &byte in text {
        let (code, length) = code(byte);
        pending = pending << length | u64::from(code);
        pending_len += length;
        while pending_len >= 8 {
            pending_len -= 8;
            out.push(lowest_byte(pending >> pending_len));
        }
    }
    if pending_len > 0 {
        let padding_len = 8 - pending_len;
        out.push(lowest_byte(pending << padding_len | ((1 << padding_len) - 1)));
    }
}

/// Returns a byte's code and the length of that code in bits.
fn code(byte: u8) -> (u32, usize) {
    let index = usize::from(byte);
    let (code, length) = (CODE.codes.get(index), CODE_LENGTHS.get(index));
    code.copied().zip(length.map(|&length| length.into())).expect("the tables have every byte")
}

fn lowest_byte(bits: u64) -> u8 {
    let [byte, ..] = bits.to_le_bytes();
    byte
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_codes_are_those_of_the_rfc() {
        // RFC 7541 §B: the ends of the table, and the first and last codes of some lengths.
        for (symbol, code, length) in [
            (0, 0x1ff8, 13),
            (32, 0x14, 6),
            (48, 0x0, 5),
            (122, 0x7b, 7),
            (126, 0x1ffd, 13),
            (127, 0xfff_fffc, 28),
            (249, 0xfff_fffe, 28),
            (255, 0x3ff_ffee, 26),
            (256, 0x3fff_ffff, 30), // EOS
        ] {
            assert_eq!(CODE.codes[symbol], code, "symbol {symbol}");
            assert_eq!(CODE_LENGTHS[symbol], length, "symbol {symbol}");
        }
    }

    #[test]
    fn the_examples_of_the_rfc_decode() {
        // The examples of RFC 7541 §C.4 and §C.6.
        for (text, encoded) in [
            (&b"www.example.com"[..], &b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..]),
            (b"no-cache", b"\xa8\xeb\x10\x64\x9c\xbf"),
            (b"private", b"\xae\xc3\x77\x1a\x4b"),
            (b"", b""),
        ] {
            assert_eq!(decode(encoded).as_deref(), Ok(text));
            let mut out = Vec::new();
            encode(text, &mut out);
            assert_eq!(out, encoded);
        }
    }

    #[test]
    fn invalid_endings_are_refused() {
        for (encoded, error) in [
            (&[0xff][..], HuffmanError::Padding),
            (&[0x00], HuffmanError::Padding),
            (&[0x06], HuffmanError::Padding),
            (&[0x07, 0xff], HuffmanError::Padding),
            (&[0xff, 0xff, 0xff, 0xff], HuffmanError::Eos),
            (&[0x1f, 0xff, 0xff, 0xff, 0xff], HuffmanError::Eos),
        ] {
            assert_eq!(decode(encoded), Err(error), "{encoded:02x?}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_string_decodes_to_itself(text: Vec<u8>) {
            let mut out = Vec::new();
            encode(&text, &mut out);
            prop_assert_eq!(out.len(), encoded_len(&text));
            prop_assert_eq!(decode(&out), Ok(text));
        }

        #[test]
        fn a_decoded_string_encodes_to_itself(encoded in proptest::collection::vec(any::<u8>(), 0..6)) {
            if let Ok(text) = decode(&encoded) {
                let mut out = Vec::new();
                encode(&text, &mut out);
                prop_assert_eq!(out, encoded);
            }
        }
    }
}

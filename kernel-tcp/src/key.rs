//! The key that a PEP and a server share.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use sha2::digest::generic_array::GenericArray;
use tandem_wire::PepKey;

/// The state of SHA-256 before the first block (FIPS 180-4 §5.3.3).
const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The length of the block of SHA-256 in bytes.
const BLOCK_LEN: usize = 64;

/// Reads a key from a file that has 64 hexadecimal digits, as `openssl rand -hex 32` writes it.
pub fn read(file: &Path) -> Result<[u8; PepKey::LEN]> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let digits = text.trim();
    let is_key = digits.len() == 2 * PepKey::LEN && digits.bytes().all(|b| b.is_ascii_hexdigit());
    ensure!(is_key, "{}: a key has 64 hexadecimal digits", file.display());
    let mut key = [0; PepKey::LEN];
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2).unwrap_or_default(), 16)?;
    }
    Ok(key)
}

/// What HMAC-SHA-256 has hashed before a message begins (RFC 2104): the states after the block of the
/// inner padding and after that of the outer one. So a MAC costs two blocks less.
pub fn midstates(key: [u8; PepKey::LEN]) -> [[u32; 8]; 2] {
    [0x36, 0x5c].map(|padding: u8| {
        let mut block = [padding; BLOCK_LEN];
        for (byte, of_key) in block.iter_mut().zip(key) {
            *byte ^= of_key;
        }
        let mut state = START;
        sha2::compress256(&mut state, &[GenericArray::from(block)]);
        state
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_can_be_finished_from_the_midstates() {
        // RFC 4231 §4.2, with its key padded to the 32 bytes of ours: HMAC pads keys with zeros.
        let mut key = [0; PepKey::LEN];
        key[..20].fill(0x0b);
        let [mut inner, mut outer] = midstates(key);
        finish(&mut inner, b"Hi There");
        let digest: Vec<u8> = inner.iter().flat_map(|word| word.to_be_bytes()).collect();
        finish(&mut outer, &digest);
        assert_eq!([outer[0], outer[1]], [0xb034_4c61, 0xd8db_3853]);
    }

    fn finish(state: &mut [u32; 8], message: &[u8]) {
        let mut block = [0; BLOCK_LEN];
        block[..message.len()].copy_from_slice(message);
        block[message.len()] = 0x80;
        let bits = 8 * (BLOCK_LEN + message.len());
        block[56..].copy_from_slice(&u64::try_from(bits).unwrap().to_be_bytes());
        sha2::compress256(state, &[GenericArray::from(block)]);
    }

    #[test]
    fn only_64_hexadecimal_digits_are_a_key() {
        let file = std::env::temp_dir().join(format!("tandem-key-{}", std::process::id()));
        for (text, expected) in [
            ("0f".repeat(32) + "\n", Some([0x0f; 32])),
            ("0f".repeat(31), None),
            ("0g".repeat(32), None),
            ("+f".repeat(32), None),
        ] {
            fs::write(&file, &text).unwrap();
            assert_eq!(read(&file).ok(), expected, "{text:?}");
        }
        fs::remove_file(file).unwrap();
    }
}

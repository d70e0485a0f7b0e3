//! The key that a PEP and a server share.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, anyhow, ensure};
use sha2::digest::generic_array::GenericArray;
use tandem_pep::parse_pep;
use tandem_wire::{PepId, PepKey};

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

/// Reads the only PEP of a file, whose line is `ID KEY` as in `tandem origin --peps`.
pub fn read(file: &Path) -> Result<(PepId, [u8; PepKey::LEN])> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let lines = text.lines().map(str::trim).zip(1..);
    let mut pep = None;
    for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
        let at = || format!("{}:{number}", file.display());
        ensure!(pep.is_none(), "{}: there is a second PEP in it", at());
        let (id, key) = parse_pep(line).map_err(|reason| anyhow!("{}: {reason}", at()))?;
        let key =
            key.with_context(|| format!("{}: it has no key, so nothing is believed", at()))?;
        pep = Some((id, key));
    }
    pep.with_context(|| format!("{}: there is no PEP in it", file.display()))
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
    fn a_file_has_one_pep_with_a_key() {
        let file = std::env::temp_dir().join(format!("tandem-key-{}", std::process::id()));
        let key = "0f".repeat(32);
        for (text, expected) in [
            (format!("# a PEP\n42 {key}\n"), Some((PepId(42), [0x0f; 32]))),
            (format!("42 {}\n", &key[1..]), None),
            ("42\n".to_owned(), None),
            (format!("42 {key}\n43 {key}\n"), None),
            (String::new(), None),
        ] {
            fs::write(&file, &text).unwrap();
            assert_eq!(read(&file).ok(), expected, "{text:?}");
        }
        fs::remove_file(file).unwrap();
    }
}

//! What a MAC that is computed in the kernel begins with.

use sha2::digest::generic_array::GenericArray;
use tandem_wire::PepKey;

/// The number of words of a state of SHA-256.
const STATE: usize = 8;

/// The state of SHA-256 before the first block (FIPS 180-4 §5.3.3).
const START: [u32; STATE] = [
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

/// What HMAC-SHA-256 has hashed before a message begins (RFC 2104): the states after the block of the
/// inner padding and after that of the outer one. So a MAC costs two blocks less.
pub fn midstates(key: &[u8; PepKey::LEN]) -> [[u32; STATE]; 2] {
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
        let [mut inner, mut outer] = midstates(&key);
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
}

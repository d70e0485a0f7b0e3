//! PEP-ACKs from a BPF program: its settings and its counters.

use aya::{
    Ebpf,
    maps::{Array, MapData, MapError, PerCpuArray},
};
use sha2::digest::generic_array::GenericArray;
use tandem_pep::Config;
use tandem_wire::PepKey;

use crate::router::{Maker, RouterError, Stats, missing, refused, take, total};

/// The number of words of `struct settings` in `bpf/pep_ack.h`: the two states of HMAC, whether there is a key, the identifier, and
/// how many packets make a PEP-ACK leave.
const WORDS: usize = 2 * STATE + 3;

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

/// The order of the counters: `enum counter` in `bpf/tell.bpf.c`.
const OBSERVED: u32 = 0;
const LEFT: u32 = 1;
const UNTOLD: u32 = 2;
const UNSENT: u32 = 3;

pub(crate) struct Kernel {
    counters: PerCpuArray<MapData, u64>,
}

impl Kernel {
    /// What `bpf/build.sh` builds from `bpf/tell.bpf.c`.
    pub(crate) const OBJECT: &[u8] = include_bytes!("../bpf/tell.bpf.o");

    pub(crate) fn new(
        program: &mut Ebpf,
        config: &Config,
        packets: u8,
    ) -> Result<Self, RouterError> {
        let map = program.map_mut("settings_of_pep").ok_or_else(|| missing("settings_of_pep"))?;
        let mut settings: Array<_, [u32; WORDS]> =
            map.try_into().map_err(|error: MapError| refused(&error))?;
        settings.set(0, words(config, packets), 0).map_err(|error| refused(&error))?;
        Ok(Self { counters: take(program, "counters")? })
    }

    pub(crate) fn stats(&self) -> Stats {
        let [observed, left, untold, unsent] =
            [OBSERVED, LEFT, UNTOLD, UNSENT].map(|at| total(&self.counters, at));
        let pep = tandem_pep::Stats { observed, notices: left + unsent, untold };
        Stats { pep, lost: 0, unsent }
    }
}

fn words(config: &Config, packets: u8) -> [u32; WORDS] {
    let [inner, outer] = config.key.as_ref().map_or([[0; STATE]; 2], |key| midstates(key.bytes()));
    let rest =
        [u32::from(config.key.is_some()), config.id.0, packets.clamp(1, Maker::PACKETS_MAX).into()];
    let mut words = [0; WORDS];
    for (word, value) in words.iter_mut().zip(inner.into_iter().chain(outer).chain(rest)) {
        *word = value;
    }
    words
}

/// What HMAC-SHA-256 has hashed before a message begins (RFC 2104): the states after the block of the
/// inner padding and after that of the outer one. So a MAC costs two blocks less.
fn midstates(key: &[u8; PepKey::LEN]) -> [[u32; STATE]; 2] {
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
    use tandem_pep::TcpForm;
    use tandem_wire::PepId;

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

    #[test]
    fn the_settings_have_bounds_and_no_key_without_one() {
        let config = Config { id: PepId(7), key: None, flows_max: 1, tcp_form: TcpForm::Flagless };
        for (asked, expected) in [(0, 1), (1, 1), (8, 8), (255, 8)] {
            let words = words(&config, asked);
            assert!(words[..2 * STATE].iter().all(|word| *word == 0));
            assert_eq!(words[2 * STATE..], [0, 7, expected]);
        }
    }
}

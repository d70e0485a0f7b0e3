//! PEP-ACKs from a BPF program: its settings and its counters.

use aya::{
    Ebpf,
    maps::{Array, MapData, MapError, PerCpuArray},
};
use tandem_pep::{Config, midstates};

use crate::router::{Maker, RouterError, Stats, missing, refused, take, total};

/// The number of words of `struct settings` in `bpf/pep_ack.h`: the two states of HMAC, whether there is a key, the
/// identifier, and how many packets make a PEP-ACK leave.
const WORDS: usize = 2 * STATE + 3;

/// The number of words of a state of SHA-256.
const STATE: usize = 8;

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

#[cfg(test)]
mod tests {
    use tandem_pep::TcpForm;
    use tandem_wire::PepId;

    use super::*;

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

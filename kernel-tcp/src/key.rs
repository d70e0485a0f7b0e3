//! The key that a PEP and a server share.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, anyhow, ensure};
use tandem_pep::parse_peps;
use tandem_wire::{PepId, PepKey};

/// Reads the only PEP of a file, whose line is `ID KEY` as in `tandem origin --peps`.
pub fn read(file: &Path) -> Result<(PepId, [u8; PepKey::LEN])> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut pep = None;
    for (line, parsed) in parse_peps(&text) {
        let at = || format!("{}:{line}", file.display());
        ensure!(pep.is_none(), "{}: there is a second PEP in it", at());
        let (id, key) = parsed.map_err(|reason| anyhow!("{}: {reason}", at()))?;
        let key =
            key.with_context(|| format!("{}: it has no key, so nothing is believed", at()))?;
        pep = Some((id, key));
    }
    pep.with_context(|| format!("{}: there is no PEP in it", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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

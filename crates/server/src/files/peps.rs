//! The PEPs that an origin listens to, or the one that runs here, from a file: `ID KEY` on a line, or only `ID` for a
//! PEP that cannot authenticate what it says. `#` begins a comment line.

use std::{collections::BTreeMap, fs, path::Path};

use tandem_node::quic::Peps;
use tandem_pep::parse_peps;
use tandem_wire::{PepId, PepKey};

use crate::{files::FileError, process::secret::warn_if_shared};

/// Reads all PEPs of a file, of which there is at least one. Warns if others on this machine can read
/// the keys.
pub fn read(file: &Path) -> Result<Peps, FileError> {
    let peps = read_lines(file)?;
    Ok(Peps(peps.into_iter().map(|(id, (key, _))| (id, key)).collect()))
}

/// Reads the only PEP of a file.
pub fn read_one(file: &Path) -> Result<(PepId, Option<PepKey>), FileError> {
    let peps = read_lines(file)?;
    let last = peps.iter().map(|(_, (_, line))| *line).max().unwrap_or_default();
    let (file, reason) = (file.to_owned(), "there is a second PEP in it, but a PEP has one ID");
    let mut peps = peps.into_iter();
    let only = peps.next().filter(|_| peps.len() == 0);
    only.map(|(id, (key, _))| (id, key)).ok_or(FileError::Pep { file, line: last, reason })
}

/// The key of each PEP, and the line that names it.
type Lines = BTreeMap<PepId, (Option<PepKey>, usize)>;

fn read_lines(file: &Path) -> Result<Lines, FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    let wrong = |line, reason| FileError::Pep { file: file.to_owned(), line, reason };
    let mut peps = BTreeMap::new();
    for (line, parsed) in parse_peps(&text) {
        let (id, key) = parsed.map_err(|reason| wrong(line, reason))?;
        if peps.insert(id, (key.map(PepKey::new), line)).is_some() {
            return Err(wrong(line, "an earlier line has the same ID"));
        }
    }
    if peps.is_empty() {
        return Err(wrong(1, "there is no PEP in it"));
    }
    if peps.values().any(|(key, _)| key.is_some()) {
        warn_if_shared(file, "the keys of PEPs");
    }
    Ok(peps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<(u32, bool)>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let peps = read(file.path()).map_err(|error| error.to_string())?;
        Ok(peps.0.iter().map(|(id, key)| (id.0, key.is_some())).collect())
    }

    #[test]
    fn a_line_has_an_id_and_perhaps_a_key() {
        let text = format!("# PEPs\n7 {}\n\n 9\n", "0aF1".repeat(16));
        assert_eq!(read_text(&text).unwrap(), [(7, true), (9, false)]);
    }

    #[test]
    fn a_file_of_one_pep_has_no_second_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "7\n").unwrap();
        assert_eq!(read_one(file.path()).unwrap().0, PepId(7));
        fs::write(file.path(), "7\n\n8\n").unwrap();
        let error = read_one(file.path()).unwrap_err().to_string();
        assert!(error.contains(":3: there is a second PEP"), "{error}");
    }

    #[test]
    fn a_wrong_line_is_named_and_never_shown() {
        let key = "5e".repeat(32);
        for (text, words) in [
            (String::new(), ":1: there is no PEP in it".to_owned()),
            (format!("\n1 {}\n", &key[1..]), ":2: a key has 64".to_owned()),
            (format!("1 {key}\n1\n"), ":2: an earlier line".to_owned()),
        ] {
            let error = read_text(&text).unwrap_err();
            assert!(error.contains(&words) && !error.contains("5e5e"), "{error}");
        }
    }
}

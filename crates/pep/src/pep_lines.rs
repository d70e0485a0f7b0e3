//! A file with PEPs: `ID KEY` on a line, or only `ID` for a PEP that cannot authenticate what it says. `#` begins a
//! comment line.

use tandem_wire::{PepId, PepKey};

/// The PEP of a line, or what is expected there, which does not show the text, a secret.
type Parsed = Result<(PepId, Option<[u8; PepKey::LEN]>), &'static str>;

/// Reads the lines that are neither empty nor comments. Each comes with its number, from 1.
pub fn parse_peps(text: &str) -> impl Iterator<Item = (usize, Parsed)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(number, line)| (number, parse_pep(line)))
}

fn parse_pep(line: &str) -> Parsed {
    let mut words = line.split_whitespace();
    let (id, key) = (words.next().unwrap_or_default(), words.next());
    if words.next().is_some() {
        return Err("a line has an ID, or an ID and a key");
    }
    let id = id.parse().map_err(|_| "an ID is a number from 0 to 4294967295")?;
    let expected = "a key has 64 hexadecimal digits; `openssl rand -hex 32` makes one";
    let key = key.map(|key| hex(key).ok_or(expected)).transpose()?;
    Ok((PepId(id), key))
}

fn hex(text: &str) -> Option<[u8; PepKey::LEN]> {
    let mut bytes = [0; PepKey::LEN];
    let digits = text.as_bytes();
    if digits.len() != 2 * bytes.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_an_id_and_perhaps_a_key() {
        let key = "0aF1".repeat(16);
        let (id, bytes) = parse_pep(&format!(" 7\t{key}\n")).unwrap();
        assert_eq!((id, &bytes.unwrap()[..3]), (PepId(7), &[0x0a, 0xf1, 0x0a][..]));
        assert_eq!(parse_pep("4294967295"), Ok((PepId(u32::MAX), None)));
        for wrong in [
            String::new(),
            key.clone(),
            format!("1 {}", &key[1..]),
            format!("1 +{}", &key[1..]),
            format!("1 {key} x"),
            format!("4294967296 {key}"),
        ] {
            assert!(parse_pep(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lines_have_numbers_and_comments_have_no_pep() {
        let found: Vec<_> = parse_peps("# PEPs\n 7 \n\n#8\nx\n").collect();
        let [(2, Ok((PepId(7), None))), (5, Err(_))] = found[..] else { panic!("{found:?}") };
    }
}

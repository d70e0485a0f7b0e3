//! The settings of a machine in a fleet behind a load balancer, and the file that all machines of a fleet have.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::Serialize;
use serde_with::SerializeDisplay;
use tandem_files::{
    Fault,
    fleet::{FleetFile, Machine},
    setting::ValueError,
};
use tandem_node::quic::Fleet;

use crate::{error::ServeError, files::FileError, process::secret::warn_if_shared, tls};

/// The settings that a server runs with.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FleetSetup {
    /// The file that all machines of the fleet have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet_file: Option<PathBuf>,
    /// The number of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_id: Option<ServerId>,
}

impl FleetSetup {
    /// The fleet as a node knows it. `None`: this machine is in none.
    pub fn to_node(&self) -> Result<Option<Fleet>, FileError> {
        let (Some(file), Some(ServerId(server_id))) = (&self.fleet_file, &self.server_id) else {
            return Ok(None);
        };
        let fleet = read_file(file)?.member(server_id);
        warn_if_shared(file, "the secrets of the fleet");
        fleet.map(Some).map_err(|fault| in_file(file, fault.line, fault.reason))
    }
}

/// The number of a machine, of one byte or more.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub struct ServerId(Vec<u8>);

impl FromStr for ServerId {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "1 to 14 bytes in hexadecimal digits, two for each, such as 0a01";
        let bytes = hex::decode(text).map_err(|_| ValueError::Form { expected })?;
        if (1..=14).contains(&bytes.len()) {
            Ok(Self(bytes))
        } else {
            Err(ValueError::Form { expected })
        }
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

fn in_file(file: &Path, line: usize, reason: String) -> FileError {
    FileError::InFile { file: file.to_owned(), line, key: None, seen: None, reason }
}

fn read_file(file: &Path) -> Result<FleetFile, FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    FleetFile::parse(&text).map_err(|fault| in_file(file, fault.line, fault.reason))
}

/// The text of a new file with random keys. With a former file, its generations stay known, and its machines, unless
/// new ones are named.
pub fn new_file(
    is_visible: bool,
    former: Option<&Path>,
    machines: Vec<Machine>,
) -> Result<String, ServeError> {
    let former = former.map(read_file).transpose()?;
    let key = if is_visible { None } else { Some(tls::random()?) };
    let text = FleetFile::new(key, tls::random()?, former, machines).to_string();
    let wrong = |fault: Fault| in_file(Path::new("the new file"), fault.line, fault.reason);
    FleetFile::parse(&text).map_err(wrong)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use tempfile::NamedTempFile;

    use super::*;

    fn written(text: &str) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    fn member(text: &str, server_id: &str) -> Result<Fleet, String> {
        let file = written(text);
        let setup = FleetSetup {
            fleet_file: Some(file.path().to_owned()),
            server_id: Some(server_id.parse().unwrap()),
        };
        setup.to_node().map(Option::unwrap).map_err(|error| error.to_string())
    }

    #[test]
    fn a_generated_file_is_a_fleets() {
        for is_visible in [false, true] {
            let text = new_file(is_visible, None, Vec::new()).unwrap();
            assert_eq!(text.contains("key"), !is_visible, "{text}");
            assert_eq!(member(&text, "0102").unwrap().id_len(), 12, "{text}");
            assert_eq!(member(&text, "01").unwrap().id_len(), 11, "{text}");
        }
    }

    fn secrets_in(text: &str) -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("secret"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn generations_change_and_the_last_three_stay_known() {
        let mut text = new_file(false, None, Vec::new()).unwrap();
        let mut firsts = Vec::new();
        for _ in 0..8 {
            let before = FleetFile::parse(&text).unwrap();
            firsts.push(before.rotations().next().unwrap());
            let known = secrets_in(&text);
            text = new_file(false, Some(written(&text).path()), Vec::new()).unwrap();
            let after = FleetFile::parse(&text).unwrap();
            let secrets = secrets_in(&text);
            assert_eq!(secrets.get(1..), known.get(..3.min(known.len())), "{text}");
            assert!(after.rotations().skip(1).eq(before.rotations().take(3)), "{text}");
            assert!(member(&text, "01").is_ok(), "{text}");
        }
        assert_eq!(firsts, [0, 1, 2, 3, 4, 5, 6, 0], "each is used again as late as possible");
    }

    #[test]
    fn a_wrong_file_is_named_with_its_line_and_no_secret_is_shown() {
        let secret = "5e".repeat(32);
        let generation = |rotation: u8| {
            format!("[[generation]]\nrotation = {rotation}\nsecret = \"{secret}\"\n")
        };
        let file = |nonce: u8, generations: &str| format!("nonce-length = {nonce}\n{generations}");
        for (text, words) in [
            (file(8, &generation(7)), ":1: the config rotation is 7; 0 to 6"),
            (file(7, &generation(0)), ":1: nonce-length is 7; at least 8"),
            (file(18, &generation(0)), ":1: server ID and nonce have 19 bytes"),
            (file(19, &generation(0)), ":1: server ID and nonce have 20 bytes"),
            (file(8, &generation(1).repeat(2)), ":1: two generations have the rotation 1"),
            (file(8, &(0..5).map(generation).collect::<String>()), ":1: there are 5 generations"),
            (file(8, "generation = []\n"), ":1: there are 0 generations"),
            (file(8, &generation(0).replace("5e\"", "\"")), ":4: "),
            (file(8, &generation(0).replace("secret", "secrets")), ":4: unknown field"),
            (String::new(), ":1: missing field"),
        ] {
            let error = member(&text, "01").unwrap_err();
            assert!(error.contains(words) && !error.contains("5e5e"), "{words}: {error}");
        }
    }

    #[test]
    fn the_machines_of_a_file_are_the_neighbours_of_each_other() {
        let machines = ["01=10.0.0.1:443", "02=10.0.0.2:443", "03=[fd00::3]:8443"];
        let machines: Vec<Machine> = machines.iter().map(|it| it.parse().unwrap()).collect();
        let text = new_file(false, None, machines.clone()).unwrap();
        let others = |text: &str, of: &str| {
            let fleet = member(text, of).unwrap();
            fleet.neighbours().addresses().map(|it| it.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(others(&text, "02"), ["10.0.0.1:443", "[fd00::3]:8443"]);
        assert_eq!(others(&text, "04").len(), 3, "a machine that is not in the file yet");
        let after = new_file(false, Some(written(&text).path()), Vec::new()).unwrap();
        assert_eq!(others(&after, "03"), ["10.0.0.1:443", "10.0.0.2:443"], "they stay");
        let fewer = machines[..1].to_vec();
        let after = new_file(false, Some(written(&text).path()), fewer.clone()).unwrap();
        assert_eq!(others(&after, "03"), ["10.0.0.1:443"]);
        let twice = new_file(false, None, [fewer.clone(), fewer].concat()).unwrap_err().to_string();
        assert!(twice.contains("01"), "{twice}");
        let table = text.split_inclusive("[[machine]]").nth(1).unwrap();
        let twice = format!("{text}\n[[machine]]{}", table.replace("[[machine]]", ""));
        let error = member(&twice, "01").unwrap_err();
        assert!(error.contains(":1: two machines have the server ID"), "{error}");
        for wrong in ["01", "01=10.0.0.1", "1=10.0.0.1:443", "01=host:443", "=10.0.0.1:443"] {
            assert!(wrong.parse::<Machine>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_has_whole_bytes_and_not_too_many() {
        for text in ["", "1", "0g", &"00".repeat(15)] {
            assert!(text.parse::<ServerId>().is_err(), "{text}");
        }
    }
}

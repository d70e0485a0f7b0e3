//! The settings of a machine in a fleet behind a load balancer, and the file that all machines of a fleet have.

use std::{
    collections::BTreeSet,
    fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use serde_with::{DeserializeFromStr, SerializeDisplay, hex::Hex, serde_as};
use tandem_node::quic::{Fleet, FleetSecret, Generation, Neighbours};
use tandem_wire::RoutableIds;

use crate::{
    config::{ValueError, line_of},
    error::{CliError, ConfigError},
    secret_file::warn_if_shared,
    tls,
};

/// The most generations in a file. One is in use, one comes, and others have been.
const GENERATIONS_MAX: usize = 4;

/// The least length of a nonce in bytes.
const NONCE_LEN_MIN: usize = 8;

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct FleetSettings {
    /// File that all machines of a fleet behind a load balancer have (tandem generate fleet); the load balancer
    /// routes packets by connection IDs, which name the machine (docs/fleet.md)
    #[arg(long, value_name = "FILE", env = "TANDEM_FLEET_FILE", help_heading = "Fleet")]
    fleet_file: Option<PathBuf>,

    /// Number of this machine in its fleet, in hexadecimal digits, such as 0a01
    #[arg(long, value_name = "HEX", env = "TANDEM_SERVER_ID", help_heading = "Fleet")]
    server_id: Option<ServerId>,
}

/// The settings that a server runs with.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct FleetSetup {
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_id: Option<ServerId>,
}

impl TryFrom<FleetSettings> for FleetSetup {
    type Error = ConfigError;

    fn try_from(settings: FleetSettings) -> Result<Self, ConfigError> {
        let FleetSettings { fleet_file, server_id } = settings;
        let incomplete =
            |first, second, reason| Err(ConfigError::Incomplete { first, second, reason });
        match (&fleet_file, &server_id) {
            (Some(_), None) => incomplete(
                "fleet-file",
                "server-id HEX",
                "each machine of a fleet has its own number",
            ),
            (None, Some(_)) => incomplete(
                "server-id",
                "fleet-file FILE",
                "the file says how connection IDs name the machine",
            ),
            _ => Ok(Self { fleet_file, server_id }),
        }
    }
}

impl FleetSetup {
    pub(crate) fn to_node(&self) -> Result<Option<Fleet>, ConfigError> {
        let (Some(file), Some(ServerId(server_id))) = (&self.fleet_file, &self.server_id) else {
            return Ok(None);
        };
        let unreadable = |error| ConfigError::Unreadable { file: file.clone(), error };
        let text = fs::read_to_string(file).map_err(unreadable)?;
        let (generations, machines) = parse(file, &text, server_id.len())?;
        warn_if_shared(file, "the secrets of the fleet");
        let wrong = |error: tandem_node::quic::FleetError| in_file(file, 1, error.to_string());
        let fleet = Fleet::new(server_id.clone(), generations).map_err(wrong)?;
        let others = machines.into_iter().filter(|it| it.server_id.0 != *server_id);
        let others = Neighbours::new(others.map(|it| (it.server_id.0, it.address)));
        Ok(Some(fleet.with_neighbours(others)))
    }
}

/// The number of a machine, of one byte or more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, SerializeDisplay, DeserializeFromStr)]
pub(crate) struct ServerId(Vec<u8>);

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

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FleetFile {
    nonce_length: usize,
    generation: Vec<GenerationTable>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    machine: Vec<Machine>,
}

/// A machine of the fleet, and the address of its own at which it listens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Machine {
    server_id: ServerId,
    address: SocketAddr,
}

impl FromStr for Machine {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "HEX=ADDRESS:PORT, such as 0001=10.0.0.1:443";
        let (server_id, address) = text.split_once('=').ok_or(ValueError::Form { expected })?;
        let address = address.parse().map_err(|_| ValueError::Form { expected })?;
        Ok(Self { server_id: server_id.parse()?, address })
    }
}

#[serde_as]
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct GenerationTable {
    rotation: u8,
    #[serde_as(as = "Option<Hex>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<[u8; RoutableIds::KEY_LEN]>,
    #[serde_as(as = "Hex")]
    secret: [u8; 32],
}

fn in_file(file: &Path, line: usize, reason: String) -> ConfigError {
    ConfigError::InFile { file: file.to_owned(), line, key: None, seen: None, reason }
}

fn read_file(file: &Path, text: &str) -> Result<FleetFile, ConfigError> {
    let parsed: FleetFile = toml::from_str(text).map_err(|error| {
        let line = line_of(text, error.span().unwrap_or_default().start);
        in_file(file, line, error.message().to_owned())
    })?;
    // Nonces are drawn at random. Shorter ones would often be the same.
    if parsed.nonce_length < NONCE_LEN_MIN {
        let reason =
            format!("nonce-length is {}; at least {NONCE_LEN_MIN} are needed", parsed.nonce_length);
        return Err(in_file(file, 1, reason));
    }
    let len = parsed.generation.len();
    if !(1..=GENERATIONS_MAX).contains(&len) {
        let reason = format!("there are {len} generations; allowed: 1 to {GENERATIONS_MAX}");
        return Err(in_file(file, 1, reason));
    }
    if let Some(twice) = first_twice(&parsed.machine) {
        return Err(in_file(file, 1, format!("two machines have the server ID {twice}")));
    }
    Ok(parsed)
}

/// The first server ID that two machines have.
fn first_twice(machines: &[Machine]) -> Option<&ServerId> {
    let mut seen = BTreeSet::new();
    machines.iter().map(|it| &it.server_id).find(|it| !seen.insert(*it))
}

fn parse(
    file: &Path,
    text: &str,
    server_id_len: usize,
) -> Result<(Vec<Generation>, Vec<Machine>), ConfigError> {
    let FleetFile { nonce_length, generation: tables, machine } = read_file(file, text)?;
    let generation = |GenerationTable { rotation, key, secret }| {
        let ids = RoutableIds::new(rotation, server_id_len, nonce_length, key.as_ref());
        let ids = ids.map_err(|error| in_file(file, 1, error.to_string()))?;
        Ok(Generation { ids, secret: FleetSecret(secret) })
    };
    let generations = tables.into_iter().map(generation).collect::<Result<_, ConfigError>>()?;
    Ok((generations, machine))
}

/// The text of a new file with random keys. With a former file, its generations stay known, and its machines, unless new
/// ones are named.
pub(crate) fn new_file(
    is_visible: bool,
    former: Option<&Path>,
    machines: Vec<Machine>,
) -> Result<String, CliError> {
    let former = former.map(|file| {
        let unreadable = |error| ConfigError::Unreadable { file: file.to_owned(), error };
        read_file(file, &fs::read_to_string(file).map_err(unreadable)?)
    });
    let former = former.transpose()?;
    let nonce_length = former.as_ref().map_or(NONCE_LEN_MIN, |former| former.nonce_length);
    let (mut known, known_machines) =
        former.map(|former| (former.generation, former.machine)).unwrap_or_default();
    known.truncate(GENERATIONS_MAX - 1);
    let is_free = |rotation: &u8| known.iter().all(|it| it.rotation != *rotation);
    let newest = known.first().map_or(0, |it| it.rotation.into());
    // Each is used again as late as possible.
    let mut rotations = RoutableIds::ROTATIONS.skip(newest).chain(RoutableIds::ROTATIONS);
    let rotation = rotations.find(is_free);
    let new = GenerationTable {
        rotation: rotation.expect("there are more rotations than generations"),
        key: if is_visible { None } else { Some(tls::random()?) },
        secret: tls::random()?,
    };
    let mut text = String::from(
        "# The same on all machines of the fleet. The first generation is in use, the others are known (docs/fleet.md).\n",
    );
    let file = FleetFile {
        nonce_length,
        generation: std::iter::once(new).chain(known).collect(),
        machine: if machines.is_empty() { known_machines } else { machines },
    };
    text.push_str(
        &toml::to_string(&file).expect("the file has numbers, digits and addresses only"),
    );
    read_file(Path::new("the new file"), &text)?;
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
        let settings = FleetSettings {
            fleet_file: Some(file.path().to_owned()),
            server_id: Some(server_id.parse().unwrap()),
        };
        let setup = FleetSetup::try_from(settings).unwrap();
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

    #[test]
    fn generations_change_and_the_last_three_stay_known() {
        let mut text = new_file(false, None, Vec::new()).unwrap();
        let mut firsts = Vec::new();
        for _ in 0..8 {
            let before = read_file(Path::new("before"), &text).unwrap();
            firsts.push(before.generation[0].rotation);
            text = new_file(false, Some(written(&text).path()), Vec::new()).unwrap();
            let after = read_file(Path::new("after"), &text).unwrap();
            let known = before.generation.iter().take(3).map(|it| it.secret);
            assert!(after.generation[1..].iter().map(|it| it.secret).eq(known), "{text}");
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
            let addresses = member(text, of).unwrap().neighbours().addresses();
            addresses.map(|it| it.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(others(&text, "02"), ["10.0.0.1:443", "[fd00::3]:8443"]);
        assert_eq!(others(&text, "04").len(), 3, "a machine that is not in the file yet");
        let after = new_file(false, Some(written(&text).path()), Vec::new()).unwrap();
        assert_eq!(others(&after, "03"), ["10.0.0.1:443", "10.0.0.2:443"], "they stay");
        let fewer = machines[..1].to_vec();
        let after = new_file(false, Some(written(&text).path()), fewer.clone()).unwrap();
        assert_eq!(others(&after, "03"), ["10.0.0.1:443"]);
        let twice = new_file(false, None, fewer.repeat(2)).unwrap_err().to_string();
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
    fn one_setting_needs_the_other() {
        for settings in [
            FleetSettings { fleet_file: Some("fleet.toml".into()), server_id: None },
            FleetSettings { fleet_file: None, server_id: Some("01".parse().unwrap()) },
        ] {
            let error = FleetSetup::try_from(settings).unwrap_err();
            assert!(matches!(error, ConfigError::Incomplete { .. }), "{error}");
        }
        for text in ["", "1", "0g", &"00".repeat(15)] {
            assert!(text.parse::<ServerId>().is_err(), "{text}");
        }
    }
}

//! The settings of a machine in a fleet behind a load balancer, and the file that all machines of a fleet have.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use serde_with::{SerializeDisplay, hex::Hex, serde_as};
use tandem_node::quic::{Fleet, FleetSecret, Generation};
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
        let generations = parse(file, &text, server_id.len())?;
        warn_if_shared(file, "the secrets of the fleet");
        let wrong = |error: tandem_node::quic::FleetError| in_file(file, 1, error.to_string());
        Fleet::new(server_id.clone(), generations).map(Some).map_err(wrong)
    }
}

/// The number of a machine, of one byte or more.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
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
    Ok(parsed)
}

fn parse(file: &Path, text: &str, server_id_len: usize) -> Result<Vec<Generation>, ConfigError> {
    let FleetFile { nonce_length, generation: tables } = read_file(file, text)?;
    let generation = |GenerationTable { rotation, key, secret }| {
        let ids = RoutableIds::new(rotation, server_id_len, nonce_length, key.as_ref());
        let ids = ids.map_err(|error| in_file(file, 1, error.to_string()))?;
        Ok(Generation { ids, secret: FleetSecret(secret) })
    };
    tables.into_iter().map(generation).collect()
}

/// The text of a new file with random keys. With a former file, its generations stay known.
pub(crate) fn new_file(is_visible: bool, former: Option<&Path>) -> Result<String, CliError> {
    let former = former.map(|file| {
        let unreadable = |error| ConfigError::Unreadable { file: file.to_owned(), error };
        read_file(file, &fs::read_to_string(file).map_err(unreadable)?)
    });
    let former = former.transpose()?;
    let nonce_length = former.as_ref().map_or(NONCE_LEN_MIN, |former| former.nonce_length);
    let mut known = former.map(|former| former.generation).unwrap_or_default();
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
    let file = FleetFile { nonce_length, generation: std::iter::once(new).chain(known).collect() };
    text.push_str(
        &toml::to_string(&file).expect("the file has numbers and hexadecimal digits only"),
    );
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
            let text = new_file(is_visible, None).unwrap();
            assert_eq!(text.contains("key"), !is_visible, "{text}");
            assert_eq!(member(&text, "0102").unwrap().id_len(), 12, "{text}");
            assert_eq!(member(&text, "01").unwrap().id_len(), 11, "{text}");
        }
    }

    #[test]
    fn generations_change_and_the_last_three_stay_known() {
        let mut text = new_file(false, None).unwrap();
        let mut firsts = Vec::new();
        for _ in 0..8 {
            let before = read_file(Path::new("before"), &text).unwrap();
            firsts.push(before.generation[0].rotation);
            text = new_file(false, Some(written(&text).path())).unwrap();
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

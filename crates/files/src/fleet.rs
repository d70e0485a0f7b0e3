//! The file that all machines of a fleet behind a load balancer have (TOML).

use std::{collections::BTreeSet, fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_with::{hex::Hex, serde_as};
use tandem_node::quic::{Fleet, FleetSecret, Generation, Neighbours};
use tandem_wire::RoutableIds;

use crate::{Fault, setting::ValueError};

/// The most generations in a file. One is in use, one comes, and others have been.
pub const GENERATIONS_MAX: usize = 4;

/// The least length of a nonce in bytes.
pub const NONCE_LEN_MIN: usize = 8;

/// The content of a file.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FleetFile {
    nonce_length: usize,
    generation: Vec<GenerationTable>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    machine: Vec<Machine>,
}

/// A machine of the fleet, and the address of its own at which it listens.
#[serde_as]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Machine {
    #[serde_as(as = "Hex")]
    server_id: Vec<u8>,
    address: SocketAddr,
}

impl FromStr for Machine {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError::Form { expected: "HEX=ADDRESS:PORT, such as 0001=10.0.0.1:443" };
        let (server_id, address) = text.split_once('=').ok_or_else(wrong)?;
        let server_id = hex::decode(server_id).map_err(|_| wrong())?;
        let address = address.parse().map_err(|_| wrong())?;
        if server_id.is_empty() { Err(wrong()) } else { Ok(Self { server_id, address }) }
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

/// A fault of the file as a whole.
fn wrong(reason: String) -> Fault {
    Fault { line: 1, reason }
}

impl FleetFile {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let parsed: Self = toml::from_str(text).map_err(|error| Fault::of_toml(text, &error))?;
        // Nonces are drawn at random. Shorter ones would often be the same.
        if parsed.nonce_length < NONCE_LEN_MIN {
            let len = parsed.nonce_length;
            return Err(wrong(format!(
                "nonce-length is {len}; at least {NONCE_LEN_MIN} are needed"
            )));
        }
        let len = parsed.generation.len();
        if !(1..=GENERATIONS_MAX).contains(&len) {
            let reason = format!("there are {len} generations; allowed: 1 to {GENERATIONS_MAX}");
            return Err(wrong(reason));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = parsed.machine.iter().find(|it| !seen.insert(&it.server_id)) {
            let server_id = hex::encode(&twice.server_id);
            return Err(wrong(format!("two machines have the server ID {server_id}")));
        }
        Ok(parsed)
    }

    /// A new file with these secrets. The generations of a former file stay known, and its machines if there are no new
    /// ones. With `key`, connection IDs hide the machine.
    ///
    /// # Panics
    ///
    /// It does not: there are more rotations than generations.
    pub fn new(
        key: Option<[u8; RoutableIds::KEY_LEN]>,
        secret: [u8; 32],
        former: Option<Self>,
        machines: Vec<Machine>,
    ) -> Self {
        let nonce_length = former.as_ref().map_or(NONCE_LEN_MIN, |former| former.nonce_length);
        let (mut known, known_machines) =
            former.map(|former| (former.generation, former.machine)).unwrap_or_default();
        known.truncate(GENERATIONS_MAX - 1);
        let is_free = |rotation: &u8| known.iter().all(|it| it.rotation != *rotation);
        let newest = known.first().map_or(0, |it| it.rotation.into());
        // Each is used again as late as possible.
        let mut rotations = RoutableIds::ROTATIONS.skip(newest).chain(RoutableIds::ROTATIONS);
        let rotation = rotations.find(is_free);
        let rotation = rotation.expect("there are more rotations than generations");
        let new = GenerationTable { rotation, key, secret };
        Self {
            nonce_length,
            generation: std::iter::once(new).chain(known).collect(),
            machine: if machines.is_empty() { known_machines } else { machines },
        }
    }

    /// The settings of the machine with this number.
    pub fn member(self, server_id: &[u8]) -> Result<Fleet, Fault> {
        let nonce_length = self.nonce_length;
        let generation = |GenerationTable { rotation, key, secret }| {
            let ids = RoutableIds::new(rotation, server_id.len(), nonce_length, key.as_ref());
            let ids = ids.map_err(|error| wrong(error.to_string()))?;
            Ok(Generation { ids, secret: FleetSecret(secret) })
        };
        let generations: Result<Vec<_>, Fault> =
            self.generation.into_iter().map(generation).collect();
        let fleet = Fleet::new(server_id.to_vec(), generations?);
        let others = self.machine.into_iter().filter(|it| it.server_id != server_id);
        let others = Neighbours::new(others.map(|it| (it.server_id, it.address)));
        let fleet = fleet.map_err(|error| wrong(error.to_string()))?;
        Ok(fleet.with_neighbours(others))
    }

    /// The rotations of the generations, of which the first is in use.
    pub fn rotations(&self) -> impl Iterator<Item = u8> {
        self.generation.iter().map(|generation| generation.rotation)
    }
}

/// The text of the file.
impl fmt::Display for FleetFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "# The same on all machines of the fleet. The first generation is in use, the others are known (docs/guide/fleet.md).\n",
        )?;
        let text = toml::to_string(self);
        f.write_str(&text.expect("the file has numbers, digits and addresses only"))
    }
}

//! `tandem pep`.

#[cfg(target_os = "linux")]
mod findings;
#[cfg(target_os = "linux")]
mod rights;
#[cfg(target_os = "linux")]
mod running;

use std::{fmt, ops::RangeInclusive, path::PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use tandem_pep::Servers;

use crate::{
    config::{Layered, Setting, Settings, Within},
    error::{CliError, ConfigError},
};

const EXAMPLES: &str = "\
Examples:
  tandem pep --device wan0 --server 192.0.2.0/24:443 --key-file /etc/tandem/pep.key --user tandem
      Tells the servers in 192.0.2.0/24, which are behind wan0, which of their packets have passed.
  tandem pep --device wan0 --server 192.0.2.0/24:443 --key-file /etc/tandem/pep.key --check
      Says what this machine lacks, and attaches nothing.";

/// Tell servers which of their packets have passed this Linux router (PEP). Needs root to start.
///
/// The program mirrors headers of packets from the servers, and sends them PEP-ACKs in the name of the
/// clients (docs/guide/pep.md). Packets are forwarded as always. Prints counters when a signal ends it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PepCommand {
    #[command(flatten)]
    settings: Layered<PepSettings>,
}

impl PepCommand {
    /// Runs until a signal ends it.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let setup = self.settings.load()?;
        let (id, key) = tandem_server::files::peps::read_one(&setup.key_file)?;
        #[cfg(target_os = "linux")]
        return match self.settings.checked_alone(&setup) {
            Some(checked) => findings::print(&setup, &checked),
            None => running::run(&setup, (id, key)),
        };
        #[cfg(not(target_os = "linux"))]
        {
            drop((id, key));
            let error = std::io::Error::other("it needs Linux, and this is another system");
            Err(tandem_server::process::SystemError { what: "run a PEP", error }.into())
        }
    }
}

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct PepSettings {
    /// Ethernet device behind which the servers are; repeatable, or several with commas between
    #[arg(long, value_name = "DEV", env = "TANDEM_DEVICE", value_delimiter = ',')]
    device: Vec<String>,

    /// Servers that know this PEP, as a range of addresses and a port, or without one all ports;
    /// repeatable, or several with commas between
    #[arg(long, value_name = "PREFIX[:PORT]", env = "TANDEM_SERVER", value_delimiter = ',')]
    server: Vec<Servers>,

    /// File with the ID of this PEP and its key on one line, ID KEY, as the servers have it; a PEP
    /// without a key has only ID, and servers hear it but do not follow it
    #[arg(long, value_name = "FILE", env = "TANDEM_KEY_FILE")]
    key_file: Option<PathBuf>,

    /// Switch to this user once the PEP has started; it drops its privileges in any case
    #[arg(long, value_name = "NAME", env = "TANDEM_USER")]
    user: Option<String>,

    /// How PEP-ACKs for TCP look [default: flagless]
    ///
    /// flagless: without flags; every server drops them, but so does a firewall that follows
    /// connections. old-ack: as an acknowledgement that is no longer new, which firewalls let pass; the PEP
    /// then also reads the segments of clients, which have to leave through the same device.
    #[arg(long, env = "TANDEM_TCP_FORM", value_enum, help_heading = "More of the PEP")]
    tcp_form: Option<TcpFormFlag>,

    /// Let BPF programs make the PEP-ACKs, so that they leave at once; only with --tcp-form flagless
    ///
    /// Otherwise this program makes them of what a BPF program mirrors. In the kernel a packet with which a PEP-ACK
    /// leaves takes some 2 µs longer.
    #[arg(long, value_name = "BOOL", env = "TANDEM_IN_KERNEL", help_heading = "More of the PEP",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    in_kernel: Option<bool>,

    #[arg(
        long, value_name = "N", env = "TANDEM_FLOWS_MAX", help_heading = "More of the PEP",
        help = FlowsMax::help(
            "Most flows at a time, each of which takes up to 2 kB; the one that has been silent for \
             longest makes room",
            FlowsMax::DEFAULT,
        )
    )]
    flows_max: Option<Within<FlowsMax>>,

    /// When the PEP ends, print as one JSON object what it has seen and sent; with --check, what the
    /// machine lacks
    #[arg(long, value_name = "BOOL", env = "TANDEM_JSON",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    json: Option<bool>,
}

impl Settings for PepSettings {
    type Setup = PepSetup;
    const SUBCOMMAND: &'static str = "pep";
    const REQUIRED: &'static [&'static str] = &["device", "server", "key-file"];
}

/// How PEP-ACKs for TCP look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum TcpFormFlag {
    /// Without flags
    #[default]
    Flagless,
    /// As an acknowledgement that is no longer new
    OldAck,
}

/// The number of flows that a PEP knows.
#[derive(Clone, Copy, Debug)]
struct FlowsMax;

impl FlowsMax {
    const DEFAULT: u32 = 16_384;
}

impl Setting for FlowsMax {
    type Value = u32;
    const ALLOWED: RangeInclusive<u32> = 1..=1_000_000;
}

/// The settings that the PEP runs with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PepSetup {
    device: Vec<String>,
    server: Vec<Servers>,
    key_file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    tcp_form: TcpFormFlag,
    in_kernel: bool,
    flows_max: Within<FlowsMax>,
    json: bool,
}

/// The most ranges of servers: the BPF program has room for no more.
const SERVERS_MAX: usize = 1024;

impl TryFrom<PepSettings> for PepSetup {
    type Error = ConfigError;

    fn try_from(settings: PepSettings) -> Result<Self, ConfigError> {
        let missing = |key, value, variable| ConfigError::Missing { key, value, variable };
        if settings.device.is_empty() {
            return Err(missing("device", "DEV", "TANDEM_DEVICE"));
        }
        if settings.server.is_empty() {
            return Err(missing("server", "PREFIX[:PORT]", "TANDEM_SERVER"));
        }
        let servers = settings.server.len();
        if servers > SERVERS_MAX {
            return Err(ConfigError::TooManyServers { servers, max: SERVERS_MAX });
        }
        let in_kernel = settings.in_kernel.unwrap_or_default();
        if in_kernel && settings.tcp_form == Some(TcpFormFlag::OldAck) {
            let reason = "the BPF programs know no acknowledgements of clients";
            return Err(ConfigError::Conflict {
                first: "in-kernel",
                second: "tcp-form old-ack",
                reason,
            });
        }
        let key_file = settings.key_file;
        Ok(Self {
            device: settings.device,
            server: settings.server,
            key_file: key_file.ok_or(missing("key-file", "FILE", "TANDEM_KEY_FILE"))?,
            user: settings.user,
            tcp_form: settings.tcp_form.unwrap_or_default(),
            in_kernel,
            flows_max: settings.flows_max.unwrap_or(Within(FlowsMax::DEFAULT)),
            json: settings.json.unwrap_or_default(),
        })
    }
}

/// What a PEP has counted; the object of its `--json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Counters {
    /// Packets of servers that were seen.
    seen_packets: u64,
    /// PEP-ACKs that were sent.
    pep_acks: u64,
    /// Packets that were seen, and of which no PEP-ACK tells.
    untold_packets: u64,
    /// Packets that were not seen, because this program was too slow.
    missed_packets: u64,
    /// PEP-ACKs that the kernel refused to send.
    refused_pep_acks: u64,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seen_packets, pep_acks, untold_packets, missed_packets, refused_pep_acks } =
            self;
        write!(
            f,
            "saw {seen_packets} packets of servers, and sent {pep_acks} PEP-ACKs; \
             {untold_packets} packets untold, {missed_packets} missed; \
             {refused_pep_acks} PEP-ACKs refused by the kernel"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::from_text;

    const REQUIRED: [&str; 3] =
        ["device = \"wan0\"", "server = \"192.0.2.0/24:443\"", "key-file = \"k\""];

    #[test]
    fn devices_servers_and_the_key_are_required() {
        assert!(from_text::<PepSettings>(&REQUIRED.join("\n")).is_ok());
        for (missing, name) in ["device", "server", "key-file"].iter().enumerate() {
            let mut lines = REQUIRED.to_vec();
            lines.remove(missing);
            let error = from_text::<PepSettings>(&lines.join("\n")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name} is missing: give --{name} ")), "{error}");
        }
    }

    #[test]
    fn the_kernel_makes_no_old_acks() {
        for (form, is_ok) in [("flagless", true), ("old-ack", false)] {
            let text = format!("{}\nin-kernel = true\ntcp-form = \"{form}\"", REQUIRED.join("\n"));
            assert_eq!(from_text::<PepSettings>(&text).is_ok(), is_ok, "{form}");
        }
    }

    #[test]
    fn servers_and_flows_have_limits() {
        let many =
            format!("device = \"a\"\nkey-file = \"k\"\nserver = {:?}", vec!["192.0.2.1"; 1025]);
        let error = from_text::<PepSettings>(&many).unwrap_err().to_string();
        assert_eq!(error, "1025 ranges of servers; allowed: at most 1024");
        for flows in ["0", "1000001", "-1"] {
            let text = format!("{}\nflows-max = {flows}", REQUIRED.join("\n"));
            let error = from_text::<PepSettings>(&text).unwrap_err().to_string();
            assert!(error.contains("allowed: 1 to 1000000"), "{error}");
        }
    }

    #[test]
    fn every_key_is_documented() {
        let page = include_str!("../../../../docs/guide/commands.md");
        let page = page.split("### `tandem pep --json`").nth(1).unwrap();
        let counters = serde_json::to_value(Counters::default()).unwrap();
        for key in counters.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{key}`")), "{key}");
        }
    }
}

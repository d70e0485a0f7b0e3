use std::{fmt::Debug, ops::RangeInclusive};

use serde::Serialize;
use tandem_node::limits::Limits;

use super::{Setting, Settings, Within, effective, example, from_text};
use crate::{
    client::ClientSettings,
    error::ConfigError,
    pair::{ConnectSettings, ServeSettings},
    pep::PepSettings,
    server::{OriginSettings, ProxySettings},
};

/// An example whose settings stand for themselves if `is_set` says so of the remark before them.
fn uncommented<S: Settings>(is_set: impl Fn(&str) -> bool) -> String {
    let mut previous = String::new();
    let mut text = String::new();
    for line in example::<S>().lines() {
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#']));
        let setting = setting.filter(|rest| !rest.is_empty() && is_set(&previous));
        text += setting.unwrap_or(line);
        text += "\n";
        line.clone_into(&mut previous);
    }
    text
}

/// What `--check` prints of a file.
fn print<S: Settings>(text: &str) -> String {
    let setup = from_text::<S>(text).unwrap();
    effective::text::<S>(&setup) + &effective::limits(&Limits::default())
}

fn keys<S: Settings>() -> Vec<String> {
    let command = S::augment_args(clap::Command::new("test"));
    command.get_arguments().filter_map(clap::Arg::get_long).map(str::to_owned).collect()
}

fn is_an_example<S: Settings<Setup: Debug> + Debug>() {
    let every_setting = uncommented::<S>(|_| true);
    let table: toml::Table = every_setting.parse().unwrap();
    let mut expected = keys::<S>();
    expected.sort();
    assert_eq!(table.keys().cloned().collect::<Vec<_>>(), expected);
    super::file::parse::<S>("example.toml".as_ref(), &every_setting).unwrap();
    let nothing: toml::Table = example::<S>().parse().unwrap();
    assert!(nothing.is_empty(), "{nothing}");

    let is_required = |remark: &str| remark.starts_with("# Required");
    let required = uncommented::<S>(is_required);
    let with_defaults =
        uncommented::<S>(|remark| is_required(remark) || remark.ends_with("Default:"));
    assert_ne!(required, with_defaults);
    assert_eq!(print::<S>(&required), print::<S>(&with_defaults));
}

#[test]
fn an_example_has_every_setting_and_the_defaults_are_those_in_force() {
    is_an_example::<ProxySettings>();
    is_an_example::<OriginSettings>();
    is_an_example::<ClientSettings>();
    is_an_example::<ServeSettings>();
    is_an_example::<ConnectSettings>();
    is_an_example::<PepSettings>();
}

/// Checks that the printed configuration of this file means itself and mentions every setting.
fn means_itself<S: Settings>(text: &str) -> String {
    let printed = print::<S>(text);
    assert_eq!(print::<S>(&printed), printed);
    for key in keys::<S>() {
        let is_mentioned = |line: &str| {
            line.starts_with(&format!("{key} = "))
                || line.starts_with(&format!("# {key} is not set"))
        };
        assert!(printed.lines().any(is_mentioned), "no {key} in {printed}");
    }
    for (key, value) in text.parse::<toml::Table>().unwrap() {
        let line = effective::assignment(&key, &value);
        assert!(printed.lines().any(|printed| printed == line), "no {line} in {printed}");
    }
    printed
}

#[test]
fn the_printed_configuration_means_itself() {
    let printed = means_itself::<ProxySettings>("listen = \"127.0.0.1:0\"");
    for line in [
        "drain = \"10s\"",
        "template = \"https://proxy.invalid/.well-known/masque/udp/{target_host}/{target_port}/\"",
        "controller = \"bbr1-tunnel\"",
        "initial-window = 32",
        "tcp-ports = \"1-24,26-65535\"",
        "# feedback-interval is not set; default: the tunnel's least RTT",
        "# token-file is not set",
        "# sockets = 24000",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "no {line} in {printed}");
    }
    means_itself::<ProxySettings>(
        "listen = \"[::]:443\"\nallow-target = [\"10.0.0.0/8\", \"fd00::/8\"]\ntoken-file = \"t\"\n\
         tcp-ports = \"443,8000-8999\"\nlog-clients = true\ntemplate = \"https://p/{target_host}/{target_port}\"\ndrain = \"1min\"\n\
         feedback-interval = \"20ms\"\nmemory = \"1 GB\"\nname = [\"a\", \"192.0.2.1\"]\n\
         write-ca = \"ca.pem\"\ncontroller = \"newreno\"\ninitial-window = 10",
    );
    means_itself::<OriginSettings>(
        "listen = \"[::]:443\"\nroot = \"www\"\ntakes-uploads = true\ncert = \"c\"\nkey = \"k\"\n\
         controller = \"tecc\"\ntecc = \"q-target=60ms\"\nup-gain-percent = 150",
    );
    let printed = means_itself::<ClientSettings>(
        "via = [\"https://p/{target_host}/{target_port}\"]\nudp = [\"127.0.0.1:5=a:1;u=1\"]\n\
         token-file = [\"t\"]\ntimeout = \"5s\"\nmode = \"rmdt\"\ngroup-streams = 3\n\
         resequence = \"window\"\nrepair-deadline = \"100ms\"\nrepair-limit = 0\nca = [\"a\"]\n\
         client-cert = \"c\"\nclient-key = \"k\"\ntcp = [\"[::1]:6=[::1]:7;u=2;w=3\"]\n\
         proxy = [\"127.0.0.1:8\", \"0.0.0.0:9\"]\nproxy-password-file = \"p\"\nstdio = \"a:10\"",
    );
    assert!(printed.contains("insecure = false"), "{printed}");
    let ends = "dest = \"a:1\"\nlisten = \"[::1]:2\"\n";
    let printed = means_itself::<ServeSettings>(&format!("{ends}controller = \"cubic\""));
    assert!(printed.contains("pair = \"tandem-pair\"\n"), "{printed}");
    means_itself::<ServeSettings>(&format!("{ends}cert = \"c\"\nkey = \"k\"\ntoken-file = \"t\""));
    let printed = means_itself::<ConnectSettings>(ends);
    assert!(printed.contains("pair = \"tandem-pair/client.pem\"\n"), "{printed}");
    let pep =
        "device = [\"wan0\", \"wan1\"]\nserver = [\"192.0.2.0/24:443\", \"[2001:db8::/32]:443\"]\n";
    let printed =
        means_itself::<PepSettings>(&format!("{pep}key-file = \"k\"\ntcp-form = \"old-ack\""));
    assert!(printed.contains("flows-max = 16384\n"), "{printed}");
    means_itself::<ConnectSettings>(&format!("{ends}token-file = \"t\"\nca = [\"a\", \"b\"]"));
}

#[test]
fn a_key_takes_one_value_or_a_list_as_its_flag_does() {
    let print = |text: &str| print::<ProxySettings>(text);
    let listen = "listen = \"[::1]:1\"\n";
    let one = print(&format!("{listen}allow-target = \"10.0.0.0/8\""));
    assert_eq!(one, print(&format!("{listen}allow-target = [\"10.0.0.0/8\"]")));
    assert!(one.contains("allow-target = [\"10.0.0.0/8\"]\n"), "{one}");
    let error = from_text::<ClientSettings>("timeout = [\"5s\"]").unwrap_err().to_string();
    assert_eq!(error, "test.toml:1: timeout: [\"5s\"]: this setting takes one value");
}

#[derive(Clone, Copy, Debug)]
struct Count;

impl Setting for Count {
    type Value = u8;
    const ALLOWED: RangeInclusive<u8> = 2..=16;
}

#[derive(Debug, clap::Args)]
struct File {
    #[arg(long)]
    count: Option<Within<Count>>,
}

#[derive(Debug, Serialize)]
struct Checked {
    count: Within<Count>,
}

impl TryFrom<File> for Checked {
    type Error = ConfigError;

    fn try_from(file: File) -> Result<Self, ConfigError> {
        Ok(Self { count: file.count.unwrap() })
    }
}

impl Settings for File {
    type Setup = Checked;
    const SUBCOMMAND: &'static str = "test";
    const REQUIRED: &'static [&'static str] = &["count"];
}

#[test]
fn texts_and_files_have_the_same_range() {
    for (text, error) in [
        ("1", "out of range; allowed: 2 to 16"),
        ("17", "out of range; allowed: 2 to 16"),
        ("-1", "allowed: 2 to 16"),
    ] {
        let flag = text.parse::<Within<Count>>().unwrap_err().to_string();
        assert!(flag.ends_with(error), "{flag}");
        let file = from_text::<File>(&format!("count = {text}")).unwrap_err().to_string();
        assert!(file.starts_with("test.toml:1: count: ") && file.ends_with(error), "{file}");
    }
    for count in [2, 16] {
        assert_eq!(count.to_string().parse::<Within<Count>>().unwrap().0, count);
        let text = format!("count = {count}\n");
        assert_eq!(toml::to_string(&from_text::<File>(&text).unwrap()).unwrap(), text);
    }
    assert_eq!(Count::help("How many.", 8), "How many. [allowed: 2 to 16] [default: 8]");
}

//! What `tandem generate config` prints: every setting with its meaning, commented out.

use clap::{
    Arg, ArgAction, Command,
    builder::{PossibleValue, Resettable},
};
use toml::{Table, Value};

use super::{Settings, effective};
use crate::{help, text};

/// Values of settings that are required, that have no default, or whose default depends on the machine
/// or on other settings.
const EXAMPLES: [(&str, &[&str]); 65] = [
    ("ab-test", &["tecc=50,mdt=50"]),
    ("acme-ca", &["acme-ca.pem"]),
    ("acme-contact", &["admin@proxy.example"]),
    ("acme-directory", &["https://acme.example/directory"]),
    ("acme-domain", &["proxy.example"]),
    ("acme-folder", &["acme"]),
    ("acme-listen", &["0.0.0.0:80"]),
    ("ack-delay", &["25%"]),
    ("ack-threshold", &["10"]),
    ("admin", &["127.0.0.1:9433"]),
    ("allow-target", &["10.0.0.0/8", "fd00::/8"]),
    ("beyond", &["forward"]),
    ("ca", &["ca.pem"]),
    ("cert", &["cert.pem"]),
    ("client-ca", &["clients-ca.pem"]),
    ("client-cert", &["client-cert.pem"]),
    ("client-key", &["client-key.pem"]),
    ("concealed-key", &["alice.key"]),
    ("concealed-keys", &["keys"]),
    ("dest", &["server.example:4433"]),
    ("device", &["eth0"]),
    ("feedback-interval", &["20ms"]),
    ("fleet-file", &["fleet.toml"]),
    ("jwks", &["keys.json"]),
    ("jwt-audience", &["https://proxy.example"]),
    ("jwt-group-claim", &["group"]),
    ("jwt-issuer", &["https://login.example"]),
    ("jwt-type", &["at+jwt"]),
    ("key", &["key.pem"]),
    ("key-file", &["pep.key"]),
    ("listen", &["127.0.0.1:4433"]),
    ("memory", &["1GB"]),
    ("name", &["proxy.example"]),
    ("pep-file", &["pep"]),
    ("pep-server", &["192.0.2.0/24:443", "[2001:db8::/32]:443"]),
    ("peps", &["peps"]),
    ("proxy", &["127.0.0.1:1080"]),
    ("proxy-password-file", &["password"]),
    ("proxy-sha256", &["7b0f2d9c4e1a6835d2c7f80b93ae5164c8d70f1e2b3a495867fedcba01234567"]),
    ("pvd", &["pvd.json"]),
    ("qlog-dir", &["qlog"]),
    ("repair-deadline", &["200ms"]),
    ("repair-limit", &["3"]),
    ("resequence", &["ordered"]),
    ("retry", &["10s"]),
    ("root", &["http://127.0.0.1:8080"]),
    ("secret-path", &["path"]),
    ("rule", &["direct=*.lan", "refuse=*:25"]),
    ("rules", &["rules"]),
    ("server", &["192.0.2.0/24:443", "[2001:db8::/32]:443"]),
    ("server-id", &["0a01"]),
    ("site", &["www"]),
    ("stdio", &["git.example:22"]),
    ("tcp", &["127.0.0.1:2222=host.example:22"]),
    ("tecc", &["q-target=60ms"]),
    ("timeout", &["20s"]),
    ("threads", &["4"]),
    ("token-file", &["tokens"]),
    ("udp", &["127.0.0.1:5353=dns.example:53"]),
    ("upstream-health", &["/health"]),
    ("usage-store", &["usage.db"]),
    ("user", &["tandem"]),
    ("users-file", &["users.toml"]),
    ("via", &["https://proxy.example"]),
    ("write-ca", &["ca.pem"]),
];

/// Width of the comments in characters.
const WIDTH: usize = 98;

/// The text of a file with every setting of a subcommand, commented out.
pub(crate) fn example<S: Settings>() -> String {
    let name = S::SUBCOMMAND;
    let mut text = format!(
        "# Settings of `tandem {name} --config FILE`. Remove the # directly before a key to set it.\n\
         # Flags and environment variables take precedence over this file. Paths are relative to the\n\
         # folder of this file. `tandem {name} --config FILE --check` prints what is in force.\n"
    );
    let defaults = defaults::<S>();
    let mut command = S::augment_args(Command::new(name)).disable_help_flag(true);
    command.build(); // so that flags know their values
    for heading in [None].into_iter().chain(help::headings(&command).into_iter().map(Some)) {
        let title = heading.map(|heading| format!("\n# ---- {heading} ----\n"));
        text += &title.unwrap_or_default();
        for flag in command.get_arguments().filter(|flag| flag.get_help_heading() == heading) {
            text += "\n";
            text += &setting::<S>(flag, &defaults);
        }
    }
    text
}

/// A flag's help, and a line that sets it.
fn setting<S: Settings>(flag: &Arg, defaults: &Table) -> String {
    let key = flag.get_long().unwrap_or_default();
    let help = flag.get_long_help().or(flag.get_help()).map(ToString::to_string);
    let mut help = help.unwrap_or_default();
    let allowed = flag.get_possible_values();
    let allowed: Vec<_> = allowed.iter().map(PossibleValue::get_name).collect();
    if !allowed.is_empty() && allowed != ["true", "false"] {
        help = format!("{help} [allowed: {}]", allowed.join(", "));
    }
    let (remark, value) = match (example_value(flag), defaults.get(key), S::ONE_OF) {
        (Some(value), ..) if S::REQUIRED.contains(&key) => {
            ("Required, for example:".to_owned(), value)
        }
        (Some(value), _, [first, others @ ..]) if *first == key => {
            (format!("Required, or one of {}; for example:", others.join(", ")), value)
        }
        (Some(value), ..) => ("For example:".to_owned(), value),
        (None, Some(value), _) => {
            if let Some(default) = effective::default_of(&help) {
                help = help.replace(&format!("{} {default}]", effective::DEFAULT), "");
            }
            ("Default:".to_owned(), value.clone())
        }
        (None, None, _) => panic!("{key} needs an example"),
    };
    format!("{}# {remark}\n#{}\n", wrapped(&help), effective::assignment(key, &value))
}

/// The value in the table of examples.
fn example_value(flag: &Arg) -> Option<Value> {
    let key = flag.get_long()?;
    let (_, values) = EXAMPLES.iter().find(|(name, _)| *name == key)?;
    let texts = values.iter().map(|&value| Value::from(value));
    match flag.get_action() {
        ArgAction::Append => Some(Value::Array(texts.collect())),
        _ => texts.map(|text| number(&text).unwrap_or(text)).next(),
    }
}

fn number(text: &Value) -> Option<Value> {
    text.as_str()?.parse::<i64>().ok().map(Value::from)
}

/// What is in force when only the required settings are given.
fn defaults<S: Settings>() -> Table {
    let command = S::augment_args(Command::new(S::SUBCOMMAND)).no_binary_name(true);
    let is_needed = |key| S::REQUIRED.contains(key) || S::ONE_OF.first() == Some(key);
    let flags = EXAMPLES.iter().filter(|(key, _)| is_needed(key));
    let flags =
        flags.flat_map(|(key, values)| values.iter().map(move |value| format!("--{key}={value}")));
    let given = command.mut_args(|flag| flag.env(Resettable::Reset)).get_matches_from(flags);
    let settings = S::from_arg_matches(&given).expect("examples are valid");
    let setup = S::Setup::try_from(settings);
    effective::table(&setup.expect("the required settings are enough"))
}

/// Comment lines of limited width, with each paragraph on lines of its own.
fn wrapped(help: &str) -> String {
    let paragraphs = help.split("\n\n").map(|paragraph| {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        text::wrap(&paragraph, WIDTH, "# ") + "\n"
    });
    paragraphs.collect()
}

//! The `tandem` program: parsing, configuration, files, exit codes. No protocol logic.

mod ab;
mod advice;
mod ask;
mod carried;
mod carrier;
mod client;
mod config;
#[cfg(feature = "lab")]
mod demo;
#[cfg(test)]
mod documents;
mod download;
mod error;
mod fetch;
mod generate;
mod get;
mod help;
mod hops;
#[cfg(feature = "lab")]
mod lab;
#[cfg(feature = "lab")]
mod layers;
mod link;
mod log;
mod mode;
mod outcome;
mod pair;
mod password;
mod patience;
#[cfg(feature = "pep-kernel")]
mod pep;
mod ping;
mod profile;
mod programs;
mod progress;
mod qlog;
mod redirect;
mod route;
mod rules;
mod screen;
mod server;
mod speedtest;
mod text;
mod through;
mod tips;
mod tls;
mod top;
mod up;
#[cfg(feature = "usage-store")]
mod users;

use std::{env, ffi::OsStr, process::ExitCode};

use clap::{Args, CommandFactory, FromArgMatches, Parser};
use tandem_server::process;
use tikv_jemallocator::Jemalloc;
use tracing::Level;

use crate::error::CliError;

/// It gives unused memory back to the system within seconds, and says how much is in use.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// QUIC tunnels (MASQUE) whose two transport layers work together.
#[derive(Debug, Parser)]
#[command(name = "tandem", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    common: Common,

    #[command(subcommand)]
    command: Command,
}

/// The flags of all subcommands.
#[derive(Debug, clap::Args)]
struct Common {
    /// Log more to standard error; -vv also logs packets (`RUST_LOG` overrides it)
    #[arg(short, long, global = true, display_order = 900, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Form of the lines on standard error
    #[arg(
        long,
        global = true,
        display_order = 901,
        value_name = "FORMAT",
        env = "TANDEM_LOG_FORMAT",
        value_enum,
        default_value_t,
        help_heading = "Tests and tracing"
    )]
    log_format: log::Format,
}

impl Cli {
    /// The program's command line, of which the first word after the name is `first`. The definitions of all
    /// subcommands take longer than a handshake, so that `get` goes without the others.
    fn definition(first: Option<&OsStr>) -> clap::Command {
        if first.is_none_or(|first| first != "get") {
            return help::arrange(Self::command());
        }
        let program = clap::Command::new("tandem").version(env!("CARGO_PKG_VERSION"));
        let get = get::Get::augment_args(clap::Command::new("get"));
        help::arrange(Common::augment_args(program.propagate_version(true)).subcommand(get))
    }
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Proxy(Box<server::Proxy>),
    Client(Box<client::Client>),
    Serve(Box<pair::Serve>),
    Connect(Box<pair::Connect>),
    Origin(Box<server::Origin>),
    Get(Box<get::Get>),
    Ping(Box<ping::Ping>),
    Route(route::Route),
    Up(Box<up::Up>),
    Down(up::Down),
    Status(up::Status),
    Speedtest(Box<speedtest::Speedtest>),
    #[cfg(feature = "pep-kernel")]
    Pep(Box<pep::PepCommand>),
    Top(Box<top::Top>),
    Ab(ab::Ab),
    #[cfg(feature = "usage-store")]
    Users(users::UsersCommand),
    #[cfg(feature = "lab")]
    Qlog(layers::Qlog),
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(Box<lab::Lab>),
    #[cfg(feature = "lab")]
    Demo(Box<demo::Demo>),
    #[command(subcommand)]
    Generate(generate::Generate),
}

impl Command {
    fn run(self) -> Result<(), CliError> {
        match self {
            Self::Proxy(proxy) => proxy.run(),
            Self::Client(client) => client.run(),
            Self::Serve(serve) => serve.run(),
            Self::Connect(connect) => connect.run(),
            Self::Origin(origin) => origin.run(),
            Self::Get(get) => get.run(),
            Self::Ping(ping) => ping.run(),
            Self::Route(route) => route.run(),
            Self::Up(up) => up.run(),
            Self::Down(down) => down.run(),
            Self::Status(status) => status.run(),
            Self::Speedtest(speedtest) => speedtest.run(),
            #[cfg(feature = "pep-kernel")]
            Self::Pep(pep) => pep.run(),
            Self::Top(top) => top.run(),
            Self::Ab(ab) => ab.run(),
            #[cfg(feature = "usage-store")]
            Self::Users(users) => users.run(),
            #[cfg(feature = "lab")]
            Self::Qlog(qlog) => qlog.run(),
            #[cfg(feature = "lab")]
            Self::Lab(lab) => lab.run(),
            #[cfg(feature = "lab")]
            Self::Demo(demo) => demo.run(),
            Self::Generate(generate) => generate.run(),
        }
    }

    /// What is logged without `-v`: servers tell what they do, the others only what goes wrong.
    fn log_level(&self) -> Level {
        match self {
            Self::Client(client) if client.is_quiet() => Level::WARN,
            Self::Get(get) if get.is_quiet() => Level::ERROR,
            #[cfg(feature = "lab")]
            Self::Lab(_) | Self::Demo(_) => Level::WARN,
            Self::Get(_)
            | Self::Ping(_)
            | Self::Route(_)
            | Self::Up(_)
            | Self::Down(_)
            | Self::Status(_)
            | Self::Speedtest(_)
            | Self::Top(_)
            | Self::Ab(_)
            | Self::Generate(_) => Level::WARN,
            _ => Level::INFO,
        }
    }
}

fn main() -> ExitCode {
    let first = env::args_os().nth(1);
    let word = first.as_deref().and_then(OsStr::to_str).unwrap_or_default();
    let given = Cli::definition(first.as_deref()).try_get_matches();
    let given = given.unwrap_or_else(|error| tips::corrected(word, error).exit()); // with 2 if the line is wrong
    let cli = Cli::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    log::start(cli.command.log_level(), cli.common.verbose, cli.common.log_format);
    let code = match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_silent() {
                text::say(format_args!("error: {error}"));
            }
            error.exit_code()
        }
    };
    process::qlog::flush();
    process::log::flush();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_has_help() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{}: {argument}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn get_alone_has_the_command_line_that_it_has_among_the_others() {
        let independent = help::independent_of_caller;
        let alone = || independent(Cli::definition(Some(OsStr::new("get"))));
        let among_others = || independent(Cli::definition(None));
        for line in [
            &["tandem", "get", "--help"][..],
            &["tandem", "get", "-h"],
            &["tandem", "get", "--version"],
            &["tandem", "get"],
            &["tandem", "get", "--no-such-flag"],
            &["tandem", "get", "https://origin.example/", "-o", "file", "--streams", "0"],
        ] {
            let says = |command: clap::Command| {
                command.try_get_matches_from(line).unwrap_err().to_string()
            };
            assert_eq!(says(alone()), says(among_others()), "{line:?}");
        }
        let line = ["tandem", "get", "-v", "https://origin.example/", "-o", "-", "-v"];
        let parsed = |command: clap::Command| {
            let given = command.try_get_matches_from(line).unwrap();
            format!("{:?}", Cli::from_arg_matches(&given).unwrap())
        };
        assert_eq!(parsed(alone()), parsed(among_others()));
    }
}

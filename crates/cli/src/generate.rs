//! `tandem generate`: manual pages, shell completions and configuration files from the flags
//! themselves, certificates, and profiles for clients.

use std::{fs, path::PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use tandem_server::{
    files::concealed::{self, MakeError, UserName},
    fleet,
    tls::DevelopmentIdentity,
};

#[cfg(feature = "pep-kernel")]
use crate::pep::PepSettings;
use crate::{
    Cli,
    client::ClientSettings,
    config::example,
    error::CliError,
    help,
    pair::{ConnectSettings, ServeSettings},
    password,
    profile::ProfileArgs,
    server::{OriginSettings, ProxySettings},
    text,
};

/// Write certificates, configuration files and profiles for clients; manual pages and completions for packages.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Generate {
    /// Write a manual page for each subcommand into a folder
    Man {
        /// An existing folder
        dir: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write a certificate for localhost, its addresses and other names, its key, and the CA that
    /// signed it
    ///
    /// The files are cert.pem and key.pem for servers, and ca.pem for clients. They are valid for a year,
    /// and for this one certificate only: the CA's private key is thrown away. No file is overwritten.
    Certificate {
        /// The folder for ca.pem, cert.pem and key.pem; it is made if there is none
        folder: PathBuf,
        /// Another host name or IP address of the server; repeatable, or several with commas between
        #[arg(long, value_name = "NAME", value_delimiter = ',')]
        name: Vec<String>,
    },
    /// Write the key with which a user shows proxies who it is (RFC 9729), for --concealed-key, and print the line that
    /// the proxy needs in the file of --concealed-keys
    ConcealedKey {
        /// The name of the user
        name: UserName,
        /// The file for the key, which does not exist yet
        file: PathBuf,
    },
    /// Print the line that the --token-file of a proxy needs for a user with a password
    ///
    /// The password comes from the terminal, which does not show it, or from the first line of the standard input. The
    /// printed line contains a hash of the password (Argon2id) and not the password itself.
    Password {
        /// The name of the user
        name: String,
    },
    /// Print a file with random keys for --fleet-file, which all machines behind a load balancer have
    Fleet {
        /// Do not encrypt the number of the machine in connection IDs, for load balancers that cannot decrypt it
        #[arg(long)]
        visible: bool,
        /// The file that the machines have now; what it says stays known
        #[arg(long, value_name = "FILE")]
        after: Option<PathBuf>,
        /// A machine and the address of its own at which it listens, such as 0001=10.0.0.1:443; repeatable, or several
        /// with commas between. Machines that know each other notice when one is gone, and end its connections at once
        #[arg(long, value_name = "HEX=ADDRESS:PORT", value_delimiter = ',')]
        machine: Vec<tandem_files::fleet::Machine>,
    },
    /// Write what a client of this or another project needs to use a proxy
    ///
    /// It goes to standard output, or with -o into a new file that only its owner can read. It is a secret if it has a
    /// token. docs/guide/clients.md says which clients work, and how.
    Profile(Box<ProfileArgs>),
    /// Print a configuration file with every setting and its meaning, for --config
    Config {
        /// Which subcommand
        subcommand: Configurable,
    },
}

/// A subcommand with a configuration file.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Configurable {
    /// The proxy
    Proxy,
    /// The HTTP/3 file server
    Origin,
    /// The client that carries packets and connections of local programs
    Client,
    /// The proxy for one TCP service
    Serve,
    /// The client of that proxy
    Connect,
    /// The PEP on a router
    #[cfg(feature = "pep-kernel")]
    Pep,
}

impl Generate {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Self::Man { dir } => {
                clap_mangen::generate_to(visible(help::arrange(Cli::command())), &dir)
                    .map_err(CliError::write(&dir))?;
                let pages = fs::read_dir(&dir).map_err(CliError::write(&dir))?.count();
                text::print(format_args!("{pages} files in {}", dir.display()))
            }
            Self::Certificate { folder, name } => {
                text::print(DevelopmentIdentity::new(&name)?.write(&folder)?)
            }
            Self::ConcealedKey { name, file } => {
                text::print(concealed::make(&name, &file).map_err(|error| match error {
                    MakeError::System(error) => CliError::from(error),
                    MakeError::Write(error) => error.into(),
                })?)
            }
            Self::Password { name } => text::print(password::line(&name)?),
            Self::Fleet { visible, after, machine } => {
                text::print(fleet::new_file(visible, after.as_deref(), machine)?.trim_end())
            }
            Self::Profile(profile) => profile.run(),
            Self::Config { subcommand } => {
                let text = match subcommand {
                    Configurable::Proxy => example::<ProxySettings>(),
                    Configurable::Origin => example::<OriginSettings>(),
                    Configurable::Client => example::<ClientSettings>(),
                    Configurable::Serve => example::<ServeSettings>(),
                    Configurable::Connect => example::<ConnectSettings>(),
                    #[cfg(feature = "pep-kernel")]
                    Configurable::Pep => example::<PepSettings>(),
                };
                text::print(text.trim_end())
            }
            Self::Completions { shell } => {
                let mut out = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "tandem", &mut out);
                text::print(String::from_utf8_lossy(&out).trim_end())
            }
        }
    }
}

/// Without `help`, which needs no manual page, and with the help of every flag.
fn visible(command: Command) -> Command {
    let command = command.disable_help_subcommand(true).mut_subcommands(visible);
    command.mut_args(|flag| flag.hide_short_help(false))
}

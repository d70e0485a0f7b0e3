//! What local programs give to `tandem client`: UDP packets, TCP connections, requests to a local proxy,
//! and its own standard input and output.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;
use tandem_node::client::{FlowConfig, ForwardConfig, TcpService, local::Password};
use tandem_server::{files::FileError, process::secret::warn_if_shared};

use crate::{
    config::{Forward, ListenAddr, Target},
    error::ConfigError,
    text,
};

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ProgramSettings {
    #[arg(
        long, value_name = "LISTEN=TARGET", env = "TANDEM_UDP", value_delimiter = ',',
        help = "Listen on a local UDP address and send the packets that arrive there through the tunnel \
                to HOST:PORT; repeatable, or several with commas between",
        long_help = format!(
            "Listen on a local UDP address and send the packets that arrive there through the tunnel to \
             HOST:PORT; repeatable, or several with commas between. {}",
            Forward::share_help(),
        )
    )]
    udp: Vec<Forward>,

    #[arg(
        long, value_name = "LISTEN=TARGET", env = "TANDEM_TCP", value_delimiter = ',',
        help = "Listen on a local TCP address and carry the connections that come there through the \
                tunnel to HOST:PORT; repeatable, or several with commas between",
        long_help = format!(
            "Listen on a local TCP address and carry the connections that come there through the tunnel \
             to HOST:PORT; repeatable, or several with commas between. {}",
            Forward::share_help(),
        )
    )]
    tcp: Vec<Forward>,

    /// Listen on a local TCP address as a proxy of this machine's programs, which speaks SOCKS5 and HTTP;
    /// repeatable, or several with commas between
    ///
    /// Programs find it by `ALL_PROXY=socks5h://LISTEN` or `https_proxy=http://LISTEN`, for example. It
    /// carries TCP connections, and UDP packets of programs that ask for them with SOCKS5. The far end of
    /// the tunnel resolves the names of targets. An address that is not loopback needs
    /// --proxy-password-file.
    #[arg(long, value_name = "LISTEN", env = "TANDEM_PROXY", value_delimiter = ',')]
    proxy: Vec<ListenAddr>,

    /// File whose first line is USER:PASSWORD, which programs have to show to the proxy of --proxy
    #[arg(
        long,
        value_name = "FILE",
        env = "TANDEM_PROXY_PASSWORD_FILE",
        help_heading = "Local proxy"
    )]
    proxy_password_file: Option<PathBuf>,

    /// Carry standard input and output through the tunnel to HOST:PORT, as a `ProxyCommand` of ssh does;
    /// the client ends when the connection ends
    #[arg(long, value_name = "TARGET", env = "TANDEM_STDIO")]
    stdio: Option<Target>,
}

impl ProgramSettings {
    /// The settings of which at least one is required.
    pub(crate) const ONE_OF: [&'static str; 4] = ["udp", "tcp", "proxy", "stdio"];
}

/// The checked form of [`ProgramSettings`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ProgramSetup {
    udp: Vec<Forward>,
    tcp: Vec<Forward>,
    proxy: Vec<ListenAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_password_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdio: Option<Target>,
}

impl TryFrom<ProgramSettings> for ProgramSetup {
    type Error = ConfigError;

    fn try_from(settings: ProgramSettings) -> Result<Self, ConfigError> {
        let ProgramSettings { udp, tcp, proxy, proxy_password_file, stdio } = settings;
        if udp.is_empty() && tcp.is_empty() && proxy.is_empty() && stdio.is_none() {
            return Err(ConfigError::NothingToCarry);
        }
        if proxy_password_file.is_some() && proxy.is_empty() {
            let (first, second) = ("proxy-password-file", "proxy");
            let reason = "programs show the password to the proxy that listens there";
            return Err(ConfigError::Incomplete { first, second, reason });
        }
        let open = proxy.iter().find(|listen| !listen.is_loopback());
        if let (Some(listen), None) = (open, &proxy_password_file) {
            return Err(ConfigError::OpenLocalProxy { listen: listen.0 });
        }
        Ok(Self { udp, tcp, proxy, proxy_password_file, stdio })
    }
}

impl ProgramSetup {
    /// Whether the client carries its own standard input and output, so that it must not write there.
    pub(crate) fn has_stdio(&self) -> bool {
        self.stdio.is_some()
    }

    /// Whether programs may name their targets.
    pub(crate) fn has_proxy(&self) -> bool {
        !self.proxy.is_empty()
    }

    /// The listeners for UDP packets, as `flow` completes their flows.
    pub(crate) fn udp(&self, flow: impl Fn(FlowConfig) -> FlowConfig) -> Vec<ForwardConfig> {
        let config = |forward: &Forward| ForwardConfig {
            listen: forward.listen.0,
            flow: flow(forward.to_flow()),
        };
        self.udp.iter().map(config).collect()
    }

    /// The ways for TCP connections. Reads the file with the password.
    pub(crate) fn tcp(&self) -> Result<Vec<TcpService>, ConfigError> {
        let password = self.proxy_password_file.as_deref().map(read_password).transpose()?;
        let password = password.map(Arc::new);
        let forwards = self.tcp.iter().map(|forward| TcpService::Forward {
            listen: forward.listen.0,
            target: forward.to_flow(),
        });
        let proxies = self
            .proxy
            .iter()
            .map(|listen| TcpService::Proxy { listen: listen.0, password: password.clone() });
        let stdio = self.stdio.iter().map(|target| TcpService::Stdio { target: target.to_flow() });
        Ok(forwards.chain(proxies).chain(stdio).collect())
    }

    /// Warns of what other hosts can do.
    pub(crate) fn warn(&self) {
        for forward in self.udp.iter().chain(&self.tcp) {
            warn_if_open(forward.listen);
        }
        for listen in self.proxy.iter().filter(|listen| !listen.is_loopback()) {
            text::say(format_args!(
                "warning: {listen} is not a loopback address: the password, and all that is not \
                 encrypted itself, can be read on the way from other hosts to this client"
            ));
        }
    }
}

/// Warns if other hosts can send to a listener that asks for no password.
pub(crate) fn warn_if_open(listen: ListenAddr) {
    if !listen.is_loopback() {
        text::say(format_args!(
            "warning: {listen} is not a loopback address: other hosts can send through this tunnel"
        ));
    }
}

/// Reads `USER:PASSWORD` from the first line of a file. Warns if others on this machine can read it. The
/// error does not show the line.
fn read_password(file: &Path) -> Result<Password, ConfigError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    warn_if_shared(file, "the password");
    let line = text.lines().next().unwrap_or_default();
    Password::parse(line).map_err(|error| ConfigError::Password { file: file.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Password, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        read_password(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_line_has_a_user_and_a_password() {
        let expected = Password::parse("alice:a:b c").unwrap();
        for text in ["alice:a:b c", "alice:a:b c\r\nanother line", "alice:a:b c\n"] {
            assert_eq!(read(text), Ok(expected.clone()), "{text:?}");
        }
    }

    #[test]
    fn a_wrong_line_is_explained_and_never_shown() {
        for text in ["", "secret", "\nsecret:secret", ":secret", "secret:", "secret:secret\u{7}"] {
            let error = read(text).unwrap_err();
            assert!(error.contains(":1: ") && error.contains("USER:PASSWORD"), "{text:?}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}

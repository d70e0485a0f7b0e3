//! `tandem top`.

mod client;
mod picture;

use std::{thread, time::Duration};

use serde_json::Value;
use tandem_net::admin::get;
use tandem_node::StrangerText;
use tandem_server::{
    admin::{
        AdminAddr, Now,
        client::{ClientNow, ClientState},
    },
    process::runtime,
};

use self::{client::ClientPicture, picture::Picture};
use crate::{
    error::{CliError, ConfigError, TopError},
    screen::Screen,
    text,
};

const EXAMPLES: &str = "\
Examples:
  tandem top
      Shows a server that runs on this machine with --admin 127.0.0.1:9433.
  ssh -L 9433:localhost:9433 proxy.example
      Then tandem top shows a server of another machine.
  tandem top unix:/run/tandem/admin --json
      Prints one snapshot for programs.
  tandem top unix:/run/tandem/admin --ready
      Fails while the server takes no new connections, or the client has no tunnel.";

/// How often the picture is drawn again.
const INTERVAL: Duration = Duration::from_secs(1);

/// Show what a running proxy, origin or client does, until Ctrl-C.
///
/// It needs --admin. Of servers, the same is on a page for browsers at that address.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Top {
    /// Where the --admin of the server or client listens
    #[arg(value_name = "ADMIN", env = "TANDEM_ADMIN", default_value = "127.0.0.1:9433")]
    admin: AdminAddr,

    /// Print one snapshot as JSON
    #[arg(long)]
    json: bool,

    /// Print nothing, and fail unless the server takes new connections, or the client has a tunnel, as /readyz says
    ///
    /// For the health checks of containers, which cannot send a request themselves.
    #[arg(long, conflicts_with = "json")]
    ready: bool,
}

impl Top {
    /// Draws until a signal ends the program.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let runtime = runtime()?;
        let ask = || {
            let answer = runtime.block_on(get(&self.admin.0, "/api/now"));
            answer.map_err(|error| TopError::NoAnswer { address: self.admin.clone(), error })
        };
        if self.json {
            let json = ask()?;
            self.parse(&json)?;
            return text::print(String::from_utf8_lossy(&json));
        }
        let mut now = self.parse(&ask()?)?;
        if self.ready {
            return Ok(now.ready(self.admin)?);
        }
        let mut screen = Screen::open().ok_or(ConfigError::NoTerminal)?;
        loop {
            match &now {
                Shown::Server(now) => screen.draw(Picture { now }),
                Shown::Client(now) => screen.draw(ClientPicture { now }),
            }
            thread::sleep(INTERVAL);
            now = self.parse(&ask()?)?;
        }
    }

    fn parse(&self, json: &[u8]) -> Result<Shown, TopError> {
        read(json).map_err(|error| TopError::ForeignAnswer { address: self.admin.clone(), error })
    }
}

/// Who answers at an admin listener.
#[derive(Debug)]
enum Shown {
    Server(Box<Now>),
    Client(Box<ClientNow>),
}

impl Shown {
    /// Whether it does its work.
    fn ready(self, address: AdminAddr) -> Result<(), TopError> {
        match self {
            Self::Server(now) if now.is_ready => Ok(()),
            Self::Server(_) => Err(TopError::NotReady { address }),
            Self::Client(now) if now.state == ClientState::Up => Ok(()),
            Self::Client(now) => {
                Err(TopError::NoTunnel { address, error: now.error.map(StrangerText::from) })
            }
        }
    }
}

/// Reads the answer of a server or a client. Ours know only names that are short and printable; another program may
/// listen at the same address.
fn read(json: &[u8]) -> Result<Shown, StrangerText> {
    let value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if !is_printable(&value) {
        return Err("a text in it has characters that cannot be shown, or is too long".into());
    }
    let is_client = value.get("role").is_some_and(|role| role == "client");
    let shown = if is_client {
        serde_json::from_value(value).map(Shown::Client)
    } else {
        serde_json::from_value(value).map(Shown::Server)
    };
    Ok(shown.map_err(|error| error.to_string())?)
}

/// The answer of a server of ours.
pub(crate) fn read_server(json: &[u8]) -> Result<Now, StrangerText> {
    match read(json)? {
        Shown::Server(now) => Ok(*now),
        Shown::Client(_) => Err("it is that of a client, which has no A/B test".into()),
    }
}

/// The answer of a client of ours. `None`: another program has answered.
pub(crate) fn read_client(json: &[u8]) -> Option<ClientNow> {
    match read(json) {
        Ok(Shown::Client(now)) => Some(*now),
        Ok(Shown::Server(_)) | Err(_) => None,
    }
}

/// Whether all texts in an answer can be shown as they are. The parser limits the depth of an answer.
fn is_printable(value: &Value) -> bool {
    let is_shown = |text: &str| StrangerText::new(text).to_string() == text;
    match value {
        Value::String(text) => is_shown(text),
        Value::Array(values) => values.iter().all(is_printable),
        Value::Object(fields) => {
            fields.iter().all(|(key, value)| is_shown(key) && is_printable(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_a_terminal_cannot_show_is_not_shown() {
        let answer = |version: &str| {
            let now = Now { version: version.to_owned(), ..Now::default() };
            read(&serde_json::to_vec(&now).unwrap())
        };
        let Shown::Server(now) = answer("0.1.0").unwrap() else { panic!("it is a server") };
        assert_eq!(now.version, "0.1.0");
        let client = read(&serde_json::to_vec(&ClientNow::default()).unwrap()).unwrap();
        assert!(
            client.ready("unix:a".parse().unwrap()).unwrap_err().to_string().contains("no tunnel")
        );
        let long = "x".repeat(10_000);
        for hostile in
            ["\u{1b}[2J", "a\nb", "\u{9b}31m", "\u{202e}abc", "a\u{200b}b", "\u{2028}", &long]
        {
            let error = answer(hostile).unwrap_err().to_string();
            assert!(error.contains("cannot be shown"), "{error}");
        }
        let error = read(b"{\"version\": \"x\", \"\xe2\x80\xae\": 1}").unwrap_err().to_string();
        assert!(error.contains("cannot be shown"), "{error}");
        assert!(!read(b"\xe2\x80\xae\x1b[2J").unwrap_err().to_string().contains('\u{202e}'));
    }
}

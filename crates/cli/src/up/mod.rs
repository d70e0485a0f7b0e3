//! `tandem up`, `tandem down` and `tandem status`: a client of which only the proxy is named.

mod document;
pub(crate) mod folder;
mod plan;
mod service;
mod status;
mod token;

use std::{fs, path::PathBuf};

use tandem_files::pvd::Origin;
use tandem_node::{Cause, error::ClientError, proxy::Token};
use tandem_server::{
    files::{FileError, tokens},
    process,
};

pub(crate) use self::status::Status;
use self::{
    folder::Folder,
    plan::{Offer, Plan},
    service::Systemd,
};
use crate::{
    config::ListenAddr,
    error::{CliError, ConfigError, TransferError, UpError},
    link::Link,
    text,
    tls::ClientTlsSetup,
};

/// Where programs find the client, unless the user says it.
const LISTEN: &str = "127.0.0.1:1080";

const EXAMPLES: &str = "\
Examples:
  tandem up proxy.example
      Asks for the token, and runs a client from now on.
  tandem up 'tandem://alice:TOKEN@proxy.example'
      The same with a link, which has the token already.
  tandem up -
      Reads the link from the standard input or the terminal, so that no list of processes shows it.
  tandem up
      Starts the client again that is set up, with what its proxy says now.
  tandem up https://proxy.example:8443 --ca ca.pem --token-file token --foreground
      A proxy with a CA of its own; the client runs in this terminal.";

/// Set up a client for a proxy of which only the name or a link is known, and run it.
///
/// It fetches the proxy's configuration document (PvD, draft-ietf-intarea-proxy-config), asks for the token and tests
/// it, keeps both in ~/.config/tandem, and starts the client: as a unit of the user's systemd if there is one, else in
/// this terminal. Nothing is written if the proxy does not answer or does not accept the token.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Up {
    /// Proxy: a name, HOST:PORT, an https URL, or a tandem:// link; - reads it from the terminal or the standard input,
    /// and without one, the client that is set up starts again
    #[arg(value_name = "NAME|LINK", hide_possible_values = true)]
    name: Option<Secretive>,

    /// File whose first token is sent to the proxy [default: that of the link; else it is asked for]
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// Trust the CA certificates of this PEM file instead of the system's; they are copied
    #[arg(long, value_name = "FILE", env = "TANDEM_CA")]
    ca: Option<PathBuf>,

    /// Local address at which programs find the client [default: 127.0.0.1:1080]
    #[arg(long, value_name = "ADDR", env = "TANDEM_PROXY")]
    listen: Option<ListenAddr>,

    /// Run the client in this terminal, although there is a systemd
    #[arg(long)]
    foreground: bool,

    /// Take the place of another proxy that is set up
    #[arg(long)]
    replace: bool,

    /// Also use a proxy of this origin, as HOST or HOST:PORT, if the configuration document names it; repeatable
    #[arg(long, value_name = "ORIGIN")]
    also: Vec<Origin>,

    /// Do not ask the proxy for its configuration document (PvD); use the usual template
    #[arg(long)]
    no_pvd: bool,
}

/// An argument that may contain a token, so that no debug output shows it.
#[derive(Clone)]
struct Secretive(String);

impl From<&str> for Secretive {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Debug for Secretive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secretive")
    }
}

impl Up {
    /// Sets up and runs.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let folder = Folder::of_user()?;
        // With --replace, a setup that cannot be read counts as none.
        let kept = if self.replace { folder.kept().unwrap_or_default() } else { folder.kept()? };
        let old = kept.as_ref().and_then(|kept| Some((kept, kept.link()?)));
        let named = match &self.name {
            Some(Secretive(name)) if name == "-" => Some(parse_name(&token::ask_link()?)?),
            Some(Secretive(name)) => Some(parse_name(name)?),
            None => None,
        };
        let (link, before) = match (named, old) {
            (None, None) => return Err(UpError::NoSetup.into()),
            (None, Some((kept, link))) => (link.clone(), Some((kept, link))),
            (Some(link), Some((kept, old))) if link.via() == old.via() => (link, Some((kept, old))),
            (Some(link), Some((_, old))) if !self.replace => {
                let (old, new) = (old.authority(), link.authority());
                return Err(UpError::OtherProxy { old, new }.into());
            }
            (Some(link), _) => (link, None),
        };
        let plan = self.plan(link, before, &folder)?;
        let runtime = process::runtime()?;
        let (offer, token, answer_ms) =
            runtime.block_on(meet(&plan)).map_err(|error| match error {
                CliError::Transfer(TransferError::Client { error })
                    if !matches!(error, ClientError::Interrupted) =>
                {
                    UpError::Server { error, is_pinned: plan.link.fingerprint().is_some() }.into()
                }
                error => error,
            })?;
        drop(runtime);
        let proxy = plan.link.authority();
        let socket = folder.socket();
        let setup = plan.setup(&offer, token.as_ref(), socket.as_deref());
        for line in offer.said() {
            text::say(line);
        }
        let systemd = Systemd::of_user().filter(|_| !self.foreground);
        let is_as_before = folder.has(&setup);
        let running = service::process_at(socket.as_deref());
        let is_unit = systemd.as_ref().is_some_and(Systemd::is_active);
        if let Some(process) = running.filter(|_| !is_unit) {
            if is_as_before {
                folder.put(&setup)?; // its document may be valid for longer
                return text::print(format_args!("{proxy} is up already, as process {process}"));
            }
            return Err(UpError::Runs { process }.into());
        }
        folder.put(&setup)?;
        let config = folder.current().join("client.toml");
        let listen = &plan.listen;
        text::say(format_args!(
            "{proxy} accepts this client; it answered in {answer_ms:.0} ms\n\
             programs use it with ALL_PROXY=socks5h://{listen}"
        ));
        let Some(systemd) = systemd else {
            return Err(service::become_client(&config).into());
        };
        if !(is_unit && is_as_before && running.is_some()) {
            systemd.start(&config)?;
            service::wait_for(socket.as_deref())?;
        }
        text::print(format_args!(
            "{proxy} is up, as {}: `tandem status` shows it, `tandem down` ends it",
            service::UNIT
        ))
    }

    /// What the user wants, with the files read. `before`: the setup of the same proxy that is in force.
    fn plan(
        &self,
        link: Link,
        before: Option<(&folder::Kept, Link)>,
        folder: &Folder,
    ) -> Result<Plan, CliError> {
        let (kept, old) = before.unzip();
        let also = match kept {
            Some(kept) if self.also.is_empty() => {
                kept.also.iter().filter_map(|origin| origin.parse().ok()).collect()
            }
            _ => self.also.clone(),
        };
        let kept_listen = || kept.and_then(|kept| kept.listen.parse().ok());
        let listen = match self.listen.or_else(kept_listen) {
            Some(listen) if !listen.is_loopback() => {
                return Err(ConfigError::OpenLocalProxy { listen: listen.0 }.into());
            }
            Some(listen) => listen,
            None => LISTEN.parse().expect("it is an address"),
        };
        // A link that has no fingerprint of its own means the certificate that was known before.
        let fingerprint = link.fingerprint().or(old.as_ref().and_then(Link::fingerprint));
        let link = match fingerprint {
            Some(fingerprint) => link.with_fingerprint(fingerprint),
            None => link,
        };
        let old_ca = folder.current().join("ca.pem");
        let old_ca = Some(old_ca).filter(|file| kept.is_some() && file.exists());
        let ca = self.ca.clone().or(old_ca).filter(|_| fingerprint.is_none());
        let tls = ClientTlsSetup::of_proxy(ca.iter().cloned().collect(), fingerprint).read()?;
        let ca = ca.map(|file| {
            let text = fs::read_to_string(&file);
            text.map_err(|error| ConfigError::from(FileError::Unreadable { file, error }))
        });
        let given = match &self.token_file {
            Some(file) => Some(tokens::read_first(file)?),
            None => link.token().cloned(),
        };
        Ok(Plan {
            is_token_given: given.is_some(),
            token: given.or_else(|| old.as_ref()?.token().cloned()),
            link,
            ca: ca.transpose()?,
            also,
            listen,
            has_document: !self.no_pvd
                && (self.name.is_some() || kept.is_none_or(|kept| kept.has_document)),
            tls,
        })
    }
}

/// What the proxy offers, the token that it has accepted, and how long it took to answer in milliseconds. The token is
/// asked for only if the proxy wants one, or may want one, and none is known.
async fn meet(plan: &Plan) -> Result<(Offer, Option<Token>, f64), CliError> {
    let proxy = || plan.link.authority();
    let known = plan.token.clone();
    let offer = plan.ask_for_document(known.as_ref()).await?;
    let error = match plan.test(&offer, known.clone()).await {
        Ok(answer_ms) => return Ok((offer, known, answer_ms)),
        Err(error) => error,
    };
    let without = match Refusal::of(&error) {
        None => return Err(error),
        // One that was kept may have been replaced.
        Some(refusal) if known.is_some() && plan.is_token_given => {
            return Err(refusal.of_token(proxy()).into());
        }
        Some(refusal) => refusal,
    };
    if let Refusal::Site(status) = without {
        text::say(format_args!(
            "{} answers like a web server (status {status}); if it is a proxy, it shows itself only to who has a token",
            proxy()
        ));
    }
    let Some(token) = token::ask(&proxy())? else {
        return Err(without.of_nobody(proxy()).into());
    };
    // A proxy that is a web site to strangers shows its document only now.
    let offer =
        if offer.has_document() { offer } else { plan.ask_for_document(Some(&token)).await? };
    match plan.test(&offer, Some(token.clone())).await {
        Ok(answer_ms) => Ok((offer, Some(token), answer_ms)),
        Err(error) => Err(match Refusal::of(&error) {
            Some(refusal) => refusal.of_token(proxy()).into(),
            None => error,
        }),
    }
}

/// How a server refuses somebody who may have no right to a proxy.
#[derive(Clone, Copy)]
enum Refusal {
    /// As a proxy: it wants another token.
    Token,
    /// As a web server, with this status. It may be a proxy that hides, or none.
    Site(u16),
}

impl Refusal {
    fn of(error: &CliError) -> Option<Self> {
        let CliError::Transfer(TransferError::Client { error }) = error else { return None };
        match error {
            ClientError::Refused { status: 401 | 407, .. } => Some(Self::Token),
            ClientError::Refused { status, proxy_status: None, .. }
                if error.cause() == Some(Cause::NotServed) =>
            {
                Some(Self::Site(*status))
            }
            _ => None,
        }
    }

    /// The error for a token that was refused so.
    const fn of_token(self, proxy: String) -> UpError {
        match self {
            Self::Token => UpError::WrongToken { proxy },
            Self::Site(status) => UpError::NoProxy { proxy, status },
        }
    }

    /// The error for somebody without a token.
    const fn of_nobody(self, proxy: String) -> UpError {
        match self {
            Self::Token => UpError::NoToken { proxy },
            Self::Site(status) => UpError::NoProxy { proxy, status },
        }
    }
}

/// A proxy as a person names it.
fn parse_name(text: &str) -> Result<Link, UpError> {
    let trimmed = text.trim();
    if trimmed.get(..9).is_some_and(|scheme| scheme.eq_ignore_ascii_case("tandem://")) {
        return trimmed.parse().map_err(UpError::Link);
    }
    // An https URL may have a secret path. User and password are for links only, and their errors would show them.
    let bare = trimmed.strip_prefix("https://").unwrap_or(trimmed);
    let is_other_scheme = bare.contains("://");
    let refused = || {
        let shown =
            if bare.contains('@') || bare.contains('/') { "what was named" } else { trimmed };
        UpError::Name(shown.into())
    };
    if is_other_scheme || bare.contains(['@', '?', '#', '{']) {
        return Err(refused());
    }
    format!("tandem://{}", bare.trim_end_matches('/')).parse().map_err(|_| refused())
}

const DOWN_EXAMPLES: &str = "\
Examples:
  tandem down
      Ends the client. `tandem up` starts it again.
  tandem down --forget
      Also removes the token and everything else that `tandem up` has written, but not your rules.";

/// End the client that `tandem up` has started.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DOWN_EXAMPLES)]
pub(crate) struct Down {
    /// Also remove the setup with its token; your rules stay
    #[arg(long)]
    forget: bool,
}

impl Down {
    /// Ends the client. It is no error if none runs.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let folder = Folder::of_user()?;
        let socket = folder.socket();
        let mut ended = None;
        if let Some(systemd) = Systemd::of_user().filter(Systemd::has_unit) {
            systemd.stop()?;
            ended = Some(format!("{} is stopped", service::UNIT));
        }
        if let Some(process) = service::end(socket.as_deref())? {
            ended.get_or_insert_with(|| format!("process {process} has ended"));
        }
        text::print(ended.unwrap_or_else(|| "no client runs".to_owned()))?;
        if self.forget {
            folder.forget()?;
            text::print("the setup and its token are removed")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_a_name_an_address_a_url_or_a_link() {
        for (text, via) in [
            ("proxy.example", Some("https://proxy.example")),
            (" Proxy.Example:8443 ", Some("https://proxy.example:8443")),
            ("192.0.2.1", Some("https://192.0.2.1")),
            ("[2001:db8::1]:8443", Some("https://[2001:db8::1]:8443")),
            ("https://proxy.example/", Some("https://proxy.example")),
            ("https://proxy.example/secret", Some("https://proxy.example/secret")),
            ("tandem://:0123456789abcdef@proxy.example", Some("https://proxy.example")),
            ("TANDEM://proxy.example:444", Some("https://proxy.example:444")),
            ("", None),
            ("http://proxy.example", None),
            ("socks5://proxy.example", None),
            ("2001:db8::1", None),
            ("proxy.example:99999", None),
            ("user:0123456789abcdef@proxy.example", None),
            ("https://user:0123456789abcdef@proxy.example", None),
            ("tandem://:0123456789abc", None),
            ("tandem://alice:0123456789abcdef@", None),
            ("https://p.example/m{?target_host,target_port}", None),
        ] {
            match (parse_name(text), via) {
                (Ok(link), Some(via)) => assert_eq!(link.via(), via, "{text}"),
                (Err(error), None) => {
                    let error = error.to_string();
                    assert!(!error.contains("0123456789"), "{text}: {error}");
                }
                (result, _) => panic!("{text}: {result:?}"),
            }
        }
    }
}

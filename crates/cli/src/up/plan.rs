//! What a setup is made from: what the user has named, and what the proxy has told.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tandem_files::pvd::{self, Document, Expected, Origin, PvdError};
use tandem_node::{
    client::{
        HopConfig, Template,
        rules::{Action, Rule},
    },
    proxy::Token,
};
use tandem_server::{files::FileError, transport::WorkFor};
use tandem_wire::StrangerText;
use toml::Value;

use super::{
    document,
    folder::{Kept, Setup},
};
use crate::{
    config::{ListenAddr, TransportSettings, transport_for},
    error::{CliError, ConfigError, UpError},
    hops,
    link::{Fingerprint, Link},
    ping,
    rules::now,
    tls::{ClientTls, ClientTlsSetup},
};

/// Where programs find the client, unless the user says it.
const LISTEN: &str = "127.0.0.1:1080";

/// What the user has named.
pub(super) struct Wanted {
    pub(super) link: Link,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) token: Option<Token>,
    /// Whether the user has given the token now.
    pub(super) is_token_given: bool,
    pub(super) ca: Option<PathBuf>,
    pub(super) also: Vec<Origin>,
    pub(super) listen: Option<ListenAddr>,
    pub(super) has_document: bool,
}

/// The same with its files read.
pub(super) struct Plan {
    pub(super) link: Link,
    fingerprint: Option<Fingerprint>,
    pub(super) token: Option<Token>,
    pub(super) is_token_given: bool,
    /// The certificates of the CA, in PEM.
    ca: Option<String>,
    also: Vec<Origin>,
    pub(super) listen: ListenAddr,
    has_document: bool,
    tls: ClientTls,
}

/// What a proxy offers.
pub(super) struct Offer {
    /// Its template.
    template: Template,
    /// What it tells of itself, as it came. `None`: nothing.
    text: Option<String>,
    rules: Vec<Rule>,
    left_out: Vec<StrangerText>,
}

impl Plan {
    pub(super) fn new(wanted: Wanted) -> Result<Self, CliError> {
        let Wanted { link, fingerprint, token, is_token_given, ca, also, listen, has_document } =
            wanted;
        let files = ca.iter().cloned().collect();
        let tls = ClientTlsSetup::of_proxy(files, fingerprint).read()?;
        let unreadable = |file: &PathBuf, error| {
            ConfigError::from(FileError::Unreadable { file: file.clone(), error })
        };
        let ca = ca.map(|file| fs::read_to_string(&file).map_err(|error| unreadable(&file, error)));
        let listen = match listen {
            Some(listen) if !listen.is_loopback() => {
                return Err(ConfigError::OpenLocalProxy { listen: listen.0 }.into());
            }
            Some(listen) => listen,
            None => LISTEN.parse().expect("it is an address"),
        };
        Ok(Self {
            link,
            fingerprint,
            token,
            is_token_given,
            ca: ca.transpose()?,
            also,
            listen,
            has_document,
            tls,
        })
    }

    /// The path below which the proxy is: empty, or one that begins with a slash.
    fn prefix(&self) -> String {
        self.link.secret_path().map(|path| format!("/{path}")).unwrap_or_default()
    }

    /// The template of a proxy that tells nothing.
    fn usual_template(&self) -> Result<Template, CliError> {
        let path = "/.well-known/masque/udp/{target_host}/{target_port}/";
        let template = Template::parse(&format!("{}{path}", self.link.via()));
        template.map_err(|_| UpError::Name(self.link.authority().into()).into())
    }

    /// Asks the proxy what it tells of itself.
    pub(super) async fn ask_for_document(&self) -> Result<Offer, CliError> {
        let usual = self.usual_template()?;
        let nothing =
            |template| Offer { template, text: None, rules: Vec::new(), left_out: Vec::new() };
        if !self.has_document {
            return Ok(nothing(usual));
        }
        let (place, path) = ((self.link.host(), self.link.port()), self.prefix() + pvd::PATH);
        let limits = hops::limits(None, None, None);
        let body = document::fetch(place, &path, self.tls.proxy.clone(), limits).await?;
        let Some(body) = body else { return Ok(nothing(usual)) };
        let refused = |error| UpError::Document { proxy: self.link.authority(), error };
        let mut origins = vec![Origin::of(&usual)];
        origins.extend(self.also.iter().cloned());
        let (host, now) = (Some(self.link.host()), now());
        let expected = Expected { host, origins: &origins, now };
        let Document { udp, rules, left_out, .. } =
            Document::parse(&body, expected).map_err(refused)?;
        let not_utf8 = |_| refused(PvdError::Json("it is not UTF-8".into()));
        let text = String::from_utf8(body).map_err(not_utf8)?;
        let text = Some(text);
        Ok(Offer { template: udp.unwrap_or(usual), text, rules, left_out })
    }

    /// Asks the proxy whether it accepts a token. Returns how long the answer took in milliseconds.
    pub(super) async fn test(&self, offer: &Offer, token: Option<Token>) -> Result<f64, CliError> {
        let transport = transport_for(TransportSettings::default(), WorkFor::Tunnel)?;
        let hop = HopConfig {
            transport: transport.to_node("tunnel", WorkFor::Tunnel),
            token,
            ..HopConfig::new(offer.template.clone(), self.tls.proxy.clone())
        };
        ping::ask_once(hop, hops::limits(None, None, None)).await
    }

    /// The files of the setup.
    pub(super) fn setup(
        &self,
        offer: &Offer,
        token: Option<&Token>,
        socket: Option<&Path>,
    ) -> Result<Setup, CliError> {
        let text = |value: &str| Value::from(value);
        let mut lines = vec![
            ("via", text(offer.template.as_str())),
            ("proxy", text(&self.listen.to_string())),
            ("rules", text("../rules")),
        ];
        let mut files = Vec::new();
        if let Some(token) = token {
            lines.push(("token-file", text("token")));
            files.push(("token", format!("{}\n", token.reveal())));
        }
        if let Some(document) = &offer.text {
            lines.push(("pvd", text("pvd.json")));
            files.push(("pvd.json", document.clone()));
        }
        if let Some(fingerprint) = self.fingerprint {
            lines.push(("proxy-sha256", text(&fingerprint.to_string())));
        } else if let Some(ca) = &self.ca {
            lines.push(("ca", text("ca.pem")));
            files.push(("ca.pem", ca.clone()));
        }
        if let Some(socket) = socket.and_then(Path::to_str) {
            lines.push(("admin", text(&format!("unix:{socket}"))));
        }
        let mut config =
            "# Written by `tandem up`, which replaces it: change nothing here.\n".to_owned();
        for (key, value) in lines {
            let line = format!("{key} = {value}\n");
            config.push_str(&line);
        }
        files.push(("client.toml", config));
        files.push(("up.json", self.kept(token)?));
        Ok(Setup { files })
    }

    /// What the next `tandem up` needs to know.
    fn kept(&self, token: Option<&Token>) -> Result<String, CliError> {
        let link = Link::new(self.link.host(), self.link.port());
        let link = link.and_then(|link| link.with_name(self.link.name()));
        let link = link.and_then(|link| match self.link.secret_path() {
            Some(path) => link.with_secret_path(path),
            None => Ok(link),
        });
        let mut link = link.map_err(UpError::Link)?;
        if let Some(token) = token {
            link = link.with_token(token.clone());
        }
        if let Some(fingerprint) = self.fingerprint {
            link = link.with_fingerprint(fingerprint);
        }
        let kept = Kept {
            link: link.reveal(),
            also: self.also.iter().map(ToString::to_string).collect(),
            listen: self.listen.to_string(),
            has_document: self.has_document,
        };
        Ok(serde_json::to_string(&kept).expect("texts are JSON") + "\n")
    }
}

impl Offer {
    /// What the user should know of what the proxy tells.
    pub(super) fn said(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.text.is_none() {
            lines.push(
                "the proxy tells nothing of itself, so that its usual template is used".to_owned(),
            );
        }
        let takes_all = |rule: &Rule| {
            rule.to_string().starts_with("direct=*") && !rule.to_string().contains("*.")
        };
        let proxied = self.rules.iter().filter(|rule| rule.action == Action::Proxy).count();
        if !self.rules.is_empty() {
            let rules = if self.rules.len() == 1 {
                "1 rule".to_owned()
            } else {
                format!("{} rules", self.rules.len())
            };
            lines.push(format!(
                "the proxy has {rules} for what goes through it; `tandem route HOST` asks them"
            ));
        }
        if proxied == 0 && self.rules.iter().any(takes_all) {
            lines.push("warning: by its rules, it takes nothing".to_owned());
        }
        lines.extend(self.left_out.iter().map(|reason| format!("not used: {reason}")));
        lines
    }
}

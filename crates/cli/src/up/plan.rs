//! What a setup is made from: what the user has named, and the configuration document of the proxy.

use std::path::Path;

use tandem_files::pvd::{self, Document, Expected, Origin, PvdError};
use tandem_node::{
    client::{
        HopConfig, Template,
        rules::{Action, HostMatch, Rule},
    },
    proxy::Token,
};
use tandem_server::transport::WorkFor;
use tandem_wire::StrangerText;
use toml::Value;

use super::{
    document,
    folder::{Kept, Setup},
};
use crate::{
    config::{ListenAddr, TransportSettings, transport_for},
    error::{CliError, UpError},
    hops,
    link::Link,
    ping,
    rules::now,
    tls::ClientTls,
};

/// What the user wants: what was named now, and what is kept of the setup before.
pub(super) struct Plan {
    /// The proxy, and the fingerprint of its certificate if one is known.
    pub(super) link: Link,
    /// The token of the link, or another one that is known.
    pub(super) token: Option<Token>,
    /// Whether the user has given the token now.
    pub(super) is_token_given: bool,
    /// The certificates of the CA, in PEM.
    pub(super) ca: Option<String>,
    /// The other origins whose proxies may be used.
    pub(super) also: Vec<Origin>,
    /// Where programs find the client.
    pub(super) listen: ListenAddr,
    /// Whether the proxy is asked for its configuration document.
    pub(super) has_document: bool,
    pub(super) tls: ClientTls,
}

/// What a proxy offers.
pub(super) struct Offer {
    /// Its template.
    template: Template,
    /// Its configuration document, as it came. `None`: it has none, or was not asked.
    text: Option<String>,
    rules: Vec<Rule>,
    left_out: Vec<StrangerText>,
}

impl Plan {
    /// Asks the proxy for its configuration document.
    pub(super) async fn ask_for_document(&self) -> Result<Offer, CliError> {
        let usual = Template::of_proxy(&self.link.via());
        let usual = usual.map_err(|_| UpError::Name(self.link.authority().into()))?;
        let nothing =
            |template| Offer { template, text: None, rules: Vec::new(), left_out: Vec::new() };
        if !self.has_document {
            return Ok(nothing(usual));
        }
        let (place, path) = ((self.link.host(), self.link.port()), self.link.path() + pvd::PATH);
        let limits = hops::limits(None, None, None);
        let body = document::fetch(place, &path, &self.tls.proxy, limits).await?;
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
        Ok(Offer { template: udp.unwrap_or(usual), text: Some(text), rules, left_out })
    }

    /// Asks the proxy whether it accepts a token. Returns how long the answer took in milliseconds.
    pub(super) async fn test(&self, offer: &Offer, token: Option<Token>) -> Result<f64, CliError> {
        let transport = transport_for(TransportSettings::default(), WorkFor::Tunnel)?;
        let hop = HopConfig {
            transport: transport.to_node("tunnel", WorkFor::Tunnel),
            token,
            ech: Some(self.tls.proxy.ech.clone()),
            ..HopConfig::new(offer.template.clone(), self.tls.proxy.tls.clone())
        };
        ping::ask_once(hop, hops::limits(None, None, None)).await
    }

    /// The files of the setup.
    pub(super) fn setup(
        &self,
        offer: &Offer,
        token: Option<&Token>,
        socket: Option<&Path>,
    ) -> Setup {
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
        if let Some(fingerprint) = self.link.fingerprint() {
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
        files.push(("up.json", self.kept(token)));
        Setup { files }
    }

    /// What the next `tandem up` needs to know.
    fn kept(&self, token: Option<&Token>) -> String {
        let link = self.link.clone();
        let link = match token {
            Some(token) => link.with_token(token.clone()),
            None => link,
        };
        let kept = Kept {
            link: link.reveal(),
            also: self.also.iter().map(ToString::to_string).collect(),
            listen: self.listen.to_string(),
            has_document: self.has_document,
        };
        serde_json::to_string(&kept).expect("texts are JSON") + "\n"
    }
}

impl Offer {
    /// What the user should know of it.
    pub(super) fn said(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.text.is_none() {
            lines.push(
                "without a configuration document (PvD) of the proxy, its usual template is used"
                    .to_owned(),
            );
        }
        let rules = match self.rules.len() {
            0 => None,
            1 => Some("1 rule".to_owned()),
            len => Some(format!("{len} rules")),
        };
        lines.extend(rules.map(|rules| {
            format!("the proxy has {rules} for what goes through it; `tandem route HOST` asks them")
        }));
        let is_past_the_tunnel =
            |rule: &Rule| rule.action == Action::Direct && rule.hosts.contains(&HostMatch::Any);
        let is_used = self.rules.iter().any(|rule| rule.action == Action::Proxy);
        if !is_used && self.rules.iter().any(is_past_the_tunnel) {
            lines.push("warning: by its rules, nothing goes through the proxy".to_owned());
        }
        lines.extend(self.left_out.iter().map(|reason| format!("not used: {reason}")));
        lines
    }
}

//! Outbounds and rules of sing-box, whose outbound `http` asks for TCP with CONNECT and for UDP with connect-udp from
//! version 1.15 on.
//!
//! Source: the documentation of the outbound `http` and of TLS, <https://sing-box.sagernet.org/configuration/>, and the
//! notes of release 1.15.0-alpha.7.

use serde::Serialize;
use serde_json::{Value, json};

use super::{Content, Domain, Hop, NAME, Profile};

/// The tag of the outbound that uses no proxy.
const DIRECT: &str = "direct";

/// A proxy.
#[derive(Serialize)]
struct Outbound<'a> {
    r#type: &'static str,
    tag: String,
    server: &'a str,
    server_port: u16,
    /// Of HTTP.
    version: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<&'a str>,
    tls: Tls<'a>,
    /// The outbound through which this one is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    detour: Option<String>,
}

#[derive(Serialize)]
struct Tls<'a> {
    enabled: bool,
    server_name: &'a str,
    /// The lines of a certificate in PEM, which is trusted instead of those of public CAs.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<Vec<String>>,
}

pub(super) fn profile(profile: &Profile) -> Content {
    let last = profile.hops.len() - 1;
    let tag = |hop: usize| {
        let name = NAME.to_lowercase();
        if hop == last { name } else { format!("{name}-{}", hop + 1) }
    };
    let outbound = |(index, hop): (usize, &Hop)| {
        let host = hop.template.host();
        let (username, password) = hop.login(profile).unzip();
        let certificate = profile.certificate.as_ref().map(super::Certificate::pem_lines);
        let outbound = Outbound {
            r#type: "http",
            tag: tag(index),
            server: host,
            server_port: hop.template.port(),
            version: 3,
            username,
            password,
            tls: Tls { enabled: true, server_name: host, certificate },
            detour: index.checked_sub(1).map(tag),
        };
        json!(outbound)
    };
    let mut outbounds: Vec<Value> = profile.hops.iter().enumerate().map(outbound).collect();
    outbounds.push(json!({ "type": "direct", "tag": DIRECT }));
    let through = tag(last);
    let mut rules = Vec::new();
    for (domains, tag) in [(&profile.excluded, DIRECT), (&profile.domains, &*through)] {
        if !domains.is_empty() {
            let domains: Vec<String> = domains.iter().map(Domain::to_string).collect();
            rules.push(json!({ "domain_suffix": domains, "action": "route", "outbound": tag }));
        }
    }
    let otherwise = if profile.domains.is_empty() { &*through } else { DIRECT };
    let whole = json!({
        "outbounds": outbounds,
        "route": { "rules": rules, "final": otherwise },
    });
    Content::Text(format!("{whole:#}"))
}

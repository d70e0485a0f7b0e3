//! Outbounds and rules of sing-box, whose outbound `http` asks for TCP with CONNECT and for UDP with connect-udp from
//! version 1.15 on.
//!
//! Source: the documentation of the outbound `http` and of TLS, <https://sing-box.sagernet.org/configuration/>, and the
//! notes of release 1.15.0-alpha.7.

use serde_json::{Value, json};

use super::{Content, NAME, Profile};

pub(super) fn profile(profile: &Profile) -> Content {
    let last = profile.hops.len() - 1;
    let tag = |hop: usize| {
        let name = NAME.to_lowercase();
        if hop == last { name } else { format!("{name}-{}", hop + 1) }
    };
    let outbound = |(index, hop): (usize, &super::Hop)| {
        let host = hop.template.host();
        let mut outbound = json!({
            "type": "http",
            "tag": tag(index),
            "server": host,
            "server_port": hop.template.port(),
            "version": 3,
            "tls": { "enabled": true, "server_name": host },
        });
        if let Some((user, token)) = hop.login(profile) {
            outbound["username"] = user.into();
            outbound["password"] = token.into();
        }
        if let Some(certificate) = &profile.certificate {
            outbound["tls"]["certificate"] = certificate.pem_lines().into();
        }
        if let Some(before) = index.checked_sub(1) {
            outbound["detour"] = tag(before).into();
        }
        outbound
    };
    let mut outbounds: Vec<Value> = profile.hops.iter().enumerate().map(outbound).collect();
    let direct = "direct";
    outbounds.push(json!({ "type": "direct", "tag": direct }));
    let rule = |domains: &[super::Domain], tag: &str| {
        let domains: Vec<String> = domains.iter().map(ToString::to_string).collect();
        json!({ "domain_suffix": domains, "action": "route", "outbound": tag })
    };
    let mut rules = Vec::new();
    if !profile.excluded.is_empty() {
        rules.push(rule(&profile.excluded, direct));
    }
    if !profile.domains.is_empty() {
        rules.push(rule(&profile.domains, &tag(last)));
    }
    let otherwise = if profile.domains.is_empty() { tag(last) } else { direct.to_owned() };
    let whole = json!({
        "outbounds": outbounds,
        "route": { "rules": rules, "final": otherwise },
    });
    Content::Text(format!("{whole:#}"))
}

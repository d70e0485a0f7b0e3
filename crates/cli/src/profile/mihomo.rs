//! A proxy and rules of mihomo, the engine of Clash and its successors. It has no CONNECT-UDP, but its proxy
//! `trusttunnel` asks for TCP with CONNECT over HTTP/3 and shows a user name and a password, as this proxy wants it.
//!
//! Source: mihomo 1.19.29, `adapter/outbound/trusttunnel.go` and `transport/trusttunnel/client.go`.

use std::fmt::{Display, Write};

use super::{Content, NAME, Profile};

/// The port of 127.0.0.1 at which mihomo serves programs, by SOCKS5 and HTTP.
const LOCAL_PORT: u16 = 7890;

pub(super) fn profile(profile: &Profile) -> Content {
    let hop = profile.last();
    let mut text = format!("mixed-port: {LOCAL_PORT}\nmode: rule\nproxies:\n");
    let mut add = |key: &str, value: &dyn Display| {
        let begin = if key == "name" { "  - " } else { "    " };
        writeln!(text, "{begin}{key}: {value}").expect("a string takes everything");
    };
    add("name", &NAME);
    add("type", &"trusttunnel");
    add("server", &quoted(hop.template.host()));
    add("port", &hop.template.port());
    if let Some((user, token)) = hop.login(profile) {
        add("username", &quoted(user));
        add("password", &quoted(token));
    }
    add("quic", &true);
    add("udp", &false);
    if let Some(certificate) = &profile.certificate {
        add("fingerprint", &quoted(&certificate.fingerprint().to_string()));
    }
    text += "rules:\n";
    for (domain, is_through) in profile.rules() {
        let policy = if is_through { NAME } else { "DIRECT" };
        writeln!(text, "  - DOMAIN-SUFFIX,{domain},{policy}").expect("a string takes everything");
    }
    let otherwise = if profile.domains.is_empty() { NAME } else { "DIRECT" };
    Content::Text(text + "  - MATCH," + otherwise)
}

/// A text of YAML, which takes the quoted texts of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

//! A file for `curl -K`. Through the proxy, curl asks with CONNECT for HTTP/1.1 and HTTP/2, and with connect-udp for
//! HTTP/3.
//!
//! Source: curl's manual of `--config` and `--proxy-http3`.

use std::fmt::Write;

use super::{Content, Domain, Profile};

pub(super) fn profile(profile: &Profile) -> Content {
    let hop = profile.last();
    let mut text = String::new();
    let mut add = |key: &str, value: &str| {
        writeln!(text, "{key} = {}", quoted(value)).expect("a string takes everything");
    };
    let (host, port) = (hop.template.host(), hop.template.port());
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    add("proxy", &format!("https://{host}:{port}"));
    // Not `proxy-user`: with it, libcurl 8.23 writes `:protocol` of CONNECT-UDP after a regular field.
    if let Some(bearer) = hop.bearer() {
        add("proxy-header", &format!("Proxy-Authorization: {bearer}"));
    }
    if let Some(certificate) = &profile.certificate {
        let file = std::path::absolute(&certificate.file);
        add("proxy-cacert", &file.unwrap_or_else(|_| certificate.file.clone()).to_string_lossy());
    }
    if !profile.excluded.is_empty() {
        let excluded: Vec<_> = profile.excluded.iter().map(Domain::to_string).collect();
        add("noproxy", &excluded.join(","));
    }
    Content::Text(text + "proxy-http3")
}

/// A value in quotation marks, with curl's escapes.
pub(super) fn quoted(value: &str) -> String {
    let escape = |it: char| match it {
        '"' | '\\' => format!("\\{it}"),
        '\t' => "\\t".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\u{b}' => "\\v".to_owned(),
        it => it.to_string(),
    };
    format!("\"{}\"", value.chars().map(escape).collect::<String>())
}

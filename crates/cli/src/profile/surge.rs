//! Lines for the configuration of Surge, whose policy `masque` asks for TCP with CONNECT and for UDP with connect-udp.
//!
//! Source: <https://manual.nssurge.com/policies/masque.html>.

use std::fmt::Write;

use super::{Content, Kind, NAME, Profile};
use crate::error::ProfileError;

pub(super) fn profile(profile: &Profile) -> Result<Content, ProfileError> {
    let mut text = "[Proxy]\n".to_owned();
    let last = profile.hops.len() - 1;
    let name =
        |hop: usize| if hop == last { NAME.to_owned() } else { format!("{NAME}-{}", hop + 1) };
    for (index, hop) in profile.hops.iter().enumerate() {
        let (host, port) = (hop.template.host(), hop.template.port());
        let mut line = format!("{} = masque, {host}, {port}", name(index));
        let mut add = |key: &str, value: &str| {
            let value = quoted(value)?;
            write!(line, ", {key}={value}").expect("a string takes everything");
            Ok::<_, ProfileError>(())
        };
        if let Some((user, token)) = hop.login(profile) {
            add("username", user)?;
            add("password", token)?;
        }
        if let Some(certificate) = &profile.certificate {
            add("server-cert-fingerprint-sha256", &certificate.fingerprint().to_string())?;
        }
        if let Some(before) = index.checked_sub(1) {
            add("underlying-proxy", &name(before))?;
        }
        text += &line;
        text.push('\n');
    }
    text += "\n[Rule]\n";
    for (domain, is_through) in profile.rules() {
        let policy = if is_through { NAME } else { "DIRECT" };
        writeln!(text, "DOMAIN-SUFFIX,{domain},{policy}").expect("a string takes everything");
    }
    let otherwise = if profile.domains.is_empty() { NAME } else { "DIRECT" };
    Ok(Content::Text(text + "FINAL," + otherwise))
}

/// A value with quotation marks if it has characters that end one. The manual names no way to write a quotation mark
/// within them.
fn quoted(value: &str) -> Result<String, ProfileError> {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"-._~+/".contains(&it);
    if value.contains(['"', '\\']) {
        return Err(ProfileError::Character { client: Kind::Surge });
    }
    let is_plain = value.bytes().all(is_plain);
    Ok(if is_plain { value.to_owned() } else { format!("\"{value}\"") })
}

//! A configuration profile with a network relay, for Apple's systems. They send the connections of all apps through it:
//! TCP with CONNECT, and UDP with connect-udp.
//!
//! Source: Apple's schema of the payload `com.apple.relay.managed` and of the keys that all profiles have, in
//! <https://github.com/apple/device-management> (`mdm/profiles/com.apple.relay.managed.yaml`).

use plist::{Dictionary, Value};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Certificate, Content, Domain, Hop, NAME, Profile};
use crate::error::ProfileError;

/// The type of the payload.
const RELAY: &str = "com.apple.relay.managed";

pub(super) fn profile(profile: &Profile) -> Result<Content, ProfileError> {
    let host = profile.last().template.host();
    let identifier = identifier(host, profile.user.as_deref());
    let keys = |kind: &str, part: &str, identifier: String| {
        Dictionary::from_iter([
            ("PayloadType", Value::from(kind)),
            ("PayloadVersion", 1.into()),
            ("PayloadIdentifier", identifier.into()),
            ("PayloadUUID", profile.uuid(part).into()),
            ("PayloadDisplayName", format!("{NAME}: {host}").into()),
        ])
    };
    let mut relay = keys(RELAY, "relay", format!("{identifier}.relay"));
    let relays: Result<Vec<_>, _> =
        profile.hops.iter().map(|hop| self::relay(hop, profile.certificate.as_ref())).collect();
    relay.insert("Relays".to_owned(), Value::Array(relays?));
    // Without domains, the system sends everything through the relays.
    for (key, domains) in
        [("MatchDomains", &profile.domains), ("ExcludedDomains", &profile.excluded)]
    {
        if !domains.is_empty() {
            let domains = domains.iter().map(Domain::to_string).map(Value::from);
            relay.insert(key.to_owned(), Value::Array(domains.collect()));
        }
    }
    let mut whole = keys("Configuration", "profile", identifier);
    let user = profile.user.as_ref().map(|user| format!(" as {user}")).unwrap_or_default();
    let description = format!("Sends connections through the proxy {host}{user}.");
    whole.insert("PayloadDescription".to_owned(), description.into());
    whole.insert("PayloadContent".to_owned(), Value::Array(vec![relay.into()]));
    let mut xml = Vec::new();
    Value::from(whole).to_writer_xml(&mut xml).expect("memory takes every value of this kind");
    Ok(Content::Text(String::from_utf8(xml).expect("XML in UTF-8")))
}

/// One proxy.
fn relay(hop: &Hop, certificate: Option<&Certificate>) -> Result<Value, ProfileError> {
    let mut relay = Dictionary::new();
    relay.insert("HTTP3RelayURL".to_owned(), hop.template.as_str().into());
    if let Some(bearer) = hop.bearer() {
        // The proxy reads the token in either field. This is the one of CONNECT (RFC 9110 §11.7.2).
        let fields = Dictionary::from_iter([("Proxy-Authorization", Value::from(bearer))]);
        relay.insert("AdditionalHTTPHeaderFields".to_owned(), fields.into());
    }
    if let Some(certificate) = certificate {
        let keys = vec![Value::Data(public_key(certificate)?)];
        relay.insert("RawPublicKeys".to_owned(), Value::Array(keys));
    }
    Ok(relay.into())
}

/// The certificate's public key in DER, with its algorithm (`SubjectPublicKeyInfo` of RFC 5280 §4.1).
fn public_key(certificate: &Certificate) -> Result<Vec<u8>, ProfileError> {
    let unread = || ProfileError::Certificate { file: certificate.file.clone() };
    let (_, parsed) = X509Certificate::from_der(&certificate.der).map_err(|_| unread())?;
    Ok(parsed.public_key().raw.to_vec())
}

/// The identifier of a profile, in the order of Java's packages as Apple wants it. A new profile takes the place of an
/// older one with the same identifier.
fn identifier(host: &str, user: Option<&str>) -> String {
    let is_name = host.parse::<std::net::IpAddr>().is_err();
    let mut labels: Vec<&str> = if is_name { host.split('.').collect() } else { vec![host] };
    labels.reverse();
    labels.push("tandem");
    labels.extend(user);
    let sign = |it: char| if it.is_ascii_alphanumeric() || it == '-' { it } else { '-' };
    let labels = labels.into_iter().map(|label| label.chars().map(sign).collect::<String>());
    labels.filter(|label| !label.is_empty()).collect::<Vec<_>>().join(".")
}

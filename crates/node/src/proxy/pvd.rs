//! The configuration document of a proxy: that of a provisioning domain (`PvD`, RFC 8801 §4.3) with the keys of
//! draft-ietf-intarea-proxy-config, from which a client learns the templates and which targets to send.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::{Map, Value, json};
use tandem_wire::{RequestHead, ResponseHead, Template};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{FlowId, Proxy, request::Admission};
use crate::h3::End;

/// The path of the document (RFC 8801 §4.1).
pub const PVD_PATH: &str = "/.well-known/pvd";

/// The type of the document (RFC 8801 §4.3).
const MEDIA_TYPE: &str = "application/pvd+json";

/// How long a document is valid that does not say it itself. Clients that run for longer ask again.
const VALID: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The configuration document of a proxy, which everybody can read. If the proxy is a web site to strangers, only who
/// may use a template finds it, below the same secret path.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Pvd {
    /// Nothing: there is no document.
    #[default]
    Nothing,
    /// Its own templates, and that it takes all targets.
    Own,
    /// The members of a document that an operator has written. The proxy adds its name, when the document expires, and
    /// the empty list of prefixes, if they are missing.
    Given(Arc<Map<String, Value>>),
}

/// What a document is made from.
struct Facts<'a> {
    /// The name by which the client has asked, with its port if there is one.
    authority: &'a str,
    template: &'a Template,
    /// What stands before the paths of the templates: nothing, or a slash and the secret path.
    before: String,
    /// Whether the proxy opens TCP connections.
    has_tcp: bool,
    /// The time since 1970.
    unix: Duration,
}

impl Pvd {
    /// The document. `None`: there is none for a client that has asked by this name.
    fn document(&self, facts: &Facts<'_>) -> Option<Map<String, Value>> {
        let tcp = Template::default_for_tcp(facts.authority).ok()?;
        let mut document = match self {
            Self::Nothing => return None,
            Self::Own => own(facts, &tcp),
            Self::Given(members) => (**members).clone(),
        };
        // The draft, §2: 'For proxy PvDs as defined in this document, the "identifier" MUST match the hostname of the
        // HTTP proxy. The "prefixes" array MUST be empty for cases when the PvD identifier is not provided by a Router
        // Advertisement'. A secret path is no part of it.
        let host = tcp.host();
        let dot = if host.parse::<IpAddr>().is_ok() || host.ends_with('.') { "" } else { "." };
        let expires = OffsetDateTime::UNIX_EPOCH + facts.unix + VALID;
        let expires = expires.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()?;
        document.entry("identifier").or_insert_with(|| format!("{host}{dot}").into());
        document.entry("expires").or_insert_with(|| expires.into());
        document.entry("prefixes").or_insert_with(|| Value::Array(Vec::new()));
        Some(document)
    }
}

/// The templates of the proxy, under the name by which the client has asked.
fn own(facts: &Facts<'_>, tcp: &Template) -> Map<String, Value> {
    let Facts { authority, before, .. } = facts;
    let entry = |protocol, template: &Template| {
        let path = template.as_str().splitn(4, '/').nth(3).unwrap_or_default();
        let proxy = format!("https://{authority}{before}/{path}");
        json!({ "protocol": protocol, "proxy": proxy, "alpn": ["h3"] })
    };
    let (udp, tcp) = (entry("connect-udp", facts.template), entry("connect-tcp", tcp));
    let proxies = if facts.has_tcp { vec![udp, tcp] } else { vec![udp] };
    Map::from_iter([("proxies".to_owned(), Value::Array(proxies))])
}

impl Proxy {
    /// Replaces the configuration document.
    pub fn set_pvd(&mut self, pvd: Pvd) {
        self.pvd = pvd;
    }

    /// Whether a request is for the document, by its method and its path, and there is one.
    pub(super) fn is_for_pvd(&self, head: &RequestHead) -> bool {
        let Admission { paths, .. } = &self.admission;
        matches!(head.method, Method::GET | Method::HEAD)
            && self.pvd != Pvd::Nothing
            && !self.admission.has_service()
            && paths.below_secret(head) == Some(PVD_PATH)
    }

    /// Answers a request for the document. `false`: the request is for something else, or there is none.
    pub(super) fn answer_pvd(
        &mut self,
        now: std::time::Instant,
        id: FlowId,
        head: &RequestHead,
    ) -> bool {
        let (true, Some(unix)) = (self.is_for_pvd(head), self.users.unix(now)) else {
            return false;
        };
        let facts = Facts {
            authority: head.authority.as_deref().unwrap_or_default(),
            template: self.admission.paths.udp_template(),
            before: self.admission.paths.before(),
            has_tcp: (1..=u16::MAX).any(|port| self.admission.tcp_ports.permits(port)),
            unix,
        };
        let Some(document) = self.pvd.document(&facts) else { return false };
        let body = Bytes::from(Value::Object(document).to_string());
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        let head_only = head.method == Method::HEAD;
        let Some(mut carrier) = self.server.carrier(id.0) else { return true }; // the client has gone
        let answer = ResponseHead { status: StatusCode::OK, headers };
        carrier.respond(id.1, &answer, if head_only { End::Last } else { End::More });
        if !head_only {
            carrier.begin_body(id.1, body.len());
            carrier.finish_with(id.1, body);
        }
        carrier.stop_reading(id.1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(pvd: &Pvd, authority: &str, template: &str) -> Option<Value> {
        below("", pvd, authority, template)
    }

    fn below(before: &str, pvd: &Pvd, authority: &str, template: &str) -> Option<Value> {
        let template = Template::parse(template).unwrap();
        let unix = Duration::new(1_780_000_000, 7);
        let before = before.to_owned();
        let facts = Facts { authority, template: &template, before, has_tcp: true, unix };
        pvd.document(&facts).map(Value::Object)
    }

    const USUAL: &str = "https://proxy.invalid/.well-known/masque/udp/{target_host}/{target_port}/";

    #[test]
    fn a_proxy_tells_its_templates_under_the_name_by_which_it_was_asked() {
        for (authority, identifier) in [
            ("proxy.example", "proxy.example."),
            ("proxy.example:8443", "proxy.example."),
            ("proxy.example.", "proxy.example."),
            ("192.0.2.1", "192.0.2.1"),
            ("[2001:db8::1]:8443", "2001:db8::1"),
        ] {
            let document = document(&Pvd::Own, authority, USUAL).expect(authority);
            assert_eq!(document["identifier"], identifier);
            assert_eq!(document["expires"], "2026-06-04T20:26:40Z");
            assert_eq!(document["prefixes"], json!([]));
            let udp = USUAL.replace("proxy.invalid", authority);
            assert_eq!(document["proxies"][0]["proxy"], udp, "{authority}");
            assert_eq!(document["proxies"][1]["proxy"], udp.replace("/udp/", "/tcp/"));
        }
        let secret = below("/secret", &Pvd::Own, "p.example:8443", USUAL).unwrap();
        assert_eq!(secret["identifier"], "p.example.");
        for (proxy, name) in [(0, "udp"), (1, "tcp")] {
            let expected = format!(
                "https://p.example:8443/secret/.well-known/masque/{name}/{{target_host}}/{{target_port}}/"
            );
            assert_eq!(secret["proxies"][proxy]["proxy"], expected);
        }
        let query = "https://p.example/masque{?target_host,target_port}";
        let document = document(&Pvd::Own, "q.example", query).unwrap();
        let expected = "https://q.example/masque{?target_host,target_port}";
        assert_eq!(document["proxies"][0]["proxy"], expected);
    }

    #[test]
    fn names_that_are_no_authority_get_nothing() {
        for authority in ["", "a b", "a@b", "a\"b", "a:0", "a:b", "a/b"] {
            assert_eq!(document(&Pvd::Own, authority, USUAL), None, "{authority:?}");
        }
        assert_eq!(document(&Pvd::Nothing, "proxy.example", USUAL), None);
    }

    #[test]
    fn what_an_operator_has_written_is_told_with_what_is_missing() {
        let given = |text| Pvd::Given(Arc::new(serde_json::from_str(text).unwrap()));
        let seen = document(&given(r#"{"proxies":[],"x":1}"#), "p.example", USUAL).unwrap();
        assert_eq!(seen["identifier"], "p.example.");
        assert_eq!(seen["x"], 1);
        let all = r#"{"identifier":"a.","expires":"b","prefixes":["c"],"proxies":[]}"#;
        let seen = document(&given(all), "p.example", USUAL).unwrap();
        assert_eq!(seen, serde_json::from_str::<Value>(all).unwrap());
    }
}

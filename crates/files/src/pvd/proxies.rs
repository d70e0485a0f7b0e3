//! The proxies that a document names, and which of them this program can use.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tandem_node::client::rules::Carries;
use tandem_wire::{StrangerText, Template, uri_template::parse_target_authority};

use super::Expected;

/// The proxies of one place, which are one proxy of ours: the first that may be used.
#[derive(Debug, Default)]
pub(super) struct Proxies {
    /// The proxy for UDP.
    pub(super) udp: Option<Template>,
    /// Its place.
    place: Option<(String, u16)>,
    /// The identifiers by which rules name it.
    of_udp: BTreeSet<String>,
    of_tcp: BTreeSet<String>,
    /// Whether a proxy without an identifier is among them, which takes everything.
    any: Option<Carries>,
}

/// What is allowed in a proxy's dictionary.
const KEYS: [&str; 5] = ["protocol", "proxy", "mandatory", "alpn", "identifier"];

/// One proxy that this program can use.
struct Usable {
    place: (String, u16),
    /// For UDP, its template.
    udp: Option<Template>,
    identifier: Option<String>,
}

impl Proxies {
    pub(super) fn read(
        list: &[Value],
        expected: Expected<'_>,
        left_out: &mut Vec<StrangerText>,
    ) -> Self {
        let mut proxies = Self::default();
        for (index, proxy) in list.iter().enumerate() {
            match usable(proxy, expected) {
                Ok(proxy) => proxies.add(proxy, index, left_out),
                Err(reason) => left_out.push(format!("proxy {}: {reason}", index + 1).into()),
            }
        }
        proxies
    }

    fn add(&mut self, proxy: Usable, index: usize, left_out: &mut Vec<StrangerText>) {
        let place = self.place.get_or_insert_with(|| proxy.place.clone());
        if *place != proxy.place {
            let (host, port) = &proxy.place;
            let reason =
                format!("proxy {}: {host}:{port} is a second proxy; one is used", index + 1);
            return left_out.push(reason.into());
        }
        let is_udp = proxy.udp.is_some();
        if let Some(identifier) = proxy.identifier {
            let identifiers = if is_udp { &mut self.of_udp } else { &mut self.of_tcp };
            identifiers.insert(identifier);
        } else {
            let any = self.any.get_or_insert(Carries { tcp: false, udp: false });
            any.udp |= is_udp;
            any.tcp |= !is_udp;
        }
        self.udp = self.udp.take().or(proxy.udp);
    }

    /// What the proxy takes for a rule with these identifiers.
    pub(super) fn carries(&self, identifiers: &[&str]) -> Carries {
        let has = |set: &BTreeSet<String>| identifiers.iter().any(|it| set.contains(*it));
        Carries { tcp: has(&self.of_tcp), udp: has(&self.of_udp) }
    }

    /// What the proxy takes without a rule. The draft, §3.1: proxies with identifiers "MUST NOT be used if they are
    /// not included in the proxy-match array." What the document says nothing of is left to the known proxy.
    pub(super) fn takes_without_rule(&self) -> Carries {
        let any = self.any.unwrap_or(Carries { tcp: false, udp: false });
        Carries { tcp: any.tcp || self.of_tcp.is_empty(), udp: any.udp || self.of_udp.is_empty() }
    }
}

/// Reads a proxy's dictionary. An error says why it is left out.
fn usable(proxy: &Value, expected: Expected<'_>) -> Result<Usable, String> {
    let Value::Object(proxy) = proxy else { return Err("no object".to_owned()) };
    let text = |key: &str| {
        let text = proxy.get(key).and_then(Value::as_str);
        text.ok_or_else(|| format!("it has no {key}"))
    };
    check_mandatory(proxy)?;
    let identifier = match proxy.get("identifier") {
        None => None,
        Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
        Some(_) => return Err("its identifier is no text".to_owned()),
    };
    if let Some(alpn) = proxy.get("alpn") {
        let has_h3 = alpn.as_array().is_some_and(|list| list.iter().any(|it| it == "h3"));
        if !has_h3 {
            return Err("it does not speak HTTP/3".to_owned());
        }
    }
    let location = text("proxy")?;
    let (place, udp) = match text("protocol")? {
        "connect-udp" => {
            let template = template(location)?;
            let place = (template.host().to_owned(), template.port());
            (place, Some(template))
        }
        "connect-tcp" => {
            let template = Template::parse(location).map_err(|error| error.to_string())?;
            let usual = Template::default_for_tcp(template.authority());
            if usual.is_ok_and(|usual| usual.as_str() != template.as_str()) {
                return Err("its template for TCP is not the usual one".to_owned());
            }
            ((template.host().to_owned(), template.port()), None)
        }
        "https-connect" => {
            let place = parse_target_authority(location).map_err(|error| error.to_string())?;
            (place, None)
        }
        protocol => return Err(format!("protocol {protocol} is not supported")),
    };
    let (host, port) = &place;
    if !expected.permits(host, *port) {
        return Err(format!("{host}:{port} is another origin (--also permits it)"));
    }
    Ok(Usable { place, udp, identifier })
}

fn template(text: &str) -> Result<Template, String> {
    Template::parse(text).map_err(|error| error.to_string())
}

/// The draft, §3.1: "A client that does not understand a key from the array [...] MUST ignore the entire proxy
/// dictionary", and the array "MUST NOT include any entries that are not present in the sub-dictionary".
fn check_mandatory(proxy: &Map<String, Value>) -> Result<(), String> {
    let Some(mandatory) = proxy.get("mandatory") else { return Ok(()) };
    let list = mandatory.as_array().ok_or("its key mandatory is no list")?;
    for key in list {
        let key = key.as_str().ok_or("its key mandatory is no list of texts")?;
        if !KEYS.contains(&key) || !proxy.contains_key(key) {
            return Err(format!("its key {key} is not understood"));
        }
    }
    Ok(())
}

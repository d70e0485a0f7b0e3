//! Values with a text form of their own: the same in flags, environment and files.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use serde_with::SerializeDisplay;
use tandem_files::setting::ValueError;
use tandem_node::client::rules::Rule;
use tandem_wire::Template;

/// A local address to listen on; with port 0 the operating system chooses the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay)]
pub(crate) struct ListenAddr(pub(crate) SocketAddr);

impl ListenAddr {
    /// Whether only this machine can reach the address.
    pub(crate) fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

impl FromStr for ListenAddr {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "an IP address and a port, such as 127.0.0.1:4433 or [::]:443";
        text.parse().map(Self).map_err(|_| ValueError::Form { expected })
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A range of addresses; one address alone is a range too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay)]
pub(crate) struct Prefix(pub(crate) IpNet);

impl FromStr for Prefix {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "an address prefix, such as 10.0.0.0/8 or fd00::/8, or one IP address";
        let one = || text.parse::<IpAddr>().map(IpNet::from);
        text.parse().or_else(|_| one()).map(Self).map_err(|_| ValueError::Form { expected })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A rule for what goes through the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub(crate) struct RuleArg(pub(crate) Rule);

impl FromStr for RuleArg {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        tandem_files::rules::rule(text).map(Self)
    }
}

impl fmt::Display for RuleArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is missing in a URL that a person has written without scheme or brackets.
fn url_fault(text: &str) -> Option<&'static str> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Some("https:// is missing at its start");
    };
    if scheme != "https" {
        return Some("its scheme is not https, which HTTP/3 needs");
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    (!host.contains('[') && host.matches(':').count() > 1).then_some(NO_BRACKETS)
}

/// The hint for an IPv6 address without brackets: its end is ambiguous.
pub(super) const NO_BRACKETS: &str = "an IPv6 address needs brackets, as in [2001:db8::1]:443";

/// A proxy: its URI template, or only its address, which stands for RFC 9298's default template.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub(crate) struct Via(pub(crate) Template);

impl FromStr for Via {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Template::of_proxy(text).map(Self).map_err(|error| ValueError::Part {
            reason: url_fault(text).map_or_else(|| error.to_string(), str::to_owned),
            expected: "https://HOST:PORT, with a path below which the proxy is if it has one, or a URI template with \
                       {target_host} and {target_port}"
                .to_owned(),
        })
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The proxies of one hop, of which the client uses one: at least one.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub(crate) struct HopVia(Vec<Via>);

impl HopVia {
    /// The most proxies of a hop. Their names are looked up at the same time.
    const MAX: usize = 16;

    /// The first proxy, and the others.
    pub(crate) fn templates(&self) -> (Template, Vec<Template>) {
        let mut templates = self.0.iter().map(|via| via.0.clone());
        let first = templates.next().expect("the text of a list has a first part");
        (first, templates.collect())
    }
}

impl FromStr for HopVia {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut depth = 0_u32;
        let separates = |character: char| {
            // The expressions of a template have commas too.
            match character {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            character == ',' && depth == 0
        };
        let proxies: Vec<&str> = text.split(separates).collect();
        if proxies.len() > Self::MAX {
            return Err(ValueError::Part {
                reason: format!("{} proxies for one hop", proxies.len()),
                expected: format!("up to {}, with commas between", Self::MAX),
            });
        }
        let proxies: Result<_, _> = proxies.into_iter().map(str::parse).collect();
        Ok(Self(proxies?))
    }
}

impl fmt::Display for HopVia {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, via) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            via.fmt(f)?;
        }
        Ok(())
    }
}

/// An https URL without user and fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpsUrl(url::Url);

impl HttpsUrl {
    fn refused(reason: String) -> ValueError {
        let expected = "an https URL, such as https://origin.example/file".to_owned();
        ValueError::Part { reason, expected }
    }

    /// The URL to which a reference leads, which may be relative to this one.
    pub(crate) fn join(&self, reference: &str) -> Result<url::Url, url::ParseError> {
        self.0.join(reference)
    }

    /// Host name, or IP address without brackets.
    pub(crate) fn host(&self) -> String {
        match self.0.host() {
            Some(url::Host::Domain(name)) => name.to_owned(),
            Some(url::Host::Ipv4(address)) => address.to_string(),
            Some(url::Host::Ipv6(address)) => address.to_string(),
            None => unreachable!("an https URL has a host"),
        }
    }

    /// UDP port.
    pub(crate) fn port(&self) -> u16 {
        self.0.port_or_known_default().expect("https has a default port")
    }

    /// Host and port, as errors name an origin.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.0.host_str().unwrap_or_default(), self.port())
    }

    /// The last part of the path, if it can be the name of a file in a folder. It is not decoded, so that it has no
    /// characters but those of URLs.
    pub(crate) fn file_name(&self) -> Option<String> {
        let name = self.0.path().rsplit('/').next().unwrap_or_default();
        (!matches!(name, "" | "." | "..")).then(|| name.to_owned())
    }

    /// Path and query.
    pub(crate) fn path(&self) -> String {
        let query = self.0.query().map_or_else(String::new, |query| format!("?{query}"));
        format!("{}{query}", self.0.path())
    }
}

impl FromStr for HttpsUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let fault = url_fault(text).map(str::to_owned);
        let refused = |reason: String| Err(Self::refused(reason));
        match (url::Url::parse(text), fault) {
            (_, Some(fault)) => refused(fault),
            (Err(error), None) => refused(error.to_string()),
            (Ok(url), None) => url.try_into(),
        }
    }
}

impl TryFrom<url::Url> for HttpsUrl {
    type Error = ValueError;

    fn try_from(mut url: url::Url) -> Result<Self, ValueError> {
        let refused = Self::refused;
        if url.scheme() != "https" {
            return Err(refused(format!("scheme {:?}", url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("a user or password in the URL".to_owned()));
        }
        if url.port() == Some(0) {
            return Err(refused("port 0".to_owned()));
        }
        url.set_fragment(None);
        Ok(Self(url))
    }
}

impl fmt::Display for HttpsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_named_by_template_or_address() {
        for (text, template) in [
            (
                "https://proxy.example",
                "https://proxy.example/.well-known/masque/udp/{target_host}/{target_port}/",
            ),
            (
                "https://[::1]:4433/",
                "https://[::1]:4433/.well-known/masque/udp/{target_host}/{target_port}/",
            ),
            (
                "https://p.example/masque{?target_host,target_port}",
                "https://p.example/masque{?target_host,target_port}",
            ),
        ] {
            let via: Via = text.parse().expect(text);
            assert_eq!(via.to_string(), template, "{text}");
        }
        for text in
            ["", "http://p.example", "https://p.example/path?a=b", "https://p/{target_host}"]
        {
            let error = text.parse::<Via>().expect_err(text).to_string();
            assert!(error.contains("allowed: https://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn a_hop_has_one_proxy_or_a_list() {
        let query = "https://p.example/m{?target_host,target_port}";
        for (text, proxies) in [
            ("https://a.example", vec!["a.example"]),
            (
                "https://a.example:4433,b.example,https://[::1]:5/",
                vec!["a.example:4433", "b.example", "[::1]:5"],
            ),
            (
                &format!("{query},https://a.example,{query}"),
                vec!["p.example", "a.example", "p.example"],
            ),
        ] {
            let via: HopVia = text.parse().expect(text);
            let (first, others) = via.templates();
            let templates = std::iter::once(&first).chain(&others);
            let authorities: Vec<_> = templates.map(Template::authority).collect();
            assert_eq!(authorities, proxies, "{text}");
            assert_eq!(via.to_string().parse(), Ok(via), "{text}");
        }
        let most = vec!["https://a"; HopVia::MAX].join(",");
        assert!(most.parse::<HopVia>().is_ok());
        for (text, reason) in [
            ("https://a,", "\"\" is not a host"),
            (",https://a", "\"\" is not a host"),
            ("https://a,http://b", "not https"),
            (&format!("{most},https://b"), "17 proxies for one hop; allowed: up to 16"),
        ] {
            let error = text.parse::<HopVia>().unwrap_err().to_string();
            assert!(
                error.contains(reason) || error.contains("https:// is missing"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn only_https_urls_are_fetched() {
        let url: HttpsUrl = "https://[::1]:4433/a%20b?c=d#e".parse().unwrap();
        assert_eq!((url.host(), url.port(), url.path()), ("::1".into(), 4433, "/a%20b?c=d".into()));
        let url: HttpsUrl = "https://origin.example".parse().unwrap();
        assert_eq!((url.port(), url.path()), (443, "/".into()));
        for text in ["http://a/", "a/b", "https://", "https://u:p@a/", "https://a:0/"] {
            assert!(text.parse::<HttpsUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_name_of_a_file_is_the_last_part_of_a_path() {
        for (url, name) in [
            ("https://o.example/a/b.iso?c=/d#/e", Some("b.iso")),
            ("https://o.example/a%2F..%2Fb", Some("a%2F..%2Fb")),
            ("https://o.example/ü", Some("%C3%BC")),
            ("https://o.example/a/", None),
            ("https://o.example/a/..", None),
            ("https://o.example", None),
        ] {
            let url: HttpsUrl = url.parse().unwrap();
            assert_eq!(url.file_name().as_deref(), name, "{url}");
        }
        let url: HttpsUrl = "https://[::1]/".parse().unwrap();
        assert_eq!(url.authority(), "[::1]:443");
    }

    #[test]
    fn urls_without_scheme_or_brackets_are_told_what_they_lack() {
        for (text, fault) in [
            ("localhost:4433/file", "https:// is missing"),
            ("127.0.0.1:4433/file", "https:// is missing"),
            ("[::1]:4433/file", "https:// is missing"),
            ("http://a/", "not https"),
            ("https://::1:4433/f", "brackets"),
            ("https://2001:db8::1/f", "brackets"),
        ] {
            for error in [
                text.parse::<HttpsUrl>().unwrap_err().to_string(),
                text.parse::<Via>().unwrap_err().to_string(),
            ] {
                assert!(error.contains(fault) && error.contains("allowed: "), "{text}: {error}");
            }
        }
        assert!("https://u:p@a:1/".parse::<HttpsUrl>().unwrap_err().to_string().contains("user"));
    }

    #[test]
    fn one_address_is_a_prefix_too() {
        assert_eq!("127.0.0.1".parse::<Prefix>().unwrap().to_string(), "127.0.0.1/32");
        assert_eq!("fd00::/8".parse::<Prefix>().unwrap().to_string(), "fd00::/8");
        assert!("10.0.0.0/33".parse::<Prefix>().is_err());
    }
}

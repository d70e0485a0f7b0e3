use tandem_node::client::rules::{Carried, Rules};
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

fn origin(text: &str) -> Origin {
    text.parse().unwrap()
}

/// A document with these further members.
fn with(members: &str) -> String {
    let begin = r#"{"identifier":"proxy.example.","expires":"2026-06-23T06:00:00Z","prefixes":[]"#;
    format!("{begin}{members}}}")
}

fn parse(text: &str) -> Result<Document, PvdError> {
    let origins = [origin("proxy.example")];
    let expected = Expected { host: Some("proxy.example"), origins: &origins, now: NOW };
    Document::parse(text.as_bytes(), expected)
}

const UDP: &str = "https://proxy.example/.well-known/masque/udp/{target_host}/{target_port}/";

#[test]
fn documents_that_are_not_used() {
    let valid = with("");
    assert!(parse(&valid).is_ok());
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let many = vec!["{}"; PROXIES_MAX + 1].join(",");
    for (text, words) in [
        (String::new(), "not JSON"),
        ("[]".to_owned(), "no object"),
        ("<html></html>".to_owned(), "not JSON"),
        (valid[..valid.len() - 1].to_owned(), "not JSON"),
        (valid.clone() + "{}", "not JSON"),
        (with(&format!(r#","vendor_key":{deep}"#)), "not JSON"),
        (valid.replace("identifier", "id"), "no identifier"),
        (valid.replace("\"proxy.example.\"", "7"), "no identifier"),
        (valid.replace("proxy.example.", "other.example."), "about other.example., not about"),
        (valid.replace("proxy.example.", "proxy.example.other.example"), "not about"),
        (valid.replace("proxy.example.", "\\u001b[31m"), "about \\u{1b}[31m, not about"),
        (valid.replace("expires", "expire"), "no expires"),
        (valid.replace("2026-06-23", "tomorrow"), "no expires that is a time"),
        (valid.replace("2026-06-23", "2026-05-31"), "expired at 2026-05-31T06:00:00Z"),
        (valid.replace("prefixes", "prefix"), "no prefixes that is a list"),
        (with(r#","proxies":{}"#), "no proxies that is a list"),
        (with(r#","proxy-match":7"#), "no proxy-match that is a list"),
        (with(&format!(r#","proxies":[{many}]"#)), "65 entries; 64 are allowed"),
        (with(&format!(r#","x":"{}""#, "a".repeat(LEN_MAX))), "more than 65536 bytes"),
    ] {
        let error = parse(&text).expect_err(&text).to_string();
        assert!(error.contains(words), "{error}\n{}", &text[..text.len().min(200)]);
    }
    let mixed = valid.replace("proxy.example.", "PROXY.example");
    assert!(parse(&mixed).is_ok(), "names have no case, and the dot at the end may be missing");
}

#[test]
fn proxies_of_this_origin_are_used_and_no_others() {
    let udp = |proxy: &str, more: &str| {
        format!(r#","proxies":[{{"protocol":"connect-udp","proxy":"{proxy}"{more}}}]"#)
    };
    for (members, template, left_out) in [
        (String::new(), None, ""),
        (udp(UDP, ""), Some(UDP), ""),
        (udp(UDP, r#","alpn":["h2","h3"]"#), Some(UDP), ""),
        (udp(UDP, r#","alpn":["h2"]"#), None, "HTTP/3"),
        (udp(UDP, r#","vendor_key":{"a":1}"#), Some(UDP), ""),
        (udp(UDP, r#","vendor_key":1,"mandatory":["vendor_key"]"#), None, "vendor_key is not"),
        (udp(UDP, r#","mandatory":["alpn"]"#), None, "alpn is not understood"),
        (udp(UDP, r#","mandatory":["alpn"],"alpn":["h3"]"#), Some(UDP), ""),
        (udp(UDP, r#","mandatory":"alpn""#), None, "no list"),
        (udp(UDP, r#","identifier":"""#), None, "identifier"),
        (udp("https://other.example/m{?target_host,target_port}", ""), None, "another origin"),
        (udp("https://proxy.example:444/m{?target_host,target_port}", ""), None, "another origin"),
        (udp("https://127.0.0.1/m{?target_host,target_port}", ""), None, "another origin"),
        (udp("http://proxy.example/m{?target_host,target_port}", ""), None, "https"),
        (udp("https://proxy.example/.well-known/pvd", ""), None, "target_host"),
        (udp("proxy.example:443", ""), None, "https"),
        (
            r#","proxies":[7,{},{"protocol":"connect-ip","proxy":"x"}]"#.to_owned(),
            None,
            "no object",
        ),
    ] {
        let document = parse(&with(&members)).expect(&members);
        let seen = document.udp.as_ref().map(Template::as_str);
        assert_eq!(seen, template, "{members}");
        let texts: Vec<_> = document.left_out.iter().map(ToString::to_string).collect();
        assert!(texts.join("; ").contains(left_out), "{members}: {texts:?}");
        assert_eq!(texts.is_empty(), left_out.is_empty(), "{members}: {texts:?}");
    }
    let members = udp("https://other.example:8443/m{?target_host,target_port}", "");
    let origins = ["proxy.example", "other.example:8443"].map(origin);
    let expected = Expected { host: Some("proxy.example"), origins: &origins, now: NOW };
    let document = Document::parse(with(&members).as_bytes(), expected);
    assert!(document.unwrap().udp.is_some(), "the user permits it");
}

/// What becomes of targets, as `tcp/udp`.
fn decided(document: &Document, host: &str, port: u16) -> String {
    let rules = Rules { document: document.rules.clone(), ..Rules::default() };
    let of = |carried| rules.decide(host, port, carried).action.to_string();
    format!("{}/{}", of(Carried::Tcp), of(Carried::Udp))
}

#[test]
fn rules_say_which_targets_the_proxy_takes() {
    let proxies = format!(
        r#","proxies":[{{"protocol":"connect-udp","proxy":"{UDP}","identifier":"udp"}},
        {{"protocol":"https-connect","proxy":"proxy.example:443","identifier":"tcp"}},
        {{"protocol":"connect-udp","proxy":"https://evil.example/m{{?target_host,target_port}}","identifier":"evil"}}]"#
    );
    let document = parse(&with(&format!(
        r#"{proxies},"proxy-match":[
        {{"domains":["no.example.org"],"proxies":[]}},
        {{"domains":["*.example.org","exact.example.com."],"ports":["443","8000-8999"],"proxies":["tcp","udp"]}},
        {{"subnets":["192.0.2.0/24","2001:db8::1"],"proxies":["udp"]}},
        {{"subnets":["10.0.0.0/8","127.0.0.0/8","0.0.0.0/0"],"proxies":["tcp"]}},
        {{"domains":["evil.example"],"proxies":["evil","missing"]}},
        {{"acme_process":["x"],"proxies":[]}},
        {{"domains":["a.example"],"subnets":["192.0.2.7"],"proxies":["tcp"]}},
        {{"domains":[],"proxies":["tcp"]}},
        {{"domains":["*"],"proxies":["tcp"]}},
        {{"domains":["foo.*.example"],"proxies":["tcp"]}},
        {{"ports":["9-1"],"proxies":["tcp"]}},
        {{"ports":[443],"proxies":["tcp"]}},
        {{"subnets":["10.0.0.0/99"],"proxies":["tcp"]}},
        {{"domains":["x.example"]}},
        "x"]"#
    )))
    .unwrap();
    for (host, port, expected) in [
        ("no.example.org", 443, "direct/direct"),
        ("example.org", 443, "proxy/proxy"),
        ("a.b.example.org", 8080, "proxy/proxy"),
        ("a.b.example.org", 80, "direct/direct"),
        ("exact.example.com", 443, "proxy/proxy"),
        ("www.exact.example.com", 443, "direct/direct"),
        ("192.0.2.9", 53, "proxy/proxy"),
        ("2001:db8::1", 53, "direct/proxy"),
        ("2001:db8::2", 53, "direct/direct"),
        ("8.8.8.8", 53, "proxy/direct"),
        ("10.1.1.1", 53, "direct/direct"),
        ("127.0.0.1", 53, "direct/direct"),
        ("evil.example", 443, "direct/direct"),
        ("elsewhere.example", 443, "direct/direct"),
    ] {
        assert_eq!(decided(&document, host, port), expected, "{host}:{port}");
    }
    let left_out = document.left_out.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for words in [
        "proxy 3: evil.example:443 is another origin",
        "rule 4: private addresses stay outside",
        "rule 6: its key acme_process is not known",
        "rule 7: it is for names and addresses",
        "rule 8: domains is empty",
        "rule 9: * in domains",
        "rule 10: foo.*.example in domains",
        "rule 11: 9-1 in ports",
        "rule 12: ports is no list of texts",
        "rule 13: 10.0.0.0/99 in subnets",
        "rule 14: it has no list proxies",
        "rule 15: no object",
    ] {
        assert!(left_out.contains(words), "no {words:?} in\n{left_out}");
    }
}

#[test]
fn without_identifiers_and_rules_the_proxy_takes_everything() {
    let members = format!(r#","proxies":[{{"protocol":"connect-udp","proxy":"{UDP}"}}]"#);
    let document = parse(&with(&members)).unwrap();
    assert_eq!(decided(&document, "a.example", 443), "proxy/proxy");
    let named = members.replace("\"protocol\"", "\"identifier\":\"u\",\"protocol\"");
    let document = parse(&with(&named)).unwrap();
    assert_eq!(decided(&document, "a.example", 443), "proxy/direct", "UDP has no rule");
}

#[test]
fn a_document_of_an_operator_may_lack_what_the_proxy_adds() {
    let own = br#"{"proxies":[],"prefixes":[]}"#;
    assert!(parse_own(own).is_ok());
    for (text, words) in [
        ("{}", "no proxies"),
        (r#"{"proxies":[],"expires":"x"}"#, "no expires"),
        (r#"{"proxies":[],"identifier":1}"#, "no identifier"),
        ("{", "not JSON"),
    ] {
        let error = parse_own(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn an_origin_has_a_port() {
    for (text, shown) in [
        ("a.example", Some("a.example:443")),
        ("a.example.:8443", Some("a.example:8443")),
        ("[2001:db8::1]:8443", Some("[2001:db8::1]:8443")),
        ("[2001:db8::1]", Some("[2001:db8::1]:443")),
        ("https://a.example", None),
        ("a.example:0", None),
        ("", None),
    ] {
        let origin = text.parse::<Origin>().ok().map(|it| it.to_string());
        assert_eq!(origin.as_deref(), shown, "{text}");
    }
}

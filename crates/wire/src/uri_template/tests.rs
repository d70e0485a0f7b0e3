use proptest::prelude::*;

use super::*;

const HOST_IPV6: &str = "2001:db8::42";

#[test]
fn templates_expand() {
    // The templates are those of RFC 9298 §2, Figure 1, and further forms that RFC 6570 allows.
    for (template, path) in [
        (
            "https://example.org/.well-known/masque/udp/{target_host}/{target_port}/",
            "/.well-known/masque/udp/2001%3Adb8%3A%3A42/443/",
        ),
        (
            "https://proxy.example.org:4443/masque?h={target_host}&p={target_port}",
            "/masque?h=2001%3Adb8%3A%3A42&p=443",
        ),
        (
            "https://proxy.example.org:4443/masque{?target_host,target_port}",
            "/masque?target_host=2001%3Adb8%3A%3A42&target_port=443",
        ),
        (
            "https://example.org/m?a=b{&target_port,target_host}",
            "/m?a=b&target_port=443&target_host=2001%3Adb8%3A%3A42",
        ),
        ("https://example.org/{target_host,target_port}", "/2001%3Adb8%3A%3A42,443"),
        ("https://example.org/{target_host}{target_port}", "/2001%3Adb8%3A%3A42443"),
        ("https://example.org/{x}/{target_host}/{target_port}", "//2001%3Adb8%3A%3A42/443"),
    ] {
        let expanded = Template::parse(template).expect(template).expand(HOST_IPV6, 443);
        assert_eq!(expanded.scheme, "https", "{template}");
        assert_eq!(expanded.path, path, "{template}");
        assert!(template.contains(&format!("//{}/", expanded.authority)), "{template}");
    }
}

#[test]
fn a_template_has_the_proxys_host_and_port() {
    for (authority, host, port) in [
        ("example.org", "example.org", 443),
        ("example.org:4443", "example.org", 4443),
        ("[::1]:65535", "::1", 65_535),
        ("[2001:db8::1]", "2001:db8::1", 443),
        ("192.0.2.1:1", "192.0.2.1", 1),
    ] {
        let template = Template::default_for(authority).expect(authority);
        assert_eq!(template.authority(), authority);
        assert_eq!(template.host(), host, "{authority}");
        assert_eq!(template.port(), port, "{authority}");
        assert_eq!(template.to_string().parse(), Ok(template));
    }
}

#[test]
fn templates_that_rfc_9298_forbids_are_refused() {
    use TemplateError::{
        Authority, Character, Level4, NoPath, NotHttps, Operator, OutsidePathAndQuery,
        VariableMissing,
    };
    let authority = |text: &str| Authority(text.into());
    for (template, error) in [
        ("https://a/\u{e4}/{target_host}/{target_port}", Character('\u{e4}')),
        ("https://a/ {target_host}/{target_port}", Character(' ')),
        ("http://a/{target_host}/{target_port}", NotHttps),
        ("/masque/{target_host}/{target_port}", NotHttps),
        ("{target_host}/{target_port}", NotHttps),
        ("https:///{target_host}/{target_port}", authority("")),
        ("https://:443/{target_host}/{target_port}", authority(":443")),
        ("https://a:/{target_host}/{target_port}", authority("a:")),
        ("https://a:0/{target_host}/{target_port}", authority("a:0")),
        ("https://a:65536/{target_host}/{target_port}", authority("a:65536")),
        ("https://user@a/{target_host}/{target_port}", authority("user@a")),
        ("https://{target_host}/{target_port}", authority("")),
        ("https://a{target_host}/{target_port}", OutsidePathAndQuery("{target_host}".into())),
        ("https://a?h={target_host}&p={target_port}", NoPath),
        ("https://a", NoPath),
        (
            "https://a{?target_host,target_port}",
            OutsidePathAndQuery("{?target_host,target_port}".into()),
        ),
        ("https://a/{target_host}/{target_port}#f", OutsidePathAndQuery("#f".into())),
        ("https://a/#{target_host}/{target_port}", OutsidePathAndQuery("#".into())),
        ("https://a/{+target_host}/{target_port}", Operator('+')),
        ("https://a/{target_host}/{target_port}{#x}", Operator('#')),
        ("https://a/{target_host}{.target_port}", Operator('.')),
        (
            "https://a{/target_host,target_port}",
            OutsidePathAndQuery("{/target_host,target_port}".into()),
        ),
        ("https://a/b{/target_host,target_port}", Operator('/')),
        ("https://a/{;target_host,target_port}", Operator(';')),
        ("https://a/{target_host:3}/{target_port}", Level4("target_host:3".into())),
        ("https://a/{target_host*}/{target_port}", Level4("target_host*".into())),
        ("https://a/{target_port}", VariableMissing("target_host")),
        ("https://a/{target_host}/", VariableMissing("target_port")),
        ("https://a/", VariableMissing("target_host")),
    ] {
        assert_eq!(Template::parse(template), Err(error), "{template}");
    }
    for template in [
        "https://a/{target_host",
        "https://a/target_host}",
        "https://a/{}/{target_host}/{target_port}",
        "https://a/{target_host}/{target_port}/{|x}",
        "https://a/{target_host}/{target_port}/%zz",
    ] {
        let error = Template::parse(template);
        assert!(matches!(error, Err(TemplateError::Syntax(_))), "{template}: {error:?}");
    }
    assert_eq!(Template::default_for("a/b"), Err(authority("a/b")));
}

fn matcher(template: &str) -> PathMatcher {
    PathMatcher::new(&Template::parse(template).expect(template)).expect(template)
}

#[test]
fn a_proxy_finds_the_target_in_the_path() {
    let target = |host: &str, port| Some(Ok((host.to_owned(), port)));
    let default = "https://a/.well-known/masque/udp/{target_host}/{target_port}/";
    let form = "https://a/m{?target_host,target_port}";
    let query = "https://a/m?p={target_port}&h={target_host}";
    let list = "https://a/{target_host,target_port}";
    for (template, path, expected) in [
        (default, "/.well-known/masque/udp/192.0.2.6/443/", target("192.0.2.6", 443)),
        (default, "/.well-known/masque/udp/a.example/1/", target("a.example", 1)),
        (default, "/.well-known/masque/udp/2001%3Adb8%3A%3A42/443/", target(HOST_IPV6, 443)),
        (default, "/.well-known/masque/udp/2001:db8::42/443/", target(HOST_IPV6, 443)),
        (default, "/.well-known/masque/udp/%61.example/%34%34/", target("a.example", 44)),
        (default, "/.well-known/masque/udp/a.example/443", None),
        (default, "/.well-known/masque/udp/a.example/443/x", None),
        (default, "/.well-known/masque/udp/a.example/443/?x", None),
        (default, "/.well-known/masque/udp/", None),
        (default, "/", None),
        (default, "", None),
        (default, "/.well-known/masque/udp//443/", Some(Err(TargetError::HostEmpty))),
        (default, "/.well-known/masque/udp/a//", Some(Err(TargetError::Port("".into())))),
        (default, "/.well-known/masque/udp/%ff/1/", Some(Err(TargetError::Utf8("%ff".into())))),
        (form, "/m?target_host=a.example&target_port=443", target("a.example", 443)),
        (form, "/m?target_port=443&target_host=a.example", None),
        (form, "/m", None),
        (query, "/m?p=443&h=a.example", target("a.example", 443)),
        (query, "/m?p=443&h=", Some(Err(TargetError::HostEmpty))),
        (list, "/a.example,443", target("a.example", 443)),
    ] {
        assert_eq!(matcher(template).match_path(path), expected, "{template} {path}");
    }
}

#[test]
fn a_proxy_refuses_templates_that_it_cannot_invert() {
    use TemplateError::{Ambiguous, VariableRepeated, VariableUnknown};
    for (template, error) in [
        ("https://a/{target_host}{target_port}", Ambiguous("target_host")),
        ("https://a/{target_host}-{target_port}", Ambiguous("target_host")),
        ("https://a/{target_host}/{target_port}x", Ambiguous("target_port")),
        ("https://a/{target_host}/{target_port}%20", Ambiguous("target_port")),
        ("https://a/{x}/{target_host}/{target_port}", VariableUnknown("x".into())),
        (
            "https://a/{target_host}/{target_port}/{target_host}",
            VariableRepeated("target_host".into()),
        ),
    ] {
        let template = Template::parse(template).expect(template);
        assert_eq!(PathMatcher::new(&template), Err(error), "{template}");
    }
}

#[test]
fn hosts_are_addresses_or_names() {
    let label = "a".repeat(63);
    let name = format!("{label}.{label}.{label}.{}", "a".repeat(61));
    for host in ["192.0.2.6", "::1", "::ffff:1.2.3.4", "a", "a.", "a-b.c_d", "_x.1a", "0x.a", &name]
    {
        assert_eq!(check_host(host), Ok(()), "{host}");
    }
    for (host, error) in [
        ("", TargetError::HostEmpty),
        ("fe80::1%eth0", TargetError::HostZone("fe80::1%eth0".into())),
        ("[::1]", TargetError::HostIpv6("[::1]".into())),
        (":::", TargetError::HostIpv6(":::".into())),
        ("a:443", TargetError::HostIpv6("a:443".into())),
        ("256.0.0.1", TargetError::HostIpv4("256.0.0.1".into())),
        ("127.1", TargetError::HostIpv4("127.1".into())),
        ("2130706433", TargetError::HostIpv4("2130706433".into())),
        ("0x7f.0x1", TargetError::HostIpv4("0x7f.0x1".into())),
        ("1.2.3.4.", TargetError::HostIpv4("1.2.3.4.".into())),
        (".", TargetError::HostLabel(".".into())),
        ("a..b", TargetError::HostLabel("a..b".into())),
        ("a..", TargetError::HostLabel("a..".into())),
        ("*", TargetError::HostCharacter { host: "*".into(), character: '*' }),
        ("a b", TargetError::HostCharacter { host: "a b".into(), character: ' ' }),
        ("\u{e4}", TargetError::HostCharacter { host: "\u{e4}".into(), character: '\u{e4}' }),
    ] {
        assert_eq!(check_host(host), Err(error), "{host}");
    }
    assert_eq!(check_host(&format!("{name}a")), Err(TargetError::HostTooLong(254)));
    let long_label = format!("a{label}");
    assert_eq!(check_host(&long_label), Err(TargetError::HostLabel(long_label.as_str().into())));
}

#[test]
fn ports_are_numbers_from_1_to_65535() {
    for (text, port) in [("1", 1), ("443", 443), ("00443", 443), ("65535", 65_535)] {
        assert_eq!(target::parse_port(text), Ok(port), "{text}");
    }
    for text in ["", "0", "00000", "000443", "65536", "99999", "+443", "-1", "4 3", "\u{662}"] {
        assert_eq!(target::parse_port(text), Err(TargetError::Port(text.into())), "{text}");
    }
}

proptest! {
    #[test]
    fn a_proxy_finds_the_target_that_its_template_was_expanded_with(
        host in prop_oneof![
            any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|address| address.to_string()),
            "[a-z0-9_-]{1,20}(\\.[a-z][a-z0-9-]{0,10}){1,3}",
        ],
        port in 1_u16..,
        template in prop_oneof![
            Just("https://a/.well-known/masque/udp/{target_host}/{target_port}/"),
            Just("https://a/m{?target_host,target_port}"),
            Just("https://a/m?x{&target_port,target_host}"),
            Just("https://a/m/{target_port,target_host}"),
            Just("https://a/m/{target_port};{target_host}"),
        ],
    ) {
        let template = Template::parse(template).unwrap();
        let path = template.expand(&host, port).path;
        let found = PathMatcher::new(&template).unwrap().match_path(&path);
        prop_assert_eq!(found, Some(Ok((host, port))));
    }

    #[test]
    fn no_path_panics(path in "(/\\.well-known/masque/udp/)?[!-~]{0,20}/[0-9%]{0,6}/?") {
        let template = Template::default_for("a").unwrap();
        if let Some(Ok((host, port))) = PathMatcher::new(&template).unwrap().match_path(&path) {
            prop_assert_eq!(check_host(&host), Ok(()));
            prop_assert_ne!(port, 0);
        }
    }
}

#[test]
fn the_authority_of_a_connect_request_names_its_target() {
    for (authority, target) in [
        ("example.org:443", Some(("example.org", 443))),
        ("192.0.2.1:1", Some(("192.0.2.1", 1))),
        ("[2001:db8::1]:65535", Some(("2001:db8::1", 65_535))),
        ("example.org", None),
        ("example.org:", None),
        ("example.org:0", None),
        ("example.org:65536", None),
        ("example.org:+80", None),
        (":80", None),
        ("2001:db8::1:443", None),
        ("[2001:db8::1]", None),
        ("[example.org]:80", None),
        ("[fe80::1%25eth0]:80", None),
        ("user@example.org:80", None),
        ("exa mple.org:80", None),
        ("127.1:80", None),
    ] {
        let parsed = parse_target_authority(authority).ok();
        let expected = target.map(|(host, port): (&str, u16)| (host.to_owned(), port));
        assert_eq!(parsed, expected, "{authority}");
    }
}

#[test]
fn a_proxy_below_a_path_has_both_default_templates_there() {
    for (text, udp, tcp) in [
        ("p.example", "/.well-known/masque/udp/", "/.well-known/masque/tcp/"),
        ("https://p.example", "/.well-known/masque/udp/", "/.well-known/masque/tcp/"),
        ("https://p.example/", "/.well-known/masque/udp/", "/.well-known/masque/tcp/"),
        ("https://p.example/a", "/a/.well-known/masque/udp/", "/a/.well-known/masque/tcp/"),
        (
            "https://p.example/a/b-_.~/",
            "/a/b-_.~/.well-known/masque/udp/",
            "/a/b-_.~/.well-known/masque/tcp/",
        ),
        ("https://p.example/m/{target_host}/{target_port}", "/m/", "/.well-known/masque/tcp/"),
    ] {
        let template = Template::of_proxy(text).unwrap();
        assert_eq!(template.authority(), "p.example", "{text}");
        let path = template.expand("192.0.2.1", 53).path;
        let rest = path.strip_prefix(udp).map(|rest| rest.trim_end_matches('/'));
        assert_eq!(rest, Some("192.0.2.1/53"), "{text}: {path}");
        let path = template.default_tcp_beside().unwrap().expand("192.0.2.1", 80).path;
        assert_eq!(path, format!("{tcp}192.0.2.1/80/"), "{text}");
    }
    for text in [
        "https://p.example/a?b",
        "https://p.example/a#b",
        "https:///a",
        "p.example/a",
        "https://p.example/a b",
    ] {
        assert!(Template::of_proxy(text).is_err(), "{text}");
    }
}

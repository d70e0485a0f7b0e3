use proptest::{prop_assert, prop_assert_eq, proptest};
use tandem_wire::Template;

use super::*;

const TOKEN: &str = "0123456789abcdef";
const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn fingerprint() -> Fingerprint {
    HEX.parse().unwrap()
}

/// Name, token, authority, secret path, and whether the link has the fingerprint `HEX`.
type Parts<'a> = (Option<&'a str>, Option<&'a str>, &'a str, Option<&'a str>, bool);

fn parts(link: &Link) -> Parts<'_> {
    let token = link.token().map(Token::reveal);
    // The parts borrow from the link, but for the authority, which is compared with one of these.
    let known =
        ["p.example", "p.example:8443", "192.0.2.1:1", "[2001:db8::1]", "[2001:db8::1]:65535"];
    let authority = link.authority();
    let authority =
        known.into_iter().find(|it| *it == authority).expect("an authority of the table");
    (
        link.name(),
        token,
        authority,
        link.secret_path.as_deref(),
        link.fingerprint() == Some(fingerprint()),
    )
}

#[test]
fn a_link_says_what_stands_in_it_and_is_written_again() {
    let long = format!("tandem://p.example?sha256={HEX}");
    let colons: Vec<String> =
        HEX.as_bytes().chunks(2).map(|it| String::from_utf8_lossy(it).into()).collect();
    let colons = format!("tandem://p.example?sha256={}", colons.join(":").to_uppercase());
    for (text, expected, canonical) in [
        ("tandem://p.example", (None, None, "p.example", None, false), None),
        ("tandem://p.example/", (None, None, "p.example", None, false), Some("tandem://p.example")),
        (
            "TANDEM://P.Example:443",
            (None, None, "p.example", None, false),
            Some("tandem://p.example"),
        ),
        (
            " tandem://p.example:8443\r\n",
            (None, None, "p.example:8443", None, false),
            Some("tandem://p.example:8443"),
        ),
        ("tandem://alice@p.example", (Some("alice"), None, "p.example", None, false), None),
        (
            "tandem://alice:0123456789abcdef@p.example",
            (Some("alice"), Some(TOKEN), "p.example", None, false),
            None,
        ),
        (
            "tandem://:0123456789abcdef@p.example",
            (None, Some(TOKEN), "p.example", None, false),
            None,
        ),
        (
            "tandem://a%40b.example:ab%2Fcd%2Bef01234567%3D@[2001:db8::1]",
            (Some("a@b.example"), Some("ab/cd+ef01234567="), "[2001:db8::1]", None, false),
            None,
        ),
        // What need not be encoded is read too, and written encoded.
        (
            "tandem://a@b.example:ab+cd.ef01234567=@[2001:DB8::1]:65535",
            (Some("a@b.example"), Some("ab+cd.ef01234567="), "[2001:db8::1]:65535", None, false),
            Some("tandem://a%40b.example:ab%2Bcd.ef01234567%3D@[2001:db8::1]:65535"),
        ),
        (
            "tandem://192.0.2.1:1/Se-cret_~/x/",
            (None, None, "192.0.2.1:1", Some("Se-cret_~/x"), false),
            Some("tandem://192.0.2.1:1/Se-cret_~/x"),
        ),
        (&long, (None, None, "p.example", None, true), None),
        (&colons, (None, None, "p.example", None, true), Some(&long)),
    ] {
        let link: Link = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parts(&link), expected, "{text}");
        let written = link.reveal();
        assert_eq!(written, canonical.unwrap_or(text), "{text}");
        assert_eq!(written.parse().as_ref(), Ok(&link), "{text}");
        // Another program's parser finds the same parts in it.
        let url = url::Url::parse(&written).unwrap();
        let host = url.host_str().unwrap().trim_start_matches('[').trim_end_matches(']');
        assert_eq!((host, url.port().unwrap_or(443)), (link.host(), link.port()), "{text}");
        assert_eq!(decoded(url.username()).unwrap(), link.name().unwrap_or_default(), "{text}");
        let password = url.password().map(|it| decoded(it).unwrap());
        assert_eq!(password.as_deref(), link.token().map(Token::reveal), "{text}");
    }
}

#[test]
fn the_proxy_is_named_as_via_names_it() {
    for (text, via) in [
        ("tandem://p.example", "https://p.example"),
        ("tandem://:0123456789abcdef@p.example:8443/", "https://p.example:8443"),
        ("tandem://p.example:443/secret?sha256=", "https://p.example/secret"),
        ("tandem://[2001:db8::1]", "https://[2001:db8::1]"),
    ] {
        let link: Link = text.replace("sha256=", &format!("sha256={HEX}")).parse().unwrap();
        assert_eq!(link.via(), via);
    }
}

#[test]
fn a_wrong_host_or_port_is_refused_with_the_reason() {
    for (text, expected) in [
        ("", LinkError::Scheme),
        ("tandem", LinkError::Scheme),
        ("tandem:/", LinkError::Scheme),
        ("tandem:p.example", LinkError::Scheme),
        ("https://p.example", LinkError::Scheme),
        ("täandem://", LinkError::Scheme),
        ("tandem://", LinkError::NoHost),
        ("tandem:///path", LinkError::NoHost),
        ("tandem://alice:0123456789abcdef@", LinkError::NoHost),
        ("tandem://:8443", LinkError::NoHost),
        ("tandem://p.example\u{0}", LinkError::Character('\u{0}')),
        ("tandem://p.exa\nmple", LinkError::Character('\n')),
        ("tandem://p.example and more", LinkError::Character(' ')),
        ("tandem://pröxy.example", LinkError::Character('ö')),
        ("tandem://p.exa\u{202e}mple", LinkError::Character('\u{202e}')),
        // A cut address, and numbers that some programs take for addresses.
        ("tandem://192.0.2", LinkError::Host),
        ("tandem://192.0.2.", LinkError::Host),
        ("tandem://0x7f.1", LinkError::Host),
        ("tandem://p..example", LinkError::Host),
        ("tandem://p\\example", LinkError::Host),
        ("tandem://p%2eexample", LinkError::Host),
        ("tandem://<b>", LinkError::Host),
        ("tandem://[2001:db8::1", LinkError::Brackets),
        ("tandem://[2001:db8::1%25eth0]", LinkError::Brackets),
        ("tandem://[192.0.2.1]", LinkError::Brackets),
        ("tandem://2001:db8::1", LinkError::Brackets),
        ("tandem://[2001:db8::1]x", LinkError::Host),
        ("tandem://p.example:", LinkError::Port),
        ("tandem://p.example:0", LinkError::Port),
        ("tandem://p.example:65536", LinkError::Port),
        ("tandem://p.example:+1", LinkError::Port),
    ] {
        assert_eq!(text.parse::<Link>(), Err(expected), "{text:?}");
    }
}

#[test]
fn other_parts_that_are_cut_or_odd_are_refused_with_the_reason() {
    let hex = |text: &str| text.replace("HEX", HEX);
    let digits = |digits, others| LinkError::Fingerprint { digits, others };
    for (text, expected) in [
        // The token has a slash that is not encoded, or no @ behind it.
        ("tandem://alice:0123/456789abcdef@p.example", LinkError::Port),
        ("tandem://alice:1234/56789abcdef01@p.example", LinkError::Path),
        ("tandem://alice:0123456789abcdef", LinkError::Port),
        ("tandem://p.example:0443", LinkError::Port),
        ("tandem://@p.example", LinkError::Name),
        ("tandem://a%20b@p.example", LinkError::Name),
        ("tandem://a%0Ab:0123456789abcdef@p.example", LinkError::Name),
        ("tandem://%ff@p.example", LinkError::Name),
        ("tandem://a%2@p.example", LinkError::Percent),
        ("tandem://a%zz@p.example", LinkError::Percent),
        ("tandem://%@p.example", LinkError::Percent),
        ("tandem://0123456789abcdef@p.example", LinkError::TokenWithoutColon),
        ("tandem://alice:@p.example", LinkError::Token),
        ("tandem://alice:0123456789abcde@p.example", LinkError::Token),
        ("tandem://alice:0123456789abcdef%00@p.example", LinkError::Token),
        ("tandem://alice:0123456789:abcdef@p.example", LinkError::Token),
        ("tandem://p.example//", LinkError::Path),
        ("tandem://p.example/a//b", LinkError::Path),
        ("tandem://p.example/../a", LinkError::Path),
        ("tandem://p.example/a/.", LinkError::Path),
        ("tandem://p.example/%2e%2e/a", LinkError::Path),
        ("tandem://p.example/{target_host}", LinkError::Path),
        ("tandem://p.example/a\\b", LinkError::Path),
        ("tandem://p.example#sha256=HEX", LinkError::Fragment),
        ("tandem://p.example/?sha256=HEX#", LinkError::Fragment),
        ("tandem://p.example?", LinkError::UnknownKey("".into())),
        ("tandem://p.example?sha256=HEX&", LinkError::UnknownKey("".into())),
        ("tandem://p.example?sha256", LinkError::UnknownKey("sha256".into())),
        ("tandem://p.example?SHA256=HEX", LinkError::UnknownKey("SHA256".into())),
        ("tandem://p.example?sha256=HEX&mode=tecc", LinkError::UnknownKey("mode".into())),
        ("tandem://p.example?sha256=HEX&sha256=HEX", LinkError::DoubledKey),
        ("tandem://p.example?sha256=", digits(0, 0)),
        ("tandem://p.example?sha256=HEX0", digits(65, 0)),
        ("tandem://p.example?sha256=HEX00", digits(66, 0)),
        ("tandem://p.example?sha256=0123", digits(4, 0)),
        ("tandem://p.example?sha256=HEX?", digits(64, 1)),
        ("tandem://p.example?sha256=gg", digits(0, 2)),
    ] {
        assert_eq!(hex(text).parse::<Link>(), Err(expected), "{text:?}");
    }
    let long = format!("tandem://{}", "a".repeat(Link::LEN_MAX));
    let error = LinkError::TooLong { len: long.len(), max: Link::LEN_MAX };
    assert_eq!(long.parse::<Link>(), Err(error));
}

#[test]
fn a_link_that_is_cut_never_has_another_token_or_certificate() {
    let whole = format!("tandem://alice:{TOKEN}@p.example:8443/secret?sha256={HEX}");
    let link: Link = whole.parse().unwrap();
    for end in 0..whole.len() {
        // What is left may be a host, or a link without its last parts.
        if let Ok(cut) = whole[..end].parse::<Link>() {
            assert_eq!(cut.fingerprint(), None, "{end}");
            assert!(cut.token().is_none() || cut.token() == link.token(), "{end}");
        }
    }
}

#[test]
fn neither_a_link_nor_an_error_shows_the_token_or_the_path() {
    let whole = format!("tandem://alice:{TOKEN}@p.example:8443/hidden?sha256={HEX}");
    let shown = format!("{:?}", whole.parse::<Link>().unwrap());
    assert!(shown.contains("alice") && shown.contains("p.example:8443"), "{shown}");
    let has_secret = |text: &str| text.contains("0123") || text.contains("hidden");
    assert!(!has_secret(&shown), "{shown}");
    for (from, to) in [
        ("@", ""),
        ("@", "@@"),
        ("alice:", ""),
        ("p.example", ""),
        ("p.example", "p..example"),
        (":8443", ":x"),
        ("/hidden", "//hidden"),
        ("sha256", "x"),
        (TOKEN, "0123/456789abcdef"),
        (TOKEN, "0123"),
        ("tandem", "tamdem"),
    ] {
        let error = whole.replacen(from, to, 1).parse::<Link>().unwrap_err();
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(!has_secret(&shown), "{from:?} as {to:?}: {shown}");
        }
    }
}

proptest! {
    #[test]
    fn whatever_a_link_says_is_read_again(
        name in proptest::option::of("[!-~]{1,40}"),
        token in proptest::option::of("[A-Za-z0-9._~+/-]{16,60}={0,2}"),
        host in "[a-z][a-z0-9]{0,9}(\\.[a-z][a-z0-9]{0,9}){0,3}|([1-9]{1,2}\\.){3}[1-9]|fd00::[1-9a-f]{1,4}",
        port in 1..=u16::MAX,
        path in "(/[A-Za-z0-9_~!$&'()*+,;=:-]{1,9}){0,3}/?",
        fingerprint in proptest::option::of(proptest::array::uniform32(0_u8..)),
    ) {
        let mut link = Link::new(&host, port).unwrap().with_secret_path(&path).unwrap();
        // A name alone that looks like a token is the only one that has no link.
        let is_token = |name: &String| token.is_none() && Token::parse(name).is_ok();
        link = link.with_name(name.filter(|name| !is_token(name)).as_deref()).unwrap();
        if let Some(token) = token {
            link = link.with_token(Token::parse(&token).unwrap());
        }
        if let Some(fingerprint) = fingerprint {
            link = link.with_fingerprint(Fingerprint(fingerprint));
        }
        prop_assert_eq!(link.reveal().parse(), Ok(link.clone()));
        let proxy = Template::of_proxy(&format!("https://{}", link.authority()));
        prop_assert!(proxy.is_ok(), "{:?}", link);
    }

    #[test]
    fn no_text_panics_and_what_is_read_is_written_as_itself(
        text in "tandem://[!-~]{0,40}|tandem://([a-z:@/?#%=.0-9]|\\[|\\]|sha256=|\\PC){0,30}",
    ) {
        if let Ok(link) = text.parse::<Link>() {
            prop_assert_eq!(link.reveal().parse(), Ok(link));
        }
    }
}

//! Names of hosts, as DNS has them.

use hickory_proto::rr::Name;

/// Reads the name of a host. An ASCII name goes to DNS as it is, whatever its characters are: names of containers and
/// buckets have underscores. Only other names are converted (IDNA, RFC 5891). `None`: DNS has no such names.
pub(super) fn parse(host: &str) -> Option<Name> {
    if !host.is_ascii() {
        let mut name = Name::from_utf8(host).ok()?;
        name.set_fqdn(true);
        return Some(name.to_lowercase());
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    Name::from_labels(host.split('.').map(str::as_bytes)).ok()
}

/// The text that [`parse`] reads as this name, which may come from a name server. It is empty if there is none: labels
/// may have any bytes, also dots.
pub(super) fn text(name: &Name) -> String {
    let mut text = String::new();
    for label in name {
        let label = std::str::from_utf8(label).ok().filter(|it| it.is_ascii() && !it.contains('.'));
        let Some(label) = label else { return String::new() };
        text.push_str(label);
        text.push('.');
    }
    text
}

/// Whether a name is `localhost` or below it (RFC 6761 §6.3).
pub(super) fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// The names that are asked for, in this order, when a program names this host: with a search list, a short name may
/// be one in its domains.
pub(super) fn candidates(host: &str, name: &Name, search: &[Name], ndots: u8) -> Vec<Name> {
    if host.ends_with('.') || search.is_empty() {
        return vec![name.clone()];
    }
    let in_domain = |domain: &Name| name.clone().append_name(domain).ok();
    let mut candidates: Vec<_> = search.iter().filter_map(in_domain).collect();
    let has_dots = name.iter().count() > usize::from(ndots);
    let place = if has_dots { 0 } else { candidates.len() };
    candidates.insert(place, name.clone());
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_names_go_to_dns_as_they_are() {
        for (host, expected) in [
            ("My_App_1.test", Some("my_app_1.test.")),
            ("_x._tcp.test.", Some("_x._tcp.test.")),
            ("-a.test", Some("-a.test.")),
            ("a--b.test", Some("a--b.test.")),
            ("xn--ber-goa.test", Some("xn--ber-goa.test.")),
            ("über.test", Some("xn--ber-goa.test.")),
            ("Über.test.", Some("xn--ber-goa.test.")),
            ("a..b", None),
            ("", None),
            (".", None),
        ] {
            let name = parse(host).map(|name| text(&name));
            assert_eq!(name.as_deref(), expected, "{host}");
        }
        assert_eq!(parse(&"a".repeat(64)), None, "a label has 63 bytes");
        assert_eq!(parse(&"a.".repeat(200)), None, "a name has 255 bytes");
        let odd = parse("a b!.test").expect("a name");
        assert_eq!((odd.iter().next(), &*text(&odd)), (Some(&b"a b!"[..]), "a b!.test."));
        let dotted = Name::from_labels([&b"a.b"[..], b"test"]).expect("a name");
        assert_eq!(text(&dotted), "");
    }

    #[test]
    fn short_names_are_looked_for_in_the_search_list() {
        let search = [parse("lab.test").expect("a name"), parse("test").expect("a name")];
        for (host, ndots, expected) in [
            ("short", 1, "short.lab.test. short.test. short."),
            ("a.short", 1, "a.short. a.short.lab.test. a.short.test."),
            ("a.short", 2, "a.short.lab.test. a.short.test. a.short."),
            ("short.", 1, "short."),
        ] {
            let name = parse(host).expect("a name");
            let names = candidates(host, &name, &search, ndots);
            let names: Vec<_> = names.iter().map(Name::to_ascii).collect();
            assert_eq!(names.join(" "), expected, "{host}, ndots:{ndots}");
        }
    }
}

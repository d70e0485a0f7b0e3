//! The rules of a user for what goes through the tunnel: one on a line, in the form of the flag `--rule`. `#` begins a
//! comment line.

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;
use tandem_node::client::rules::{ALL_PORTS, Action, Carries, HostMatch, Rule};
use tandem_wire::uri_template::check_host;

use crate::{Fault, setting::ValueError};

/// The most rules of a text. Each is compared with each target that programs name.
pub const RULES_MAX: usize = 4096;

/// What a rule looks like, for help and errors.
pub const FORM: &str = "ACTION=HOST or ACTION=HOST:PORTS, where ACTION is proxy, direct or refuse, HOST is a name, \
                        *.DOMAIN (with all below it), an address, a prefix or *, and PORTS is one port or FIRST-LAST";

/// Parses all rules of a text. There may be none.
pub fn parse(text: &str) -> Result<Vec<Rule>, Fault> {
    let mut rules = Vec::new();
    for (line, text) in crate::lines(text) {
        rules.push(rule(text).map_err(|error| Fault { line, reason: error.to_string() })?);
        if rules.len() > RULES_MAX {
            return Err(Fault { line, reason: format!("more than {RULES_MAX} rules") });
        }
    }
    Ok(rules)
}

/// Parses one rule, such as `direct=*.example.org:443`.
pub fn rule(text: &str) -> Result<Rule, ValueError> {
    let refused = |reason: &str| {
        Err(ValueError::Part { reason: reason.to_owned(), expected: FORM.to_owned() })
    };
    let Some((action, rest)) = text.split_once('=') else { return refused("there is no =") };
    let action = Action::NAMES.iter().find(|(name, _)| *name == action.trim());
    let Some((_, action)) = action else { return refused("the action is unknown") };
    let Some((host, ports)) = split(rest.trim()) else {
        return refused("an IPv6 address with ports needs brackets");
    };
    let Some(host) = host_match(host) else {
        return refused("the host is neither a name nor an address");
    };
    let Some(ports) = ports.map_or(Some(ALL_PORTS), port_range) else {
        return refused("the ports are no range of numbers");
    };
    Ok(Rule { action: *action, hosts: vec![host], ports: vec![ports], carries: Carries::BOTH })
}

/// A host, which may be in brackets, and what follows a colon.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(ports) => Some((host, Some(ports))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match text.matches(':').count() {
        0 => Some((text, None)),
        1 => text.split_once(':').map(|(host, ports)| (host, Some(ports))),
        _ => net(text).is_some().then_some((text, None)),
    }
}

fn host_match(text: &str) -> Option<HostMatch> {
    if text == "*" {
        return Some(HostMatch::Any);
    }
    net(text).map(HostMatch::Net).or_else(|| domain(text))
}

/// An address or a prefix. An IPv4 address in an IPv6 one is the IPv4 address.
pub(crate) fn net(text: &str) -> Option<IpNet> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => IpNet::from(text.parse::<IpAddr>().ok()?.to_canonical()),
    };
    Some(net.trunc())
}

/// A name, or `*.` and a name.
pub(crate) fn domain(text: &str) -> Option<HostMatch> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_name = !name.is_empty() && check_host(&name).is_ok() && name.parse::<IpAddr>().is_err();
    is_name.then(|| {
        if text.starts_with("*.") { HostMatch::Domain(name) } else { HostMatch::Name(name) }
    })
}

/// A port, or the first and the last one.
pub(crate) fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let number = |text: &str| {
        let is_number = (1..=5).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
        if is_number { text.parse::<u16>().ok() } else { None }
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = number(first)?..=number(last)?;
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_an_action_a_host_and_perhaps_ports() {
        for (text, shown) in [
            ("direct=example.org", Some("direct=example.org")),
            ("direct=*.Example.ORG.", Some("direct=*.example.org")),
            ("proxy=10.0.0.0/8", Some("proxy=10.0.0.0/8")),
            ("proxy=10.1.2.3/8:443", Some("proxy=10.0.0.0/8:443")),
            ("proxy=192.0.2.1", Some("proxy=192.0.2.1")),
            ("proxy=::ffff:192.0.2.1", Some("proxy=192.0.2.1")),
            ("refuse=2001:db8::/32", Some("refuse=2001:db8::/32")),
            ("refuse=[2001:db8::/32]:25", Some("refuse=[2001:db8::/32]:25")),
            ("refuse=*:25", Some("refuse=*:25")),
            ("refuse=*:1-1023", Some("refuse=*:1-1023")),
            (" refuse = * ", Some("refuse=*")),
            ("direct=a.example:0-65535", Some("direct=a.example")),
            ("", None),
            ("example.org", None),
            ("allow=example.org", None),
            ("direct=", None),
            ("direct=*.", None),
            ("direct=*a.example", None),
            ("direct=a.*.example", None),
            ("direct=exa mple", None),
            ("direct=a.example:", None),
            ("direct=a.example:99999", None),
            ("direct=a.example:9-1", None),
            ("direct=a.example:+1", None),
            ("direct=2001:db8::1:x", None),
            ("direct=[2001:db8::1]443", None),
            ("direct=10.0.0.0/33", None),
            ("direct=127.1", None),
            ("direct=b\u{fc}cher.example", None),
        ] {
            let rule = rule(text).ok().map(|rule| rule.to_string());
            assert_eq!(rule.as_deref(), shown, "{text:?}");
        }
    }

    #[test]
    fn a_text_has_a_rule_on_each_line() {
        let text = "# at work\n\ndirect=*.work.example\n  refuse=*:25\n";
        assert_eq!(parse(text).map(|rules| rules.len()), Ok(2));
        let fault = parse("direct=a.example\n\nnothing\n").unwrap_err();
        assert_eq!(fault.line, 3);
        assert!(fault.to_string().contains("there is no ="), "{fault}");
        assert!(parse(&"refuse=*\n".repeat(RULES_MAX)).is_ok());
        assert!(parse(&"refuse=*\n".repeat(RULES_MAX + 1)).is_err());
    }
}

//! The ports to which a proxy opens TCP connections.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde_with::SerializeDisplay;

/// The ports of targets to which a proxy opens TCP connections. RFC 9110 §9.3.6: "Proxies that support
/// CONNECT SHOULD restrict its use to a limited set of known ports or a configurable list of safe
/// request targets."
///
/// The default permits every port but 25, with which mail servers talk to each other, so that no client
/// sends spam from the proxy's address. The text form is `all`, `none`, or ports and ranges with commas
/// between, such as `443,8000-8999`.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub struct TcpPorts {
    ranges: Vec<RangeInclusive<u16>>,
}

/// The port of SMTP between mail servers (RFC 5321 §4.5.4.2).
const SMTP: u16 = 25;

impl TcpPorts {
    /// Whether the proxy opens TCP connections to this port.
    pub fn permits(&self, port: u16) -> bool {
        self.ranges.iter().any(|range| range.contains(&port))
    }
}

impl Default for TcpPorts {
    fn default() -> Self {
        Self { ranges: vec![1..=SMTP - 1, SMTP + 1..=u16::MAX] }
    }
}

/// The error for a text that does not name ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no port and no range of ports; allowed: all, none, or a list such as 443,8000-8999"
)]
pub struct TcpPortsError(String);

impl FromStr for TcpPorts {
    type Err = TcpPortsError;

    fn from_str(text: &str) -> Result<Self, TcpPortsError> {
        let ranges = match text {
            "all" => vec![1..=u16::MAX],
            "none" => Vec::new(),
            list => list.split(',').map(parse_range).collect::<Result<_, _>>()?,
        };
        Ok(Self { ranges })
    }
}

/// Parses `PORT` or `FIRST-LAST`.
fn parse_range(text: &str) -> Result<RangeInclusive<u16>, TcpPortsError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(TcpPortsError(text.to_owned())),
    }
}

impl fmt::Display for TcpPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ranges.as_slice() {
            [] => return f.write_str("none"),
            [range] if *range == (1..=u16::MAX) => return f.write_str("all"),
            _ => {}
        }
        for (index, range) in self.ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let (first, last) = (range.start(), range.end());
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_permits_its_ports_and_no_others() {
        for (text, printed, permitted, refused) in [
            ("all", "all", &[1, 25, 443, 65_535][..], &[0][..]),
            ("none", "none", &[], &[0, 1, 443, 65_535]),
            ("443", "443", &[443], &[442, 444]),
            ("443, 8000-8999", "443,8000-8999", &[443, 8000, 8999], &[444, 7999, 9000]),
            ("1-65535", "all", &[1, 65_535], &[0]),
            ("22-22", "22", &[22], &[21, 23]),
        ] {
            let ports: TcpPorts = text.parse().expect(text);
            assert_eq!(ports.to_string(), printed);
            assert_eq!(printed.parse(), Ok(ports.clone()));
            assert!(permitted.iter().all(|&port| ports.permits(port)), "{text}");
            assert!(!refused.iter().any(|&port| ports.permits(port)), "{text}");
        }
    }

    #[test]
    fn without_a_choice_only_mail_servers_are_not_reached() {
        let ports = TcpPorts::default();
        let refused: Vec<_> = (1..=u16::MAX).filter(|&port| !ports.permits(port)).collect();
        assert_eq!(refused, [25]);
        assert_eq!(ports.to_string().parse(), Ok(ports));
    }

    #[test]
    fn other_texts_are_refused_and_quoted() {
        for (text, quoted) in [
            ("", "\"\""),
            ("https", "\"https\""),
            ("0", "\"0\""),
            ("65536", "\"65536\""),
            ("443,", "\"\""),
            ("9-8", "\"9-8\""),
            ("80-", "\"80-\""),
            ("all,80", "\"all\""),
            ("-1", "\"-1\""),
        ] {
            let error = text.parse::<TcpPorts>().expect_err(text).to_string();
            assert!(error.starts_with(quoted) && error.contains("allowed: all, none"), "{error}");
        }
    }
}

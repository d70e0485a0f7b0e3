//! Ranges of servers, by address and port.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use ipnet::{IpNet, Ipv6Net};
use serde_with::SerializeDisplay;

use super::values::{Prefix, ValueError};

/// A range of addresses, and one port or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay)]
pub(crate) struct Servers {
    /// The addresses.
    pub(crate) prefix: IpNet,
    /// The port. `None`: all ports.
    pub(crate) port: Option<u16>,
}

impl Servers {
    /// Parses the text. An error is only the reason.
    fn read(text: &str) -> Result<Self, &'static str> {
        let no_servers = "it is neither a prefix nor a prefix and a port";
        let (prefix, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((prefix, "")) => (prefix, None),
            Some((prefix, port)) => (prefix, Some(port.strip_prefix(':').ok_or(no_servers)?)),
            None if text.matches(':').count() == 1 => {
                text.split_once(':').map(|(prefix, port)| (prefix, Some(port))).ok_or(no_servers)?
            }
            None => (text, None),
        };
        let Prefix(prefix) = prefix.parse().map_err(|_| no_servers)?;
        let port =
            port.map(|port| port.parse().ok().filter(|port| *port != 0).ok_or("no such port"));
        if let IpNet::V6(prefix) = prefix
            && (prefix.contains(&ipv4()) || ipv4().contains(&prefix))
        {
            return Err("IPv6 addresses that stand for IPv4 addresses are in it");
        }
        Ok(Self { prefix: prefix.trunc(), port: port.transpose()? })
    }
}

/// The addresses of IPv6 that stand for those of IPv4.
fn ipv4() -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96)
}

impl FromStr for Servers {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "PREFIX or PREFIX:PORT, such as 192.0.2.0/24:443, [2001:db8::/32]:443 or \
                        2000::/3";
        Self::read(text).map_err(|reason| ValueError::Part {
            reason: reason.to_owned(),
            expected: expected.to_owned(),
        })
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.prefix, self.port) {
            (prefix, None) => write!(f, "{prefix}"),
            (IpNet::V4(prefix), Some(port)) => write!(f, "{prefix}:{port}"),
            (IpNet::V6(prefix), Some(port)) => write!(f, "[{prefix}]:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_a_prefix_and_perhaps_a_port() {
        for (text, shown) in [
            ("192.0.2.0/24:443", "192.0.2.0/24:443"),
            ("192.0.2.7/24", "192.0.2.0/24"),
            ("192.0.2.7:443", "192.0.2.7/32:443"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("[2001:db8::1]:443", "[2001:db8::1/128]:443"),
            ("[2001:db8::/32]", "2001:db8::/32"),
            ("2000::/3", "2000::/3"),
        ] {
            let servers: Servers = text.parse().expect(text);
            assert_eq!(servers.to_string(), shown);
            assert_eq!(shown.parse(), Ok(servers));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "all",
            ":443",
            "192.0.2.0/33",
            "192.0.2.0/24:",
            "192.0.2.0/24:0",
            "192.0.2.0/24:65536",
            "192.0.2.0/24:443:1",
            "[192.0.2.0/24]443",
            "[2001:db8::/32",
            "2001:db8::/32:443",
            "::/0",
            "::ffff:192.0.2.0/120",
            "::/80",
            "example.org:443",
            "192.0.2.1-192.0.2.9",
        ] {
            let error = text.parse::<Servers>().expect_err(text).to_string();
            assert!(error.contains("allowed: PREFIX or PREFIX:PORT"), "{error}");
        }
    }
}

//! The servers for which a PEP works, by address and port.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv6Net};
use serde_with::SerializeDisplay;

/// A range of addresses, and one port or all: `192.0.2.0/24:443`, `192.0.2.1`, `[2001:db8::/32]:443`, `2000::/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay)]
pub struct Servers {
    /// The addresses.
    pub prefix: IpNet,
    /// The port. `None`: all ports.
    pub port: Option<u16>,
}

impl Servers {
    /// Whether it is one of them.
    pub fn contains(&self, server: SocketAddr) -> bool {
        self.port.is_none_or(|port| port == server.port())
            && self.prefix.contains(&server.ip().to_canonical())
    }
}

/// A text that names no servers, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}; allowed: PREFIX or PREFIX:PORT, such as 192.0.2.0/24:443, [2001:db8::/32]:443 or 2000::/3"
)]
pub struct ServersError(&'static str);

impl FromStr for Servers {
    type Err = ServersError;

    fn from_str(text: &str) -> Result<Self, ServersError> {
        let no_servers = ServersError("it is neither a prefix nor a prefix and a port");
        let (prefix, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((prefix, "")) => (prefix, None),
            Some((prefix, port)) => (prefix, Some(port.strip_prefix(':').ok_or(no_servers)?)),
            None => match text.split_once(':') {
                Some((prefix, port)) if !port.contains(':') => (prefix, Some(port)),
                _ => (text, None), // IPv6 without a port
            },
        };
        let address = prefix.parse::<IpAddr>().map(IpNet::from);
        let prefix = address.or_else(|_| prefix.parse()).map_err(|_| no_servers)?.trunc();
        if let IpNet::V6(prefix) = prefix
            && (prefix.contains(&ipv4()) || ipv4().contains(&prefix))
        {
            return Err(ServersError("IPv6 addresses that stand for IPv4 addresses are in it"));
        }
        let port = port.map(|port| port.parse().ok().filter(|port| *port != 0));
        let port = port.map(|port| port.ok_or(ServersError("no such port"))).transpose()?;
        Ok(Self { prefix, port })
    }
}

/// The addresses of IPv6 that stand for those of IPv4.
fn ipv4() -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96)
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
        for (text, shown, inside, outside) in [
            ("192.0.2.0/24:443", "192.0.2.0/24:443", "192.0.2.9:443", "192.0.2.9:80"),
            ("192.0.2.7/24", "192.0.2.0/24", "192.0.2.9:9", "192.0.3.0:9"),
            ("192.0.2.1:443", "192.0.2.1/32:443", "192.0.2.1:443", "192.0.2.2:443"),
            ("192.0.2.1", "192.0.2.1/32", "[::ffff:192.0.2.1]:9", "[2001:db8::1]:9"),
            ("0.0.0.0/0", "0.0.0.0/0", "192.0.2.1:9", "[2001:db8::1]:9"),
            (
                "[2001:db8::/32]:443",
                "[2001:db8::/32]:443",
                "[2001:db8::1]:443",
                "[2001:db9::1]:443",
            ),
            ("[2001:db8::1]", "2001:db8::1/128", "[2001:db8::1]:5", "192.0.2.1:5"),
            ("2000::/3", "2000::/3", "[2001:db8::1]:5", "[fd00::2]:5"),
        ] {
            let servers: Servers = text.parse().unwrap();
            assert_eq!(servers.to_string(), shown);
            assert_eq!(servers.to_string().parse(), Ok(servers));
            assert!(servers.contains(inside.parse().unwrap()), "{text} {inside}");
            assert!(!servers.contains(outside.parse().unwrap()), "{text} {outside}");
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
            "example.org:443",
            "192.0.2.1-192.0.2.9",
        ] {
            let error = text.parse::<Servers>().unwrap_err().to_string();
            assert!(error.contains("allowed: PREFIX or PREFIX:PORT"), "{error}");
        }
    }
}

//! The servers for which a PEP works.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use serde_with::SerializeDisplay;

/// Servers, as `PREFIX` or `PREFIX:PORT`: `192.0.2.0/24:443`, `192.0.2.1`, `[2001:db8::/32]:443`, `2001:db8::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay)]
pub struct Server {
    /// Their addresses.
    pub prefix: IpNet,
    /// Their port. `None`: all ports.
    pub port: Option<u16>,
}

impl Server {
    /// Whether it is one of them.
    pub fn contains(&self, server: SocketAddr) -> bool {
        self.port.is_none_or(|port| port == server.port())
            && self.prefix.contains(&server.ip().to_canonical())
    }
}

/// A text that names no servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected addresses and perhaps a port, such as 192.0.2.0/24:443, 192.0.2.1 or [2001:db8::/32]:443"
)]
pub struct ServerError;

impl FromStr for Server {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let (prefix, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
            Some((prefix, "")) => (prefix, None),
            Some((prefix, port)) => (prefix, Some(port.strip_prefix(':').ok_or(ServerError)?)),
            None => match text.split_once(':') {
                Some((prefix, port)) if !port.contains(':') => (prefix, Some(port)),
                _ => (text, None), // IPv6 without a port
            },
        };
        let port = port.map(str::parse).transpose().map_err(|_| ServerError)?;
        if port == Some(0) {
            return Err(ServerError);
        }
        let address = prefix.parse::<IpAddr>().map(IpNet::from);
        let prefix = address.or_else(|_| prefix.parse()).map_err(|_| ServerError)?;
        Ok(Self { prefix, port })
    }
}

impl fmt::Display for Server {
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
    fn texts_name_servers() {
        for (text, shown, inside, outside) in [
            ("192.0.2.0/24:443", "192.0.2.0/24:443", "192.0.2.9:443", "192.0.2.9:80"),
            ("192.0.2.1", "192.0.2.1/32", "192.0.2.1:9", "192.0.2.2:9"),
            ("192.0.2.1", "192.0.2.1/32", "[::ffff:192.0.2.1]:9", "[2001:db8::1]:9"),
            (
                "[2001:db8::/32]:443",
                "[2001:db8::/32]:443",
                "[2001:db8::1]:443",
                "[2001:db9::1]:443",
            ),
            ("2001:db8::1", "2001:db8::1/128", "[2001:db8::1]:5", "[2001:db8::2]:5"),
            ("[2001:db8::1]", "2001:db8::1/128", "[2001:db8::1]:5", "192.0.2.1:5"),
        ] {
            let server: Server = text.parse().unwrap();
            assert_eq!(server.to_string(), shown);
            assert_eq!(server.to_string().parse(), Ok(server));
            assert!(server.contains(inside.parse().unwrap()), "{text} {inside}");
            assert!(!server.contains(outside.parse().unwrap()), "{text} {outside}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "example.com",
            "192.0.2.0/33",
            "192.0.2.1:",
            "192.0.2.1:0",
            "192.0.2.1:70000",
            "[::1",
        ] {
            assert_eq!(text.parse::<Server>(), Err(ServerError), "{text}");
        }
    }
}

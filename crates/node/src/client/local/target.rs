//! The host and the port that a local program names.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use tandem_wire::{TargetError, uri_template::check_host};

/// The host and the port to which a program wants a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
}

impl Target {
    /// Checks a host, which is an IP address without brackets or a DNS name, and a port. Names are
    /// compared without case, so the host is kept in lower case.
    ///
    /// # Errors
    ///
    /// The host is neither an address nor a DNS name, or the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, TargetError> {
        check_host(host)?;
        if port == 0 {
            return Err(TargetError::Port("0".into()));
        }
        let address = host.parse::<IpAddr>().map(|address| address.to_string());
        Ok(Self { host: address.unwrap_or_else(|_| host.to_ascii_lowercase()), port })
    }

    /// Parses `host`, `host:port` or `[address]:port`. Without a port it is the default one, if
    /// there is one. RFC 9110 §4.2.4: a recipient SHOULD parse for userinfo "and treat its presence
    /// as an error", so an "@" is refused.
    ///
    /// # Errors
    ///
    /// The host or the port is malformed.
    pub fn parse(authority: &str, default_port: Option<u16>) -> Result<Self, TargetError> {
        let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match bracketed {
            Some((host, _)) if host.parse::<Ipv6Addr>().is_err() => {
                return Err(TargetError::HostIpv6(host.into()));
            }
            Some((host, "")) => (host, ""),
            Some((host, port)) => {
                let port = port.strip_prefix(':');
                (host, port.ok_or_else(|| TargetError::HostIpv6(authority.into()))?)
            }
            None => authority.split_once(':').unwrap_or((authority, "")),
        };
        let is_number = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
        let port = match default_port {
            Some(default) if port.is_empty() => default,
            _ if !is_number => return Err(TargetError::Port(port.into())),
            _ => port.parse().map_err(|_| TargetError::Port(port.into()))?,
        };
        Self::new(host, port)
    }

    /// The host: an IP address without brackets, or a name in lower case.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, which is not 0.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_an_address_or_a_name_with_a_port() {
        for (text, default, parsed) in [
            ("Example.org:443", None, Some("example.org:443")),
            ("example.org", Some(80), Some("example.org:80")),
            ("example.org:", Some(80), Some("example.org:80")),
            ("[2001:DB8::1]:22", None, Some("[2001:db8::1]:22")),
            ("[::1]", Some(80), Some("[::1]:80")),
            ("192.0.2.1:65535", None, Some("192.0.2.1:65535")),
            ("example.org", None, None),
            ("example.org:", None, None),
            ("example.org:0", None, None),
            ("example.org:+80", Some(80), None),
            ("example.org:65536", None, None),
            ("example.org:080808", None, None),
            ("example.org:80:80", None, None),
            ("user@example.org:80", None, None),
            ("user:pass@example.org:80", None, None),
            ("::1:80", None, None),
            ("[::1]80", None, None),
            ("[fe80::1%eth0]:80", None, None),
            ("[example.org]:80", None, None),
            ("[::1:80", Some(80), None),
            ("127.1:80", None, None),
            ("exa mple.org:80", None, None),
            ("example.org\r\nX: y:80", None, None),
            (":80", None, None),
            ("", Some(80), None),
        ] {
            let target = Target::parse(text, default).ok();
            assert_eq!(target.map(|it| it.to_string()).as_deref(), parsed, "{text:?}");
        }
    }
}

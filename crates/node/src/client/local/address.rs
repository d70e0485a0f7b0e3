//! The addresses of SOCKS5 (RFC 1928 §5).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str,
};

use tandem_wire::TargetError;

use super::Target;

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// A host as SOCKS5 writes it. A name is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host<'a> {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name of at most 255 bytes.
    Name(&'a str),
}

/// A host and a port, borrowed from the bytes that contain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// The host.
    pub host: Host<'a>,
    /// The port.
    pub port: u16,
}

/// The reason why bytes are not an address of SOCKS5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressError {
    /// There is no such type of address.
    Type,
    /// The name is not in UTF-8.
    Name,
}

impl<'a> Address<'a> {
    /// Splits an address from the bytes after it. `None`: it has not arrived completely.
    pub(super) fn split(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, AddressError> {
        let Some((&kind, rest)) = bytes.split_first() else { return Ok(None) };
        let split = match kind {
            IPV4 => rest.split_first_chunk().map(|(octets, rest)| {
                (Host::Ip(IpAddr::V4(Ipv4Addr::from(*octets as [u8; 4]))), rest)
            }),
            IPV6 => rest.split_first_chunk().map(|(octets, rest)| {
                (Host::Ip(IpAddr::V6(Ipv6Addr::from(*octets as [u8; 16]))), rest)
            }),
            NAME => {
                let split = rest.split_first();
                match split.and_then(|(&len, rest)| rest.split_at_checked(len.into())) {
                    Some((name, rest)) => {
                        let name = str::from_utf8(name).map_err(|_| AddressError::Name)?;
                        Some((Host::Name(name), rest))
                    }
                    None => None,
                }
            }
            _ => return Err(AddressError::Type),
        };
        Ok(split.and_then(|(host, rest)| {
            let (port, rest) = rest.split_first_chunk()?;
            Some((Self { host, port: u16::from_be_bytes(*port) }, rest))
        }))
    }

    /// Appends the address. A name that is too long, which no target has, becomes an empty one.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self.host {
            Host::Ip(IpAddr::V4(address)) => {
                out.push(IPV4);
                out.extend(address.octets());
            }
            Host::Ip(IpAddr::V6(address)) => {
                out.push(IPV6);
                out.extend(address.octets());
            }
            Host::Name(name) => {
                let (len, name) = u8::try_from(name.len()).map_or((0, ""), |len| (len, name));
                out.extend([NAME, len]);
                out.extend(name.as_bytes());
            }
        }
        out.extend(self.port.to_be_bytes());
    }

    /// The address as a target, whose host is an address or a DNS name.
    ///
    /// # Errors
    ///
    /// The name is not a DNS name, or the port is 0.
    pub fn to_target(&self) -> Result<Target, TargetError> {
        match self.host {
            Host::Ip(address) => Target::new(&address.to_string(), self.port),
            Host::Name(name) => Target::new(name, self.port),
        }
    }
}

impl From<SocketAddr> for Address<'_> {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Ip(address.ip()), port: address.port() }
    }
}

impl<'a> From<&'a Target> for Address<'a> {
    fn from(target: &'a Target) -> Self {
        let host = target.host();
        let host = host.parse().map_or(Host::Name(host), Host::Ip);
        Self { host, port: target.port() }
    }
}

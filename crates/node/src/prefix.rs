//! The part of the Internet that a peer's address stands for.

use std::net::IpAddr;

use ipnet::IpNet;

/// The length of the IPv6 prefix that an access network usually delegates to one site (RFC 6177 §2).
const SITE_V6: u8 = 56;

/// The prefix of a peer's address. One machine may have every address of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prefix(IpNet);

impl Prefix {
    /// The network of an address: /24 for IPv4, and /56 for IPv6.
    pub(crate) fn of_network(address: IpAddr) -> Self {
        Self::new(address, 24)
    }

    /// The household of an address: one address for IPv4, and /56 for IPv6.
    pub(crate) fn of_household(address: IpAddr) -> Self {
        Self::new(address, 32)
    }

    fn new(address: IpAddr, length_v4: u8) -> Self {
        let address = address.to_canonical();
        let length = if address.is_ipv4() { length_v4 } else { SITE_V6 };
        let prefix = IpNet::new(address, length).unwrap_or_else(|_| IpNet::from(address));
        Self(prefix.trunc())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_what_one_site_has() {
        for (one, other, is_same_network, is_same_household) in [
            ("192.0.2.1", "192.0.2.255", true, false),
            ("192.0.2.1", "192.0.3.1", false, false),
            ("::ffff:192.0.2.1", "192.0.2.7", true, false),
            ("::ffff:192.0.2.1", "192.0.2.1", true, true),
            ("2001:db8:0:ff00::1", "2001:db8:0:ffff::1", true, true),
            ("2001:db8:0:ff00::1", "2001:db8:0:fe00::1", false, false),
        ] {
            let is_same = |prefix: fn(IpAddr) -> Prefix| {
                prefix(one.parse().unwrap()) == prefix(other.parse().unwrap())
            };
            assert_eq!(is_same(Prefix::of_network), is_same_network, "{one}, {other}");
            assert_eq!(is_same(Prefix::of_household), is_same_household, "{one}, {other}");
        }
    }
}

//! IPv4 addresses as a NAT64 has them (RFC 6146): a network without IPv4 gives an IPv6 prefix, behind which the IPv4
//! Internet is.
//!
//! The prefix is found as RFC 7050 says. Routers may also announce it (PREF64, RFC 8781), but Linux does not keep that
//! option of their advertisements; only a daemon that listens to advertisements itself could.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The name whose addresses are known (RFC 7050 §8.2), so that a DNS64 shows its prefix.
pub(super) const WELL_KNOWN_NAME: &str = "ipv4only.arpa";

/// Its IPv4 addresses (RFC 7050 §8.1).
const WELL_KNOWN: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];

/// The lengths of prefixes in bits (RFC 6052 §2.2), the most usual one first.
const LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];

/// The prefix of a NAT64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    address: [u8; 16],
    length: u8,
}

impl Prefix {
    /// Finds the prefix in an address that a DNS64 made for the well-known name. `None`: no DNS64 made it.
    ///
    /// RFC 7050 §3: the node looks for the well-known addresses at the places that RFC 6052 permits.
    pub(super) fn find(address: Ipv6Addr) -> Option<Self> {
        let octets = address.octets();
        if octets.get(8) != Some(&0) {
            return None; // RFC 6052 §2.2: it MUST be zero
        }
        let has_known = |length: &u8| WELL_KNOWN.contains(&embedded(&octets, *length));
        let mut found = LENGTHS.into_iter().filter(has_known);
        let length = found.next()?;
        // RFC 7050 §3: an address in which there is more than one is ambiguous.
        found.next().is_none().then_some(Self { address: octets, length })
    }

    /// The address at which the NAT64 reaches an IPv4 address (RFC 6052 §2.2).
    pub(super) fn address_of(&self, v4: Ipv4Addr) -> Ipv6Addr {
        let mut octets = [0; 16];
        for (to, from) in octets.iter_mut().zip(self.address).take(usize::from(self.length / 8)) {
            *to = from;
        }
        for (place, octet) in places(self.length).zip(v4.octets()) {
            if let Some(to) = octets.get_mut(place) {
                *to = octet;
            }
        }
        octets.into()
    }
}

/// The places of the IPv4 address behind a prefix. Octet 8 is always zero.
fn places(length: u8) -> impl Iterator<Item = usize> {
    let first = usize::from(length / 8);
    (first..16).filter(move |place| *place != 8 || first > 8).take(4)
}

fn embedded(octets: &[u8; 16], length: u8) -> Ipv4Addr {
    let mut v4 = [0; 4];
    for (to, place) in v4.iter_mut().zip(places(length)) {
        *to = octets.get(place).copied().unwrap_or_default();
    }
    v4.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_found_and_used_at_all_lengths() {
        // The examples of RFC 6052 §2.4.
        for (known, expected) in [
            ("2001:db8:c000:aa::", "2001:db8:c000:221::"),
            ("2001:db8:1c0:0:aa::", "2001:db8:1c0:2:21::"),
            ("2001:db8:122:c000:0:aa00::", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:3c0:0:aa::", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344:c0:0:aa00::", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::192.0.0.170", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::192.0.0.171", "64:ff9b::192.0.2.33"),
        ] {
            let prefix = Prefix::find(known.parse().expect(known)).expect(known);
            let address = prefix.address_of(Ipv4Addr::new(192, 0, 2, 33));
            assert_eq!(address, expected.parse::<Ipv6Addr>().expect(expected), "{known}");
        }
    }

    #[test]
    fn other_addresses_have_no_prefix() {
        for address in ["2001:db8::1", "::", "64:ff9b::192.0.2.1", "2001:db8:c000:aa::192.0.0.170"]
        {
            assert_eq!(Prefix::find(address.parse().expect(address)), None, "{address}");
        }
    }
}

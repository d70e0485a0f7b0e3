//! The targets that a proxy may reach. Addresses are checked after resolution, so that DNS cannot
//! lead to an internal address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The targets that a proxy may reach: every address of the public Internet, and the prefixes that
/// the operator allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetPolicy {
    allowed: Vec<IpNet>,
}

impl TargetPolicy {
    /// A policy that also allows these prefixes.
    pub fn allowing(allowed: Vec<IpNet>) -> Self {
        Self { allowed }
    }

    /// Whether the proxy may send to this address.
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.allowed.iter().any(|prefix| prefix.contains(&address)) || is_public(address)
    }
}

/// Whether an address is globally reachable unicast, according to the special-purpose registries of
/// RFC 6890.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(a == 0 // "this network", RFC 791
        || address.is_private()
        || (a == 100 && (64..128).contains(&b)) // shared by carriers, RFC 6598
        || address.is_loopback()
        || address.is_link_local()
        || (a == 192 && b == 0 && c == 0) // protocol assignments, RFC 6890
        || address.is_documentation()
        || (a == 192 && b == 88 && c == 99) // 6to4 relays, RFC 7526
        || (a == 198 && (b == 18 || b == 19)) // benchmarks, RFC 2544
        || a >= 224) // multicast, reserved, broadcast
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let [first, second, third, ..] = segments;
    // Only 2000::/3 is global unicast (RFC 4291 §2.4). An address that embeds an IPv4 address
    // reaches that address, so the IPv4 rules apply to it.
    if let Some(v4) = embedded_v4(&segments) {
        return is_public_v4(v4);
    }
    (0x2000..0x4000).contains(&first)
        && !(first == 0x2001 && second < 0x0200) // protocol assignments, Teredo, RFC 2928
        && !(first == 0x2001 && second == 0x0db8) // documentation, RFC 3849
        && !(first == 0x3fff && second < 0x1000) // documentation, RFC 9637
        && !(first == 0x2620 && second == 0x004f && third == 0x8000) // AS112, RFC 7534
}

/// The IPv4 address in `64:ff9b::/96` (RFC 6052) and `2002::/16` (RFC 3056).
fn embedded_v4(segments: &[u16; 8]) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match *segments {
        [0x0064, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some(join(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_reached_by_default() {
        let policy = TargetPolicy::default();
        for public in ["1.1.1.1", "8.8.8.8", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808"] {
            assert!(policy.permits(public.parse().unwrap()), "{public}");
        }
        for inside in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:a00:1::",
            "100::1",
        ] {
            assert!(!policy.permits(inside.parse().unwrap()), "{inside}");
        }
    }

    #[test]
    fn a_named_prefix_is_reached_in_every_spelling() {
        let policy = TargetPolicy::allowing(vec!["127.0.0.0/8".parse().unwrap()]);
        assert!(policy.permits("127.0.0.1".parse().unwrap()));
        assert!(policy.permits("::ffff:127.0.0.1".parse().unwrap()));
        assert!(!policy.permits("::1".parse().unwrap()));
        assert!(!policy.permits("10.0.0.1".parse().unwrap()));
    }
}

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::IpNet;

/// A network with room for two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

/// The reason for which a text is not such a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a network with room for two hosts; allowed: a network address and a prefix length of \
     at most /30 or /126, such as 10.77.0.0/30 or fd77::/64"
)]
pub struct NetworkError(String);

impl Network {
    /// The addresses of the near and the far end: the first two after the network address.
    #[expect(clippy::missing_panics_doc, reason = "the prefix is valid for both addresses")]
    pub fn hosts(self) -> [IpNet; 2] {
        [1_u8, 2].map(|number| {
            let address: IpAddr = match self.0 {
                IpNet::V4(net) => (net.network() | Ipv4Addr::from(u32::from(number))).into(),
                IpNet::V6(net) => (net.network() | Ipv6Addr::from(u128::from(number))).into(),
            };
            IpNet::new(address, self.0.prefix_len()).expect("the prefix is that of the network")
        })
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || NetworkError(text.to_owned());
        let net: IpNet = text.parse().map_err(|_| error())?;
        let has_room = net.max_prefix_len() - net.prefix_len() >= 2;
        // An address such as 10.77.0.2/30 names a host, not a network.
        if !has_room || net.addr() != net.network() {
            return Err(error());
        }
        Ok(Self(net))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_have_the_first_two_addresses() {
        for (network, near, far) in [
            ("10.77.0.0/30", "10.77.0.1/30", "10.77.0.2/30"),
            ("192.168.8.0/24", "192.168.8.1/24", "192.168.8.2/24"),
            ("10.0.0.4/30", "10.0.0.5/30", "10.0.0.6/30"),
            ("fd77::/64", "fd77::1/64", "fd77::2/64"),
            ("fd77::8/126", "fd77::9/126", "fd77::a/126"),
        ] {
            let hosts = network.parse::<Network>().unwrap().hosts();
            assert_eq!(hosts.map(|host| host.to_string()), [near, far], "{network}");
        }
    }

    #[test]
    fn a_network_without_room_or_with_a_host_is_refused() {
        for bad in ["10.77.0.0/31", "10.77.0.1/30", "10.77.0.0", "fd77::/127", "near", "fd77::1/64"]
        {
            let error = bad.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")) && error.contains("/30"), "{error}");
        }
    }
}

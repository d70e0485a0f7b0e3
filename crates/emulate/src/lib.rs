//! Emulated links for real programs: [`tandem_netem`]'s links in real time.
//!
//! A [`UdpRelay`] carries datagrams between UDP clients and one target. A [`TunLink`] carries the
//! IP packets of any program between two TUN devices, each in a [network namespace](Namespace) of
//! its own. Both work on the thread that runs them until a flag is set, and count the fate of the
//! packets.

mod clock;
mod relay;
mod tun;
mod wait;

use tandem_netem::LinkConfig;

pub use relay::{RelayCounters, RelayError, UdpRelay};
pub use tun::{
    Device, EndStats, Found, Lateness, Namespace, NetnsName, NetnsNameError, Network, NetworkError,
    TunCounters, TunEnds, TunError, TunLink, check_system,
};

/// The links that packets pass, in each direction.
#[derive(Clone, Debug)]
pub struct Links {
    /// The links from the clients to the target, in the order of packets.
    pub to_target: Vec<LinkConfig>,
    /// The links from the target to the clients, in the order of packets.
    pub to_client: Vec<LinkConfig>,
}

impl Links {
    /// The same links in both directions; the first one is nearest to the clients.
    pub fn symmetric(links: &[LinkConfig]) -> Self {
        let to_client = links.iter().rev().cloned().collect();
        Self { to_target: links.to_vec(), to_client }
    }
}

//! Both ends of a link. Each end is a network namespace with a TUN device in it.

use std::{fs, path::Path};

use rustix::process::geteuid;

use super::{Device, Namespace, NetnsName, Network, TunError, device::DeviceConfig};

/// Checks whether this process can make network namespaces and TUN devices.
pub fn check_system() -> Result<(), TunError> {
    if !geteuid().is_root() {
        return Err(TunError::NotRoot);
    }
    if !fs::exists(Path::new("/dev/net/tun")).unwrap_or_default() {
        return Err(TunError::NoTun);
    }
    Ok(())
}

/// Both ends of a link. They are removed when this value is dropped.
pub struct TunEnds {
    near: LinkEnd,
    far: LinkEnd,
}

/// One end of a link. The device is the first field, because it must be removed before its
/// namespace.
struct LinkEnd {
    device: Device,
    netns: Namespace,
}

impl TunEnds {
    /// Makes a device in each namespace and switches it on. The near end has the first address of
    /// the network, the far end the second; `mtu` is the size of the largest IP packet.
    pub fn set_up(
        near: Namespace,
        far: Namespace,
        network: Network,
        mtu: u16,
    ) -> Result<Self, TunError> {
        let [near_host, far_host] = network.hosts();
        let device = |netns: &Namespace, peer: &NetnsName, address| {
            Device::make(netns, DeviceConfig { peer, address, mtu })
        };
        let near_device = device(&near, far.name(), near_host)?;
        let far_device = device(&far, near.name(), far_host)?;
        Ok(Self {
            near: LinkEnd { device: near_device, netns: near },
            far: LinkEnd { device: far_device, netns: far },
        })
    }

    /// The near and the far device.
    pub fn devices(&self) -> [&Device; 2] {
        [&self.near.device, &self.far.device]
    }

    /// Number of packets that the kernel dropped at the near and at the far device because they
    /// were not read in time.
    pub fn missed(&self) -> Result<[u64; 2], TunError> {
        let missed = |end: &LinkEnd| end.device.missed(&end.netns);
        Ok([missed(&self.near)?, missed(&self.far)?])
    }
}

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd},
};

use ipnet::IpNet;
use serde_json::Value;
use tun_rs::{DeviceBuilder, SyncDevice};

use super::{Namespace, NetnsName, TunError};

/// Length of the device's transmit queue in packets. It holds packets while this thread does not
/// run: 48 ms at 1 Gbit/s.
const QUEUE_PACKETS: u32 = 4000;

/// A TUN device in a network namespace. It exists as long as this value does.
pub struct Device {
    name: String,
    device: SyncDevice,
}

/// The configuration of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceConfig<'a> {
    /// The namespace at the other end; the device is called `to-` and this name.
    pub(super) peer: &'a NetnsName,
    /// The host's address, with the length of the network's prefix.
    pub(super) address: IpNet,
    /// Largest IP packet in bytes.
    pub(super) mtu: u16,
}

impl Device {
    /// Makes a device in the namespace and switches it on.
    pub(super) fn make(netns: &Namespace, config: DeviceConfig) -> Result<Self, TunError> {
        let name = format!("to-{}", config.peer);
        // The device is made in its namespace. In the caller's namespace another program might
        // configure it.
        let opened = netns.inside(|| open(&name))?;
        let device = opened.map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::BUSY.raw_os_error() => {
                TunError::Busy { netns: netns.name().clone(), device: name.clone() }
            }
            _ => TunError::Device { device: name.clone(), error },
        })?;
        let made = Self { name, device };
        made.configure(netns, config)?;
        Ok(made)
    }

    fn configure(&self, netns: &Namespace, config: DeviceConfig) -> Result<(), TunError> {
        let set = |words: &[&str]| {
            let words: Vec<_> =
                ["link", "set", "dev", &self.name].iter().chain(words).copied().collect();
            netns.ip(&words).map(drop)
        };
        set(&["mtu", &config.mtu.to_string(), "txqueuelen", &QUEUE_PACKETS.to_string()])?;
        if fs::exists("/proc/sys/net/ipv6").unwrap_or_default() {
            // Otherwise the kernel solicits routers, and its packets use random draws of the links.
            set(&["addrgenmode", "none"])?;
        }
        set(&["up"])?;
        let address = config.address.to_string();
        let mut words = vec!["address", "add", &address, "dev", &self.name];
        if config.address.addr().is_ipv6() {
            words.push("nodad"); // there is no other host
        }
        netns.ip(&words).map(drop)
    }

    /// Number of packets that the kernel dropped because this program did not read them in time.
    pub(super) fn missed(&self, netns: &Namespace) -> Result<u64, TunError> {
        let text = netns.ip(&["-s", "-j", "link", "show", "dev", &self.name])?;
        let stats: Value = serde_json::from_str(&text).unwrap_or_default();
        Ok(stats.pointer("/0/stats64/tx/dropped").and_then(Value::as_u64).unwrap_or_default())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Opens a device without offload. The kernel then hands over packets as they are on a wire: cut
/// into segments and with checksums.
fn open(name: &str) -> io::Result<SyncDevice> {
    let device = DeviceBuilder::new().name(name).offload(false).inherit_enable_state();
    let device = device.build_sync()?;
    device.set_nonblocking(true)?;
    Ok(device)
}

//! Drives a [`Path`] in each direction between two TUN devices, for packets of any program.

mod device;
mod ends;
mod ip;
mod lateness;
mod namespace;
mod network;
mod packet;

use std::{
    io,
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags};
use tandem_netem::{LinkStats, Packet, Path, Seed};
use tandem_units::ByteCount;

use self::packet::{PacketBuffer, PacketError};
use crate::{Links, clock, wait};

pub use device::Device;
pub use ends::{TunEnds, check_system};
pub use ip::TunError;
pub use lateness::Lateness;
pub use namespace::{Found, Namespace, NetnsName, NetnsNameError};
pub use network::{Network, NetworkError};

/// Number of packets that are read from each device before all devices are polled again.
const READS_PER_TURN: usize = 64;

/// Counters of the packets at a device. Links have counters of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndStats {
    /// Packets from the device that are neither IPv4 nor IPv6.
    pub not_ip: u64,
    /// Packets from the device that are shorter than their header says.
    pub truncated: u64,
    /// Packets that arrived, but that the device refused.
    pub refused: u64,
}

/// One end: a device, and the path of the packets that come from it.
#[derive(Debug)]
struct TunEnd<D> {
    device: D,
    path: Path<Bytes>,
    stats: EndStats,
}

impl<D: AsFd> TunEnd<D> {
    /// Reads one packet from the device. It returns `false` if there is none.
    fn receive(&mut self, buffer: &mut PacketBuffer) -> io::Result<bool> {
        let read = |room: &mut [u8]| Ok(rustix::io::read(&self.device, room)?);
        let mut packet = match buffer.fill(read) {
            Ok(packet) => packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        };
        match packet::ip_len(&packet) {
            Ok(len) => {
                packet.truncate(len);
                let packet = Packet { size: ByteCount::from(len), content: packet };
                self.path.push(clock::now(), packet);
            }
            Err(PacketError::NotIp) => self.stats.not_ip += 1,
            Err(PacketError::Truncated) => self.stats.truncated += 1,
        }
        Ok(true)
    }

    /// Writes the packets that have arrived by `now` to the device.
    fn deliver(&mut self, path: &mut Path<Bytes>, now: Instant, lateness: &mut Lateness) {
        while let Some((due, packet)) = path.pop(now) {
            if rustix::io::write(&self.device, &packet.content).is_err() {
                self.stats.refused += 1; // the packet is lost, as at a host that is switched off
            }
            lateness.count(clock::now().saturating_duration_since(due));
        }
    }
}

/// Carries IP packets between two devices across emulated links.
#[derive(Debug)]
pub struct TunLink<D> {
    near: TunEnd<D>,
    far: TunEnd<D>,
    buffer: PacketBuffer,
    lateness: Lateness,
}

impl<D: AsFd> TunLink<D> {
    /// Makes a link between the near and the far device. The devices are non-blocking and their
    /// packets have at most `mtu` bytes.
    pub fn new([near, far]: [D; 2], mtu: u16, links: Links, seed: Seed) -> Self {
        let start = clock::now();
        let end = |device, links, part| TunEnd {
            device,
            path: Path::new(start, links, seed.derive(part)),
            stats: EndStats::default(),
        };
        Self {
            near: end(near, links.to_target, 0),
            far: end(far, links.to_client, 1),
            buffer: PacketBuffer::new(mtu),
            lateness: Lateness::default(),
        }
    }

    /// Works until `stop` is set. It fails if a device is removed.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), TunError> {
        wait::wake_in_time();
        while !stop.load(Ordering::Relaxed) {
            self.turn().map_err(TunError::Lost)?;
        }
        Ok(())
    }

    /// The counters so far.
    pub fn counters(&self) -> TunCounters {
        TunCounters {
            to_target: self.near.path.stats(),
            to_client: self.far.path.stats(),
            near: self.near.stats,
            far: self.far.stats,
            lateness: self.lateness.clone(),
        }
    }

    /// Waits for packets or a deadline, then reads and delivers packets.
    fn turn(&mut self) -> io::Result<()> {
        let (mut near, mut far) = self.wait(clock::now())?;
        for _ in 0..READS_PER_TURN {
            near = near && self.near.receive(&mut self.buffer)?;
            far = far && self.far.receive(&mut self.buffer)?;
            if !near && !far {
                break;
            }
            self.deliver(clock::now());
        }
        self.deliver(clock::now());
        Ok(())
    }

    /// Waits, and returns whether the near and the far device may have packets.
    fn wait(&self, now: Instant) -> io::Result<(bool, bool)> {
        let events = [self.near.path.next_event(), self.far.path.next_event()];
        let mut fds =
            [&self.near.device, &self.far.device].map(|fd| PollFd::new(fd, PollFlags::IN));
        wait::wait(&mut fds, events.into_iter().flatten().min(), now)?;
        let [near, far] = fds.map(|fd| !fd.revents().is_empty());
        Ok((near, far))
    }

    fn deliver(&mut self, now: Instant) {
        self.far.deliver(&mut self.near.path, now, &mut self.lateness);
        self.near.deliver(&mut self.far.path, now, &mut self.lateness);
    }
}

/// Counters of a link between two devices.
#[derive(Clone, Debug)]
pub struct TunCounters {
    /// Packets from the near device, link by link.
    pub to_target: Vec<LinkStats>,
    /// Packets from the far device, link by link.
    pub to_client: Vec<LinkStats>,
    /// Counters of the near device.
    pub near: EndStats,
    /// Counters of the far device.
    pub far: EndStats,
    /// The lateness of the packets of both directions.
    pub lateness: Lateness,
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::net::UnixDatagram,
        time::{Duration, Instant},
    };

    use tandem_netem::LinkConfig;
    use tandem_units::Ratio;

    use super::*;

    /// A link between two sockets, and the sockets of the hosts at its ends. The sockets preserve
    /// packet boundaries, as devices do.
    struct Scene {
        link: TunLink<UnixDatagram>,
        near: UnixDatagram,
        far: UnixDatagram,
    }

    impl Scene {
        fn new(to_target: LinkConfig, to_client: LinkConfig) -> Self {
            let pair = || {
                let (host, device) = UnixDatagram::pair().unwrap();
                host.set_nonblocking(true).unwrap();
                device.set_nonblocking(true).unwrap();
                (host, device)
            };
            let ((near, near_device), (far, far_device)) = (pair(), pair());
            let links = Links { to_target: vec![to_target], to_client: vec![to_client] };
            let link = TunLink::new([near_device, far_device], 1500, links, Seed(7));
            Self { link, near, far }
        }

        /// Lets the link work until it holds no packets.
        fn drain(&mut self) {
            let is_idle = |link: &TunLink<UnixDatagram>| {
                let paths = [&link.near.path, &link.far.path];
                paths.iter().all(|path| path.next_event().is_none())
            };
            self.link.turn().unwrap();
            while !is_idle(&self.link) {
                self.link.turn().unwrap();
            }
        }
    }

    /// An IPv4 packet of `len` bytes.
    fn packet(len: u16, mark: u8) -> Vec<u8> {
        let mut packet = vec![mark; len.into()];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet
    }

    fn received(host: &UnixDatagram) -> Vec<Vec<u8>> {
        let mut room = [0; 2000];
        std::iter::from_fn(|| host.recv(&mut room).ok().map(|len| room[..len].to_vec())).collect()
    }

    #[test]
    fn packets_cross_both_ways_unchanged_and_in_order() {
        let link = LinkConfig { delay: Duration::from_millis(1), ..LinkConfig::default() };
        let mut scene = Scene::new(link.clone(), link);
        let to_target: Vec<_> = (0..5).map(|mark| packet(1500, mark)).collect();
        let to_client: Vec<_> = (10..13).map(|mark| packet(40, mark)).collect();
        for packet in &to_target {
            scene.near.send(packet).unwrap();
        }
        for packet in &to_client {
            scene.far.send(packet).unwrap();
        }
        scene.drain();
        assert_eq!((received(&scene.far), received(&scene.near)), (to_target, to_client));
        let counters = scene.link.counters();
        assert_eq!(counters.to_target[0].delivered.bytes, ByteCount::new(7500));
        assert_eq!(counters.to_client[0].delivered.bytes, ByteCount::new(120));
        assert_eq!(counters.lateness.percentile(100), counters.lateness.max());
    }

    #[test]
    fn a_packet_arrives_no_sooner_than_its_link_says() {
        let delay = Duration::from_millis(5);
        let mut scene =
            Scene::new(LinkConfig { delay, ..LinkConfig::default() }, LinkConfig::default());
        let start: Instant = clock::now();
        scene.near.send(&packet(100, 1)).unwrap();
        scene.drain();
        assert!(clock::now() >= start + delay);
        assert_eq!(received(&scene.far).len(), 1);
    }

    #[test]
    fn an_invalid_packet_is_dropped_and_counted_and_padding_is_cut_off() {
        let mut scene = Scene::new(LinkConfig::default(), LinkConfig::default());
        let mut padded = packet(60, 1);
        padded.extend([0; 4]);
        for bytes in [&[0x50; 60][..], &packet(60, 1)[..59], &padded] {
            scene.near.send(bytes).unwrap();
        }
        scene.drain();
        assert_eq!(received(&scene.far), [packet(60, 1)]);
        let counters = scene.link.counters();
        assert_eq!(counters.near, EndStats { not_ip: 1, truncated: 1, refused: 0 });
        assert_eq!(counters.far, EndStats::default());
        assert_eq!(counters.to_target[0].entered.packets, 1);
    }

    #[test]
    fn a_device_that_refuses_packets_loses_only_those_packets() {
        let mut scene = Scene::new(LinkConfig::default(), LinkConfig::default());
        scene.far.shutdown(std::net::Shutdown::Read).unwrap();
        scene.near.send(&packet(100, 1)).unwrap();
        scene.drain();
        assert_eq!(scene.link.counters().far.refused, 1);
    }

    #[test]
    fn directions_have_independent_random_draws() {
        let lossy = LinkConfig { loss: Ratio::of(1, 2).into(), ..LinkConfig::default() };
        let mut scene = Scene::new(lossy.clone(), lossy);
        for number in 0..100 {
            scene.near.send(&packet(30, number)).unwrap();
            scene.far.send(&packet(30, number)).unwrap();
            scene.drain();
        }
        let (there, back) = (received(&scene.far), received(&scene.near));
        assert!((20..80).contains(&there.len()), "{} of 100 arrived", there.len());
        assert_ne!(there, back);
    }
}

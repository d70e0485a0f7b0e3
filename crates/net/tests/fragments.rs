//! RFC 9298 §3.1: a proxy MUST NOT introduce fragmentation at the IP layer towards its target, and
//! MUST set IPv4's bit "don't fragment" if it can.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    time::Duration,
};

use tandem_net::{DriverStats, SocketOptions, socket};
use tandem_node::node::{SocketId, SocketKind, Transmit};

/// The length of the longest payload of one send call in this test.
const PAYLOAD_MAX: usize = 65_507;

/// The length of the IP and UDP headers in bytes.
const fn headers(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// With the usual MTU of the loopback device, 65536 bytes, only IPv6 packets can exceed it. To test
/// IPv4 too, run `unshare -n sh -c 'ip link set lo up mtu 1500; cargo test -p tandem-net --test
/// fragments'`.
#[test]
fn a_packet_that_does_not_fit_the_link_is_not_sent_in_fragments() {
    let Ok(mtu) = fs::read_to_string("/proc/sys/net/ipv6/conf/lo/mtu") else {
        return; // the host has no IPv6
    };
    let mtu: usize = mtu.trim().parse().unwrap();
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        let too_long = mtu - headers(ip) + 1;
        if too_long <= PAYLOAD_MAX
            && let Ok(target) = UdpSocket::bind((ip, 0))
        {
            assert_no_fragments(&target, too_long);
        }
    }
}

fn assert_no_fragments(target: &UdpSocket, too_long: usize) {
    target.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let destination = target.local_addr().unwrap();
    let mut buf = vec![0; 70_000];
    let payload = vec![7; too_long];
    // A socket with default options sends fragments.
    let other = UdpSocket::bind((destination.ip(), 0)).unwrap();
    other.send_to(&payload, destination).unwrap();
    assert_eq!(target.recv(&mut buf).unwrap(), too_long);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stats = runtime.block_on(async {
        let kind = SocketKind::Connected(destination);
        let mut socket =
            socket::UdpSocket::open(SocketId(0), kind, SocketOptions::default()).unwrap();
        let mut stats = DriverStats::default();
        for size in [too_long, too_long - 1] {
            let transmit =
                Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
            let failure = socket.send(&transmit, &payload[..size], &mut stats);
            assert_eq!(failure, None, "the socket can still send shorter datagrams");
        }
        stats
    });
    assert_eq!(stats.datagrams_sent, 1);
    assert_eq!(target.recv(&mut buf).unwrap(), too_long - 1, "only the packet that fits arrives");
}

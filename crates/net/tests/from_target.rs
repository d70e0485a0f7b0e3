//! RFC 9298 §3.1: the proxy "MUST validate the IP source address and UDP source port on received
//! packets to ensure they match the client's request. Packets that do not match MUST be discarded".

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use tandem_net::{
    DriverStats, SocketOptions,
    socket::{self, ReceiveBuffers},
};
use tandem_node::node::{SocketId, SocketKind};

#[test]
fn a_connected_socket_hears_its_peer_and_nobody_else() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let same_address = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other_address = UdpSocket::bind("127.0.0.2:0").unwrap();
        let kind = SocketKind::Connected(peer.local_addr().unwrap());
        let mut socket =
            socket::UdpSocket::open(SocketId(0), kind, SocketOptions::default()).unwrap();
        let to = SocketAddr::from(([127, 0, 0, 1], socket.local_addr().port()));
        for sender in [&same_address, &other_address, &peer, &other_address, &peer] {
            sender.send_to(&sender.local_addr().unwrap().port().to_be_bytes(), to).unwrap();
        }
        let mut came = Vec::new();
        let (mut buffers, mut stats) = (ReceiveBuffers::new(), DriverStats::default());
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            socket.recv_batch(&mut buffers, &mut stats, |received| {
                came.push(received.payload.to_vec());
            });
        }
        let expected = peer.local_addr().unwrap().port().to_be_bytes();
        assert_eq!(came, [expected, expected]);
    });
}

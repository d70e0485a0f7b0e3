//! Clients that cost a site as much as they can over TCP.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use crate::{
    scene, servers,
    tcp::{connect, exchange},
};

/// Whether the site answers.
fn answers(scene: &crate::support::Scene, server: SocketAddr) -> bool {
    let page = exchange(scene, server, "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
    page.contains("A garden")
}

#[test]
fn one_address_has_no_more_connections_than_its_share() {
    let scene = scene();
    let (_, proxies) = servers(&scene, "root");
    let server = proxies[1].1.address;
    let mut held: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(server).unwrap()).collect();
    // One more is accepted by the kernel, and closed.
    let mut more = TcpStream::connect(server).unwrap();
    assert!(!matches!(more.read(&mut [0]), Ok(1..)), "the connection says nothing");
    held.truncate(32);
    crate::support::eventually("room for others", || {
        TcpStream::connect(server).is_ok_and(|mut stream| {
            stream.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
            matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        })
    });
    assert!(answers(&scene, server));
}

#[test]
fn what_comes_in_small_pieces_and_never_ends_disturbs_nobody() {
    let scene = scene();
    let (_, proxies) = servers(&scene, "root");
    let server = proxies[1].1.address;
    let mut slow: Vec<_> = (0..30).map(|_| connect(&scene, server)).collect();
    for connection in &mut slow {
        for byte in b"GET / HTTP/1.1\r\nhost: loc" {
            connection.write_all(&[*byte]).unwrap();
        }
    }
    assert!(answers(&scene, server));
    // A client that asks for much and reads nothing.
    let mut mute = connect(&scene, server);
    for _ in 0..50 {
        mute.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    }
    assert!(answers(&scene, server));
}

//! How long packets take to the target and back.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{
    ends::{Head, Kind, socket},
    kernel,
};

const PAUSE: Duration = Duration::from_millis(1);
/// An echo that takes longer is lost.
const LIMIT: Duration = Duration::from_millis(500);

/// A target that answers each packet with the same. It waits in the kernel, as servers do.
pub fn serve(cpu: usize) -> io::Result<SocketAddr> {
    let socket = socket()?;
    let address = socket.local_addr()?;
    thread::spawn(move || -> io::Result<()> {
        kernel::pin(cpu)?;
        let mut packet = [0; 2048];
        loop {
            if let Ok((length, source)) = socket.recv_from(&mut packet) {
                // Who sent a packet may have ended.
                let _ = socket.send_to(&packet[..length], source);
            }
        }
    });
    Ok(address)
}

/// Echoes of one flow, one after the other, with a pause between. Lost ones are counted.
pub struct Echoes {
    pub times: Vec<Duration>,
    pub lost: usize,
}

pub fn of_one_flow(client: SocketAddr, bytes: usize, count: usize) -> Result<Echoes> {
    let local = socket()?;
    local.connect(client)?;
    local.set_read_timeout(Some(LIMIT))?;
    let mut echoes = Echoes { times: Vec::new(), lost: 0 };
    for number in 0..count + 10 {
        let time = echo(&local, bytes, number as u32)?;
        thread::sleep(PAUSE);
        // The first ones open the flow.
        match time {
            _ if number < 10 => {}
            Some(time) => echoes.times.push(time),
            None => echoes.lost += 1,
        }
        if echoes.lost > 20 {
            bail!("more than 20 echoes are lost");
        }
    }
    Ok(echoes)
}

/// The times of the first echo of a number of flows, each of which has a new socket.
pub fn of_new_flows(client: SocketAddr, bytes: usize, count: usize) -> Result<Echoes> {
    let mut echoes = Echoes { times: Vec::new(), lost: 0 };
    for number in 0..count {
        let local = socket()?;
        local.connect(client)?;
        local.set_read_timeout(Some(LIMIT))?;
        match echo(&local, bytes, number as u32)? {
            Some(time) => echoes.times.push(time),
            None => echoes.lost += 1,
        }
        thread::sleep(PAUSE);
    }
    Ok(echoes)
}

fn echo(local: &UdpSocket, bytes: usize, number: u32) -> Result<Option<Duration>> {
    let head = Head { run: 0, number, kind: Kind::Echo };
    let begin = Instant::now();
    local.send(&head.payload(bytes))?;
    let mut packet = [0; 2048];
    while begin.elapsed() < LIMIT {
        match local.recv(&mut packet) {
            Ok(length) if Head::read(&packet[..length]) == Some(head) => {
                return Ok(Some(begin.elapsed()));
            }
            Ok(_) => {} // late
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

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

/// Between the first echoes of new flows.
const PAUSE: Duration = Duration::from_millis(1);
/// The first echoes are not counted.
const UNCOUNTED: usize = 3;
/// Echoes beside a load end after this time, even if some are still missing.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// An echo that takes longer is lost.
const LIMIT: Duration = Duration::from_millis(500);
/// While the largest payload is looked for, echoes are lost after this time, and repeated.
const LARGEST_LIMIT: Duration = Duration::from_millis(50);
const LARGEST_TRIES: usize = 4;

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

/// A socket, and thus a flow, for echoes.
pub fn flow(client: SocketAddr) -> io::Result<UdpSocket> {
    let local = socket()?;
    local.connect(client)?;
    local.set_read_timeout(Some(LIMIT))?;
    Ok(local)
}

pub fn of_one_flow(
    local: &UdpSocket,
    bytes: usize,
    count: usize,
    pause: Duration,
) -> Result<Echoes> {
    let mut echoes = Echoes { times: Vec::new(), lost: 0 };
    let begin = Instant::now();
    for number in 0..count + UNCOUNTED {
        let time = echo(local, bytes, number as u32)?;
        thread::sleep(pause);
        match time {
            _ if number < UNCOUNTED => {}
            Some(time) => echoes.times.push(time),
            None => echoes.lost += 1,
        }
        if begin.elapsed() > TIME_LIMIT {
            break;
        }
    }
    Ok(echoes)
}

/// The times of the first echo of a number of flows, each of which has a new socket.
pub fn of_new_flows(client: SocketAddr, bytes: usize, count: usize) -> Result<Echoes> {
    let mut echoes = Echoes { times: Vec::new(), lost: 0 };
    for number in 0..count {
        let local = flow(client)?;
        match echo(&local, bytes, number as u32)? {
            Some(time) => echoes.times.push(time),
            None => echoes.lost += 1,
        }
        thread::sleep(PAUSE);
    }
    Ok(echoes)
}

/// The largest payload between two sizes of which an echo comes back, to four bytes.
pub fn largest(client: SocketAddr, mut fits: usize, mut too_large: usize) -> Result<usize> {
    let local = flow(client)?;
    local.set_read_timeout(Some(LARGEST_LIMIT))?;
    let mut number = 0;
    let mut answered = |bytes| -> Result<bool> {
        for _ in 0..LARGEST_TRIES {
            number += 1;
            if echo(&local, bytes, number)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    };
    if !answered(fits)? {
        bail!("not even {fits} bytes come back");
    }
    while too_large - fits > 4 {
        let middle = usize::midpoint(fits, too_large);
        if answered(middle)? {
            fits = middle;
        } else {
            too_large = middle;
        }
    }
    Ok(fits)
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

/// Members of a JSON object: median and 99th of 100, and how many were lost.
pub fn summary(mut echoes: Echoes) -> String {
    if echoes.times.is_empty() {
        return format!(r#""lost": {}"#, echoes.lost);
    }
    echoes.times.sort_unstable();
    let micros = |percent: usize| {
        let time = echoes.times.get(echoes.times.len() * percent / 100);
        time.map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    format!(r#""p50_us": {:.1}, "p99_us": {:.1}, "lost": {}"#, micros(50), micros(99), echoes.lost)
}

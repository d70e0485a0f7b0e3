//! Sends and receives bytes through a tunnel for TCP, and measures with a clock:
//!
//! ```text
//! tcp serve                       a service that each of the others needs; says where it listens
//! tcp up|down ADDRESS BYTES       a connection with this many bytes
//! tcp echo ADDRESS COUNT          a connection with requests of 100 bytes, and as long answers, one after the other
//! ```
//!
//! ADDRESS is that of the service or of the tunnel's end, or `PROXY=TARGET` for one that speaks SOCKS5 (RFC 1928).
#![expect(clippy::disallowed_methods, reason = "it measures with the real clock")]

use std::{
    env,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use data_path_bench::echo::{Echoes, summary};

const PIECE: usize = 256 << 10;
const MESSAGE: usize = 100;
/// The first round trips are not counted.
const UNCOUNTED: usize = 100;
// The first byte of a connection says what it is for.
const UP: u8 = b'u';
const DOWN: u8 = b'd';
const ECHO: u8 = b'e';

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve"] => serve(),
        ["up", address, bytes] => up(connect(address)?, bytes.parse()?),
        ["down", address, bytes] => down(connect(address)?, bytes.parse()?),
        ["echo", address, count] => echo(connect(address)?, count.parse()?),
        _ => bail!("serve, up, down or echo?"),
    }
}

fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    eprintln!("listening on {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        // An error is left alone: a check that a tunnel is up connects, and closes the connection at once.
        thread::spawn(|| answer(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    match kind[0] {
        UP => {
            let received = read_all(&mut stream)?;
            stream.write_all(&received.to_be_bytes())?;
        }
        DOWN => {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes)?;
            write_many(&mut stream, u64::from_be_bytes(bytes))?;
        }
        _ => {
            let mut message = [0; MESSAGE];
            while stream.read_exact(&mut message).is_ok() {
                stream.write_all(&message)?;
            }
        }
    }
    Ok(())
}

fn connect(address: &str) -> Result<TcpStream> {
    let Some((proxy, target)) = address.split_once('=') else {
        let stream = TcpStream::connect(address.parse::<SocketAddr>()?)?;
        stream.set_nodelay(true)?;
        return Ok(stream);
    };
    let mut stream = connect(proxy)?;
    let target: SocketAddrV4 = target.parse()?;
    let mut answer = [0; 10];
    stream.write_all(&[5, 1, 0])?; // version 5, one method: no authentication
    stream.read_exact(&mut answer[..2])?;
    ensure!(answer[1] == 0, "the proxy wants a password");
    let [high, low] = target.port().to_be_bytes();
    let request = [[5, 1, 0, 1], target.ip().octets()].concat(); // CONNECT to an IPv4 address
    stream.write_all(&[request, vec![high, low]].concat())?;
    stream.read_exact(&mut answer)?;
    ensure!(answer[1] == 0, "the proxy refuses with {}", answer[1]);
    Ok(stream)
}

fn up(mut stream: TcpStream, bytes: u64) -> Result<()> {
    let begin = Instant::now();
    stream.write_all(&[UP])?;
    write_many(&mut stream, bytes)?;
    stream.shutdown(Shutdown::Write)?;
    let mut received = [0; 8];
    stream.read_exact(&mut received).context("no answer")?;
    print_seconds(begin, u64::from_be_bytes(received), bytes)
}

fn down(mut stream: TcpStream, bytes: u64) -> Result<()> {
    let begin = Instant::now();
    stream.write_all(&[&[DOWN][..], &bytes.to_be_bytes()].concat())?;
    let received = read_all(&mut stream)?;
    print_seconds(begin, received, bytes)
}

fn print_seconds(begin: Instant, received: u64, expected: u64) -> Result<()> {
    ensure!(received == expected, "{received} of {expected} bytes arrived");
    println!(r#"{{"seconds": {}}}"#, begin.elapsed().as_secs_f64());
    Ok(())
}

fn echo(mut stream: TcpStream, count: usize) -> Result<()> {
    let mut echoes = Echoes { times: Vec::new(), lost: 0 };
    stream.write_all(&[ECHO])?;
    let mut message = [0; MESSAGE];
    for number in 0..count + UNCOUNTED {
        let begin = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        if number >= UNCOUNTED {
            echoes.times.push(begin.elapsed());
        }
    }
    println!("{{{}}}", summary(echoes));
    Ok(())
}

fn write_many(stream: &mut TcpStream, bytes: u64) -> Result<()> {
    let piece = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(PIECE as u64);
        stream.write_all(&piece[..length as usize])?;
        left -= length;
    }
    Ok(())
}

fn read_all(stream: &mut TcpStream) -> Result<u64> {
    let mut piece = vec![0; PIECE];
    let mut received = 0;
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok(received),
            length => received += length as u64,
        }
    }
}

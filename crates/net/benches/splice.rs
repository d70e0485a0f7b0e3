//! What TCP connections cost the driver: bytes from one connection to another over loopback, with a
//! node that cuts them to pieces as a tunnel does, and the memory of idle connections. The processor
//! time is that of the driver's thread alone.
//!
//! `cargo bench -p tandem-net --bench splice`
#![expect(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]
#![expect(clippy::cast_precision_loss, reason = "the results have three digits")]

#[cfg(target_os = "linux")]
#[path = "../tests/script/mod.rs"]
mod script;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this benchmark reads clocks of Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    for (read, piece) in [(65_536, 65_536), (65_536, 1300), (262_144, 1300), (16_384, 1300)] {
        linux::splice(read, piece);
    }
    linux::plain_loop();
    linux::idle(5000);
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        fs,
        io::{Read, Write},
        net::{SocketAddr, TcpListener, TcpStream},
        thread,
        time::Duration,
    };

    use rustix::time::{ClockId, clock_gettime};
    use tandem_node::{
        node::{Input, Output},
        tcp::{ListenerId, TcpId, TcpInput, TcpOutput},
    };

    use super::script::{LOOPBACK, Wants, script};

    const BYTES: usize = 4_000_000_000;
    /// The largest number of bytes that the node has read and the receiver has not taken.
    const WINDOW: usize = 1_000_000;
    const FROM: TcpId = TcpId(1);
    const TO: TcpId = TcpId(2);

    fn cpu() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let (seconds, nanos) = (time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap());
        Duration::new(seconds, nanos)
    }

    fn send(address: SocketAddr) {
        let mut stream = TcpStream::connect(address).unwrap();
        let buffer = vec![7; 250_000];
        (0..BYTES / buffer.len()).for_each(|_| stream.write_all(&buffer).unwrap());
    }

    fn receive(listener: &TcpListener) {
        let mut stream = listener.accept().unwrap().0;
        let (mut buffer, mut bytes) = (vec![0; 250_000], 0);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            bytes += count;
        }
        assert_eq!(bytes, BYTES);
    }

    /// Starts a node that listens.
    fn listen(wants: &mut Wants) {
        let listen = TcpOutput::Listen { listener: ListenerId(0), address: LOOPBACK };
        wants.push(Output::Tcp(listen));
    }

    fn run(
        start: impl FnOnce(&mut Wants),
        mut on_input: impl FnMut(TcpInput, &mut Wants),
    ) -> tandem_net::DriverStats {
        let node = script(start, move |_now, input, wants: &mut Wants| {
            if let Input::Tcp(input) = input {
                on_input(input, wants);
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(super::script::run(node))
    }

    pub(super) fn splice(read: usize, piece: usize) {
        let sink = TcpListener::bind(LOOPBACK).unwrap();
        let sink_address = sink.local_addr().unwrap();
        let receiver = thread::spawn(move || receive(&sink));
        let (mut waiting, mut is_reading, mut sent) = (0, false, 0);
        let before = cpu();
        let stats = run(listen, |input, wants| {
            let mut push = |output| wants.push(Output::Tcp(output));
            match input {
                TcpInput::Listening { result, .. } => {
                    let address = result.unwrap();
                    thread::spawn(move || send(address));
                    push(TcpOutput::Accept { listener: ListenerId(0), tcp: FROM });
                }
                TcpInput::Opened { tcp: FROM, .. } => {
                    push(TcpOutput::Connect { tcp: TO, peer: sink_address, user: None });
                }
                TcpInput::Opened { .. } => {
                    is_reading = true;
                    push(TcpOutput::Read { tcp: FROM, max: read });
                }
                TcpInput::Read { data, .. } if data.is_empty() => {
                    push(TcpOutput::Close(TO));
                    wants.close();
                }
                TcpInput::Read { mut data, .. } => {
                    waiting += data.len();
                    sent += data.len();
                    while !data.is_empty() {
                        let data = data.split_to(piece.min(data.len()));
                        push(TcpOutput::Write { tcp: TO, data });
                    }
                    is_reading = waiting < WINDOW;
                    if is_reading {
                        push(TcpOutput::Read { tcp: FROM, max: read });
                    }
                }
                TcpInput::Written { bytes, .. } => {
                    waiting -= bytes;
                    if !is_reading && waiting < WINDOW {
                        is_reading = true;
                        push(TcpOutput::Read { tcp: FROM, max: read });
                    }
                }
                TcpInput::Failed { error, .. } => panic!("{error}"),
                TcpInput::UdpPorts { .. } => panic!("nobody asks for ports"),
            }
        });
        receiver.join().unwrap();
        let seconds = cpu().saturating_sub(before).as_secs_f64();
        let gigabytes = BYTES as f64 / 1e9;
        println!(
            "reads of {read}, pieces of {piece}: {:.1} Gbit/s per core, {:.3} s of CPU per GB; \
             {:.0} bytes per read, {:.0} per write, {} wakes",
            8.0 * gigabytes / seconds,
            seconds / gigabytes,
            stats.tcp_bytes_read as f64 / stats.tcp_read_calls as f64,
            stats.tcp_bytes_written as f64 / stats.tcp_write_calls as f64,
            stats.wakes,
        );
    }

    /// Prints what the system calls alone cost: a loop over two blocking sockets.
    pub(super) fn plain_loop() {
        let (source, sink) =
            (TcpListener::bind(LOOPBACK).unwrap(), TcpListener::bind(LOOPBACK).unwrap());
        let (from, to) = (source.local_addr().unwrap(), sink.local_addr().unwrap());
        let receiver = thread::spawn(move || receive(&sink));
        thread::spawn(move || send(from));
        let (mut from, mut to) = (source.accept().unwrap().0, TcpStream::connect(to).unwrap());
        let before = cpu();
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            to.write_all(buffer.get(..count).unwrap()).unwrap();
        }
        let seconds = cpu().saturating_sub(before).as_secs_f64();
        drop(to);
        receiver.join().unwrap();
        let gigabytes = BYTES as f64 / 1e9;
        println!(
            "a plain loop with a buffer of 65536: {:.1} Gbit/s per core, {:.3} s of CPU per GB",
            8.0 * gigabytes / seconds,
            seconds / gigabytes,
        );
    }

    /// The resident memory of the process in bytes.
    fn memory() -> usize {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    /// Prints what idle connections cost, each of which has carried some bytes.
    pub(super) fn idle(connections: u64) {
        let mut clients = Vec::with_capacity(usize::try_from(connections).unwrap());
        let (mut address, mut before, mut answered) = (None, 0, 0);
        run(listen, |input, wants| {
            let mut push = |output| wants.push(Output::Tcp(output));
            let accept = |tcp| TcpOutput::Accept { listener: ListenerId(0), tcp: TcpId(tcp) };
            let connect = || {
                let mut client = TcpStream::connect(address.unwrap()).unwrap();
                client.write_all(&[7; 5000]).unwrap();
                client
            };
            match input {
                TcpInput::Listening { result, .. } => {
                    address = Some(result.unwrap());
                    before = memory();
                    clients.push(TcpStream::connect(result.unwrap()).unwrap());
                    push(accept(0));
                }
                TcpInput::Opened { tcp, .. } => {
                    push(TcpOutput::Read { tcp, max: 65_536 });
                    if tcp.0 + 1 < connections {
                        clients.push(connect());
                        push(accept(tcp.0 + 1));
                    }
                }
                TcpInput::Read { tcp, data } => {
                    in_pieces(data, |data| push(TcpOutput::Write { tcp, data }));
                    push(TcpOutput::Read { tcp, max: 65_536 });
                }
                TcpInput::Written { .. } => {
                    answered += 1;
                    if answered + 1 == connections {
                        wants.close(); // the first connection has carried nothing
                        let bytes = memory() - before;
                        println!(
                            "{connections} idle connections: {} bytes each",
                            bytes as u64 / connections
                        );
                    }
                }
                TcpInput::Failed { error, .. } => panic!("{error}"),
                TcpInput::UdpPorts { .. } => panic!("nobody asks for ports"),
            }
        });
    }

    fn in_pieces(mut data: bytes::Bytes, mut push: impl FnMut(bytes::Bytes)) {
        while !data.is_empty() {
            push(data.split_to(data.len().min(100)));
        }
    }
}

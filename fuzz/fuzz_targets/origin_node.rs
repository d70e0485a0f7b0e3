//! The state machine of a whole origin: several clients without cryptography and without a QUIC engine of
//! their own, a folder whose files fail, shrink and are slow, and time.
//!
//! No file name leads out of the folder, no byte outside of a file is asked for, each file is read by one
//! request at a time and closed again, the bounds hold, and everything is given back at the end.

#![no_main]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use libfuzzer_sys::fuzz_target;
use tandem_fuzz::{
    bed::{Bed, Client as _, Fate, origin_config},
    input::{Reader, control_stream, data_frame, datagram, file_request},
    null_crypto::NullCrypto,
    raw_client::{Direction, RawClient},
};
use tandem_node::{Origin, node::FileError, quic::ServerTls};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 200;

/// The largest number of clients, one more than the origin accepts.
const CLIENTS_MAX: usize = 5;

/// The fields of requests.
const FIELDS: [&[(&str, &str)]; 8] = [
    &[],
    &[("range", "bytes=0-99")],
    &[("range", "bytes=100-"), ("if-range", "\"1\"")],
    &[("range", "bytes=-1")],
    &[("range", "bytes=18446744073709551615-18446744073709551615")],
    &[("range", "bytes=5-2,0-0")],
    &[("if-none-match", "*")],
    &[("content-length", "5000")],
];

struct World {
    bed: Bed<RawClient, Origin>,
}

fuzz_target!(|input: &[u8]| {
    let mut reader = Reader::new(input);
    let tls = ServerTls::replaced_by(Arc::new(NullCrypto));
    let mut world = World { bed: Bed::new(Origin::with_tls(origin_config(), &tls)) };
    world.connect(reader.byte());
    for _ in 0..STEPS_MAX {
        if reader.is_empty() {
            break;
        }
        world.step(&mut reader);
    }
    world.bed.end();
});

impl World {
    /// Lets one more client connect. `how`: whether it sends settings and acknowledgements, and the size of
    /// its windows.
    fn connect(&mut self, how: u8) {
        let index = self.bed.clients.len();
        if index >= CLIENTS_MAX {
            return;
        }
        let address = SocketAddr::from(([192, 0, 2, 1 + index as u8 % 3], 50_000 + index as u16));
        let mut client = RawClient::connect(address, if how & 4 == 0 { 65_536 } else { 64 });
        client.acknowledges = how & 2 == 0;
        if how & 1 == 0 {
            client.open(Direction::Out, &control_stream());
        }
        self.bed.clients.push(client);
        self.bed.exchange();
    }

    fn step(&mut self, reader: &mut Reader) {
        match reader.byte() {
            b'a' => self.connect(reader.byte()),
            b'b' => self.bed.fates.push_back(Fate::Lost),
            b'c' => self.bed.fates.push_back(Fate::Twice),
            b'd' => self.bed.wait(Duration::from_millis(reader.number().into())),
            b'e' => self.bed.wait(Duration::from_secs(reader.byte().into())),
            b'f' => self.bed.shut_down(),
            b'g' => self.bed.open_file(Ok(u64::from(reader.number()))),
            b'h' => {
                let errors = [FileError::NotFound, FileError::IsFolder];
                self.bed.open_file(Err(errors[usize::from(reader.byte() % 2)]));
            }
            b'i' => self.bed.open_file(Ok(u64::MAX - u64::from(reader.byte()))),
            b'j' => self.bed.read_file(0),
            b'k' => self.bed.read_file(reader.number().into()),
            letter @ b'l'..=b'z' => {
                let client = usize::from(reader.byte()) % self.bed.clients.len();
                self.client(letter, client, reader);
            }
            _ => self.bed.exchange(),
        }
    }

    fn client(&mut self, letter: u8, client: usize, reader: &mut Reader) {
        let now = self.bed.now;
        let client = &mut self.bed.clients[client];
        match letter {
            b'l' | b'm' => {
                let (method, fields) = (reader.byte(), reader.byte());
                let fields = FIELDS[usize::from(fields) % FIELDS.len()];
                let path = reader.bytes();
                client.open(Direction::Both, &file_request(method, &path, fields));
            }
            b'n' => client.open(Direction::Both, &reader.bytes()),
            b'o' => client.open(Direction::Out, &reader.bytes()),
            b'p' => {
                let (stream, skip) = (reader.byte(), reader.byte());
                client.write(stream, &reader.bytes(), skip);
            }
            b'q' => {
                let (stream, len) = (reader.byte(), usize::from(reader.number() % 2000));
                client.write(stream, &data_frame(&vec![0; len]), 0);
            }
            b'r' => client.end(reader.byte(), 0x0f, 0),
            b's' => client.end(reader.byte(), 0x04, reader.number()),
            b't' => client.end(reader.byte(), 0x05, reader.number()),
            b'u' => client.close(now),
            b'v' => client.acknowledges = !client.acknowledges,
            b'w' => client.datagram(&reader.bytes()),
            b'x' => {
                let (stream, context_id) = (reader.byte(), reader.byte());
                client.datagram(&datagram(stream.into(), context_id, &reader.bytes()));
            }
            _ => client.frames(reader.bytes()),
        }
    }
}

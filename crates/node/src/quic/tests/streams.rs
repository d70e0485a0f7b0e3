//! Streams over paths that lose packets, and readers that are slow.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tandem_congestion::ControllerName;
use tandem_units::ByteCount;

use super::{
    super::{Closed, Connection, Direction, Read, StreamId, Write},
    ConnectionId, Endpoint, Event, SERVER, Transport, tls, transmit,
};
use crate::limits::Limits;

const CLIENT: usize = 0;
const DELAY: Duration = Duration::from_millis(50);

/// The most packets that usually arrive together.
const TOGETHER: usize = 32;

/// A client that sends to a server over a path without a rate. No congestion control limits it.
struct Pair {
    sides: [Endpoint; 2],
    ids: [Option<ConnectionId>; 2],
    now: Instant,
    /// Packets in flight: when they arrive, the index of the receiver, and their bytes.
    packets: VecDeque<(Instant, usize, Vec<u8>)>,
    /// The most packets that arrive together.
    together: usize,
    /// The lost packets in percent.
    lost: u32,
    /// Whether every second packet to the server is lost.
    is_every_second_lost: bool,
    sent: u64,
    random: StdRng,
    is_connected: bool,
    /// The streams of which the server knows.
    opened: BTreeSet<StreamId>,
    end: Option<Closed>,
}

impl Pair {
    /// All streams together have the window of one stream.
    fn connected(window: u64) -> Self {
        Self::with_window(Some(window))
    }

    /// `None`: the windows of a proxy's and a client's tunnels, where all streams together have more than one.
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    fn with_window(window: Option<u64>) -> Self {
        let (server_tls, client_tls) = tls();
        let transport = Transport {
            controller: ControllerName::Off.into(),
            receive_window: window.map(ByteCount::new),
            ..Transport::default()
        };
        let limits = Limits::default();
        let mut sides = [
            Endpoint::client(&client_tls, &transport, &limits, Some(1)),
            Endpoint::server(&server_tls, &transport, &limits, Some(2)),
        ];
        let now = Instant::now();
        let client = sides[CLIENT].connect(now, SERVER, "localhost").unwrap();
        let mut pair = Self {
            sides,
            ids: [Some(client), None],
            now,
            packets: VecDeque::new(),
            together: TOGETHER,
            lost: 0,
            is_every_second_lost: false,
            sent: 0,
            random: StdRng::seed_from_u64(3),
            is_connected: false,
            opened: BTreeSet::new(),
            end: None,
        };
        while !pair.is_connected || !pair.packets.is_empty() {
            pair.step();
        }
        pair
    }

    fn client(&mut self) -> &mut Connection {
        self.sides[CLIENT].connection(self.ids[CLIENT].unwrap()).unwrap()
    }

    fn server(&mut self) -> &mut Connection {
        self.sides[1].connection(self.ids[1].unwrap()).unwrap()
    }

    /// The client opens a stream and writes as much as there is room for.
    fn open(&mut self, data: &mut Bytes) -> StreamId {
        let stream = self.client().open(Direction::Bidirectional).unwrap();
        self.write(stream, data);
        stream
    }

    fn write(&mut self, stream: StreamId, data: &mut Bytes) {
        if self.client().write(stream, data) == Ok(Write::Done) {
            self.client().finish(stream).unwrap();
        }
    }

    /// The client writes pieces that leave in packets of their own.
    fn write_pieces(&mut self, stream: StreamId, data: &[u8], len: usize) {
        for piece in data.chunks(len) {
            let mut piece = Bytes::copy_from_slice(piece);
            while !piece.is_empty() {
                self.client().write(stream, &mut piece).unwrap();
                self.step();
            }
        }
    }

    /// Sends this on a new stream, and reads it to its end at once.
    fn transfer(&mut self, sent: &Bytes) {
        let mut unsent = sent.clone();
        let stream = self.open(&mut unsent);
        let mut read = Vec::new();
        let end = self.now + Duration::from_secs(10);
        while self.now < end && self.end.is_none() {
            self.step();
            if !unsent.is_empty() {
                self.write(stream, &mut unsent);
            }
            if self.read(stream, &mut read) {
                break;
            }
        }
        assert!(self.end.is_none(), "{:?}", self.end);
        assert!(read == *sent, "{} of {} bytes", read.len(), sent.len());
    }

    fn collect(&mut self) {
        for (index, side) in self.sides.iter_mut().enumerate() {
            while let Some((id, event)) = side.poll_event() {
                self.ids[index] = Some(id);
                match event {
                    Event::Lost(closed) => self.end = Some(closed),
                    Event::Connected if index == CLIENT => self.is_connected = true,
                    Event::Opened(stream) => {
                        self.opened.insert(stream);
                    }
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self) {
        for (index, side) in self.sides.iter_mut().enumerate() {
            for packet in transmit(side, self.now) {
                self.sent += 1;
                let is_lost =
                    self.is_every_second_lost && index == CLIENT && self.sent.is_multiple_of(2);
                if !is_lost && self.random.random_range(0..100) >= self.lost {
                    self.packets.push_back((self.now + DELAY, 1 - index, packet));
                }
            }
        }
    }

    fn arrive(&mut self, index: usize, packet: &[u8]) {
        let from = if index == CLIENT { SERVER } else { (SERVER.ip(), 1000).into() };
        self.sides[index].handle_datagram(self.now, (from, None), None, BytesMut::from(packet));
    }

    /// When the next packet arrives or the next timer is due.
    fn next_instant(&self) -> Option<Instant> {
        let timers = self.sides.iter().filter_map(Endpoint::next_timeout);
        timers.chain(self.packets.front().map(|(at, ..)| *at)).min()
    }

    /// Lets what is due happen. A few packets arrive together, without polls between them.
    fn step(&mut self) {
        self.collect();
        self.send();
        let least = self.now + Duration::from_nanos(1);
        self.now = self.next_instant().unwrap_or(least).max(least);
        for side in &mut self.sides {
            side.handle_timeout(self.now);
        }
        for _ in 0..self.together {
            if self.packets.front().is_none_or(|(at, ..)| *at > self.now) {
                break;
            }
            let Some((_, index, packet)) = self.packets.pop_front() else { break };
            self.arrive(index, &packet);
        }
        self.collect();
    }

    /// Lets this time pass, and writes as much of the stream as there is room for.
    fn run_for(&mut self, time: Duration, stream: StreamId, unsent: &mut Bytes) {
        let end = self.now + time;
        loop {
            self.collect();
            self.send();
            if self.next_instant().is_none_or(|next| next >= end) {
                return self.collect();
            }
            self.step();
            if !unsent.is_empty() {
                self.write(stream, unsent);
            }
        }
    }

    /// Waits until the reader finds data behind a gap.
    fn find_gap(&mut self, stream: StreamId, read: &mut Vec<u8>) {
        self.lost = 20;
        while !self.server().holds_data() {
            self.step();
            assert!(!self.read(stream, read), "the stream has not ended");
        }
        self.lost = 0;
    }

    /// Reads what there is. `true`: the stream has ended.
    fn read(&mut self, stream: StreamId, read: &mut Vec<u8>) -> bool {
        while self.opened.contains(&stream) {
            match self.server().read(stream, 64 * 1024) {
                Read::Data(data) => read.extend_from_slice(&data),
                Read::Blocked => return false,
                Read::Finished => return true,
                Read::Reset(code) => panic!("reset with {code}"),
            }
        }
        false
    }

    /// Sends packets of one new byte each, without acknowledgements. The server gets every second
    /// one.
    fn send_with_gaps(&mut self, stream: StreamId, gaps: usize) -> Vec<u8> {
        let mut read = Vec::new();
        for number in 0..=2 * gaps {
            let mut byte = Bytes::from_static(b"x");
            assert_eq!(self.client().write(stream, &mut byte), Ok(Write::Done));
            for packet in transmit(&mut self.sides[CLIENT], self.now) {
                if number % 2 == 0 {
                    self.arrive(1, &packet);
                }
            }
            self.collect();
            if self.end.is_some() {
                break;
            }
            assert!(!self.read(stream, &mut read));
        }
        read
    }
}

fn contents(len: usize) -> Bytes {
    let mut random = StdRng::seed_from_u64(4);
    (0..len).map(|_| random.random::<u8>()).collect()
}

/// Sends 40 MB over a path that loses packets, and reads them at once.
fn transfer(mut pair: Pair, case: &str) {
    let sent = contents(40_000_000);
    let mut unsent = sent.clone();
    let stream = pair.open(&mut unsent);
    let mut read = Vec::new();
    let mut is_complete = false;
    for _ in 0..100_000 {
        pair.step();
        if !unsent.is_empty() {
            pair.write(stream, &mut unsent);
        }
        is_complete = pair.read(stream, &mut read);
        assert!(pair.end.is_none(), "{case}: {:?}", pair.end);
        if is_complete {
            break;
        }
    }
    assert!(is_complete && read == sent, "{case}: {} bytes", read.len());
    assert!(!pair.server().holds_data());
}

#[test]
fn thousands_of_gaps_do_not_end_the_connection() {
    for lost in [1, 20, 35] {
        let mut pair = Pair::connected(16_000_000);
        pair.lost = lost;
        transfer(pair, &format!("{lost} % lost"));
    }
}

#[test]
fn a_queue_that_drops_every_second_packet_does_not_end_the_connection() {
    let mut pair = Pair::connected(16_000_000);
    pair.is_every_second_lost = true;
    transfer(pair, "every second packet lost");
}

#[test]
fn a_reader_that_pauses_after_a_gap_loses_nothing_and_stops_the_sender() {
    const WINDOW: usize = 8_000_000;
    let mut pair = Pair::connected(WINDOW as u64);
    let sent = contents(3 * WINDOW);
    let mut unsent = sent.clone();
    let stream = pair.open(&mut unsent);
    let mut read = Vec::new();
    pair.find_gap(stream, &mut read);
    pair.run_for(Duration::from_secs(5), stream, &mut unsent);
    let waiting = sent.len() - unsent.len() - read.len();
    assert!(waiting <= 2 * WINDOW + WINDOW / 4, "{waiting} bytes wait for a reader that pauses");
    let mut is_complete = false;
    for _ in 0..5000 {
        is_complete = pair.read(stream, &mut read);
        if is_complete {
            break;
        }
        pair.step();
        if !unsent.is_empty() {
            pair.write(stream, &mut unsent);
        }
    }
    assert!(is_complete && read == sent, "{} of {} bytes", read.len(), sent.len());
}

#[test]
fn a_reader_that_pauses_on_a_fast_path_keeps_its_connection_and_stops_the_sender() {
    const WINDOW: usize = 16_000_000;
    // Without a loss, with a few, and with thousands of gaps while nothing is read. As many as the kernel has joined
    // come together.
    for (lost, together) in [(0, TOGETHER), (1, TOGETHER), (20, TOGETHER), (0, 1500), (1, 1500)] {
        let mut pair = Pair::connected(WINDOW as u64);
        let sent = contents(4 * WINDOW);
        let mut unsent = sent.clone();
        let stream = pair.open(&mut unsent);
        let mut read = Vec::new();
        while read.is_empty() {
            pair.step();
            assert!(!pair.read(stream, &mut read), "the stream has not ended");
        }
        (pair.lost, pair.together) = (lost, together);
        pair.run_for(Duration::from_secs(10), stream, &mut unsent);
        assert!(pair.end.is_none(), "{lost} % lost: {:?}", pair.end);
        let waiting = sent.len() - unsent.len() - read.len();
        assert!(waiting <= 2 * WINDOW + WINDOW / 2, "{lost} % lost: {waiting} bytes wait");
        pair.lost = 0;
        let mut is_complete = false;
        for _ in 0..20_000 {
            assert!(pair.end.is_none(), "{lost} % lost, {} read: {:?}", read.len(), pair.end);
            is_complete = pair.read(stream, &mut read);
            if is_complete {
                break;
            }
            pair.step();
            if !unsent.is_empty() {
                pair.write(stream, &mut unsent);
            }
        }
        assert!(is_complete && read == sent, "{lost} % lost: {} bytes", read.len());
    }
}

#[test]
fn hundreds_of_gaps_between_single_bytes_close() {
    const GAPS: usize = 500;
    let mut pair = Pair::connected(16_000_000);
    let stream = pair.client().open(Direction::Bidirectional).unwrap();
    let mut read = pair.send_with_gaps(stream, GAPS);
    pair.client().finish(stream).unwrap();
    for _ in 0..10_000 {
        pair.step();
        if pair.read(stream, &mut read) {
            break;
        }
    }
    assert_eq!(read.len(), 2 * GAPS + 1, "what was lost is sent again");
}

#[test]
fn single_bytes_with_gaps_between_them_have_bounded_memory() {
    let mut pair = Pair::connected(16_000_000);
    let stream = pair.client().open(Direction::Bidirectional).unwrap();
    let memory = pair.server().memory();
    let bytes = allocation_counter::measure(|| drop(pair.send_with_gaps(stream, 4000)));
    assert_eq!(pair.end, None, "an honest peer may leave 4,000 gaps");
    assert!(bytes.bytes_current < 5_000_000, "{} bytes are kept", bytes.bytes_current);
    let counted = pair.server().memory() - memory;
    assert!((4000 * 128..6_000_000).contains(&counted), "{counted} bytes are counted");
    pair.server().stop(stream, tandem_wire::Code(7));
    assert!(!pair.server().holds_data());

    let mut pair = Pair::connected(16_000_000);
    let stream = pair.client().open(Direction::Bidirectional).unwrap();
    let bytes = allocation_counter::measure(|| drop(pair.send_with_gaps(stream, 100_000)));
    let end = pair.end.expect("a peer that leaves more gaps is disconnected");
    assert!(matches!(&end, Closed::Violation(reason) if reason.contains("gaps")), "{end}");
    assert!(bytes.bytes_current < 10_000_000, "{} bytes are kept", bytes.bytes_current);
}

#[test]
fn what_is_held_of_a_stream_goes_with_the_stream() {
    for is_reset in [true, false] {
        let mut pair = Pair::connected(4_000_000);
        let mut unsent = contents(2_000_000);
        let stream = pair.open(&mut unsent);
        pair.find_gap(stream, &mut Vec::new());
        if is_reset {
            pair.client().reset(stream, tandem_wire::Code(7));
            pair.run_for(Duration::from_secs(1), stream, &mut Bytes::new());
            assert_eq!(pair.server().read(stream, 1), Read::Reset(tandem_wire::Code(7)));
        } else {
            pair.server().stop(stream, tandem_wire::Code(7));
        }
        assert!(!pair.server().holds_data());
        assert_eq!(pair.server().read(stream, 1), Read::Finished);
    }
}

#[test]
fn a_stream_that_ends_makes_room_for_another_one_at_once() {
    let mut pair = Pair::connected(1_000_000);
    let mut streams = Vec::new();
    while let Some(stream) = pair.client().open(Direction::Bidirectional) {
        pair.write(stream, &mut Bytes::from_static(b"x"));
        streams.push(stream);
    }
    assert_eq!(streams.len(), Limits::default().request_streams as usize);
    let code = tandem_wire::Code(7);
    let wait = |pair: &mut Pair| {
        pair.run_for(Duration::from_secs(1), streams[0], &mut Bytes::new());
    };
    wait(&mut pair);
    for stream in streams.iter().take(3) {
        assert_eq!(pair.client().open(Direction::Bidirectional), None);
        pair.server().reset(*stream, code);
        wait(&mut pair);
        assert_eq!(pair.client().take_reset(*stream), Some(code));
        pair.client().reset(*stream, code);
        wait(&mut pair);
        pair.server().stop(*stream, code);
        wait(&mut pair);
        let next = pair.client().open(Direction::Bidirectional).expect("there is room");
        pair.write(next, &mut Bytes::from_static(b"x"));
    }
}

#[test]
fn a_paused_reader_of_small_pieces_keeps_its_connection_and_stops_nobody() {
    // A window of 2 MB holds more pieces of 600 bytes than the engine bears.
    for (len, pieces) in [(100, 20_000), (600, 6_000)] {
        let mut pair = Pair::with_window(None);
        let sent = contents(len * pieces);
        let paused = pair.client().open(Direction::Bidirectional).unwrap();
        pair.write_pieces(paused, &sent, len);
        assert!(pair.end.is_none(), "pieces of {len} bytes: {:?}", pair.end);
        pair.transfer(&contents(40_000_000));
        let mut read = Vec::new();
        pair.read(paused, &mut read);
        assert!(read == sent, "pieces of {len} bytes: {} of {}", read.len(), sent.len());
    }
}

#[test]
fn streams_that_nobody_has_read_yet_leave_room_for_others() {
    let mut pair = Pair::with_window(None);
    for _ in 0..30 {
        let mut unsent = contents(2_000_000);
        let unread = pair.open(&mut unsent);
        pair.run_for(Duration::from_secs(1), unread, &mut unsent);
        assert!(unsent.is_empty(), "{} bytes have no room", unsent.len());
    }
    for _ in 0..20 {
        pair.transfer(&contents(4_000_000));
    }
}

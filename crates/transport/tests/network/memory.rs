//! What a transport allocates.

use std::time::{Duration, Instant};

use tandem_congestion::ControllerName;
use tandem_transport::{
    Config, Fates, Sealed, Source, Tag, Transport,
    seal::{ConnectionId, Opener, Sealer, Secret},
};

/// An endless source that forgets everything.
struct Endless {
    next: Tag,
    most: Tag,
    acked: u64,
}

impl Fates for Endless {
    fn sent(&mut self, _tag: Tag, _packet_number: u64) {}

    fn acked(&mut self, _tag: Tag) {
        self.acked += 1;
    }

    fn lost(&mut self, _tag: Tag) {}

    fn late_acked(&mut self, _tag: Tag) {}
}

impl Source for Endless {
    fn is_empty(&self) -> bool {
        self.next == self.most
    }

    fn next(&mut self, room: usize, out: &mut Vec<u8>) -> Option<Tag> {
        if room < 1000 || self.next == self.most {
            return None;
        }
        out.extend_from_slice(&[7; 1000]);
        self.next += 1;
        Some(self.next)
    }
}

/// Two ends, of which the first one sends.
struct Pair {
    now: Instant,
    ends: [Transport<Sealed>; 2],
    sources: [Endless; 2],
    out: Vec<u8>,
}

impl Pair {
    fn new(controller: ControllerName) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
        let now = Instant::now();
        let [a, b] = [[1; 32], [2; 32]];
        let ends = [(a, b), (b, a)].map(|(own, of_peer)| {
            let id = ConnectionId::try_from(&b"receiver"[..]).expect("it is short");
            let sealer = Sealer::new(Secret::new(&own), id);
            let opener = Opener::new(Secret::new(&of_peer), id.len());
            let config = Config {
                packet_size: 1252,
                packet_size_min: 1200,
                initial_rtt: Duration::from_millis(10),
                min_rtt: None,
                has_ecn: true,
                ack_wait: None,
                seed: 1,
            };
            Transport::new(config, Sealed { sealer, opener }, crate::built(controller, now), now)
        });
        let sources = [(); 2].map(|()| Endless { next: 0, most: 0, acked: 0 });
        Self { now, ends, sources, out: Vec::with_capacity(100_000) }
    }

    /// Sends this many datagrams in each of so many milliseconds.
    fn run(&mut self, milliseconds: u32, datagrams: u64) {
        for _ in 0..milliseconds {
            self.now += Duration::from_millis(1);
            // Congestion control is not what is measured.
            self.sources[0].most = self.sources[0].next + Tag::from(datagrams);
            for end in [0, 1] {
                self.transmit(end);
            }
        }
    }

    fn transmit(&mut self, end: usize) {
        let Self { now, ends: [first, second], sources: [source, other], out } = self;
        let (sender, source, receiver, fates) =
            if end == 0 { (first, source, second, other) } else { (second, other, first, source) };
        if sender.next_timeout().is_some_and(|due| due <= *now) {
            sender.handle_timeout(*now, source);
        }
        while let Some(sent) = sender.poll_transmit(*now, out, 16, source) {
            for packet in out.chunks_mut(sent.segment_size) {
                receiver.handle_packet(*now, packet, sent.ecn, fates).expect("it is good");
            }
            out.clear();
        }
    }
}

#[test]
fn packets_are_sent_and_received_without_allocations() {
    let mut pair = Pair::new(ControllerName::NewReno);
    pair.run(1000, 40);
    let allocated = allocation_counter::measure(|| pair.run(1000, 40));
    assert_eq!(allocated.count_total, 0);
    assert!(pair.sources[0].acked > 50_000, "{}", pair.sources[0].acked);
}

#[test]
fn an_idle_transport_takes_little_memory() {
    for controller in [ControllerName::Bbr1Tunnel, ControllerName::NewReno] {
        let (mut pair, mut memory) = (None, [[0; 2]; 3]);
        let allocated = allocation_counter::measure(|| {
            let pair = pair.insert(Pair::new(controller));
            pair.out = Vec::new();
            for (milliseconds, memory) in [0, 10, 1000].into_iter().zip(&mut memory) {
                pair.run(milliseconds, 10);
                pair.run(2000, 0);
                *memory = pair.ends.each_ref().map(Transport::memory);
            }
            pair.out = Vec::new();
        });
        println!("{controller}: {memory:?} and heap of both {}", allocated.bytes_current);
        assert!(memory.as_flattened().iter().all(|it| *it < 2_750), "{controller}: {memory:?}");
        // It goes on from there.
        pair.expect("it was made").run(1000, 10);
    }
}

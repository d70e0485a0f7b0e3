//! What a transport allocates.

use std::time::{Duration, Instant};

use tandem_congestion::ControllerName;
use tandem_transport::{
    Config, Fates, Sealed, Source, Tag, Transport,
    seal::{Opener, Sealer, Secret},
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

fn sealed_ends(controller: ControllerName, now: Instant) -> [Transport<Sealed>; 2] {
    let [a, b] = [[1; 32], [2; 32]];
    [(a, b), (b, a)].map(|(own, of_peer)| {
        let sealer = Sealer::new(Secret::new(&own), *b"receiver");
        let opener = Opener::new(Secret::new(&of_peer));
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
    })
}

#[test]
fn packets_are_sent_and_received_without_allocations() {
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    let mut now = Instant::now();
    let [mut sender, mut receiver] = sealed_ends(ControllerName::NewReno, now);
    let mut source = Endless { next: 0, most: u64::MAX, acked: 0 };
    let mut silent = Endless { next: 0, most: 0, acked: 0 };
    let (mut out, mut back) = (Vec::with_capacity(100_000), Vec::with_capacity(100_000));
    let mut rounds = |count: u32| {
        for _ in 0..count {
            now += Duration::from_millis(1);
            sender.handle_timeout(now, &mut source);
            out.clear();
            // Congestion control is not what is measured.
            source.most = source.next + 40;
            while let Some(sent) = sender.poll_transmit(now, &mut out, 16, &mut source) {
                for packet in out.chunks_mut(sent.segment_size) {
                    receiver.handle_packet(now, packet, sent.ecn, &mut silent).expect("it is good");
                }
                out.clear();
            }
            back.clear();
            while let Some(sent) = receiver.poll_transmit(now, &mut back, 16, &mut silent) {
                for packet in back.chunks_mut(sent.segment_size) {
                    sender.handle_packet(now, packet, sent.ecn, &mut source).expect("it is good");
                }
                back.clear();
            }
        }
    };
    rounds(1000);
    let allocated = allocation_counter::measure(|| rounds(1000));
    assert_eq!(allocated.count_total, 0);
    assert!(source.acked > 50_000, "{}", source.acked);
}

#[test]
fn an_idle_transport_takes_little_memory() {
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    let now = Instant::now();
    for controller in [ControllerName::Bbr1Tunnel, ControllerName::NewReno] {
        let mut memory = 0;
        let allocated = allocation_counter::measure(|| {
            let ends = sealed_ends(controller, now);
            memory = ends[0].memory();
            std::mem::forget(ends);
        });
        println!("{controller}: {memory} and heap of two {}", allocated.bytes_current);
        assert!(memory < 6_000, "{controller}: {memory}");
    }
}

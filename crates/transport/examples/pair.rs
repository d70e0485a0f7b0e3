//! Counts what one datagram of 1200 bytes costs: sent, received and acknowledged, by two transports in one process over
//! a network that does nothing.
//!
//! ```text
//! cargo run --release -p tandem-transport --example pair             # nanoseconds of both ends
//! cargo run --release -p tandem-transport --example pair -- once     # one kind, for `valgrind --tool=callgrind`
//! ```
#![expect(
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "an example that measures"
)]

#[path = "../tests/network/plain.rs"]
mod plain;

use std::time::{Duration, Instant};

use plain::Plain;
use tandem_congestion::{Algorithm, ControllerConfig, ControllerName, Feedback};
use tandem_transport::{
    Config, Fates, Protection, Sealed, Source, Tag, Transport,
    seal::{ConnectionId, Opener, Sealer, Secret},
};
use tandem_units::ByteCount;

const DATAGRAM: [u8; 1200] = [7; 1200];

/// Has as many datagrams as it is told, and counts their fates.
#[derive(Default)]
struct Owner {
    waiting: u64,
    next: Tag,
    acked: u64,
    lost: u64,
}

impl Fates for Owner {
    fn sent(&mut self, _tag: Tag, _packet_number: u64) {}

    fn acked(&mut self, _tag: Tag) {
        self.acked += 1;
    }

    fn lost(&mut self, _tag: Tag) {
        self.lost += 1;
    }

    fn late_acked(&mut self, _tag: Tag) {}
}

impl Source for Owner {
    fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    fn next(&mut self, room: usize, out: &mut Vec<u8>) -> Option<Tag> {
        if self.waiting == 0 || room < DATAGRAM.len() {
            return None;
        }
        out.extend_from_slice(&DATAGRAM);
        self.waiting -= 1;
        self.next += 1;
        Some(self.next)
    }
}

/// One end, and where its packets are written.
struct End<P> {
    transport: Transport<P>,
    owner: Owner,
    out: Vec<u8>,
}

impl<P: Protection> End<P> {
    fn new(protection: P, now: Instant, controller: ControllerName) -> Self {
        let config = Config {
            packet_size: 1452,
            packet_size_min: 1200,
            initial_rtt: Duration::from_micros(100),
            min_rtt: None,
            has_ecn: true,
            ack_wait: None,
            seed: 7,
        };
        let transport = Transport::new(config, protection, built(controller, now), now);
        Self { transport, owner: Owner::default(), out: Vec::with_capacity(1 << 16) }
    }
}

/// Sends all that may leave. Returns how many datagrams arrived.
#[inline(never)]
fn carry<P: Protection>(now: Instant, from: &mut End<P>, to: &mut End<P>) -> u64 {
    let mut arrived = 0;
    loop {
        from.out.clear();
        let sent = transmit(now, from);
        let Some((segment_size, ecn)) = sent else { return arrived };
        for packet in from.out.chunks_mut(segment_size) {
            arrived += receive(now, packet, ecn, to);
        }
    }
}

#[inline(never)]
fn transmit<P: Protection>(
    now: Instant,
    from: &mut End<P>,
) -> Option<(usize, Option<tandem_transport::Ecn>)> {
    let sent = from.transport.poll_transmit(now, &mut from.out, 16, &mut from.owner)?;
    Some((sent.segment_size, sent.ecn))
}

#[inline(never)]
fn receive<P: Protection>(
    now: Instant,
    packet: &mut [u8],
    ecn: Option<tandem_transport::Ecn>,
    to: &mut End<P>,
) -> u64 {
    let handled = to.transport.handle_packet(now, packet, ecn, &mut to.owner);
    let mut datagrams = handled.expect("the network changes nothing");
    let mut arrived = 0;
    while let Some(range) = datagrams.next(packet) {
        assert_eq!(packet[range].len(), DATAGRAM.len());
        arrived += 1;
    }
    arrived
}

/// Carries datagrams in bursts, 20 us apart for each datagram. Returns nanoseconds for each one.
fn run<P: Protection>(ends: [P; 2], controller: ControllerName, burst: u64, datagrams: u64) -> f64 {
    let began = Instant::now();
    let [a, b] = ends;
    let (mut a, mut b) = (End::new(a, began, controller), End::new(b, began, controller));
    let (mut now, mut arrived) = (began, 0);
    let mut measured = Instant::now();
    while a.owner.next < datagrams.into() {
        if a.owner.next < (datagrams / 10).into() {
            measured = Instant::now(); // what comes before is to warm up
        }
        now += Duration::from_micros(20 * burst);
        for end in [&mut a, &mut b] {
            if end.transport.next_timeout().is_some_and(|time| time <= now) {
                end.transport.handle_timeout(now, &mut end.owner);
            }
        }
        a.owner.waiting += burst;
        arrived += carry(now, &mut a, &mut b);
        // The path takes 50 us in each direction.
        now += Duration::from_micros(50);
        carry(now, &mut b, &mut a);
    }
    assert!(arrived >= datagrams && a.owner.lost == 0, "{arrived} arrived, {} lost", a.owner.lost);
    measured.elapsed().as_nanos() as f64 / (datagrams as f64 * 0.9)
}

fn sealed() -> [Sealed; 2] {
    let [a, b] = [[1; 32], [2; 32]];
    let id = ConnectionId::try_from(&b"receiver"[..]).expect("it is short");
    [(a, b), (b, a)].map(|(own, of_peer)| Sealed {
        sealer: Sealer::new(Secret::new(&own), id),
        opener: Opener::new(Secret::new(&of_peer), id.len()),
    })
}

fn plain() -> [Plain; 2] {
    [Plain::new(), Plain::new()]
}

fn main() {
    if let Some(burst) = std::env::args().nth(1) {
        let burst = if burst == "single" { 1 } else { 16 };
        run(plain(), ControllerName::NewReno, burst, 20_000);
        return;
    }
    println!("{:12} {:>6} {:>12} {:>12}", "controller", "burst", "plain, ns", "sealed, ns");
    for controller in [ControllerName::NewReno, ControllerName::Bbr1, ControllerName::Off] {
        for burst in [16, 1] {
            // The best of five, because other programs run beside it.
            let best = |run: &dyn Fn() -> f64| (0..5).map(|_| run()).fold(f64::MAX, f64::min);
            let plain = best(&|| run(plain(), controller, burst, 400_000));
            let sealed = best(&|| run(sealed(), controller, burst, 400_000));
            let name = controller.to_string();
            println!("{name:12} {burst:>6} {plain:>12.0} {sealed:>12.0}");
        }
    }
}

/// One of our controllers.
fn built(name: ControllerName, now: Instant) -> Box<dyn Algorithm> {
    let size = ByteCount::new(1452);
    let built = ControllerConfig::from(name).build(0, &Feedback::default(), now, size);
    built.expect("it is one of ours")
}

//! Two transports over a model of a network, in virtual time.
#![expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

mod any_path;
mod hostile;
mod memory;
mod model;
mod owner;
mod plain;

use std::time::{Duration, Instant};

use tandem_congestion::{Algorithm, ControllerConfig, ControllerName, Feedback};
use tandem_units::ByteCount;

use self::{
    model::{Link, Load, NOTHING, World},
    owner::Fate,
};

/// As fast as the controller lets it, in full packets.
fn bulk(datagrams: u64) -> Load {
    Load { datagrams, interval: Duration::from_millis(1), burst: datagrams, len: 1222..1223 }
}

fn run(controller: ControllerName, load: Load, link: Link, back: Link) -> World {
    let mut world = World::new(controller, [(load, link), (NOTHING, back)], 7);
    world.run(Duration::from_secs(60));
    world.check();
    assert!(world.is_done(), "{controller} {:?}", world.ends[0].transport.counts());
    assert_eq!(world.ends[0].transport.bytes_in_flight().get(), 0);
    world
}

const CONTROLLERS: [ControllerName; 5] = [
    ControllerName::Bbr1,
    ControllerName::Bbr1Tunnel,
    ControllerName::Tecc,
    ControllerName::NewReno,
    ControllerName::Off,
];

#[test]
fn a_perfect_network_delivers_all() {
    for controller in CONTROLLERS {
        let load = Load {
            datagrams: 5000,
            interval: Duration::from_micros(500),
            burst: 3,
            len: 1200..1201,
        };
        let world = run(controller, load, Link::default(), Link::default());
        let [sender, receiver] = &world.ends;
        assert_eq!(sender.owner.count(Fate::Acked), 5000, "{controller}");
        assert_eq!(receiver.owner.received.len(), 5000);
        let acks = receiver.transport.counts().sent.ack_only_packets;
        assert!((2500..2600).contains(&acks), "every second packet is acknowledged: {acks}");
    }
}

#[test]
fn a_bottleneck_is_filled() {
    // 40 Mbit/s, 40 ms, and a queue of one bandwidth-delay product.
    let link = Link { rate: Some((5_000_000, 200_000)), ..Link::default() };
    for controller in CONTROLLERS.into_iter().filter(|it| *it != ControllerName::Off) {
        let world = run(controller, bulk(20_000), link.clone(), Link::default());
        let took = world.ends[0].owner.packets.len() as u64 * 1252 * 1_000_000 / 5_000_000;
        let most = Duration::from_micros(took) * 14 / 10;
        let elapsed = world.now - world.start;
        assert!(elapsed < most, "{controller}: {elapsed:?} of {most:?}");
    }
}

#[test]
fn small_datagrams_share_packets() {
    let load = Load { datagrams: 4000, interval: Duration::from_millis(1), burst: 40, len: 60..61 };
    let world = run(ControllerName::Bbr1, load, Link::default(), Link::default());
    let packets = world.ends[0].transport.counts().sent.packets;
    assert!(packets <= 310, "{packets} packets for 4000 datagrams");
    assert_eq!(world.ends[0].owner.count(Fate::Acked), 4000);
}

#[test]
fn a_path_that_reorders_teaches_the_thresholds() {
    let link = Link { jitter: Duration::from_millis(15), ..Link::default() };
    let load =
        Load { datagrams: 20_000, interval: Duration::from_millis(1), burst: 1, len: 1200..1201 };
    let world = run(ControllerName::Bbr1, load, link, Link::default());
    let sender = &world.ends[0];
    let counts = sender.transport.counts().recovery;
    assert_eq!(counts.lost_packets, counts.late_packets, "nothing was really lost");
    assert_eq!(sender.owner.count(Fate::Lost), 0);
    assert!(counts.lost_packets < 400, "{counts:?}");
    assert!(sender.transport.packet_threshold() > 10);
    assert!(counts.spurious_events > 0);
}

#[test]
fn marks_are_heard_and_paths_without_them_are_found() {
    for (link, marks, is_heard) in [
        (Link { marked: 20, ..Link::default() }, true, true),
        (Link { clears_ecn: true, ..Link::default() }, false, false),
    ] {
        let world = run(ControllerName::NewReno, bulk(3000), link, Link::default());
        let sender = &world.ends[0].transport;
        assert_eq!(sender.marks_ecn(), marks);
        assert_eq!(sender.counts().recovery.marked_events > 0, is_heard);
    }
}

#[test]
fn an_outage_of_either_direction_ends_within_a_second() {
    let outage = Duration::from_millis(500)..Duration::from_millis(6500);
    let broken = Link { outage, ..Link::default() };
    for (link, back) in [(broken.clone(), Link::default()), (Link::default(), broken)] {
        for controller in [ControllerName::Bbr1, ControllerName::NewReno] {
            let load = Load {
                datagrams: 800,
                interval: Duration::from_millis(10),
                burst: 1,
                len: 1000..1001,
            };
            let world = run(controller, load, link.clone(), back.clone());
            let elapsed = world.now - world.start;
            assert!(elapsed < Duration::from_millis(12_500), "{controller}: {elapsed:?}");
            let timeouts = world.ends[0].timeouts;
            assert!(timeouts < 1000, "{controller}: {timeouts}");
            let probes = world.ends[0].transport.counts().recovery.probe_timeouts;
            assert!((5..20).contains(&probes), "{controller}: {probes}");
        }
    }
}

#[test]
fn a_run_repeats_exactly() {
    let link = Link { lost: 30, jitter: Duration::from_millis(3), ..Link::default() };
    let run = || {
        let world = run(ControllerName::Bbr1, bulk(2000), link.clone(), link.clone());
        (world.now - world.start, world.ends[0].transport.counts())
    };
    assert_eq!(run(), run());
}

/// One of our controllers.
pub(crate) fn built(name: ControllerName, now: Instant) -> Box<dyn Algorithm> {
    let size = ByteCount::new(1452);
    let built = ControllerConfig::from(name).build(0, &Feedback::default(), now, size);
    built.expect("it is one of ours")
}

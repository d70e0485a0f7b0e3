//! Two transports over a model of a network, in virtual time.
#![expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

mod model;
mod owner;
mod plain;

use std::time::Duration;

use tandem_congestion::ControllerName;

use self::{
    model::{Link, Load, NOTHING, World},
    owner::Fate,
};

#[test]
fn a_perfect_network_delivers_all() {
    for controller in [ControllerName::Bbr1, ControllerName::NewReno, ControllerName::Off] {
        let load = Load {
            datagrams: 5000,
            interval: Duration::from_micros(500),
            burst: 3,
            len: 1200..1201,
        };
        let ends = [(load, Link::default()), (NOTHING, Link::default())];
        let mut world = World::new(controller, ends, 7);
        world.run(Duration::from_secs(20));
        world.check();
        let [sender, receiver] = &world.ends;
        assert!(world.is_done(), "{controller} {:?}", sender.transport);
        assert_eq!(sender.owner.count(Fate::Acked), 5000, "{controller}");
        assert_eq!(receiver.owner.received.len(), 5000);
        assert_eq!(sender.transport.bytes_in_flight().get(), 0);
        println!(
            "{controller} {:?} {:?} {:?}",
            world.now - world.start,
            sender.transport.counts(),
            receiver.transport.counts()
        );
    }
}

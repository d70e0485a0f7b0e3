//! A transport whose peer has the keys and sends what the input says.
//!
//! What the peer sends is taken, or ends the transport. Each datagram has one fate, which is told once. Memory is
//! bounded, time never stands still, and an ended transport is silent.

#[path = "../../tests/network/owner.rs"]
mod owner;
#[path = "../../tests/network/plain.rs"]
mod plain;
pub mod two_ends;

use std::time::{Duration, Instant};

use owner::{Fate, Owner};
use plain::Plain;
use tandem_congestion::{Algorithm, ControllerConfig, ControllerName, Feedback};
use tandem_units::{ByteCount, Ratio};

use crate::{AckWait, Config, DropCause, Ecn, Protection, Transport, script::Reader};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 500;

/// The most datagrams of one run.
const DATAGRAMS_MAX: u64 = 5_000;

/// The most memory of one end in bytes: that of the ring for all packets of a run.
const MEMORY_MAX: usize = 1_000_000;

struct Run {
    controller: ControllerName,
    transport: Transport<Plain>,
    owner: Owner,
    now: Instant,
    /// The number of the peer's next packet.
    number: u64,
    offered: u64,
}

/// Drives a transport as the input says.
///
/// # Panics
///
/// The transport breaks a promise.
pub fn run(input: &[u8]) {
    let mut reader = Reader::new(input);
    let mut run = Run::new(&mut reader);
    reader.steps(STEPS_MAX, |reader| run.step(reader));
}

impl Run {
    fn new(reader: &mut Reader<'_>) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a run needs one time to count from")]
        let now = Instant::now();
        let controller = reader.choose(&[
            ControllerName::NewReno,
            ControllerName::Bbr1,
            ControllerName::Bbr1Tunnel,
            ControllerName::Tecc,
            ControllerName::Mdcc,
            ControllerName::Off,
        ]);
        let config = Config {
            packet_size: 1200,
            packet_size_min: 1200,
            initial_rtt: Duration::from_millis(reader.choose(&[100, 1, 0, 1000])),
            min_rtt: None,
            has_ecn: reader.choose(&[true, false]),
            ack_wait: reader
                .choose(&[None, Some(AckWait { share: Ratio::of(1, 2), threshold: 10 })]),
            seed: reader.byte().into(),
        };
        let transport = Transport::new(config, Plain::new(), built(controller, now), now);
        Self { transport, controller, owner: Owner::default(), now, number: 0, offered: 0 }
    }

    fn step(&mut self, reader: &mut Reader<'_>) {
        match reader.byte() % 16 {
            0..=2 => self.offer(reader),
            3..=4 => self.wait(Duration::from_micros(reader.number() as u64)),
            5 => self.wait(Duration::from_millis(reader.number() as u64)),
            6 => self.number += reader.choose(&[1, 2, 64, 4096, 1 << 20, 1 << 40]),
            7 => self.number = self.number.saturating_sub(reader.byte().into()),
            8 => self.transport.set_may_send(reader.choose(&[true, false])),
            9 => self.transport.on_new_path(self.now, built(self.controller, self.now)),
            10 => self.transport.set_packet_size(reader.choose(&[1200, 1452, 9000, 65_000])),
            11..=13 => self.receive_ack(reader),
            _ => self.receive_bytes(reader),
        }
        self.transmit();
        self.check();
    }

    fn offer(&mut self, reader: &mut Reader<'_>) {
        let len = reader.choose(&[1, 100, 1170, 1169, 1167, 1166]);
        for _ in 0..u64::from(reader.byte()).min(DATAGRAMS_MAX - self.offered) {
            self.owner.offer(self.offered.into(), len);
            self.offered += 1;
        }
    }

    fn wait(&mut self, time: Duration) {
        let (end, mut wakes) = (self.now + time, 0);
        while let Some(next) = self.transport.next_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.transport.handle_timeout(self.now, &mut self.owner);
            self.transmit();
            wakes += 1;
            assert!(wakes < 100 + 20 * time.as_millis(), "{wakes} wakes in {time:?}");
        }
        self.now = end;
    }

    /// An ACK frame of packets that were sent, and now and then of others.
    fn receive_ack(&mut self, reader: &mut Reader<'_>) {
        let next = self.owner.packets.last().map_or(0, |last| last + 1);
        let Some(largest) = next.checked_sub(1 + u64::from(reader.byte() % 64)) else { return };
        let first = u64::from(reader.byte()).min(largest);
        let mut fields = vec![largest, reader.number() as u64, 0, first];
        let mut smallest = largest - first;
        for _ in 0..reader.byte() % 4 {
            let (gap, len) = (u64::from(reader.byte() % 8), u64::from(reader.byte() % 8));
            if smallest < gap + 2 + len {
                break;
            }
            smallest -= gap + 2 + len;
            fields.extend([gap, len]);
            fields[2] += 1;
        }
        let has_ecn = reader.choose(&[false, true]);
        if has_ecn {
            fields.extend([
                reader.number() as u64,
                u64::from(reader.byte() / 250),
                reader.byte().into(),
            ]);
        }
        let mut payload = vec![if has_ecn { 3 } else { 2 }];
        for field in fields {
            tandem_wire::VarInt::saturating_from(field).encode(&mut payload);
        }
        self.receive(&payload, reader);
    }

    fn receive_bytes(&mut self, reader: &mut Reader<'_>) {
        let payload: Vec<u8> = (0..reader.byte() % 32).map(|_| reader.byte()).collect();
        self.receive(&payload, reader);
    }

    fn receive(&mut self, payload: &[u8], reader: &mut Reader<'_>) {
        let mut packet = vec![0; Plain::HEADER_LEN];
        packet.extend_from_slice(payload);
        Plain::new().protect(self.number, 0, &mut packet).expect("there are numbers");
        self.number += 1;
        let ecn = reader.choose(&[None, Some(Ecn::Ect0), Some(Ecn::Ce), Some(Ecn::Ect1)]);
        let was_closed = self.transport.closed().is_some();
        match self.transport.handle_packet(self.now, &mut packet, ecn, &mut self.owner) {
            Ok(mut datagrams) => {
                assert!(!was_closed && self.transport.closed().is_none());
                while let Some(range) = datagrams.next(&packet) {
                    assert!(packet.get(range).is_some());
                }
            }
            Err(DropCause::Closed) => assert!(was_closed),
            Err(DropCause::Open(_)) => assert!(self.transport.closed().is_none()),
            Err(DropCause::Violation(_)) => assert!(self.transport.closed().is_some()),
        }
    }

    fn transmit(&mut self) {
        let mut out = Vec::new();
        let mut packets = 0;
        while let Some(sent) = self.transport.poll_transmit(self.now, &mut out, 16, &mut self.owner)
        {
            assert!(self.transport.closed().is_none());
            assert!(sent.size == out.len() && sent.size <= 16 * sent.segment_size);
            packets += out.len().div_ceil(sent.segment_size);
            assert!(packets < 10_000, "there is no end");
            out.clear();
        }
    }

    fn check(&self) {
        assert!(self.transport.memory() < MEMORY_MAX);
        let in_flight = self.owner.count(Fate::Sent);
        if self.transport.closed().is_some() {
            assert_eq!(in_flight, 0);
            assert_eq!(self.transport.next_timeout(), None);
        }
        if self.transport.bytes_in_flight().get() > 0 {
            assert!(self.transport.closed().is_none());
        }
    }
}

/// One of our controllers.
fn built(name: ControllerName, now: Instant) -> Box<dyn Algorithm> {
    let size = ByteCount::new(1452);
    let built = ControllerConfig::from(name).build(0, &Feedback::default(), now, size);
    built.expect("it is one of ours")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_transport_keeps_its_promises(input in prop::collection::vec(any::<u8>(), 0..2000)) {
            super::run(&input);
        }
    }
}

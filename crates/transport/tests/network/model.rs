//! Two transports and a path between them, in virtual time.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    ops::Range,
    time::{Duration, Instant},
};

use tandem_congestion::ControllerName;
use tandem_transport::{Config, Ecn, Transport};

use crate::{
    owner::{Fate, Owner},
    plain::Plain,
};

/// One direction of the path. Shares are in thousandths.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) delay: Duration,
    /// Each packet waits up to so much longer, so that packets overtake each other.
    pub(crate) jitter: Duration,
    pub(crate) lost: u32,
    pub(crate) duplicated: u32,
    pub(crate) marked: u32,
    /// Bytes per second, and the bytes that wait for their turn at most.
    pub(crate) rate: Option<(u64, u64)>,
    /// When nothing passes, from the start of the run.
    pub(crate) outage: Range<Duration>,
    pub(crate) clears_ecn: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(20),
            jitter: Duration::ZERO,
            lost: 0,
            duplicated: 0,
            marked: 0,
            rate: None,
            outage: Duration::ZERO..Duration::ZERO,
            clears_ecn: false,
        }
    }
}

/// What the application of one end sends.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) datagrams: u64,
    pub(crate) interval: Duration,
    /// So many come at a time.
    pub(crate) burst: u64,
    pub(crate) len: Range<usize>,
}

pub(crate) const NOTHING: Load =
    Load { datagrams: 0, interval: Duration::from_secs(1), burst: 1, len: 8..9 };

enum Event {
    Arrive { at: usize, packet: Vec<u8>, ecn: Option<Ecn> },
    Offer { at: usize },
}

pub(crate) struct End {
    pub(crate) transport: Transport<Plain>,
    pub(crate) owner: Owner,
    load: Load,
    link: Link,
    offered: u64,
    /// When the last packet has left the bottleneck.
    busy_until: Instant,
    pub(crate) timeouts: u64,
}

/// A run.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) start: Instant,
    pub(crate) ends: [End; 2],
    events: BinaryHeap<Reverse<(Instant, u64)>>,
    waiting: std::collections::BTreeMap<u64, Event>,
    next_event: u64,
    steps_at_once: u32,
    random: u64,
}

impl World {
    pub(crate) fn new(controller: ControllerName, ends: [(Load, Link); 2], seed: u64) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
        let start = Instant::now();
        let ends = ends.map(|(load, link)| {
            let config = Config {
                packet_size: 1252,
                packet_size_min: 1200,
                initial_rtt: Duration::from_millis(333),
                min_rtt: None,
                has_ecn: true,
                ack_wait: None,
                seed,
            };
            End {
                transport: Transport::new(
                    config,
                    Plain::new(),
                    crate::built(controller, start),
                    start,
                ),
                owner: Owner::default(),
                load,
                link,
                offered: 0,
                busy_until: start,
                timeouts: 0,
            }
        });
        let mut world = Self {
            now: start,
            start,
            ends,
            events: BinaryHeap::new(),
            waiting: std::collections::BTreeMap::new(),
            next_event: 0,
            steps_at_once: 0,
            random: seed | 1,
        };
        for at in 0..2 {
            if world.ends[at].load.datagrams > 0 {
                world.schedule(start, Event::Offer { at });
            }
        }
        world
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if below == 0 { 0 } else { (self.random >> 16) % below }
    }

    fn schedule(&mut self, time: Instant, event: Event) {
        self.events.push(Reverse((time, self.next_event)));
        self.waiting.insert(self.next_event, event);
        self.next_event += 1;
    }

    /// Runs until nothing is on its way, no datagram waits and no fate is open, or for this time.
    pub(crate) fn run(&mut self, longest: Duration) {
        while self.now < self.start + longest && self.step() {}
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ends.iter().all(|end| {
            end.offered == end.load.datagrams
                && end.owner.queue.is_empty()
                && end.owner.count(Fate::Sent) == 0
        })
    }

    /// Does what is next. Returns whether there was anything.
    fn step(&mut self) -> bool {
        let event = self.events.peek().map(|Reverse((time, _))| *time);
        let timeouts = self.ends.each_ref().map(|end| end.transport.next_timeout());
        let Some(next) = event.into_iter().chain(timeouts.into_iter().flatten()).min() else {
            return false;
        };
        self.steps_at_once = if next > self.now { 0 } else { self.steps_at_once + 1 };
        assert!(
            self.steps_at_once < 10_000,
            "time stands still: {:?}",
            self.ends[0].transport.counts()
        );
        self.now = self.now.max(next);
        for (at, timeout) in timeouts.into_iter().enumerate() {
            if timeout.is_some_and(|timeout| timeout <= self.now) {
                let end = &mut self.ends[at];
                end.timeouts += 1;
                end.transport.handle_timeout(self.now, &mut end.owner);
                self.transmit(at);
            }
        }
        while let Some(Reverse((time, number))) = self.events.peek().copied()
            && time <= self.now
        {
            self.events.pop();
            match self.waiting.remove(&number).expect("each event is there once") {
                Event::Arrive { at, packet, ecn } => self.arrive(at, packet, ecn),
                Event::Offer { at } => self.offer(at),
            }
        }
        true
    }

    fn offer(&mut self, at: usize) {
        let load = self.ends[at].load.clone();
        let burst = load.burst.min(load.datagrams - self.ends[at].offered);
        for _ in 0..burst {
            let len = load.len.start + self.random(load.len.len() as u64) as usize;
            let end = &mut self.ends[at];
            let tag = end.offered;
            end.owner.offer(tag.into(), len.min(end.transport.datagram_max()));
            end.offered += 1;
        }
        if self.ends[at].offered < load.datagrams {
            self.schedule(self.now + load.interval, Event::Offer { at });
        }
        self.transmit(at);
    }

    fn arrive(&mut self, at: usize, mut packet: Vec<u8>, ecn: Option<Ecn>) {
        let end = &mut self.ends[at];
        let handled = end.transport.handle_packet(self.now, &mut packet, ecn, &mut end.owner);
        if let Ok(mut datagrams) = handled {
            while let Some(range) = datagrams.next(&packet) {
                end.owner.receive(&packet[range]);
            }
        }
        assert_eq!(end.transport.closed(), None);
        self.transmit(at);
    }

    pub(crate) fn transmit(&mut self, at: usize) {
        let mut out = Vec::new();
        loop {
            let end = &mut self.ends[at];
            out.clear();
            let sent = end.transport.poll_transmit(self.now, &mut out, 10, &mut end.owner);
            let Some(sent) = sent else { break };
            assert_eq!(sent.size, out.len());
            assert!((1..=10 * sent.segment_size).contains(&sent.size) && sent.segment_size <= 1252);
            for packet in out.chunks(sent.segment_size) {
                self.carry(at, packet, sent.ecn);
            }
        }
    }

    /// Takes a packet to the other end, as the link says.
    fn carry(&mut self, from: usize, packet: &[u8], mut ecn: Option<Ecn>) {
        let link = self.ends[from].link.clone();
        let elapsed = self.now - self.start;
        if link.outage.contains(&elapsed) || self.random(1000) < link.lost.into() {
            return;
        }
        let mut leaves = self.now;
        if let Some((rate, queue)) = link.rate {
            let busy_until = self.ends[from].busy_until.max(self.now);
            let waiting = (busy_until - self.now).as_nanos() * u128::from(rate) / 1_000_000_000;
            if waiting + packet.len() as u128 > u128::from(queue) {
                return;
            }
            leaves = busy_until + Duration::from_nanos(packet.len() as u64 * 1_000_000_000 / rate);
            self.ends[from].busy_until = leaves;
        }
        if link.clears_ecn {
            ecn = None;
        } else if ecn.is_some() && self.random(1000) < link.marked.into() {
            ecn = Some(Ecn::Ce);
        }
        let copies = 1 + u32::from(self.random(1000) < link.duplicated.into());
        for _ in 0..copies {
            let jitter = Duration::from_micros(self.random(link.jitter.as_micros() as u64 + 1));
            let packet = packet.to_vec();
            let time = leaves + link.delay + jitter;
            self.schedule(time, Event::Arrive { at: 1 - from, packet, ecn });
        }
    }

    /// What must hold at any time: what was acknowledged has arrived.
    pub(crate) fn check(&self) {
        for (at, end) in self.ends.iter().enumerate() {
            let there = &self.ends[1 - at].owner.received;
            for (tag, fate) in &end.owner.fates {
                if matches!(fate, Fate::Acked | Fate::LateAcked) {
                    assert!(there.contains(tag), "{tag} was acknowledged and had not arrived");
                }
            }
        }
    }
}

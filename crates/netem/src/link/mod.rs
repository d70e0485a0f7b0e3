//! One link.

mod bottleneck;
mod config;
mod ledger;
mod stats;

use std::time::Instant;

use bottleneck::Bottleneck;
pub use config::{Capacity, LinkConfig, Outages, ParseOutagesError, Reorder};
use ledger::Ledger;
pub use stats::{LinkStats, Traffic};
use tandem_units::{ByteCount, Ratio};

use crate::{
    DurationHistogram, LossAt, Packet, Seed,
    agenda::Agenda,
    loss::{Coin, Dice, Loss, Purpose},
    queue::{Queue, Queued},
    verifier::{LinkVerifier, Violation, What},
};

/// The usual MTU, in bytes of IP packets.
const ETHERNET_MTU: ByteCount = ByteCount::new(1500);

/// The state of one link. Time never runs backwards and no event may be skipped: callers call
/// [`Link::step`] at the time of [`Link::next_event`], and [`Link::push`] only when no earlier
/// event is left.
#[derive(Debug)]
pub(crate) struct Link<T> {
    config: LinkConfig,
    start: Instant,
    /// The largest packet that passes.
    mtu: Option<ByteCount>,
    loss: Loss,
    reorder: Coin,
    duplicate: Coin,
    jitter: Dice,
    queue: Queue<T>,
    bottleneck: Bottleneck<T>,
    /// Packets between the bottleneck and the far end.
    on_the_way: Agenda<Packet<T>>,
    /// The latest arrival among the packets that are not reordered.
    last_arrival: Option<Instant>,
    ledger: Ledger,
}

impl<T: Clone> Link<T> {
    /// A link of a path that starts at `start`.
    pub(crate) fn new(start: Instant, config: LinkConfig, seed: Seed) -> Self {
        let late = config.reorder.map_or(Ratio::ZERO, |reorder| reorder.ratio);
        let bottleneck = Bottleneck::new(&config.capacity, start);
        let mtu = config.mtu.into_iter().chain(bottleneck.mtu()).min();
        let full_packet = bottleneck.counted(mtu.unwrap_or(ETHERNET_MTU));
        Self {
            start,
            mtu,
            loss: Loss::new(config.loss, seed),
            reorder: Coin::new(late, seed, Purpose::Reorder),
            duplicate: Coin::new(config.duplicate, seed, Purpose::Duplicate),
            jitter: Dice::new(seed, Purpose::Jitter),
            queue: Queue::new(config.queue, full_packet),
            bottleneck,
            on_the_way: Agenda::new(),
            last_arrival: None,
            ledger: Ledger::default(),
            config,
        }
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            queued: self.queue.len(),
            queued_max: self.queue.len_max(),
            ..self.ledger.stats()
        }
    }

    /// Whether no packet is queued or in transmission.
    pub(crate) fn is_idle(&self) -> bool {
        self.ledger.is_idle()
    }

    /// Times in the queue and in transmission. They are `None` until the first packet has left the
    /// bottleneck.
    pub(crate) fn sojourns(&self) -> Option<&DurationHistogram> {
        self.ledger.sojourns()
    }

    /// Lets a verifier check all events from now on. `number` is the number of the link in its
    /// path.
    pub(crate) fn verify(&mut self, number: usize) {
        self.ledger.verify(LinkVerifier::new(self.start, number, self.config.clone()));
    }

    /// The number of violations that the verifier found, and the first of them.
    pub(crate) fn violations(&self) -> (u64, Vec<Violation>) {
        self.ledger.violations()
    }

    /// A packet enters the link.
    pub(crate) fn push(&mut self, now: Instant, packet: Packet<T>) {
        let Packet { size, .. } = packet;
        self.ledger.entered(now, size);
        // This draw comes first: random draws must not depend on the other impairments.
        let is_lost = self.config.loss_at == LossAt::Before && self.loss.toss();
        let outages = self.config.outages;
        if outages.is_some_and(|outages| outages.cover(now.duration_since(self.start))) {
            return self.ledger.dropped(now, What::DroppedOutage, size);
        }
        if self.mtu.is_some_and(|mtu| size > mtu) {
            return self.ledger.dropped(now, What::DroppedMtu, size);
        }
        if is_lost {
            return self.ledger.dropped(now, What::DroppedLoss, size);
        }
        match &self.bottleneck {
            Bottleneck::Unlimited => self.leave_bottleneck(now, packet),
            bottleneck => {
                let size = bottleneck.counted(size);
                self.enter_bottleneck(now, Queued { packet, size, since: now });
            }
        }
    }

    /// The time of the next event in the link.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.bottleneck.next_event().into_iter().chain(self.on_the_way.next_at()).min()
    }

    /// Processes one event that is due at `now`, the time of [`Self::next_event`]. It returns a
    /// packet if the event is an arrival at the far end.
    pub(crate) fn step(&mut self, now: Instant) -> Option<Packet<T>> {
        if self.bottleneck.next_event().is_some_and(|at| at <= now) {
            self.work_bottleneck(now);
            return None;
        }
        let (_, packet) = self.on_the_way.pop_due(now)?;
        self.ledger.delivered(now, packet.size);
        Some(packet)
    }

    fn enter_bottleneck(&mut self, now: Instant, packet: Queued<T>) {
        let Self { bottleneck, queue, ledger, .. } = self;
        ledger.offered(now, &packet);
        match bottleneck {
            Bottleneck::Constant(transmitter) if transmitter.is_idle() => {
                ledger.started(now, &packet);
                transmitter.start_idle(now, packet);
                return;
            }
            Bottleneck::Trace(transmitter) => transmitter.wake(now),
            Bottleneck::Constant(_) | Bottleneck::Unlimited => {}
        }
        queue.push(packet, |packet| ledger.dropped_from_queue(now, What::DroppedQueue, &packet));
        if let Bottleneck::Trace(transmitter) = bottleneck
            && queue.is_empty()
        {
            transmitter.sleep();
        }
    }

    /// Processes the event of the bottleneck that is due.
    fn work_bottleneck(&mut self, now: Instant) {
        if let Bottleneck::Trace(transmitter) = &mut self.bottleneck {
            transmitter.open();
        }
        while let Some(sent) = self.next_sent(now) {
            self.leave_bottleneck(now, sent.packet);
        }
    }

    /// Returns the next packet whose last bit leaves the bottleneck now, and starts the packet
    /// after it.
    fn next_sent(&mut self, now: Instant) -> Option<Queued<T>> {
        let Self { bottleneck, queue, ledger, .. } = self;
        let sent = match bottleneck {
            Bottleneck::Unlimited => None,
            Bottleneck::Constant(transmitter) => transmitter.take_sent(now),
            Bottleneck::Trace(transmitter) => transmitter.send(|| pop(now, queue, ledger)),
        };
        if let Some(sent) = &sent {
            ledger.carried(now, sent);
        }
        match bottleneck {
            Bottleneck::Constant(transmitter) if sent.is_some() => {
                if let Some(next) = pop(now, queue, ledger) {
                    transmitter.start_back_to_back(now, next);
                }
            }
            Bottleneck::Trace(transmitter) if queue.is_empty() => transmitter.sleep(),
            _ => {}
        }
        sent
    }

    /// Decides whether a packet that left the bottleneck is lost, reordered or duplicated, and when
    /// it arrives.
    fn leave_bottleneck(&mut self, now: Instant, packet: Packet<T>) {
        // Each coin is tossed for each packet, so that the outcome of one coin does not shift the
        // draws of another.
        let lost = self.config.loss_at == LossAt::After && self.loss.toss();
        let (late, twice) = (self.reorder.toss(), self.duplicate.toss());
        let jitter = self.jitter.up_to(self.config.jitter);
        if lost {
            return self.ledger.dropped(now, What::DroppedLoss, packet.size);
        }
        let mut arrival = now + self.config.delay + jitter;
        if let Some(reorder) = self.config.reorder.filter(|_| late) {
            arrival += reorder.extra_delay;
            self.ledger.reordered(packet.size);
        } else {
            arrival = self.last_arrival.map_or(arrival, |last| arrival.max(last));
            self.last_arrival = Some(arrival);
        }
        if twice {
            self.ledger.duplicated(now, packet.size);
            self.on_the_way.push(arrival, packet.clone());
        }
        self.on_the_way.push(arrival, packet);
    }
}

/// Takes the next packet to send from the queue.
fn pop<T>(now: Instant, queue: &mut Queue<T>, ledger: &mut Ledger) -> Option<Queued<T>> {
    let codel = |packet| ledger.dropped_from_queue(now, What::DroppedCoDel, &packet);
    let packet = queue.pop(now, codel)?;
    ledger.started(now, &packet);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tandem_units::Rate;

    use super::*;
    use crate::{Path, QueueConfig, QueueLimit, base_instant};

    const MS: Duration = Duration::from_millis(1);

    /// A link of 10 Mbit/s: 1250 bytes take 1 ms.
    fn ten_mbps() -> LinkConfig {
        LinkConfig { capacity: Rate::from_mbps(10).into(), ..LinkConfig::default() }
    }

    fn packet(size: u64) -> Packet<u64> {
        Packet { size: ByteCount::new(size), content: 0 }
    }

    /// Sends packets of one size at these times after the start. It returns their arrivals, also
    /// counted from the start, with their numbers.
    fn run(config: LinkConfig, size: u64, departures: &[Duration]) -> Run {
        let start = base_instant();
        let mut path = Path::new(start, vec![config], Seed(7));
        let mut arrivals = Vec::new();
        let mut departures = departures.iter().zip(0..).peekable();
        loop {
            let departure = departures.peek().map(|(after, _)| start + **after);
            let Some(now) = departure.into_iter().chain(path.next_event()).min() else { break };
            while let Some((at, packet)) = path.pop(now) {
                arrivals.push((at - start, packet.content));
            }
            if let Some((_, number)) = departures.next_if(|_| departure == Some(now)) {
                path.push(now, Packet { size: ByteCount::new(size), content: number });
            }
        }
        Run { arrivals, stats: path.stats()[0] }
    }

    struct Run {
        arrivals: Vec<(Duration, u64)>,
        stats: LinkStats,
    }

    #[test]
    fn a_packet_takes_its_serialisation_time_and_the_delay() {
        let config = LinkConfig { delay: 20 * MS, ..ten_mbps() };
        assert_eq!(run(config, 1250, &[Duration::ZERO]).arrivals, [(21 * MS, 0)]);
    }

    #[test]
    fn packets_queue_behind_each_other_and_an_idle_link_starts_at_once() {
        let arrivals = run(ten_mbps(), 1250, &[Duration::ZERO, MS / 2, 5 * MS]).arrivals;
        assert_eq!(arrivals, [(MS, 0), (2 * MS, 1), (6 * MS, 2)]);
    }

    #[test]
    fn a_busy_link_is_exactly_as_fast_as_its_rate() {
        // 240 Mbit/s: 1 byte in 33.3 ns. 700 Mbit/s: 1 packet in 17 142.857 ns.
        for (mbps, size) in [(240, 1), (240, 1500), (700, 1500), (3, 1499), (999, 40)] {
            let rate = Rate::from_mbps(mbps);
            let queue = QueueConfig::Infinite;
            let config = LinkConfig { capacity: rate.into(), queue, ..LinkConfig::default() };
            let arrivals = run(config, size, &[Duration::ZERO; 1000]).arrivals;
            assert_eq!(arrivals.len(), 1000);
            for ((arrival, _), packets) in arrivals.iter().zip(1..) {
                let expected = rate.time_to_send(ByteCount::new(size * packets));
                assert_eq!(*arrival, expected, "packet {packets} of {size} bytes at {rate}");
            }
        }
    }

    #[test]
    fn packets_shorter_than_a_nanosecond_keep_their_carried_fraction() {
        // 320 bits at 1 Tbit/s take 0.32 ns: the first 3 packets end within 1 ns, the next 3 within
        // 2 ns.
        let rate = Rate::from_mbps(1_000_000);
        let config = LinkConfig { capacity: rate.into(), ..LinkConfig::default() };
        let arrivals = run(config, 40, &[Duration::ZERO; 7]).arrivals;
        let nanos: Vec<_> = arrivals.iter().map(|(at, _)| at.as_nanos()).collect();
        assert_eq!(nanos, [1, 1, 1, 2, 2, 2, 3]);
    }

    #[test]
    fn the_queue_drops_exactly_above_its_limit() {
        let queue = QueueConfig::DropTail(QueueLimit::bytes(ByteCount::new(12_500)));
        let config = LinkConfig { queue, ..ten_mbps() };
        // One packet is in transmission and ten wait in the queue; the other nine find the queue
        // full.
        let Run { arrivals, stats } = run(config, 1250, &[Duration::ZERO; 20]);
        assert_eq!(arrivals.len(), 11);
        assert_eq!(arrivals.last(), Some(&(11 * MS, 10)));
        assert_eq!(stats.dropped_queue, Traffic { packets: 9, bytes: ByteCount::new(11_250) });
        assert_eq!(stats.queued_max, ByteCount::new(12_500));
        assert_eq!(stats.queued, ByteCount::ZERO);
    }

    #[test]
    fn a_packet_that_leaves_the_queue_makes_room_for_one_that_arrives_at_the_same_time() {
        let queue = QueueConfig::DropTail(QueueLimit::bytes(ByteCount::new(1250)));
        let config = LinkConfig { queue, ..ten_mbps() };
        let arrivals = run(config, 1250, &[Duration::ZERO, Duration::ZERO, MS, 2 * MS]).arrivals;
        assert_eq!(arrivals, [(MS, 0), (2 * MS, 1), (3 * MS, 2), (4 * MS, 3)]);
    }

    #[test]
    fn a_link_loses_its_share_of_packets_after_they_used_the_bottleneck() {
        let config = LinkConfig {
            loss: Ratio::of(5, 100).into(),
            queue: QueueConfig::Infinite,
            delay: 20 * MS,
            ..ten_mbps()
        };
        let Run { arrivals, stats } = run(config, 1250, &vec![Duration::ZERO; 10_000]);
        // Mean 500, standard deviation 21.8.
        assert!(stats.dropped_loss.packets.abs_diff(500) <= 87, "{stats:?}");
        assert!(stats.delivered.packets + stats.dropped_loss.packets == 10_000);
        let (arrival, number) = *arrivals.last().unwrap();
        assert_eq!(arrival, MS * u32::try_from(number + 1).unwrap() + 20 * MS);
    }

    #[test]
    fn reordered_packets_are_overtaken_and_none_is_lost() {
        let reorder = Some(Reorder { ratio: Ratio::of(1, 10), extra_delay: 5 * MS });
        let config = LinkConfig { reorder, delay: 20 * MS, ..LinkConfig::default() };
        let departures: Vec<_> = (0..1000).map(|number| MS * number).collect();
        let Run { arrivals, stats } = run(config, 1250, &departures);
        assert_eq!(arrivals.len(), 1000);
        let late = arrivals.iter().filter(|(at, number)| {
            let delay = at.abs_diff(departures[usize::try_from(*number).unwrap()]);
            assert!(delay == 20 * MS || delay == 25 * MS, "packet {number} took {delay:?}");
            delay == 25 * MS
        });
        assert_eq!(late.count() as u64, stats.reordered.packets);
        // Mean 100, standard deviation 9.5.
        assert!(stats.reordered.packets.abs_diff(100) <= 38, "{stats:?}");
        assert!(arrivals.windows(2).all(|pair| pair[0].0 <= pair[1].0), "in order of time");
        assert!(arrivals.windows(2).any(|pair| pair[0].1 > pair[1].1), "no packet was overtaken");
    }

    #[test]
    fn copies_arrive_together_and_are_counted() {
        let config = LinkConfig { duplicate: Ratio::ONE, delay: MS, ..ten_mbps() };
        let Run { arrivals, stats } = run(config, 1250, &[Duration::ZERO; 2]);
        assert_eq!(arrivals, [(2 * MS, 0), (2 * MS, 0), (3 * MS, 1), (3 * MS, 1)]);
        assert_eq!(stats.duplicated, Traffic { packets: 2, bytes: ByteCount::new(2500) });
        assert_eq!(stats.delivered.packets, 4);
    }

    #[test]
    fn a_packet_of_the_mtu_passes_and_a_larger_one_vanishes() {
        let mut path = Path::new(
            base_instant(),
            vec![LinkConfig { mtu: Some(ByteCount::new(1500)), ..LinkConfig::default() }],
            Seed(1),
        );
        let now = base_instant();
        path.push(now, packet(1500));
        path.push(now, packet(1501));
        assert_eq!(path.pop(now), Some((now, packet(1500))));
        assert_eq!(path.pop(now), None);
        assert_eq!(path.stats()[0].dropped_mtu, Traffic { packets: 1, bytes: 1501_u64.into() });
    }

    #[test]
    fn changing_one_impairment_leaves_the_draws_of_the_others_unchanged() {
        let departures: Vec<_> = (0..500).map(|number| MS * number).collect();
        let lossy = LinkConfig { loss: Ratio::of(1, 10).into(), ..LinkConfig::default() };
        let reorder = Some(Reorder { ratio: Ratio::of(1, 10), extra_delay: 5 * MS });
        let more = LinkConfig { reorder, duplicate: Ratio::of(1, 10), ..lossy.clone() };
        let numbers = |config| {
            let mut numbers: Vec<_> =
                run(config, 100, &departures).arrivals.into_iter().map(|(_, n)| n).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        assert_eq!(numbers(lossy), numbers(more));
    }
}

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate, Ratio};

use crate::{
    Packet, QueueLimit, Seed,
    agenda::Agenda,
    loss::{Coin, Purpose},
    queue::DropTail,
};

/// One link: a bottleneck with its queue, then random loss, then a delay.
///
/// The default is a perfect link: infinitely fast, no delay, no loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Rate of the bottleneck, counting IP packets; `None`: infinitely fast, nothing ever queues.
    pub rate: Option<Rate>,
    /// Propagation delay, one way.
    pub delay: Duration,
    /// Share of packets that is lost after the bottleneck, independently of each other.
    pub loss: Ratio,
    /// Limit of the queue in front of the bottleneck.
    pub queue: QueueLimit,
    /// Makes some packets late, so that later ones overtake them.
    pub reorder: Option<Reorder>,
    /// Share of packets that arrives twice, both at the same time.
    pub duplicate: Ratio,
    /// Largest IP packet that the link carries; larger ones vanish without a message, as behind a
    /// firewall that drops ICMP. `None`: no limit.
    pub mtu: Option<ByteCount>,
}

/// Reordering: some packets take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// Share of packets that is late.
    pub ratio: Ratio,
    /// How much later they arrive.
    pub extra_delay: Duration,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets.
    pub packets: u64,
    /// Their bytes, as IP packets.
    pub bytes: ByteCount,
}

impl Traffic {
    fn count(&mut self, size: ByteCount) {
        self.packets += 1;
        self.bytes += size;
    }

    fn uncount(&mut self, size: ByteCount) {
        self.packets -= 1;
        self.bytes -= size;
    }
}

/// What became of the packets of a link.
///
/// At any time `entered + duplicated = delivered + dropped_mtu + dropped_queue + dropped_loss +
/// held`, in packets and in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Came to the link.
    pub entered: Traffic,
    /// Left the link at its far end.
    pub delivered: Traffic,
    /// Were larger than the MTU.
    pub dropped_mtu: Traffic,
    /// Found the queue full.
    pub dropped_queue: Traffic,
    /// Were lost by chance.
    pub dropped_loss: Traffic,
    /// Copies that the link made.
    pub duplicated: Traffic,
    /// Were made late; a copy is as late as its original and not counted.
    pub reordered: Traffic,
    /// Are in the link now: queued, in transmission or on their way.
    pub held: Traffic,
    /// Bytes that wait in the queue now, without the packet in transmission.
    pub queued: ByteCount,
    /// The most that ever waited in the queue.
    pub queued_max: ByteCount,
}

/// A link at work. Time never runs backwards and no event may be skipped: [`Link::step`] at
/// [`Link::next_event`], and [`Link::push`] only when no event is left up to then.
#[derive(Debug)]
pub(crate) struct Link<T> {
    config: LinkConfig,
    loss: Coin,
    reorder: Coin,
    duplicate: Coin,
    queue: DropTail<T>,
    transmitter: Transmitter<T>,
    /// Between the bottleneck and the far end.
    on_the_way: Agenda<Packet<T>>,
    stats: LinkStats,
}

impl<T: Clone> Link<T> {
    pub(crate) fn new(config: LinkConfig, seed: Seed) -> Self {
        let late = config.reorder.map_or(Ratio::ZERO, |reorder| reorder.ratio);
        Self {
            loss: Coin::new(config.loss, seed, Purpose::Loss),
            reorder: Coin::new(late, seed, Purpose::Reorder),
            duplicate: Coin::new(config.duplicate, seed, Purpose::Duplicate),
            queue: DropTail::new(config.queue),
            transmitter: Transmitter { in_transmission: None, advance: 0 },
            on_the_way: Agenda::new(),
            stats: LinkStats::default(),
            config,
        }
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats { queued: self.queue.len(), queued_max: self.queue.len_max(), ..self.stats }
    }

    /// A packet comes to the link.
    pub(crate) fn push(&mut self, now: Instant, packet: Packet<T>) {
        self.stats.entered.count(packet.size);
        if self.config.mtu.is_some_and(|mtu| packet.size > mtu) {
            self.stats.dropped_mtu.count(packet.size);
            return;
        }
        self.stats.held.count(packet.size);
        let Some(rate) = self.config.rate else {
            self.leave_bottleneck(now, packet);
            return;
        };
        if self.transmitter.in_transmission.is_none() {
            self.transmitter.start_idle(now, rate, packet);
        } else if let Err(packet) = self.queue.push(packet) {
            self.stats.held.uncount(packet.size);
            self.stats.dropped_queue.count(packet.size);
        }
    }

    /// When something happens next in the link.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let transmitted = self.transmitter.in_transmission.as_ref().map(|(done, _)| *done);
        transmitted.into_iter().chain(self.on_the_way.next_at()).min()
    }

    /// Lets happen one thing that is due at `now`, the [`Self::next_event`]; a packet comes out if
    /// it was an arrival.
    pub(crate) fn step(&mut self, now: Instant) -> Option<Packet<T>> {
        if let Some((_, packet)) =
            self.transmitter.in_transmission.take_if(|(done, _)| *done <= now)
        {
            if let (Some(next), Some(rate)) = (self.queue.pop(), self.config.rate) {
                self.transmitter.start_back_to_back(now, rate, next);
            }
            self.leave_bottleneck(now, packet);
            return None;
        }
        let (_, packet) = self.on_the_way.pop_due(now)?;
        self.stats.held.uncount(packet.size);
        self.stats.delivered.count(packet.size);
        Some(packet)
    }

    /// Decides the fate of a packet that left the bottleneck.
    fn leave_bottleneck(&mut self, now: Instant, packet: Packet<T>) {
        // Each coin is tossed for each packet, so that the outcome of one does not shift another.
        let (lost, late, twice) = (self.loss.toss(), self.reorder.toss(), self.duplicate.toss());
        if lost {
            self.stats.held.uncount(packet.size);
            self.stats.dropped_loss.count(packet.size);
            return;
        }
        let mut arrival = now + self.config.delay;
        if let Some(reorder) = self.config.reorder.filter(|_| late) {
            arrival += reorder.extra_delay;
            self.stats.reordered.count(packet.size);
        }
        if twice {
            self.stats.duplicated.count(packet.size);
            self.stats.held.count(packet.size);
            self.on_the_way.push(arrival, packet.clone());
        }
        self.on_the_way.push(arrival, packet);
    }
}

/// Sends one packet at a time at the link's rate.
#[derive(Debug)]
struct Transmitter<T> {
    /// A packet, and when its last bit has left, rounded up to a nanosecond.
    in_transmission: Option<(Instant, Packet<T>)>,
    /// By how much that was rounded up, in bits times nanoseconds: the next packet of a busy period
    /// starts so much earlier. With whole nanoseconds per packet a fast link would be slower than
    /// its rate, and with whole nanoseconds per byte faster.
    advance: u128,
}

impl<T> Transmitter<T> {
    fn start_idle(&mut self, now: Instant, rate: Rate, packet: Packet<T>) {
        self.advance = 0;
        self.start_back_to_back(now, rate, packet);
    }

    fn start_back_to_back(&mut self, now: Instant, rate: Rate, packet: Packet<T>) {
        let work = u128::from(packet.size.get()) * 8 * 1_000_000_000;
        let left = work.saturating_sub(self.advance);
        let rate = u128::from(rate.bits_per_second());
        let nanos = left.div_ceil(rate);
        self.advance = self.advance.saturating_sub(work) + (nanos * rate - left);
        let took = Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX));
        self.in_transmission = Some((now + took, packet));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Path, world::base_instant};

    const MS: Duration = Duration::from_millis(1);

    /// A link of 10 Mbit/s: 1250 bytes take 1 ms.
    fn ten_mbps() -> LinkConfig {
        LinkConfig { rate: Some(Rate::from_mbps(10)), ..LinkConfig::default() }
    }

    fn packet(size: u64) -> Packet<u64> {
        Packet { size: ByteCount::new(size), content: 0 }
    }

    /// Sends packets of one size at these times after the start; gives their arrivals, also after
    /// the start, with their numbers.
    fn run(config: LinkConfig, size: u64, departures: &[Duration]) -> Run {
        let start = base_instant();
        let mut path = Path::new(vec![config], Seed(7));
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
            let queue = QueueLimit(ByteCount::MAX);
            let config = LinkConfig { rate: Some(rate), queue, ..LinkConfig::default() };
            let arrivals = run(config, size, &[Duration::ZERO; 1000]).arrivals;
            assert_eq!(arrivals.len(), 1000);
            for ((arrival, _), packets) in arrivals.iter().zip(1..) {
                let expected = rate.time_to_send(ByteCount::new(size * packets));
                assert_eq!(*arrival, expected, "packet {packets} of {size} bytes at {rate}");
            }
        }
    }

    #[test]
    fn a_rate_above_any_packet_keeps_the_carried_fraction() {
        // 320 bits at 1 Tbit/s take 0.32 ns: the first 3 packets end within 1 ns, the next 3 in 2.
        let rate = Rate::from_mbps(1_000_000);
        let config = LinkConfig { rate: Some(rate), ..LinkConfig::default() };
        let arrivals = run(config, 40, &[Duration::ZERO; 7]).arrivals;
        let nanos: Vec<_> = arrivals.iter().map(|(at, _)| at.as_nanos()).collect();
        assert_eq!(nanos, [1, 1, 1, 2, 2, 2, 3]);
    }

    #[test]
    fn the_queue_drops_exactly_above_its_limit() {
        let queue = QueueLimit(ByteCount::new(12_500));
        let config = LinkConfig { queue, ..ten_mbps() };
        // One in transmission and ten in the queue; the other nine find it full.
        let Run { arrivals, stats } = run(config, 1250, &[Duration::ZERO; 20]);
        assert_eq!(arrivals.len(), 11);
        assert_eq!(arrivals.last(), Some(&(11 * MS, 10)));
        assert_eq!(stats.dropped_queue, Traffic { packets: 9, bytes: ByteCount::new(11_250) });
        assert_eq!(stats.queued_max, queue.0);
        assert_eq!(stats.queued, ByteCount::ZERO);
    }

    #[test]
    fn what_leaves_the_queue_makes_room_for_what_comes_at_the_same_time() {
        let queue = QueueLimit(ByteCount::new(1250));
        let config = LinkConfig { queue, ..ten_mbps() };
        let arrivals = run(config, 1250, &[Duration::ZERO, Duration::ZERO, MS, 2 * MS]).arrivals;
        assert_eq!(arrivals, [(MS, 0), (2 * MS, 1), (3 * MS, 2), (4 * MS, 3)]);
    }

    #[test]
    fn a_link_loses_its_share_and_the_lost_used_the_bottleneck() {
        let config = LinkConfig {
            loss: Ratio::of(5, 100),
            queue: QueueLimit(ByteCount::MAX),
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
    fn late_packets_are_overtaken_and_nothing_is_lost() {
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
        assert!(arrivals.windows(2).any(|pair| pair[0].1 > pair[1].1), "nothing was overtaken");
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
    fn changing_one_impairment_leaves_the_others_dice_alone() {
        let departures: Vec<_> = (0..500).map(|number| MS * number).collect();
        let lossy = LinkConfig { loss: Ratio::of(1, 10), ..LinkConfig::default() };
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

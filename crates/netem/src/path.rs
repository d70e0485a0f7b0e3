use std::{collections::VecDeque, time::Instant};

use crate::{DurationHistogram, LinkConfig, LinkStats, Packet, Seed, Violations, link::Link};

/// One direction between two hosts: links in sequence. A path without links delivers at once. It is
/// a pure state machine: packets and time go in; packets and a deadline come out.
///
/// ```
/// use std::time::{Duration, Instant};
/// use tandem_netem::{LinkConfig, Packet, Path, Seed};
/// use tandem_units::Rate;
///
/// let start = Instant::now();
/// let link = LinkConfig {
///     capacity: Rate::from_mbps(10).into(),
///     delay: Duration::from_millis(20),
///     ..LinkConfig::default()
/// };
/// let mut path = Path::new(start, vec![link], Seed(1));
/// path.push(start, Packet::udp(1222, "hello")); // 1250 bytes with headers: 1 ms at 10 Mbit/s
/// while let Some(event) = path.next_event() {
///     if let Some((arrival, packet)) = path.pop(event) {
///         assert_eq!(packet.content, "hello");
///         assert_eq!(arrival, start + Duration::from_millis(21));
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Path<T> {
    links: Vec<Link<T>>,
    delivered: VecDeque<(Instant, Packet<T>)>,
}

impl<T: Clone> Path<T> {
    /// A path through these links, the first one first. Each link has random streams of its own:
    /// what one link does has no influence on the random draws of another. The times of traces and
    /// outages count from `start`, and nothing happens before it.
    pub fn new(start: Instant, links: Vec<LinkConfig>, seed: Seed) -> Self {
        let links = links.into_iter().zip(0..);
        let links = links.map(|(config, number)| Link::new(start, config, seed.derive(number)));
        Self { links: links.collect(), delivered: VecDeque::new() }
    }

    /// A packet enters the path. Time never runs backwards, neither here nor in [`Self::pop`].
    pub fn push(&mut self, now: Instant, packet: Packet<T>) {
        self.advance(now); // packets that leave at this instant make room first
        match self.links.first_mut() {
            Some(link) => link.push(now, packet),
            None => self.delivered.push_back((now, packet)),
        }
    }

    /// The time at which to call [`Self::pop`] next; `None` if the path is empty. Not every event
    /// is a delivery.
    pub fn next_event(&self) -> Option<Instant> {
        let delivered = self.delivered.front().map(|(arrival, _)| *arrival);
        delivered.or_else(|| self.links.iter().filter_map(Link::next_event).min())
    }

    /// Returns the next packet that has arrived by `now`, with its arrival time. Packets come out
    /// in order of arrival. Callers repeat the call until it returns `None`.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, Packet<T>)> {
        self.advance(now);
        self.delivered.pop_front()
    }

    /// The counters of each link, in order.
    pub fn stats(&self) -> Vec<LinkStats> {
        self.links.iter().map(Link::stats).collect()
    }

    /// The times of packets in the queue and in transmission of the link with this number, which
    /// counts from 0. The result is `None` until the first packet has left the bottleneck, and if
    /// the link or its bottleneck does not exist.
    pub fn sojourns(&self, link: usize) -> Option<&DurationHistogram> {
        self.links.get(link)?.sojourns()
    }

    /// Lets verifiers check all events in the links against the links' configuration.
    ///
    /// # Panics
    /// It panics if a packet has already entered.
    pub fn verify(&mut self) {
        for (number, link) in self.links.iter_mut().enumerate() {
            assert_eq!(
                link.stats().entered.packets,
                0,
                "verification starts with the first packet"
            );
            link.verify(number);
        }
    }

    /// The violations so far. There are none unless [`Self::verify`] was called.
    pub fn violations(&self) -> Violations {
        self.links.iter().map(Link::violations).collect()
    }

    /// Whether no packet is queued or in transmission at any bottleneck.
    pub fn is_idle(&self) -> bool {
        self.links.iter().all(Link::is_idle)
    }

    /// Processes all events that are due by `now`, in order of time. Among events at the same time,
    /// those nearer to the end of the path come first, so that packets that leave a queue make room
    /// for packets that arrive.
    fn advance(&mut self, now: Instant) {
        while let Some((at, number)) = self.due(now) {
            let packet = self.links.get_mut(number).and_then(|link| link.step(at));
            let Some(packet) = packet else { continue };
            match self.links.get_mut(number + 1) {
                Some(next) => next.push(at, packet),
                None => self.delivered.push_back((at, packet)),
            }
        }
    }

    /// The earliest event that is due, and the number of its link.
    fn due(&self, now: Instant) -> Option<(Instant, usize)> {
        let events = self.links.iter().enumerate().rev();
        let events = events.filter_map(|(number, link)| Some((link.next_event()?, number)));
        // Of equal elements `min_by_key` returns the first.
        events.min_by_key(|(at, _)| *at).filter(|(at, _)| *at <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use proptest::prelude::*;
    use tandem_units::{ByteCount, Rate, Ratio};

    use super::*;
    use crate::{
        Capacity, LossAt, LossModel, Outages, QueueConfig, QueueLimit, RateTrace, Reorder, Traffic,
        base_instant,
    };

    const MS: Duration = Duration::from_millis(1);

    fn packet(size: u64, content: u64) -> Packet<u64> {
        Packet { size: ByteCount::new(size), content }
    }

    fn link(mbps: u64, delay: Duration) -> LinkConfig {
        LinkConfig { capacity: Rate::from_mbps(mbps).into(), delay, ..LinkConfig::default() }
    }

    fn drain(path: &mut Path<u64>) -> Vec<(Instant, u64)> {
        let mut arrivals = Vec::new();
        while let Some(event) = path.next_event() {
            arrivals.extend(path.pop(event).map(|(at, packet)| (at, packet.content)));
        }
        arrivals
    }

    #[test]
    fn an_empty_path_delivers_at_once() {
        let mut path = Path::new(base_instant(), Vec::new(), Seed(1));
        let now = base_instant();
        path.push(now, packet(1, 5));
        assert_eq!(path.next_event(), Some(now));
        assert_eq!(path.pop(now), Some((now, packet(1, 5))));
        assert_eq!((path.next_event(), path.pop(now)), (None, None));
    }

    #[test]
    fn delays_add_up_and_the_slowest_link_spaces_the_packets() {
        // 1250 bytes: 1 ms at 10 Mbit/s, 2 ms at 5, 0.5 ms at 20.
        let links = vec![link(10, 3 * MS), link(5, 4 * MS), link(20, 5 * MS)];
        let mut path = Path::new(base_instant(), links, Seed(1));
        let start = base_instant();
        for number in 0..3 {
            path.push(start, packet(1250, number));
        }
        let first = start + MS + 3 * MS + 2 * MS + 4 * MS + MS / 2 + 5 * MS;
        let expected = [(first, 0), (first + 2 * MS, 1), (first + 4 * MS, 2)];
        assert_eq!(drain(&mut path), expected);
    }

    #[test]
    fn a_late_caller_gets_the_exact_times() {
        let start = base_instant();
        let run = |pop_at: &[Duration]| {
            let mut path = Path::new(start, vec![link(10, 3 * MS), link(5, 4 * MS)], Seed(1));
            for number in 0..10 {
                path.push(start, packet(1250, number));
            }
            let mut arrivals = Vec::new();
            for after in pop_at {
                while let Some((at, packet)) = path.pop(start + *after) {
                    arrivals.push((at, packet.content));
                }
            }
            arrivals
        };
        let exact: Vec<_> = (0..60_u32).map(|half_ms| MS / 2 * half_ms).collect();
        assert_eq!(run(&[100 * MS]), run(&exact));
        assert_eq!(run(&exact).len(), 10);
    }

    #[test]
    fn links_do_not_share_random_streams() {
        let lossy = LinkConfig { loss: Ratio::of(1, 2).into(), ..LinkConfig::default() };
        let mut path = Path::new(base_instant(), vec![lossy.clone(), lossy], Seed(1));
        let now = base_instant();
        for number in 0..1000 {
            path.push(now, packet(100, number));
        }
        // With the same draws the second link would lose all or none of the packets that passed the
        // first.
        let arrived = drain(&mut path).len();
        assert!((200..300).contains(&arrived), "{arrived} of 1000 passed");
    }

    #[test]
    fn the_same_seed_gives_the_same_losses_and_another_seed_gives_others() {
        let now = base_instant();
        let run = |seed| {
            let lossy = LinkConfig { loss: Ratio::of(1, 10).into(), ..LinkConfig::default() };
            let mut path = Path::new(base_instant(), vec![lossy], Seed(seed));
            for number in 0..200 {
                path.push(now, packet(100, number));
            }
            drain(&mut path)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    fn any_ratio() -> impl Strategy<Value = Ratio> {
        (0..=30_u64).prop_map(|percent| Ratio::of(percent, 100))
    }

    fn any_capacity() -> impl Strategy<Value = Capacity> {
        let trace = (proptest::collection::vec(0..20_u32, 1..30), 0..100_u32).prop_map(
            |(gaps_ms, offset_ms)| {
                let times = gaps_ms.into_iter().chain([1]).scan(0, |at, gap| {
                    *at += gap;
                    Some(*at)
                });
                let trace = RateTrace::from_millis(times.collect()).unwrap();
                Capacity::Trace { trace: Arc::new(trace), offset: MS * offset_ms }
            },
        );
        prop_oneof![
            Just(Capacity::Unlimited),
            (1..2000_u64).prop_map(|mbps| Rate::from_mbps(mbps).into()),
            trace,
        ]
    }

    fn any_loss() -> impl Strategy<Value = LossModel> {
        let gilbert = proptest::array::uniform4(any_ratio());
        prop_oneof![
            any_ratio().prop_map(LossModel::Bernoulli),
            gilbert.prop_map(|[to_bad, to_good, loss_in_good, loss_in_bad]| {
                LossModel::GilbertElliott { to_bad, to_good, loss_in_good, loss_in_bad }
            }),
        ]
    }

    fn any_queue() -> impl Strategy<Value = QueueConfig> {
        let bytes = proptest::option::of((0..20_000_u64).prop_map(ByteCount::new));
        let limit = (bytes, proptest::option::of(0..20_u64))
            .prop_map(|(bytes, packets)| QueueLimit { bytes, packets });
        (limit, 0..4_u8).prop_map(|(limit, kind)| match kind {
            0 => QueueConfig::DropTail(limit),
            1 => QueueConfig::DropHead(limit),
            2 => QueueConfig::CoDel { limit, target: MS, interval: 10 * MS },
            _ => QueueConfig::Infinite,
        })
    }

    fn any_link() -> impl Strategy<Value = LinkConfig> {
        let reorder = (any_ratio(), 0..20_u32)
            .prop_map(|(ratio, millis)| Reorder { ratio, extra_delay: MS * millis });
        let outages = (0..200_u32, 0..50_u32, proptest::option::of(0..100_u32)).prop_map(
            |(first, length, period)| Outages {
                first: MS * first,
                length: MS * length,
                period: period.map(|period| MS * period),
            },
        );
        let bottleneck = (any_capacity(), any_queue());
        let loss = (any_loss(), prop_oneof![Just(LossAt::Before), Just(LossAt::After)]);
        let times = (0..50_u32, 0..10_u32);
        let mtu = proptest::option::of((500..1500_u64).prop_map(ByteCount::new));
        let (reorder, outages) = (proptest::option::of(reorder), proptest::option::of(outages));
        (bottleneck, loss, times, reorder, any_ratio(), outages, mtu).prop_map(
            |(
                (capacity, queue),
                (loss, loss_at),
                (delay, jitter),
                reorder,
                duplicate,
                outages,
                mtu,
            )| {
                LinkConfig {
                    capacity,
                    delay: MS * delay,
                    jitter: MS * jitter,
                    loss,
                    loss_at,
                    queue,
                    reorder,
                    duplicate,
                    outages,
                    mtu,
                }
            },
        )
    }

    fn assert_conserved(path: &Path<u64>) {
        let mut entered = None;
        for (number, link) in path.stats().into_iter().enumerate() {
            assert!(link.queued <= link.queued_max);
            let into = [link.entered, link.duplicated];
            let out = [
                link.delivered,
                link.dropped_outage,
                link.dropped_mtu,
                link.dropped_queue,
                link.dropped_codel,
                link.dropped_loss,
                link.held,
            ];
            let packets = |traffic: &[Traffic]| traffic.iter().map(|t| t.packets).sum::<u64>();
            let bytes = |traffic: &[Traffic]| traffic.iter().map(|t| t.bytes).sum::<ByteCount>();
            assert_eq!(packets(&into), packets(&out), "packets of link {number}: {link:?}");
            assert_eq!(bytes(&into), bytes(&out), "bytes of link {number}: {link:?}");
            assert_eq!(*entered.get_or_insert(link.entered), link.entered, "link {number}");
            entered = Some(link.delivered);
        }
    }

    proptest! {
        #[test]
        fn every_packet_is_counted_from_entry_to_exit(
            links in proptest::collection::vec(any_link(), 0..4),
            packets in proptest::collection::vec((0..3_000_u32, 1..1600_u64), 1..200),
            seed: u64,
        ) {
            let limits: Vec<_> = links.iter().map(|link| link.queue.limit()).collect();
            let mut now = base_instant();
            let mut path = Path::new(now, links, Seed(seed));
            path.verify();
            let mut last_arrival = now;
            let mut arrivals = 0;
            for (number, (gap_micros, size)) in packets.into_iter().enumerate() {
                now += Duration::from_micros(gap_micros.into());
                path.push(now, packet(size, number as u64));
                while let Some((at, _)) = path.pop(now) {
                    prop_assert!(last_arrival <= at && at <= now);
                    last_arrival = at;
                    arrivals += 1;
                }
                assert_conserved(&path);
            }
            arrivals += drain(&mut path).len() as u64;
            assert_conserved(&path);
            for (link, limit) in path.stats().into_iter().zip(limits) {
                prop_assert_eq!(link.held, Traffic::default());
                let limit = limit.and_then(|limit| limit.bytes);
                prop_assert!(limit.is_none_or(|limit| link.queued_max <= limit));
            }
            prop_assert_eq!(path.violations(), Violations::default());
            if let Some(last) = path.stats().last() {
                prop_assert_eq!(last.delivered.packets, arrivals);
            }
        }
    }
}

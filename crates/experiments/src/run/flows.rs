//! The flows of a run: their start times and their results.

use std::{collections::VecDeque, time::Duration};

use rand_pcg::{Pcg64, rand_core::Rng};
use tandem_lab::{
    Handle, World,
    endpoints::{Pace, TcpProgram},
};
use tandem_netem::{Seed, UDP_IP_OVERHEAD};
use tandem_node::{Client, Event, Origin, node::FetchReport};
use tandem_units::{ByteCount, Rate};

use super::{
    Parameters, Workload,
    reports::ReportRelay,
    topology::{Datagrams, SeededPart, Topology},
};

/// The length of a download that must not end: 100 GB, which takes hours at 100 Mbit/s.
const ENDLESS: ByteCount = ByteCount::new(100_000_000_000);

/// Bytes of a UDP payload of [`Workload::Datagrams`].
const DATAGRAM: usize = 1000;

/// The flows of a run.
pub(super) struct RunFlows {
    /// Flows that have not begun, with their start times after `ready`, in order of time.
    waiting: VecDeque<(Duration, ByteCount)>,
    begun: Vec<RunFlow>,
    /// The client that carries the packets of local programs. Its tunnel must be up before they
    /// begin.
    forwarder: Option<Handle<Client>>,
    /// The time at which the first flow could begin.
    ready: Option<Duration>,
    is_local: bool,
    /// The time at which endless flows end.
    lasts: Option<Duration>,
    datagrams: Option<Datagrams>,
    /// Whether a program receives bytes over a TCP connection.
    has_tcp: bool,
    /// That program and the time at which it connected.
    tcp: Option<(Handle<TcpProgram>, Duration)>,
    /// The receiver of the body, if it is an origin.
    uploads_to: Option<Handle<Origin>>,
    others: Vec<Handle<Client>>,
    reports: ReportRelay,
    /// The time from the start of the first flow to the start of the measurement.
    settle: Duration,
    before: Option<Before>,
}

/// The bytes that had arrived when the measurement began.
struct Before {
    at: Duration,
    /// The bytes of each flow that had begun.
    flows: Vec<u64>,
    others: u64,
}

/// One flow that has begun.
pub(super) struct RunFlow {
    pub(super) client: Handle<Client>,
    pub(super) start: Duration,
    pub(super) size: ByteCount,
}

/// The end of a flow.
pub(super) enum Ended<'a> {
    Fetched(&'a FetchReport),
    Failed,
}

impl RunFlows {
    pub(super) fn new(run: &Parameters, topology: &mut Topology<'_>) -> Self {
        let is_datagrams = matches!(run.workload, Workload::Datagrams { .. });
        let is_one_tunnel =
            matches!(run.workload, Workload::Requests { .. } | Workload::Parallel(_));
        let has_tcp = matches!(run.workload, Workload::Tcp(_));
        let is_local = run.local_program || is_datagrams || is_one_tunnel || has_tcp;
        if let Some(rate) = run.cross_traffic {
            topology.add_cross_traffic(rate, run.time_limit.0);
        }
        let others = run.others.map(|controller| topology.add_others(controller, ENDLESS));
        let forwarder = is_local.then(|| topology.add_forwarder()).flatten();
        let datagrams = match run.workload {
            Workload::Datagrams { rate, duration } => {
                Some(topology.add_datagrams(forwarder, pace(rate, duration.0)))
            }
            _ => None,
        };
        Self {
            waiting: schedule(run, Seed(topology.seed(SeededPart::Requests, 0))).into(),
            begun: Vec::new(),
            forwarder,
            ready: forwarder.is_none().then_some(Duration::ZERO),
            is_local,
            lasts: match run.workload {
                Workload::Long(duration) | Workload::Tcp(duration) => Some(duration.0),
                Workload::Datagrams { duration, .. } => Some(duration.0 + DATAGRAMS_GRACE),
                Workload::Sharing { settle, duration, .. } => Some(settle.0 + duration.0),
                _ => None,
            },
            datagrams,
            has_tcp,
            tcp: None,
            uploads_to: topology.watched.is_upload.then_some(topology.watched.origin),
            others: others.unwrap_or_default(),
            reports: ReportRelay::of(forwarder.filter(|_| run.mode.has_feedback())),
            settle: match run.workload {
                Workload::Sharing { settle, .. } => settle.0,
                _ => Duration::ZERO,
            },
            before: None,
        }
    }

    /// Starts the flows that are due.
    pub(super) fn start_due(&mut self, topology: &mut Topology<'_>) {
        let now = topology.world.elapsed();
        if self.ready.is_none() && self.forwarder.is_some_and(|it| topology.is_up(it)) {
            self.ready = Some(now);
        }
        let Some(ready) = self.ready else { return };
        if self.has_tcp && self.tcp.is_none() {
            self.tcp = Some((topology.add_tcp(ENDLESS), now));
        }
        while let Some((after, size)) = self.waiting.front().copied() {
            if ready + after > now {
                return;
            }
            self.waiting.pop_front();
            let client = if self.is_local {
                topology.add_program(self.forwarder, size)
            } else {
                topology.add_download(size)
            };
            self.begun.push(RunFlow { client, start: now, size });
        }
    }

    /// Whether the tunnel has reports that local programs have not received yet.
    pub(super) fn have_news(&self, world: &World) -> bool {
        self.reports.have_news(world)
    }

    /// Passes the tunnel's reports to local programs.
    pub(super) fn pass_reports(&mut self, topology: &mut Topology<'_>) {
        self.reports.pass(topology);
    }

    /// Begins the measurement, if it is due.
    pub(super) fn count_if_due(&mut self, world: &World) {
        let at = world.elapsed();
        if self.before.is_none() && self.start().is_some_and(|start| start + self.settle <= at) {
            let flows = self.begun.iter().map(|flow| world.body(flow.client).bytes()).collect();
            self.before = Some(Before { at, flows, others: self.others_bytes(world) });
        }
    }

    /// The time at which the next flow or the measurement begins, if it is known.
    pub(super) fn next_event(&self) -> Option<Duration> {
        let flow = || Some(self.ready? + self.waiting.front()?.0);
        let counting = self.start().filter(|_| self.before.is_none());
        flow().into_iter().chain(counting.map(|start| start + self.settle)).min()
    }

    /// The time at which the first flow began.
    fn start(&self) -> Option<Duration> {
        let start = self.begun.first().map(|flow| flow.start);
        let start = start.or(self.tcp_start());
        start.or_else(|| self.datagrams.as_ref().map(|_| Duration::ZERO))
    }

    /// The time at which a program opened its TCP connection.
    pub(super) fn tcp_start(&self) -> Option<Duration> {
        self.tcp.map(|(_, start)| start)
    }

    /// The time at which a run of endless flows ends.
    pub(super) fn end(&self) -> Option<Duration> {
        Some(self.start()? + self.lasts?)
    }

    /// Whether all flows have ended.
    pub(super) fn have_ended(&self, world: &World) -> bool {
        if self.end().is_some_and(|end| end <= world.elapsed()) {
            return true;
        }
        self.waiting.is_empty()
            && !self.begun.is_empty()
            && self.begun.iter().all(|flow| flow.ended(world).is_some())
    }

    /// Bytes of body of all flows that have arrived.
    pub(super) fn body_bytes(&self, world: &World) -> u64 {
        let datagrams = self.datagrams.as_ref();
        let datagrams = datagrams.map_or(0, |it| world.node(it.receiver).bytes());
        let tcp = self.tcp.map(|(program, _)| world.node(program).reports());
        let tcp: u64 = tcp.into_iter().flatten().map(|report| report.received).sum();
        tcp + datagrams + self.body_bytes_of_each(world).iter().sum::<u64>()
    }

    /// Bytes of body that have arrived, for each flow that has begun, in order.
    pub(super) fn body_bytes_of_each(&self, world: &World) -> Vec<u64> {
        if let Some(origin) = self.uploads_to {
            return vec![world.node(origin).uploaded().get()];
        }
        self.begun.iter().map(|flow| world.body(flow.client).bytes()).collect()
    }

    /// Bytes that each flow has received since the measurement began, in order.
    pub(super) fn counted(&self, world: &World) -> impl Iterator<Item = u64> {
        let before = self.before.iter().flat_map(|before| before.flows.iter().copied());
        let before = before.chain(std::iter::repeat(0));
        let each = self.begun.iter().zip(before);
        each.map(|(flow, before)| world.body(flow.client).bytes().saturating_sub(before))
    }

    /// The length of the measurement so far.
    pub(super) fn counted_time(&self, world: &World) -> Duration {
        let before = self.before.as_ref().map_or(Duration::ZERO, |before| before.at);
        world.elapsed().saturating_sub(before)
    }

    /// Bytes that other downloads have received since the measurement began; `None` if there are no
    /// such downloads.
    pub(super) fn counted_of_others(&self, world: &World) -> Option<u64> {
        let before = self.before.as_ref().map_or(0, |before| before.others);
        (!self.others.is_empty()).then(|| self.others_bytes(world).saturating_sub(before))
    }

    fn others_bytes(&self, world: &World) -> u64 {
        self.others.iter().map(|client| world.body(*client).bytes()).sum()
    }

    /// The flows that have begun, in order.
    pub(super) fn begun(&self) -> &[RunFlow] {
        &self.begun
    }

    /// The flows that have not begun, in order: the time at which each was to begin, and its size.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (Duration, ByteCount)> {
        let ready = self.ready.unwrap_or_default();
        self.waiting.iter().map(move |(after, size)| (ready + *after, *size))
    }
}

impl RunFlow {
    /// The end of the flow, if it has ended.
    pub(super) fn ended<'w>(&self, world: &'w World) -> Option<Ended<'w>> {
        world.events(self.client).iter().find_map(|(_, event)| match event {
            Event::Fetched(report) => Some(Ended::Fetched(report)),
            Event::Closed(_) => Some(Ended::Failed),
            _ => None,
        })
    }

    /// The report of the flow, if it is complete.
    pub(super) fn report<'w>(&self, world: &'w World) -> Option<&'w FetchReport> {
        match self.ended(world)? {
            Ended::Fetched(report) => Some(report),
            Ended::Failed => None,
        }
    }
}

/// The time after the last datagram was sent during which datagrams still count.
const DATAGRAMS_GRACE: Duration = Duration::from_secs(5);

/// The start time and the size of each flow, in order of time. Times count from the time at which
/// the first flow can begin.
fn schedule(run: &Parameters, seed: Seed) -> Vec<(Duration, ByteCount)> {
    match run.workload {
        Workload::Download | Workload::Upload => vec![(Duration::ZERO, run.size)],
        Workload::Long(_) => vec![(Duration::ZERO, ENDLESS)],
        Workload::Flows { count, interval } => {
            let numbers = 0..u32::try_from(count).unwrap_or(u32::MAX);
            numbers.map(|number| (interval.0 * number, run.size)).collect()
        }
        Workload::Parallel(count) => (0..count).map(|_| (Duration::ZERO, run.size)).collect(),
        Workload::Sharing { count, .. } => (0..count).map(|_| (Duration::ZERO, ENDLESS)).collect(),
        Workload::Requests { count, interval } => {
            let mut dice = seed.generator(0);
            let mut at_ms = 0;
            let mean_ms = u64::try_from(interval.0.as_millis()).unwrap_or(u64::MAX);
            (0..count)
                .map(|_| {
                    at_ms += gap_ms(&mut dice, mean_ms);
                    (Duration::from_millis(at_ms), heavy_tailed(&mut dice, run.size))
                })
                .collect()
        }
        Workload::Datagrams { .. } | Workload::Tcp(_) => Vec::new(),
    }
}

/// Milliseconds until the next event, if an event happens in each millisecond with the same
/// probability. The result is at least one and at most 100 times the mean.
fn gap_ms(dice: &mut Pcg64, mean_ms: u64) -> u64 {
    let most = mean_ms.saturating_mul(100);
    (1..most).find(|_| below(dice, mean_ms) == 0).unwrap_or(most)
}

/// A length from a Pareto distribution of shape 1 between L and 1000 L, where L is the mean divided
/// by 1000 / 999 * ln 1000 = 6.91467. The result is at least one byte.
fn heavy_tailed(dice: &mut Pcg64, mean: ByteCount) -> ByteCount {
    const PARTS: u64 = 1_000_000;
    let least = mean.mul_div_floor(ByteCount::new(100_000), ByteCount::new(691_467));
    // The inverse of the distribution function: L / (1 - u * 999 / 1000).
    let u = below(dice, PARTS);
    let denominator = PARTS * 1000 - u * 999;
    let size = least.mul_div_floor(ByteCount::new(PARTS * 1000), ByteCount::new(denominator));
    size.max(ByteCount::new(1))
}

/// A uniformly distributed integer below `limit`, to within 2^-32 or better.
fn below(dice: &mut Pcg64, limit: u64) -> u64 {
    let wide = u128::from(dice.next_u64()) * u128::from(limit.max(1));
    u64::try_from(wide >> 64).unwrap_or_default()
}

fn pace(rate: Rate, duration: Duration) -> Pace {
    let size = ByteCount::from(DATAGRAM) + UDP_IP_OVERHEAD;
    Pace { interval: rate.time_to_send(size), duration, payload_len: DATAGRAM }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_documented_mean_and_tail() {
        let mut dice = Seed(1).generator(0);
        let mean = ByteCount::new(100_000);
        let sizes: Vec<_> = (0..100_000).map(|_| heavy_tailed(&mut dice, mean).get()).collect();
        let average = sizes.iter().sum::<u64>() / 100_000;
        // The standard deviation of one is about 4.5 times the mean.
        assert!((94_000..106_000).contains(&average), "{average}");
        let least = 100_000 * 100_000 / 691_467;
        assert!(sizes.iter().all(|size| (least..=least * 1000 + 1000).contains(size)));
        // P(size > 10 L) = (1/10 - 1/1000) / (1 - 1/1000) = 9.91 %.
        let large = sizes.iter().filter(|size| **size > least * 10).count();
        assert!((9_500..10_300).contains(&large), "{large}");
    }

    #[test]
    fn gaps_have_their_mean() {
        let mut dice = Seed(1).generator(0);
        let sum: u64 = (0..10_000).map(|_| gap_ms(&mut dice, 50)).sum();
        assert!((480_000..520_000).contains(&sum), "{sum}");
    }
}

//! Divides a proxy's reports on the tunnel of an outer hop among the flows of local programs inside it.
//!
//! The proxy sees one flow, the connection to the next hop. Only the client sees what is inside, so that it has to
//! say which part of the tunnel's rate and queue each of its programs has. The rules are those of a proxy that
//! reports on each flow itself.

use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate};
use tandem_wire::{TunnelInfo, Urgency};

use super::Source;
use crate::client::{
    FlowConfig,
    chain::{Carries, Flow},
};
use crate::tunnel::share::{Claim, IDLE_INTERVALS, START_INTERVALS, share};

/// The most flows that get one report. With more, flows take turns: those that were told longest ago come
/// first.
const TOLD_MAX: usize = 64;

/// Divides reports among flows. It has at most one entry for each flow of the last hop. Where a proxy counts
/// intervals, this counts reports.
#[derive(Debug, Default)]
pub(in crate::client) struct Division {
    parts: BTreeMap<Source, DividedFlow>,
    /// The time of the last report.
    last: Option<Instant>,
    /// The number of reports so far.
    reports: u64,
}

/// One flow inside the tunnel.
#[derive(Debug, Default)]
struct DividedFlow {
    /// The bytes of payloads that came before the last report.
    arrived: u64,
    /// The rate of its payloads before the last report, in bits per second.
    rate: u64,
    urgency: Urgency,
    /// 1 to 255.
    weight: u8,
    /// Whether it used most of its share before the last report.
    is_greedy: bool,
    /// Reports in a row before which nothing came.
    idle: u32,
    /// Reports since the flow began or was idle.
    age: u32,
    /// The number of the last report of which the flow was told a share; 0: none.
    told: u64,
}

impl DividedFlow {
    const fn is_active(&self) -> bool {
        self.idle < IDLE_INTERVALS
    }

    const fn is_young(&self) -> bool {
        self.age < START_INTERVALS
    }

    /// Measures the flow over the time since the last report, in which this many bytes have arrived.
    fn measure(&mut self, arrived: u64, config: &FlowConfig, elapsed: Duration) {
        self.arrived = arrived;
        self.idle = if self.arrived == 0 { self.idle.saturating_add(1) } else { 0 };
        self.age = if self.is_active() { self.age.saturating_add(1) } else { 0 };
        let rate = Rate::average(ByteCount::new(self.arrived), elapsed);
        self.rate = rate.map_or(0, Rate::bits_per_second);
        self.weight = config.weight.max(1);
        self.urgency = config.urgency;
    }

    /// What the flow asks of the rate, beside another one. Flows that begin at the same time leave each other
    /// their shares.
    const fn beside(&self, other: &Self) -> Claim {
        let is_greedy = self.is_greedy || (self.is_young() && other.is_young());
        let weight = if self.is_active() { self.weight } else { 0 };
        Claim { urgency: self.urgency, weight, arrives: self.rate, is_greedy }
    }
}

impl Division {
    /// The shares of a report for the flows that are active: of the rates what a proxy would tell each of them,
    /// and of the queue as much as they have of the arrivals. `flows` are all flows of the last hop.
    pub(super) fn divide<'a>(
        &mut self,
        now: Instant,
        info: &TunnelInfo,
        flows: impl Iterator<Item = &'a mut Flow>,
    ) -> Vec<(Source, TunnelInfo)> {
        // Several request streams may be of one flow.
        let mut arrivals = BTreeMap::new();
        for flow in flows {
            let Carries::Program(source) = flow.carries else { continue }; // it is of no program
            if matches!(source, Source::Ahead(_)) {
                continue; // nobody uses it yet
            }
            let (arrived, _) = arrivals.entry(source).or_insert((0, &flow.request.config));
            *arrived += mem::take(&mut flow.arrived);
        }
        self.parts.retain(|source, _| arrivals.contains_key(source));
        let elapsed = self.last.replace(now).map(|last| now.saturating_duration_since(last));
        for (source, (arrived, config)) in arrivals {
            let part = self.parts.entry(source).or_default();
            part.measure(arrived, config, elapsed.unwrap_or_default());
        }
        self.find_greedy(info.sending_rate);
        let arrived = self.parts.values().map(|part| part.arrived).sum();
        let mut turns: Vec<_> = self.parts.iter().filter(|(_, part)| part.is_active()).collect();
        let active = turns.len() as u64;
        turns.sort_by_key(|(_, part)| part.told);
        turns.truncate(TOLD_MAX);
        let of = |(&source, part): (&Source, &DividedFlow)| {
            let part_of = |all: u64| match arrived {
                0 => all / active,
                _ => all.saturating_mul(part.arrived) / arrived,
            };
            (source, self.share_of(info, source, part, &part_of))
        };
        let shares: Vec<_> = turns.into_iter().map(of).collect();
        self.reports += 1;
        for (source, _) in &shares {
            if let Some(part) = self.parts.get_mut(source) {
                part.told = self.reports;
            }
        }
        shares
    }

    /// Finds the flows that use most of their shares. The proxy's queue does not tell whose payloads wait in it,
    /// but a flow that has three quarters of its share is probably held back by it.
    fn find_greedy(&mut self, rate: Rate) {
        let active = || self.parts.values().filter(|part| part.is_active());
        let weights = active().map(|part| u64::from(part.weight)).sum::<u64>().max(1);
        for part in self.parts.values_mut() {
            let fair = rate.bits_per_second() / weights * u64::from(part.weight);
            part.is_greedy = part.rate >= fair - fair / 4;
        }
    }

    /// One flow's share of a report. `part_of`: its part of what is in proportion to arrivals.
    fn share_of(
        &self,
        info: &TunnelInfo,
        source: Source,
        part: &DividedFlow,
        part_of: &dyn Fn(u64) -> u64,
    ) -> TunnelInfo {
        let own = Claim { weight: part.weight, ..part.beside(part) };
        let others = self.parts.iter().filter(|(other, _)| **other != source);
        let others = others.map(|(_, other)| other.beside(part));
        let share = |rate| share(rate, &own, others.clone());
        let arrives = info.arrival_rate.map(|rate| part_of(rate.bits_per_second()));
        TunnelInfo {
            sending_rate: share(info.sending_rate),
            bandwidth: info.bandwidth.map(share),
            queue: ByteCount::new(part_of(info.queue.get())),
            arrival_rate: arrives.and_then(Rate::from_bps),
            ..*info
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_units::Ratio;
    use tandem_wire::VarInt;

    use super::*;
    use crate::{
        client::{chain::Request, programs::FlowId},
        service::Service,
        test_start,
    };

    /// The time between two reports.
    const STEP: Duration = Duration::from_millis(40);

    fn report() -> TunnelInfo {
        TunnelInfo {
            sequence: VarInt::from_u32(0),
            sending_rate: Rate::from_mbps(12),
            bandwidth: None,
            queue: ByteCount::new(60_000),
            retransmit_ratio: Ratio::of(0, 1),
            min_rtt: STEP,
            smoothed_rtt: STEP,
            arrival_rate: Some(Rate::from_mbps(10)),
        }
    }

    fn flow(id: u64, weight: u8) -> Flow {
        let config = FlowConfig { weight, ..FlowConfig::new("a", 1) };
        let request = Request::new(Service::Udp, config);
        Flow::new(Carries::Program(Source::Own(FlowId(id))), request)
    }

    /// Gives each flow its weight and the bytes that come for it before each report. Returns the shares of the last
    /// report.
    fn shares(flows: &[(u8, usize)], reports: u32) -> Vec<TunnelInfo> {
        let (mut division, begin) = (Division::default(), test_start());
        let of = |(id, &(weight, _)): (usize, &(u8, usize))| flow(id as u64, weight);
        let mut all: Vec<_> = flows.iter().enumerate().map(of).collect();
        let mut shares = Vec::new();
        for number in 0..reports {
            for (flow, (_, bytes)) in all.iter_mut().zip(flows) {
                flow.arrived += *bytes as u64;
            }
            shares = division.divide(begin + STEP * number, &report(), all.iter_mut());
        }
        shares.into_iter().map(|(_, info)| info).collect()
    }

    #[test]
    fn flows_share_the_rate_by_weight_and_what_modest_ones_leave() {
        // 5000 bytes in 40 ms are 1 Mbit/s.
        for (flows, mbps) in [
            (vec![(1, 50_000)], vec![12]),
            (vec![(1, 25_000), (1, 25_000)], vec![6, 6]),
            (vec![(3, 40_000), (1, 12_500)], vec![9, 3]),
            (vec![(1, 40_000), (1, 10_000)], vec![10, 6]),
            (vec![(1, 50_000), (1, 0)], vec![12]), // the second one is idle
        ] {
            let rates: Vec<_> = shares(&flows, 20).iter().map(|info| info.sending_rate).collect();
            let expected: Vec<_> = mbps.into_iter().map(Rate::from_mbps).collect();
            assert_eq!(rates, expected, "{flows:?}");
        }
    }

    #[test]
    fn the_queue_and_the_arrivals_are_divided_as_the_payloads() {
        let shares = shares(&[(1, 40_000), (1, 10_000)], 20);
        let of =
            |info: &TunnelInfo| (info.queue.get(), info.arrival_rate.map(Rate::bits_per_second));
        let parts: Vec<_> = shares.iter().map(of).collect();
        assert_eq!(parts, [(48_000, Some(8_000_000)), (12_000, Some(2_000_000))]);
    }

    #[test]
    fn a_flow_that_begins_is_told_before_its_first_payload() {
        let shares = shares(&[(1, 0), (1, 0)], 1);
        let rates: Vec<_> = shares.iter().map(|info| info.sending_rate).collect();
        assert_eq!(rates, [Rate::from_mbps(6); 2]);
    }

    #[test]
    fn many_flows_take_turns() {
        let (mut division, begin) = (Division::default(), test_start());
        let mut flows: Vec<_> = (0..150).map(|id| flow(id, 1)).collect();
        let mut told = std::collections::BTreeSet::new();
        for number in 0..3 {
            for flow in &mut flows {
                flow.arrived += 1000;
            }
            let shares = division.divide(begin + STEP * number, &report(), flows.iter_mut());
            assert!(shares.len() <= TOLD_MAX);
            told.extend(shares.into_iter().map(|(source, _)| source));
        }
        assert_eq!(told.len(), 150);
    }

    #[test]
    fn flows_that_have_ended_leave_nothing() {
        let mut division = Division::default();
        let mut flow = flow(0, 1);
        flow.arrived = 1000;
        assert_eq!(division.divide(test_start(), &report(), [&mut flow].into_iter()).len(), 1);
        assert_eq!(division.divide(test_start(), &report(), [].into_iter()), []);
        assert_eq!(division.parts.len(), 0);
    }
}

//! Makes the record of a run.

use std::time::Duration;

use tandem_lab::World;
use tandem_netem::{Capacity, DurationHistogram, LinkStats, LossAt, ideal_completion_over};
use tandem_node::{ConnectionStats, Stats, node::FetchReport};
use tandem_units::{ByteCount, Ratio};

use super::{
    ChainRecord, FlowRecord, LinkRecord, Mode, Parameters, RepairRecord, RunOutcome, RunRecord,
    Workload,
    flows::{RunFlow, RunFlows},
    observer::{IdleTime, ObservedRun, Observer, SeenSample},
    topology::{Topology, access_sojourns, access_stats},
    watched::WatchedHosts,
};

/// Collects the results of a run at its end.
pub(super) fn of(
    run: &Parameters,
    mut topology: Topology<'_>,
    flows: &RunFlows,
    observer: Observer,
) -> RunOutcome {
    let seen = observer.finish(&topology.world, topology.watched);
    let watched = topology.watched;
    let sender = sender_packets(&mut topology);
    let tunnel = watched.entrance(&mut topology.world);
    let repair = repair_record(&tunnel, &watched.exit(&mut topology.world));
    let received = received_datagrams(&mut topology, flows);
    let duplicates = (received + sender.lost_packets).saturating_sub(sender.sent_packets);
    let chain = chain_record(watched, &mut topology.world);
    let domains = topology.domain_record();
    let world = &topology.world;
    let body_bytes = flows.body_bytes(world);
    let (downlink, uplink) = link_records(world, watched, &seen, body_bytes);
    let is_datagrams = matches!(run.workload, Workload::Datagrams { .. });
    let delays = if run.local_program || is_datagrams { world.delays() } else { &[] };
    let violations = world.violations();
    let each = flow_records(run, flows, world);
    let times = CompletionTimes::of(run, &topology, flows);
    let completed = has_completed(run, flows, world);
    let kept = thinned(&seen.samples, run.samples);
    let record = RunRecord {
        parameters: run.clone(),
        completed,
        fct_s: times.mean(|report| report.completion).filter(|_| completed),
        fct_last_s: times.last().filter(|_| completed),
        fct_without_handshake_s: times
            .mean(|report| report.completion.saturating_sub(report.handshake))
            .filter(|_| completed),
        tunnel_setup_s: times.mean(|report| report.setup),
        ideal_s: times.ideal.map(seconds),
        fct_over_ideal: times.over_ideal().filter(|_| completed),
        body_bytes,
        goodput_mbps: all_goodput_mbps(run, flows, world, times.begin),
        others_mbps: others_goodput_mbps(flows, world),
        e2e_retransmit_ratio: ratio(sender.lost_packets, sender.sent_packets),
        tunnel_retransmit_ratio: tunnel_retransmit_ratio(run.mode, &tunnel),
        tunnel_lost_ratio: ratio(tunnel.lost_packets, tunnel.sent_packets),
        feedback_sent: tunnel.feedback.sent,
        feedback_followed: sender.reports_followed,
        duplicate_ratio: ratio(duplicates, sender.sent_packets),
        chain,
        domains,
        repair,
        tunnel_queue_mean_bytes: round(seen.tunnel_queue_mean_bytes, 1e1),
        tunnel_queue_max_bytes: seen.tunnel_queue_max_bytes,
        e2e_srtt_mean_ms: round(seen.e2e_srtt_ms.mean(), 1e3),
        e2e_srtt_max_ms: round(seen.e2e_srtt_ms.max, 1e3),
        tunnel_srtt_mean_ms: round(seen.tunnel_srtt_ms.mean(), 1e3),
        tunnel_srtt_max_ms: round(seen.tunnel_srtt_ms.max, 1e3),
        downlink,
        uplink,
        violations: violations.iter().map(|(_, found)| found.total).sum(),
        packet_delay_percentiles_us: percentiles_us(delays),
        elapsed_s: seconds(world.elapsed()),
        digest: world.trace().digest().to_string(),
        jain_index: jain(&each),
        flow_bytes: kept.clone().filter(|_| each.len() > 1).map(|it| it.flows.clone()).collect(),
        flows: if each.len() > 1 { each } else { Vec::new() },
        series: kept.map(|it| it.sample).collect(),
    };
    RunOutcome {
        record,
        series: seen.samples.iter().map(|it| it.sample).collect(),
        packet_delays: world.delays().to_vec(),
        violations: violations
            .iter()
            .flat_map(|(path, found)| found.first.iter().map(move |one| format!("{path:?}: {one}")))
            .collect(),
    }
}

/// The share of the tunnel's packets whose contents its entrance sent again.
fn tunnel_retransmit_ratio(mode: Mode, tunnel: &Stats) -> f64 {
    match mode {
        Mode::Mft
        | Mode::MftTuned
        | Mode::MftPlus
        | Mode::Mdt
        | Mode::Forward
        | Mode::Uack
        | Mode::UackUp => 0.0,
        Mode::Mst | Mode::Msgt => ratio(tunnel.lost_packets, tunnel.sent_packets),
        Mode::Rmdt | Mode::RmdtPlus | Mode::Tecc | Mode::TeccPaper | Mode::Auto => {
            ratio(tunnel.repaired.sent_again, tunnel.sent_packets)
        }
    }
}

/// The record of one end's retransmissions and of the other end's reordering.
fn repair_record(entrance: &Stats, exit: &Stats) -> RepairRecord {
    let exit = exit.resequenced;
    let (repaired, waited) = (entrance.repaired.given_up, exit.given_up);
    let mean = exit.waited_time.checked_div(u32::try_from(exit.waited).unwrap_or(u32::MAX));
    RepairRecord {
        repair_probes: entrance.repaired.probes,
        repair_given_up: repaired.total(),
        exit_held_max_bytes: exit.held_bytes_max as u64,
        exit_waited_mean_ms: round(mean.unwrap_or_default().as_secs_f64() * 1e3, 1e3),
        exit_given_up: waited.floor
            + waited.time
            + waited.silence
            + waited.bytes
            + waited.packets
            + waited.flush,
        exit_duplicates: exit.duplicates,
        tunnel_queue_aqm_drops: entrance.dropped.standing_queue,
        tunnel_queue_full_drops: entrance.dropped.queue_full,
    }
}

/// What the chain of the first client costs.
fn chain_record(watched: WatchedHosts, world: &mut World) -> ChainRecord {
    let Some(client) = watched.client else { return ChainRecord::default() };
    let client = world.inspect(client);
    let Some(overhead) = client.overhead() else { return ChainRecord::default() };
    let end_to_end = client.connections().last().unwrap_or_default();
    let acks = end_to_end.sent.ack_only_packets + end_to_end.received.ack_only_packets;
    ChainRecord {
        chain_overhead_ratio: round(overhead.share().as_f64(), 1e6),
        chain_ack_ratio: round(overhead.ack_share().as_f64(), 1e6),
        chain_acks_per_packet: ratio(overhead.ack_frames, overhead.data_packets),
        e2e_acks_per_packet: ratio(acks, overhead.data_packets),
    }
}

/// Percentiles 0 to 100 by nearest rank. The list is empty if there are no delays.
fn percentiles_us(delays: &[Duration]) -> Vec<u64> {
    let mut sorted = delays.to_vec();
    sorted.sort_unstable();
    let micros = |delay: &Duration| u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
    let rank = |percent: usize| (sorted.len() * percent).div_ceil(100).max(1) - 1;
    (0..=100).filter_map(|percent| sorted.get(rank(percent)).map(micros)).collect()
}

/// Completion times.
struct CompletionTimes<'a> {
    reports: Vec<&'a FetchReport>,
    ideal: Option<Duration>,
    /// The time at which the first end-to-end connection began.
    begin: Duration,
}

impl<'a> CompletionTimes<'a> {
    fn of(run: &Parameters, topology: &'a Topology<'_>, flows: &RunFlows) -> Self {
        let reports: Vec<_> =
            flows.begun().iter().filter_map(|flow| flow.report(&topology.world)).collect();
        let first = flows.begun().first();
        let start = first.map_or(Duration::ZERO, |flow| flow.start);
        let setup = reports.first().map_or(Duration::ZERO, |report| report.setup);
        let begin = start + setup;
        let is_upload = topology.watched.is_upload;
        let loss = run.uplink_loss.filter(|_| is_upload).unwrap_or(run.loss);
        let loss = match run.loss_at {
            LossAt::Before => Ratio::ZERO,
            LossAt::After => loss.mean(),
        };
        let is_alone = matches!(run.workload, Workload::Download | Workload::Upload)
            && run.cross_traffic.is_none()
            && run.others.is_none();
        let ideal = |capacity: &Capacity, loss| {
            is_alone.then(|| ideal_completion_over(capacity, run.size, run.e2e_rtt(), loss, begin))
        };
        let access = ideal(&topology.capacity, loss);
        // A tunnel can retransmit packets that are lost after this link, so that this link carries
        // everything once.
        let far = run.origin_rate.and_then(|rate| ideal(&rate.into(), Ratio::ZERO));
        Self { reports, ideal: access.max(far), begin }
    }

    /// The mean in seconds; `None` if no flow was completed.
    fn mean(&self, what: impl Fn(&FetchReport) -> Duration) -> Option<f64> {
        let count = u32::try_from(self.reports.len()).unwrap_or(u32::MAX);
        let sum: Duration = self.reports.iter().map(|report| what(report)).sum();
        sum.checked_div(count).map(seconds)
    }

    /// The longest completion time in seconds; `None` if no flow was completed.
    fn last(&self) -> Option<f64> {
        self.reports.iter().map(|report| report.completion).max().map(seconds)
    }

    fn over_ideal(&self) -> Option<f64> {
        let ideal = self.ideal?.as_secs_f64();
        self.mean(|report| report.completion).map(|fct| round(fct / ideal, 1e6))
    }
}

/// The packets that all senders of a body sent and lost.
fn sender_packets(topology: &mut Topology<'_>) -> SendingEnd {
    let Topology { world, origins, watched, .. } = topology;
    if let (true, Some(client)) = (watched.is_upload, watched.client) {
        let end_to_end = watched.senders(world).end_to_end.unwrap_or_default();
        return SendingEnd {
            sent_packets: end_to_end.sent_packets,
            lost_packets: end_to_end.lost_packets,
            reports_followed: world.inspect(client).stats().feedback.followed,
        };
    }
    let each = origins.iter().map(|origin| world.inspect(*origin).stats());
    each.fold(SendingEnd::default(), |sum, origin| SendingEnd {
        sent_packets: sum.sent_packets + origin.sent_packets,
        lost_packets: sum.lost_packets + origin.lost_packets,
        reports_followed: sum.reports_followed + origin.feedback.followed,
    })
}

#[derive(Clone, Copy, Default)]
struct SendingEnd {
    sent_packets: u64,
    lost_packets: u64,
    reports_followed: u64,
}

fn has_completed(run: &Parameters, flows: &RunFlows, world: &World) -> bool {
    match run.workload {
        Workload::Long(_)
        | Workload::Sharing { .. }
        | Workload::Datagrams { .. }
        | Workload::Tcp(_) => {
            flows.end().is_some_and(|end| end <= world.elapsed()) && flows.body_bytes(world) > 0
        }
        _ => {
            flows.waiting().next().is_none()
                && flows.begun().iter().all(|flow| flow.report(world).is_some())
        }
    }
}

/// Number of UDP payloads that came over the end-to-end connections of all flows.
fn received_datagrams(topology: &mut Topology<'_>, flows: &RunFlows) -> u64 {
    let Topology { world, watched, .. } = topology;
    if watched.is_upload {
        return world.inspect(watched.origin).connections().map(|it| it.received_datagrams).sum();
    }
    let received = |client: Option<ConnectionStats>| client.map_or(0, |it| it.received_datagrams);
    let flows = flows.begun().iter();
    flows.map(|flow| received(world.inspect(flow.client).connections().last())).sum()
}

fn is_sharing(run: &Parameters) -> bool {
    matches!(run.workload, Workload::Sharing { .. })
}

fn all_goodput_mbps(run: &Parameters, flows: &RunFlows, world: &World, begin: Duration) -> f64 {
    if is_sharing(run) {
        goodput_mbps(flows.counted(world).sum(), flows.counted_time(world))
    } else {
        let begin = flows.tcp_start().unwrap_or(begin);
        goodput_mbps(flows.body_bytes(world), world.elapsed().saturating_sub(begin))
    }
}

fn others_goodput_mbps(flows: &RunFlows, world: &World) -> Option<f64> {
    let bytes = flows.counted_of_others(world)?;
    Some(goodput_mbps(bytes, flows.counted_time(world)))
}

fn flow_records(run: &Parameters, flows: &RunFlows, world: &World) -> Vec<FlowRecord> {
    let record = |(flow, counted): (&RunFlow, u64)| {
        let record = flow_record(flow, world);
        if !is_sharing(run) {
            return record;
        }
        FlowRecord { goodput_mbps: goodput_mbps(counted, flows.counted_time(world)), ..record }
    };
    let begun = flows.begun().iter().zip(flows.counted(world)).map(record);
    let waiting = flows.waiting().filter(|(start, _)| *start < run.time_limit.0);
    begun.chain(waiting.map(|(start, size)| not_begun(start, size))).collect()
}

/// The record of a flow that could not begin within the time limit, because the tunnel was not ready.
fn not_begun(start: Duration, size: ByteCount) -> FlowRecord {
    FlowRecord {
        start_s: seconds(start),
        completed: false,
        fct_s: None,
        size_bytes: size.get(),
        body_bytes: 0,
        goodput_mbps: 0.0,
    }
}

fn flow_record(flow: &RunFlow, world: &World) -> FlowRecord {
    let report = flow.report(world);
    let body_bytes = world.body(flow.client).bytes();
    let ran = report.map_or(world.elapsed().saturating_sub(flow.start), |report| report.completion);
    FlowRecord {
        start_s: seconds(flow.start),
        completed: report.is_some(),
        fct_s: report.map(|report| seconds(report.completion)),
        size_bytes: flow.size.get(),
        body_bytes,
        goodput_mbps: goodput_mbps(body_bytes, ran),
    }
}

/// Jain's index (Jain, Chiu, Hawe 1984): the square of the sum, divided by n times the sum of the
/// squares.
fn jain(flows: &[FlowRecord]) -> Option<f64> {
    let count = u32::try_from(flows.len()).ok().filter(|count| *count > 1)?;
    let sum: f64 = flows.iter().map(|flow| flow.goodput_mbps).sum();
    let squares: f64 = flows.iter().map(|flow| flow.goodput_mbps.powi(2)).sum();
    (squares > 0.0).then(|| round(sum.powi(2) / (f64::from(count) * squares), 1e6))
}

/// The records of the access link towards the clients and from them.
fn link_records(
    world: &World,
    watched: WatchedHosts,
    seen: &ObservedRun,
    body_bytes: u64,
) -> (LinkRecord, LinkRecord) {
    let (downlink, uplink) = access_stats(world, watched.downlink, watched.uplink);
    let (down_sojourns, up_sojourns) = access_sojourns(world, watched.downlink, watched.uplink);
    let small = |path| world.small_packets(path).bytes.get();
    let body_on = |path| if path == watched.bottleneck() { body_bytes } else { 0 };
    let record = |link, path, idle| link_record(link, body_on(path), small(path), idle);
    let down = record(&downlink, watched.downlink, seen.downlink);
    let up = record(&uplink, watched.uplink, seen.uplink);
    (
        LinkRecord { sojourn_p95_ms: p95_ms(down_sojourns), ..down },
        LinkRecord { sojourn_p95_ms: p95_ms(up_sojourns), ..up },
    )
}

fn link_record(link: &LinkStats, payload: u64, small: u64, idle: IdleTime) -> LinkRecord {
    let bytes = link.entered.bytes.get();
    let mean = link.sojourn_mean().unwrap_or_default();
    LinkRecord {
        bytes,
        packets: link.entered.packets,
        payload_bytes: payload,
        ack_bytes: small,
        header_bytes: bytes.saturating_sub(payload + small),
        lost_packets: link.dropped_loss.packets,
        dropped_packets: link.dropped_queue.packets + link.dropped_codel.packets,
        queue_max_bytes: link.queued_max.get(),
        sojourn_mean_ms: round(mean.as_secs_f64() * 1e3, 1e3),
        idle_s: seconds(idle.total),
        idle_with_backlog_s: seconds(idle.with_backlog),
        ..LinkRecord::default()
    }
}

/// Selects at most this number of samples, evenly spaced, from the first on.
fn thinned(samples: &[SeenSample], most: u64) -> impl Iterator<Item = &SeenSample> + Clone {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let every = samples.len().div_ceil(most.max(1)).max(1);
    samples.iter().step_by(every).take(most)
}

fn p95_ms(sojourns: Option<&DurationHistogram>) -> f64 {
    let p95 = sojourns.and_then(|sojourns| sojourns.percentile(95));
    round(p95.unwrap_or_default().as_secs_f64() * 1e3, 1e3)
}

pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 packets")]
    let ratio = part as f64 / whole.max(1) as f64;
    round(ratio, 1e6)
}

fn goodput_mbps(bytes: u64, time: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^50 bytes")]
    let bits = (bytes * 8) as f64;
    round(bits / time.as_secs_f64().max(1e-9) / 1e6, 1e6)
}

/// The duration in seconds, to the microsecond.
fn seconds(duration: Duration) -> f64 {
    round(duration.as_secs_f64(), 1e6)
}

/// Rounds to a multiple of `1 / per_unit`.
pub(super) fn round(value: f64, per_unit: f64) -> f64 {
    (value * per_unit).round() / per_unit
}

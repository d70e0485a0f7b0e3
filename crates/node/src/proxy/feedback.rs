//! What a proxy tells clients of their tunnels, so that origins send no faster than it can
//! (`TUNNEL_INFO`, TECC §4.2.2).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use http::{HeaderMap, HeaderName};
use tandem_units::{ByteCount, Rate, Ratio};
use tandem_wire::{
    FeedbackField, FeedbackFieldError, HttpDatagram, QuarterStreamId, TunnelInfo, Urgency, VarInt,
};

use crate::{
    fields::only_line,
    quic::{Connection, PathEstimate, SendDatagram, StreamId},
    tunnel_queue::TunnelQueue,
};

/// The field that asks for reports, and agrees to them.
pub(crate) const FEEDBACK: HeaderName = HeaderName::from_static(FeedbackField::NAME);

/// The Context ID of reports: odd (RFC 9298 §4), and not that of repaired payloads.
pub(super) const CONTEXT_ID: VarInt = VarInt::from_u32(3);

/// Flows of one connection that are reported on at most; the others get no reports.
const FLOWS_MAX: usize = 64;

/// Reports come no more often, and no more seldom, whatever the tunnel's RTT is.
const INTERVAL_LEAST: Duration = Duration::from_millis(5);
const INTERVAL_MOST: Duration = Duration::from_secs(1);

/// Reports on a flow of which nothing comes and nothing waits, before it is left alone.
const IDLE_REPORTS: u32 = 3;

/// The weight that a request's field asks for, if it asks for reports.
pub(super) fn wanted_weight(headers: &HeaderMap) -> Result<Option<u8>, FeedbackFieldError> {
    let Some(line) = only_line(headers, &FEEDBACK) else { return Ok(None) };
    let field = FeedbackField::parse_request(&line.map_err(FeedbackFieldError::Syntax)?)?;
    Ok(match field {
        FeedbackField::Request { weight } => Some(weight),
        FeedbackField::Grant { .. } => None,
    })
}

/// Reports on the flows of one connection.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    flows: BTreeMap<StreamId, Reported>,
    /// When reports are due; `None` while nothing comes.
    due: Option<Instant>,
    last: Option<Instant>,
    /// Datagrams that the tunnel had sent, and sent again, at the last report.
    sends: (u64, u64),
}

/// A flow that is reported on.
#[derive(Debug)]
struct Reported {
    weight: u8,
    urgency: Urgency,
    sequence: u64,
    /// The fewest bytes that waited since the last report.
    least_queue: usize,
    /// Bytes that came from the target since the last report.
    arrived: u64,
    arrival_rate: Option<Rate>,
    /// Reports in a row without anything to say.
    idle: u32,
}

impl Reporter {
    /// Reports on a flow from now on. `false`: on too many already.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        stream: StreamId,
        weight: u8,
        urgency: Urgency,
    ) -> bool {
        if self.flows.len() >= FLOWS_MAX {
            return false;
        }
        let reported = Reported {
            weight,
            urgency,
            sequence: 0,
            least_queue: 0,
            arrived: 0,
            arrival_rate: None,
            idle: 0,
        };
        self.flows.insert(stream, reported);
        self.due = Some(now);
        true
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        self.flows.remove(&stream);
        if self.flows.is_empty() {
            self.due = None;
        }
    }

    /// When reports are due.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// A payload came from the target of a flow.
    pub(super) fn on_arrival(&mut self, now: Instant, stream: StreamId, len: usize) {
        let Some(flow) = self.flows.get_mut(&stream) else { return };
        flow.arrived += len as u64;
        flow.idle = 0;
        self.due.get_or_insert(now);
    }

    /// Notes how much waits, after the tunnel has sent what it could.
    pub(super) fn observe(&mut self, queue: &TunnelQueue) {
        for (&stream, flow) in &mut self.flows {
            flow.least_queue = flow.least_queue.min(queue.flow_len(stream));
        }
    }

    /// Sends the reports that are due, ahead of the queue. Returns how many.
    pub(super) fn send(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        queue: &TunnelQueue,
        interval: Option<Duration>,
    ) -> u64 {
        if self.due.is_none_or(|due| due > now) {
            return 0;
        }
        let path = connection.path_estimate();
        let interval = interval.unwrap_or(path.min_rtt).clamp(INTERVAL_LEAST, INTERVAL_MOST);
        let elapsed = self.last.map_or(interval, |last| now.saturating_duration_since(last));
        let sends = queue.sends();
        let (all, again) = (sends.0 - self.sends.0, sends.1 - self.sends.1);
        for flow in self.flows.values_mut() {
            flow.arrival_rate = Rate::average(ByteCount::new(flow.arrived), elapsed);
        }
        let mut sent = 0;
        let streams: Vec<_> = self.flows.keys().copied().collect();
        for stream in streams {
            let Some(info) = self.report(stream, &path, Ratio::of(again, all.max(1))) else {
                continue;
            };
            if connection.send_datagram(encode(stream, &info)) == SendDatagram::Taken {
                sent += 1;
            }
            let Some(flow) = self.flows.get_mut(&stream) else { continue };
            flow.sequence += 1;
            flow.least_queue = queue.flow_len(stream);
            flow.idle = if flow.arrived == 0 && flow.least_queue == 0 { flow.idle + 1 } else { 0 };
            flow.arrived = 0;
        }
        self.sends = sends;
        let is_active = self.flows.values().any(|flow| flow.idle < IDLE_REPORTS);
        self.last = is_active.then_some(now);
        self.due = is_active.then_some(now + interval);
        sent
    }

    /// `None`: there is nothing to say of this flow.
    fn report(
        &self,
        stream: StreamId,
        path: &PathEstimate,
        retransmit_ratio: Ratio,
    ) -> Option<TunnelInfo> {
        let flow = self.flows.get(&stream).filter(|flow| flow.idle < IDLE_REPORTS)?;
        let rate = sending_rate(path, flow.least_queue > 0)?;
        Some(TunnelInfo {
            sequence: VarInt::saturating_from(flow.sequence),
            sending_rate: self.share(stream, rate),
            bandwidth: path.bandwidth.map(|bandwidth| self.share(stream, bandwidth)),
            queue: ByteCount::from(flow.least_queue),
            retransmit_ratio,
            min_rtt: path.min_rtt,
            smoothed_rtt: path.smoothed_rtt,
            arrival_rate: flow.arrival_rate,
        })
    }

    /// A flow's part of what the tunnel can send: its share by weight among the flows that are as
    /// urgent, or what the others leave, if that is more.
    fn share(&self, stream: StreamId, rate: Rate) -> Rate {
        let Some(flow) = self.flows.get(&stream) else { return rate };
        let arrives = |other: &Reported| other.arrival_rate.map_or(0, Rate::bits_per_second);
        let others = || self.flows.iter().filter(|(other, _)| **other != stream).map(|(_, it)| it);
        let urgent = others().filter(|it| it.urgency < flow.urgency).map(arrives).sum::<u64>();
        let left = rate.bits_per_second().saturating_sub(urgent);
        let equals = || others().filter(|it| it.urgency == flow.urgency && it.idle == 0);
        let weights = equals().map(|it| u64::from(it.weight)).sum::<u64>() + u64::from(flow.weight);
        let fair = |it: &Reported| left * u64::from(it.weight) / weights;
        let taken = equals().map(|it| arrives(it).min(fair(it))).sum::<u64>();
        let share = fair(flow).max(left.saturating_sub(taken));
        Rate::from_bps(share).unwrap_or(SHARE_LEAST)
    }
}

/// Less is said to nobody: whoever sends nothing does not hear of it when it could send more.
const SHARE_LEAST: Rate = Rate::from_bps(10_000).expect("not zero");

/// Tr: what the tunnel can send.
///
/// While it starts up and nothing waits, its bandwidth says how fast the origin sends, and the rate
/// at which it would send if it had more is the better word. As soon as something waits, the
/// bandwidth is what the path carries.
fn sending_rate(path: &PathEstimate, is_backlogged: bool) -> Option<Rate> {
    let window = Rate::average(path.congestion_window, path.smoothed_rtt);
    match path.bandwidth {
        Some(bandwidth) if is_backlogged || !path.is_starting => Some(bandwidth),
        _ => path.pacing_rate.or(window),
    }
}

fn encode(stream: StreamId, info: &TunnelInfo) -> bytes::Bytes {
    let mut datagram = BytesMut::with_capacity(TunnelInfo::LEN_MAX + 16);
    if let Some(quarter_stream_id) = QuarterStreamId::from_stream_id(stream.0) {
        HttpDatagram::encode_ids(quarter_stream_id, CONTEXT_ID, &mut datagram);
    }
    info.encode(&mut datagram);
    datagram.freeze()
}

//! Takes samples of a run while it is in progress.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_lab::World;
use tandem_netem::LinkStats;
use tandem_node::ConnectionStats;

use super::{
    topology::access_stats,
    watched::{Senders, WatchedHosts},
};

/// The initial interval of samples.
const INTERVAL: Duration = Duration::from_millis(10);

/// The largest number of samples of a run. At this number every second sample is dropped and the
/// interval doubles.
const SAMPLES_MAX: usize = 60_000;

/// Both layers of a run at one time. With an upload, the fields of the origin and the proxy hold
/// the values of the client's two connections, which send in this case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Virtual time since the start of the run.
    pub at_s: f64,
    /// The origin's congestion window. With several connections it is that of the oldest open
    /// connection.
    pub e2e_cwnd_bytes: u64,
    /// The origin's pacing rate; null if the controller has none.
    pub e2e_pacing_mbps: Option<f64>,
    /// The origin's smoothed RTT; null without a connection.
    pub e2e_srtt_ms: Option<f64>,
    /// The first proxy's congestion window.
    pub tunnel_cwnd_bytes: u64,
    /// The first proxy's pacing rate; null if the controller has none.
    pub tunnel_pacing_mbps: Option<f64>,
    /// The first proxy's smoothed RTT; null without a tunnel.
    pub tunnel_srtt_ms: Option<f64>,
    /// Bytes in the first proxy's tunnel queue.
    pub tunnel_queue_bytes: u64,
    /// Bytes in the queue of the access link towards the client, or from the client with an upload.
    pub link_queue_bytes: u64,
    /// Bytes of body that have arrived.
    pub body_bytes: u64,
}

/// One sample, with the bytes of each flow.
#[derive(Clone, Debug)]
pub(super) struct SeenSample {
    pub(super) sample: Sample,
    /// Bytes of body that have arrived, for each flow that has begun, if samples are kept.
    pub(super) flows: Vec<u64>,
}

/// A quantity that changes in steps, over time.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    value: u64,
    max: u64,
    since: Duration,
    /// Integral of the value, times nanoseconds.
    integral: u128,
}

impl Level {
    fn set(&mut self, now: Duration, value: u64) {
        self.integral += u128::from(self.value) * (now.saturating_sub(self.since)).as_nanos();
        self.since = now;
        self.value = value;
        self.max = self.max.max(value);
    }
}

/// Takes samples of a run while it is in progress.
#[derive(Debug)]
pub(super) struct Observer {
    queue: Level,
    /// The value is 1 while the link towards the client is idle although data waits in the proxy.
    downlink_waste: Level,
    /// The same for the link towards the proxy and data in the first client.
    uplink_waste: Level,
    /// The time at which the first byte of a body came, and the busy times of the links until then.
    first_byte: Option<FirstByte>,
    interval: Duration,
    next: Duration,
    samples: Vec<SeenSample>,
    e2e_srtt: Mean,
    tunnel_srtt: Mean,
}

#[derive(Clone, Copy, Debug)]
struct FirstByte {
    at: Duration,
    downlink_busy: Duration,
    uplink_busy: Duration,
}

/// Mean and maximum of samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    count: u32,
    pub(super) max: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
        self.max = self.max.max(value);
    }

    pub(super) fn mean(self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / f64::from(self.count) }
    }
}

/// The observations of a run.
#[derive(Debug)]
pub(super) struct ObservedRun {
    pub(super) tunnel_queue_mean_bytes: f64,
    pub(super) tunnel_queue_max_bytes: u64,
    pub(super) e2e_srtt_ms: Mean,
    pub(super) tunnel_srtt_ms: Mean,
    pub(super) downlink: IdleTime,
    pub(super) uplink: IdleTime,
    pub(super) samples: Vec<SeenSample>,
}

/// The time during which a bottleneck was idle, from the first byte of a body on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleTime {
    pub(super) total: Duration,
    /// The part of it during which data waited in the sender's tunnel queue.
    pub(super) with_backlog: Duration,
}

impl Observer {
    pub(super) fn new() -> Self {
        Self {
            queue: Level::default(),
            downlink_waste: Level::default(),
            uplink_waste: Level::default(),
            first_byte: None,
            interval: INTERVAL,
            next: Duration::ZERO,
            samples: Vec::new(),
            e2e_srtt: Mean::default(),
            tunnel_srtt: Mean::default(),
        }
    }

    /// The time at which to call [`Self::sample`] next.
    pub(super) const fn next(&self) -> Duration {
        self.next
    }

    /// Observes the values that may change with every event.
    pub(super) fn watch(&mut self, world: &World, watched: WatchedHosts) {
        let now = world.elapsed();
        let Some(proxy) = watched.proxy else { return };
        let queued = world.node(proxy).tunnel_queue().get();
        if !watched.is_upload {
            self.queue.set(now, queued);
        }
        let is_wasted = queued > 0 && world.is_path_idle(watched.downlink);
        self.downlink_waste.set(now, u64::from(is_wasted));
        let Some(client) = watched.client else { return };
        let queued = world.node(client).tunnel_queue().get();
        if watched.is_upload {
            self.queue.set(now, queued);
        }
        let is_wasted = queued > 0 && world.is_path_idle(watched.uplink);
        self.uplink_waste.set(now, u64::from(is_wasted));
    }

    /// Takes a sample. `body_bytes` are the bytes that have arrived, and `flows` those of each
    /// flow, if samples are kept.
    pub(super) fn sample(
        &mut self,
        world: &mut World,
        watched: WatchedHosts,
        body_bytes: u64,
        flows: Vec<u64>,
    ) {
        let now = world.elapsed();
        self.next = now + self.interval;
        let (downlink, uplink) = access_stats(world, watched.downlink, watched.uplink);
        if body_bytes > 0 && self.first_byte.is_none() {
            self.first_byte = Some(FirstByte {
                at: now,
                downlink_busy: downlink.busy_time(world.now()),
                uplink_busy: uplink.busy_time(world.now()),
            });
        }
        let Senders { end_to_end, tunnel } = watched.senders(world);
        let (e2e, tunnel) = (end_to_end.as_ref(), tunnel.as_ref());
        let sample = Sample {
            at_s: now.as_secs_f64(),
            e2e_cwnd_bytes: cwnd(e2e),
            e2e_pacing_mbps: pacing_mbps(e2e),
            e2e_srtt_ms: srtt_ms(e2e),
            tunnel_cwnd_bytes: cwnd(tunnel),
            tunnel_pacing_mbps: pacing_mbps(tunnel),
            tunnel_srtt_ms: srtt_ms(tunnel),
            tunnel_queue_bytes: self.queue.value,
            link_queue_bytes: if watched.is_upload { uplink } else { downlink }.queued.get(),
            body_bytes,
        };
        // Before the first byte there may be no sample of the RTT yet.
        if body_bytes > 0 {
            sample.e2e_srtt_ms.into_iter().for_each(|srtt| self.e2e_srtt.add(srtt));
            sample.tunnel_srtt_ms.into_iter().for_each(|srtt| self.tunnel_srtt.add(srtt));
        }
        self.samples.push(SeenSample { sample, flows });
        if self.samples.len() >= SAMPLES_MAX {
            let mut is_kept = false;
            self.samples.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.interval *= 2;
        }
    }

    /// Returns the observations at the end of the run.
    pub(super) fn finish(mut self, world: &World, watched: WatchedHosts) -> ObservedRun {
        let now = world.elapsed();
        self.watch(world, watched);
        let (downlink, uplink) = access_stats(world, watched.downlink, watched.uplink);
        let idle = |link: LinkStats, busy_before: fn(FirstByte) -> Duration, waste: Level| {
            let total = self.first_byte.map(|first| {
                let busy = link.busy_time(world.now()).saturating_sub(busy_before(first));
                now.saturating_sub(first.at).saturating_sub(busy)
            });
            let with_backlog = u64::try_from(waste.integral).unwrap_or(u64::MAX);
            IdleTime {
                total: total.unwrap_or_default(),
                with_backlog: Duration::from_nanos(with_backlog),
            }
        };
        #[expect(clippy::cast_precision_loss, reason = "a mean needs no more than 53 bits")]
        let mean = self.queue.integral as f64 / now.as_nanos().max(1) as f64;
        ObservedRun {
            tunnel_queue_mean_bytes: mean,
            tunnel_queue_max_bytes: self.queue.max,
            e2e_srtt_ms: self.e2e_srtt,
            tunnel_srtt_ms: self.tunnel_srtt,
            downlink: idle(downlink, |first| first.downlink_busy, self.downlink_waste),
            uplink: idle(uplink, |first| first.uplink_busy, self.uplink_waste),
            samples: self.samples,
        }
    }
}

fn cwnd(connection: Option<&ConnectionStats>) -> u64 {
    connection.map_or(0, |connection| connection.congestion_window.get())
}

fn pacing_mbps(connection: Option<&ConnectionStats>) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bit/s")]
    let mbps = |bits: u64| bits as f64 / 1e6;
    connection?.pacing_rate.map(|rate| mbps(rate.bits_per_second()))
}

fn srtt_ms(connection: Option<&ConnectionStats>) -> Option<f64> {
    connection.map(|connection| connection.smoothed_rtt.as_secs_f64() * 1e3)
}

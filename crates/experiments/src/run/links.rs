//! The links of a run.

use std::time::Duration;

use tandem_netem::{Capacity, LinkConfig, LossModel, QueueConfig, Reorder, Seed};
use tandem_units::{Rate, Ratio};

use super::{Parameters, RunError, TraceStore, topology::SeededPart};

/// The default rate of an uplink if the downlink follows a trace.
const UPLINK_BESIDE_TRACE: Rate = Rate::from_mbps(48);

/// A link with a delay and nothing else.
pub(super) fn delay(delay: Duration) -> LinkConfig {
    LinkConfig { delay, ..LinkConfig::default() }
}

/// The link between the last proxy and the origin with this number, which counts from 1.
pub(super) fn to_origin(run: &Parameters, number: u32) -> LinkConfig {
    let rtt = run.last_rtt() + run.origin_rtt_step.0 * number.saturating_sub(1);
    LinkConfig {
        capacity: run.origin_rate.map_or(Capacity::Unlimited, Capacity::Constant),
        queue: QueueConfig::default(),
        loss: run.origin_loss,
        ..delay(rtt / 2)
    }
}

/// The link between the access link and the client with this number, which counts from 0, if there
/// is such a link.
pub(super) fn leg(run: &Parameters, number: u32) -> Option<LinkConfig> {
    let rtt = run.client_rtt_step.0 * number;
    (!rtt.is_zero()).then(|| delay(rtt / 2))
}

/// The access link towards the clients.
pub(super) fn downlink(run: &Parameters, traces: &TraceStore) -> Result<LinkConfig, RunError> {
    let capacity = match &run.trace {
        None => Capacity::Constant(run.rate),
        Some(name) => {
            traces.capacity(name, Seed(run.seed).derive(SeededPart::DownlinkTrace as u64))?
        }
    };
    Ok(access(run, capacity, run.loss))
}

/// The access link from the clients.
pub(super) fn uplink(run: &Parameters, traces: &TraceStore) -> Result<LinkConfig, RunError> {
    let capacity = match (&run.uplink_trace, run.uplink_rate, &run.trace) {
        (Some(name), ..) => {
            traces.capacity(name, Seed(run.seed).derive(SeededPart::UplinkTrace as u64))?
        }
        (None, Some(rate), _) => Capacity::Constant(rate),
        (None, None, Some(_)) => Capacity::Constant(UPLINK_BESIDE_TRACE),
        (None, None, None) => Capacity::Constant(run.rate),
    };
    Ok(access(run, capacity, run.uplink_loss.unwrap_or(run.loss)))
}

fn access(run: &Parameters, capacity: Capacity, loss: LossModel) -> LinkConfig {
    let late = Reorder { ratio: run.reorder, extra_delay: run.client_rtt.0 / 4 };
    LinkConfig {
        capacity,
        delay: run.client_rtt.0 / 2,
        jitter: run.jitter.0,
        loss,
        loss_at: run.loss_at,
        queue: run.access_queue(),
        reorder: (run.reorder > Ratio::ZERO).then_some(late),
        ..LinkConfig::default()
    }
}

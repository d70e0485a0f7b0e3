//! Refuses parameters that cannot be run, before a run begins.

use std::{path::PathBuf, time::Duration};

use tandem_congestion::{ControllerName, TeccConfig, TeccConfigError};
use tandem_netem::{RateTraceError, SyntheticError};
use tandem_node::ProxyConfig;
use tandem_units::{ByteCount, Ratio};

use super::{Parameters, Workload};

/// The reason for which a run cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A parameter is outside of its range, alone or together with another.
    #[error("{name} = {seen}: {allowed}")]
    Parameter {
        /// The parameter's name.
        name: &'static str,
        /// Its value.
        seen: String,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A setting of TECC is not allowed.
    #[error("tecc: {0}")]
    Tecc(#[from] TeccConfigError),
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] RateTraceError),
    /// A synthetic trace cannot be made.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// A trace was not loaded before the run.
    #[error("{} was not loaded before the run", .0.display())]
    NotLoaded(PathBuf),
}

/// The largest size of one download. More bytes take hours, even in virtual time.
const SIZE_MAX: ByteCount = ByteCount::new(10_000_000_000);

/// The largest number of flows of one run.
const FLOWS_MAX: u64 = 1000;

/// The longest virtual time of a run.
const TIME_LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The longest RTT of one part of the path.
const RTT_MAX: Duration = Duration::from_secs(60);

/// Whether there are several clients, which are assigned to origins in turn. A local program has
/// only the origin of its client.
fn has_several_clients(run: &Parameters) -> bool {
    matches!(run.workload, Workload::Flows { .. } | Workload::Sharing { .. }) && !run.local_program
}

pub(super) fn check(run: &Parameters) -> Result<(), RunError> {
    run.check_ranges()?;
    let origins = run.origins.to_string();
    let origins_max = if has_several_clients(run) { 100 } else { 1 };
    let allowed = "1 to 100 for the workloads flows and sharing without local_program, else 1";
    require((1..=origins_max).contains(&run.origins), "origins", &origins, allowed)?;
    let step = run.client_rtt_step;
    let is_heeded = step.0.is_zero() || has_several_clients(run);
    let allowed = "above 0s for the workloads flows and sharing without local_program only";
    require(is_heeded, "client_rtt_step", &step.to_string(), allowed)?;
    let size = run.size.to_string();
    let size_is_sane = !run.size.is_zero() && run.size <= SIZE_MAX;
    require(size_is_sane, "size", &size, "1 B to 10 GB")?;
    for (name, rtt) in [
        ("client_rtt", run.client_rtt),
        ("client_rtt_step", run.client_rtt_step),
        ("hop_rtt", run.hop_rtt),
        ("origin_rtt", run.origin_rtt),
        ("origin_rtt_step", run.origin_rtt_step),
        ("jitter", run.jitter),
    ] {
        require(rtt.0 <= RTT_MAX, name, &rtt.to_string(), "at most 60s")?;
    }
    if let Some(path) = run.path_rtt {
        let is_sane = run.near_rtt() <= path.0 && path.0 <= RTT_MAX;
        let allowed = "at least the RTTs of the links before the last, at most 60s";
        require(is_sane, "path_rtt", &path.to_string(), allowed)?;
    }
    if let Some(percent) = run.queue_bdp_percent {
        let allowed = "not on a trace, which has no constant bandwidth";
        let is_constant = run.trace.is_none();
        require(is_constant, "queue_bdp_percent", &percent.to_string(), allowed)?;
    }
    for (name, loss) in [
        ("loss", Some(&run.loss)),
        ("uplink_loss", run.uplink_loss.as_ref()),
        ("origin_loss", Some(&run.origin_loss)),
    ] {
        let Some(loss) = loss else { continue };
        require(
            loss.mean() < Ratio::ONE,
            name,
            &loss.to_string(),
            "below 100%: some packets must arrive",
        )?;
    }
    check_senders(run)?;
    if let Some(window) = run.window {
        let is_sane = (10_000..=1_000_000_000).contains(&window.get());
        require(is_sane, "window", &window.to_string(), "10 kB to 1 GB")?;
    }
    if let Some(granularity) = run.timer_granularity {
        let is_sane = !granularity.0.is_zero() && granularity.0 <= Duration::from_secs(1);
        require(is_sane, "timer_granularity", &granularity.to_string(), "above 0s, at most 1s")?;
    }
    let is_sane = run.late_wakes.0 <= Duration::from_secs(1);
    require(is_sane, "late_wakes", &run.late_wakes.to_string(), "at most 1s")?;
    let limit = run.time_limit;
    let is_sane = !limit.0.is_zero() && limit.0 <= TIME_LIMIT_MAX;
    require(is_sane, "time_limit", &limit.to_string(), "above 0s, at most 24h")?;
    check_workload(run)
}

/// Refuses settings that are invalid for senders.
fn check_senders(run: &Parameters) -> Result<(), RunError> {
    let off = run.origin_controller == ControllerName::Off;
    let allowed = "bbr1, bbr1-tunnel, newreno, cubic or bbr3; only a tunnel may have none";
    require(!off, "origin_controller", "off", allowed)?;
    require(run.others != Some(ControllerName::Off), "others", "off", allowed)?;
    let tunnel = run.tunnel_controller;
    let allowed = "any but tecc, which is for origins; use mode tecc";
    require(!tunnel.takes_reports(), "tunnel_controller", tunnel.as_str(), allowed)?;
    let is_for_origins = tunnel.follows_peps();
    let allowed = "any but mdcc and mdcc-paper, which are for origins";
    require(!is_for_origins, "tunnel_controller", tunnel.as_str(), allowed)?;
    let loss = run.pep_loss;
    require(loss < Ratio::ONE, "pep_loss", &loss.to_string(), "below 100%")?;
    let is_on_path = !run.mode.has_tunnel();
    let allowed = "only in modes without a tunnel; in others the last proxy is the PEP";
    require(is_on_path || loss == Ratio::ZERO, "pep_loss", &loss.to_string(), allowed)?;
    let until = run.pep_until.map(|until| until.to_string()).unwrap_or_default();
    require(is_on_path || until.is_empty(), "pep_until", &until, allowed)?;
    if let Some(text) = &run.tecc {
        TeccConfig::default().with(text)?;
    }
    if let Some(interval) = run.feedback_interval {
        let is_sane = ProxyConfig::FEEDBACK_INTERVAL.contains(&interval.0);
        require(is_sane, "feedback_interval", &interval.to_string(), "5ms to 1s")?;
    }
    Ok(())
}

fn check_workload(run: &Parameters) -> Result<(), RunError> {
    let workload = run.workload.to_string();
    let refuse = |is_sane, allowed| require(is_sane, "workload", &workload, allowed);
    let limit = run.time_limit.0;
    let one_stream = || {
        let allowed = "a download of unknown length, on one stream";
        require(run.streams == 1, "streams", &run.streams.to_string(), allowed)
    };
    let fits = "it must begin and end within time_limit";
    match run.workload {
        Workload::Download => Ok(()),
        Workload::Upload => {
            let allowed = "an upload is one request, on one stream";
            require(run.streams == 1, "streams", &run.streams.to_string(), allowed)
        }
        Workload::Long(duration) => {
            refuse(!duration.0.is_zero() && duration.0 <= limit, fits)?;
            one_stream()
        }
        Workload::Sharing { count, settle, duration } => {
            refuse((1..=FLOWS_MAX).contains(&count), "1 to 1000 flows")?;
            let end = settle.0.saturating_add(duration.0);
            refuse(!duration.0.is_zero() && end <= limit, fits)?;
            one_stream()
        }
        Workload::Parallel(count) => refuse((1..=FLOWS_MAX).contains(&count), "1 to 1000 flows"),
        Workload::Flows { count, interval } | Workload::Requests { count, interval } => {
            refuse((1..=FLOWS_MAX).contains(&count), "1 to 1000 flows")?;
            let last = interval.0.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
            refuse(last < limit, fits)?;
            let is_poisson = matches!(run.workload, Workload::Requests { .. });
            let is_whole = interval.0.as_millis() > 0;
            refuse(!is_poisson || is_whole, "at least 1ms between requests on average")
        }
        Workload::Datagrams { duration, .. } => {
            refuse(!duration.0.is_zero() && duration.0 <= limit, fits)
        }
        Workload::Tcp(duration) => {
            refuse(!duration.0.is_zero() && duration.0 <= limit, fits)?;
            // Without a tunnel a TCP connection of the laboratory has no packets.
            refuse(run.mode.has_tunnel(), "only in modes with a tunnel")
        }
    }?;
    let behind = run.local_program && !matches!(run.workload, Workload::Download);
    let allowed = "only with the workload download";
    require(!behind || !run.mode.has_tunnel(), "local_program", "true", allowed)
}

fn require(
    is_allowed: bool,
    name: &'static str,
    seen: &str,
    allowed: &'static str,
) -> Result<(), RunError> {
    let refused = || RunError::Parameter { name, seen: seen.to_owned(), allowed };
    if is_allowed { Ok(()) } else { Err(refused()) }
}

//! One run: from parameters to results.
//!
//! [`run()`] builds the hosts and links of [`Parameters`], lets a [`World`](tandem_lab::World) run
//! them in virtual time, and returns a [`RunRecord`]. The same parameters give the same record, bit
//! by bit.

mod check;
mod flows;
mod links;
mod observer;
mod others;
mod outcome;
mod parameters;
mod pep;
mod record;
mod reports;
mod topology;
mod trace_store;
mod watched;
mod workload;

use std::time::Duration;

pub use self::{
    check::RunError,
    observer::Sample,
    parameters::Parameters,
    pep::{PepKind, UnknownPep},
    record::{ChainRecord, DomainRecord, FlowRecord, LinkRecord, RepairRecord, RunRecord},
    trace_store::TraceStore,
    workload::{UnknownWorkload, Workload},
};
pub use tandem_node::mode::{Mode, UnknownMode};

pub(crate) use self::parameters::heeds;
use self::{flows::RunFlows, observer::Observer, topology::Topology};

/// The results of a run.
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// The record of the run.
    pub record: RunRecord,
    /// Samples of both layers over time.
    pub series: Vec<Sample>,
    /// One-way delays of the UDP payloads from the origin to the other end of the end-to-end (E2E)
    /// connection, in the order of arrival. The list is empty if that end is the client of a
    /// tunnel, because packets cannot be identified there from outside.
    pub packet_delays: Vec<Duration>,
    /// The violations that the verifier found, as texts.
    pub violations: Vec<String>,
}

/// Checks that these parameters can be run. It does not check their traces.
pub fn check(parameters: &Parameters) -> Result<(), RunError> {
    check::check(parameters)
}

/// Runs until everything has arrived, or until the time limit.
pub fn run(parameters: &Parameters, traces: &TraceStore) -> Result<RunOutcome, RunError> {
    check(parameters)?;
    let mut topology = Topology::new(parameters, traces)?;
    let mut flows = RunFlows::new(parameters, &mut topology);
    let mut observer = Observer::new();
    let limit = parameters.time_limit.0;
    loop {
        flows.pass_reports(&mut topology);
        flows.start_due(&mut topology);
        topology.end_pep_if_due();
        let watched = topology.watched;
        let world = &mut topology.world;
        flows.count_if_due(world);
        let now = world.elapsed();
        if observer.next() <= now {
            let body_bytes = flows.body_bytes(world);
            let is_kept = parameters.samples > 0;
            let each = if is_kept { flows.body_bytes_of_each(world) } else { Vec::new() };
            observer.sample(world, watched, body_bytes, each);
        }
        if flows.have_ended(world) || now >= limit {
            break;
        }
        let next = [Some(observer.next()), flows.next_event(), flows.end(), Some(limit)];
        let next = next.into_iter().flatten().filter(|at| *at > now).min().unwrap_or(limit);
        world.run_until(next.saturating_sub(now), |world| {
            observer.watch(world, watched);
            flows.have_ended(world) || flows.have_news(world)
        });
    }
    Ok(outcome::of(parameters, topology, &flows, observer))
}

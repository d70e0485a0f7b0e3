//! A transfer with the origin: a download or an upload, and what the origin is told of the tunnel.

mod auto;
mod fetch;
mod ranges;
mod relay;
mod upload;

use std::time::{Duration, Instant};

pub use self::auto::Choice;
pub(super) use self::{
    fetch::{Failure, Fetch, Progress},
    relay::Relay,
};
use super::chain::{Chain, Hop};
use crate::{impossible::impossible, node::FetchReport, stats::FeedbackStats};

/// What is told of a transfer that is complete.
pub(super) fn report(
    now: Instant,
    fetch: &Fetch,
    chain: &mut Chain,
    feedback: FeedbackStats,
) -> Option<FetchReport> {
    let connections = chain.connections().collect();
    let overhead = chain.overhead().unwrap_or_default();
    let agreements = chain.hops.iter().filter_map(|hop| hop.tunnel.agreement()).collect();
    let adapts = chain.hops.iter().any(Hop::adapts);
    let choice = fetch.choice().filter(|_| adapts);
    let (Some(began), Some(status), Some(origin)) = (chain.began, fetch.status, &mut chain.origin)
    else {
        return impossible("what is complete had begun, and was answered by an origin");
    };
    let Some(started) = origin.started() else {
        return impossible("who has answered has a connection");
    };
    Some(FetchReport {
        choice,
        status: status.as_u16(),
        bytes: fetch.bytes,
        setup: started.saturating_duration_since(began),
        handshake: origin.handshake().unwrap_or(Duration::ZERO),
        completion: now - started,
        smoothed_rtt: origin.stats().smoothed_rtt,
        connections,
        overhead,
        agreements,
        feedback,
    })
}

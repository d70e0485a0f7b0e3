//! What PEPs show of the path of a connection.

use std::net::SocketAddr;

use tandem_congestion::DomainStats;
use tracing::info;

/// What PEPs have shown of the path of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// The number of the connection, as in the log.
    pub connection: u64,
    /// The address of its client. `None`: the connection has none any more.
    pub client: Option<SocketAddr>,
    /// Whether the connection has ended.
    pub has_ended: bool,
    /// The two domains of its path.
    pub domains: DomainStats,
}

impl PathReport {
    /// Tells the log where the connection lost packets, and where its bottleneck was. So many lines about others were
    /// left out before.
    pub(crate) fn tell(&self, left_out: u64) {
        let Self { connection, domains, .. } = self;
        let bottleneck = domains.bottleneck.unwrap_or_default();
        info!(
            connection,
            pep = domains.pep.0,
            authentic = domains.is_authentic,
            pep_acks = domains.pep_acks,
            lost_wired = domains.losses.wired,
            lost_access = domains.losses.access,
            lost_unknown = domains.losses.unknown,
            rtt_wired = ?domains.wired.smoothed,
            rtt_access = ?domains.access.smoothed,
            bottleneck_wired = ?bottleneck.wired,
            bottleneck_access = ?bottleneck.access,
            bottleneck_sender = ?bottleneck.sender,
            left_out = (left_out > 0).then_some(left_out),
            "what a PEP on the path has shown",
        );
    }
}

//! What segments of the path say to the sender: tunnels report on themselves
//! ([`TunnelInfo`]), and PEPs tell which packets have passed them ([`Passed`]). Both reach the controller
//! of a connection through its [`Feedback`].
//!
//! | file | contents |
//! | --- | --- |
//! | `domains` | [`DomainStats`]: the path before a PEP and behind it, as the sender measures them |
//! | `bottleneck` | [`Bottleneck`]: which of the two limits the connection |

mod bottleneck;
mod domains;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tandem_wire::TunnelInfo;

pub(crate) use self::domains::{Domains, News};
pub use self::{
    bottleneck::{Bottleneck, Place},
    domains::{Domain, DomainRtt, DomainStats, Losses, Passed},
};
use crate::{mdcc, tecc};

/// What a segment of the path says.
#[derive(Clone, Debug)]
pub enum Report<'a> {
    /// A tunnel says how fast it sends, and how long its queue is.
    Tunnel(&'a TunnelInfo),
    /// A PEP acknowledges packets that have passed it.
    Passed(Passed<'a>),
}

impl<'a> From<&'a TunnelInfo> for Report<'a> {
    fn from(info: &'a TunnelInfo) -> Self {
        Self::Tunnel(info)
    }
}

impl<'a> From<Passed<'a>> for Report<'a> {
    fn from(passed: Passed<'a>) -> Self {
        Self::Passed(passed)
    }
}

/// What happened to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The sender follows it.
    Used,
    /// The sender ignores it: its sequence number is not above that of an earlier report, or it tells of
    /// nothing new.
    Stale,
    /// The controller of the sender does not follow such reports. What PEPs say is measured nevertheless.
    NotListening,
}

/// The handle through which reports reach the controller of their connection.
///
/// Each connection has its own handle; clones of a handle share one state.
#[derive(Clone, Debug, Default)]
pub struct Feedback(Arc<Mutex<PathState>>);

/// What the segments of one connection's path say.
#[derive(Debug, Default)]
pub(crate) struct PathState {
    pub(crate) tunnel: tecc::Control,
    pub(crate) domains: Domains,
    pub(crate) mdcc: Option<Box<mdcc::Control>>,
}

impl Feedback {
    /// Gives a report, which arrived at `now`, to the controller.
    pub fn apply<'a>(&self, now: Instant, report: impl Into<Report<'a>>) -> Applied {
        let state = &mut *self.state();
        match report.into() {
            Report::Tunnel(info) => state.tunnel.apply(now, info),
            Report::Passed(passed) => {
                let news = state.domains.on_passed(now, &passed);
                match &mut state.mdcc {
                    _ if news == News::default() => Applied::Stale,
                    Some(mdcc) if passed.is_authentic => {
                        mdcc.on_passed(now, &news, &state.domains);
                        Applied::Used
                    }
                    _ => Applied::NotListening,
                }
            }
        }
    }

    /// Notes a packet, in the order of packet numbers, of which PEP-ACKs may tell. `bytes` is its size.
    pub fn on_sent(&self, now: Instant, packet_number: u64, bytes: u16) {
        self.state().domains.on_sent(now, packet_number, bytes);
    }

    /// Notes an acknowledgement. It must be called before the controller of the connection learns of it.
    pub fn on_acked(&self, now: Instant, packet_number: u64, sent: Instant) {
        let state = &mut *self.state();
        let rtt = state.domains.on_acked(now, packet_number, sent);
        if let (Some(mdcc), Some(rtt)) = (&mut state.mdcc, rtt) {
            mdcc.on_access_rtt(rtt);
        }
    }

    /// Notes a loss. It must be called before the controller of the connection learns of it.
    pub fn on_lost(&self, packet_number: u64, bytes: u16) {
        let state = &mut *self.state();
        let domain = state.domains.on_lost(packet_number, bytes);
        if let Some(mdcc) = &mut state.mdcc {
            mdcc.on_lost_in(domain);
        }
    }

    /// Notes the end of the acknowledgements of one frame.
    pub fn on_acks_end(&self, now: Instant, is_app_limited: bool) {
        self.state().domains.on_acks_end(now, is_app_limited);
    }

    /// Forgets all packets, because the connection has moved to another path.
    pub fn forget_path(&self) {
        self.state().domains = Domains::default();
    }

    /// What is known of the domains of the path. `None`: no PEP has acknowledged a packet.
    pub fn domains(&self) -> Option<DomainStats> {
        self.state().domains.stats()
    }

    /// Locks the state. Only one thread works on a connection at a time, so the lock is free.
    pub(crate) fn state(&self) -> MutexGuard<'_, PathState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

//! Bounds the lines of the log that users and strangers cause with flows and connections, so that they cannot fill a
//! disk.

use std::{
    collections::BTreeMap,
    fmt, mem,
    str::FromStr,
    time::{Duration, Instant},
};

use serde_with::SerializeDisplay;
use tracing::{field::display, info};

use super::{
    FlowId,
    access::User,
    flow::{End, Flow, Owner, Stage},
    service::Open,
    users::EachWay,
};
use crate::seldom::LineBudget;

/// The time for which lines are left out before the log says how many.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the log says of flows at level *info*.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, SerializeDisplay)]
pub enum LogFlows {
    /// Nothing.
    None,
    /// When flows of which user opened and closed, and what they carried, but not where to. An operator can see who
    /// uses the proxy how much, and keeps no list of what its users visit.
    #[default]
    Users,
    /// Also the destination of each flow, which lets an operator answer complaints of others.
    Targets,
}

impl LogFlows {
    /// All values.
    pub const ALL: [Self; 3] = [Self::None, Self::Users, Self::Targets];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Users => "users",
            Self::Targets => "targets",
        }
    }
}

impl fmt::Display for LogFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LogFlows {
    type Err = UnknownLogFlows;

    fn from_str(name: &str) -> Result<Self, UnknownLogFlows> {
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or(UnknownLogFlows)
    }
}

/// The error for a name that is no [`LogFlows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("allowed: none, users, targets")]
pub struct UnknownLogFlows;

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowLine {
    Opened,
    Closed,
}

/// How many flows, or connections, were not logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unlogged {
    opened: u64,
    closed: u64,
}

impl Unlogged {
    const fn count(&mut self, line: FlowLine) {
        match line {
            FlowLine::Opened => self.opened += 1,
            FlowLine::Closed => self.closed += 1,
        }
    }

    /// At least so many were not logged, or only in part.
    fn number(self) -> u64 {
        self.opened.max(self.closed)
    }
}

/// Decides which lines about flows and connections are written. Each user has its own bound for its flows, over all
/// nodes together; connections of all clients of a node have one.
#[derive(Debug, Default)]
pub(super) struct FlowLog {
    flows_say: LogFlows,
    /// The time of the lines that follow.
    now: Option<Instant>,
    /// The flows that were not logged, by the number of their user. There is an entry at most for each user of the last
    /// second.
    flows: BTreeMap<u64, (User, Unlogged)>,
    budget: LineBudget,
    /// The connections that were not logged.
    connections: Unlogged,
    /// When the log says what was left out.
    due: Option<Instant>,
    left_out: u64,
}

impl FlowLog {
    pub(super) fn new(flows_say: LogFlows) -> Self {
        Self { flows_say, ..Self::default() }
    }

    /// Whether lines may have the destinations of users.
    pub(super) fn has_targets(&self) -> bool {
        self.flows_say == LogFlows::Targets
    }

    /// Sets the time of the lines that follow.
    pub(super) const fn set_now(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// Writes that a flow was granted.
    pub(super) fn opened(&mut self, id: FlowId, flow: &Flow) {
        let Owner { user, client, trace_id, .. } = &flow.owner;
        let destination = flow.open().map(Open::target).filter(|_| self.has_targets()).map(display);
        if self.may_log(user, FlowLine::Opened) {
            info!(
                connection = id.0.0, flow = id.1.0, trace_id = trace_id.map(display), %user,
                client = client.map(display), destination, protocol = flow.service.shown(),
                "flow opened"
            );
        }
    }

    /// Writes that a flow has ended, if it was granted.
    pub(super) fn closed(&mut self, id: FlowId, flow: &Flow, reason: &End) {
        let Stage::Open(open) = &flow.stage else { return }; // it has no line that says it was opened
        let Owner { user, client, trace_id, meter, .. } = &flow.owner;
        if !self.may_log(user, FlowLine::Closed) {
            return;
        }
        let EachWay { to_target, to_client } = open.bytes().unwrap_or_else(|| meter.bytes());
        let payloads = open.payloads();
        let destination = self.has_targets().then(|| display(open.target()));
        info!(
            connection = id.0.0, flow = id.1.0, trace_id = trace_id.map(display), %user,
            client = client.map(display), destination, %reason,
            protocol = flow.service.shown(), active_s = meter.active().as_secs_f64(),
            to_target_bytes = to_target, to_client_bytes = to_client,
            to_target = payloads.map(|it| it.to_target_datagrams),
            to_client = payloads.map(|it| it.to_client_datagrams),
            beside = payloads.map(|it| it.beside_datagrams),
            too_large = payloads.map(|it| it.too_large),
            "flow closed"
        );
    }

    /// Whether to write a line about a flow of this user.
    fn may_log(&mut self, user: &User, line: FlowLine) -> bool {
        if self.flows_say == LogFlows::None {
            return false;
        }
        let Some(now) = self.now else { return true }; // before the first input
        if user.account.may_log(now) {
            return true;
        }
        let new = || (user.clone(), Unlogged::default());
        self.flows.entry(user.account.number()).or_insert_with(new).1.count(line);
        self.leave_out(now)
    }

    /// Whether to write a line about a connection.
    pub(super) fn may_log_connection(&mut self, line: FlowLine) -> bool {
        let Some(now) = self.now else { return true }; // before the first input
        if self.budget.due(now).is_some() {
            return true;
        }
        self.connections.count(line);
        self.leave_out(now)
    }

    fn leave_out(&mut self, now: Instant) -> bool {
        self.left_out += 1;
        self.due.get_or_insert(now + INTERVAL);
        false
    }

    /// Says what was left out, if it is time.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.tell();
        }
    }

    /// Says what was left out.
    pub(super) fn tell(&mut self) {
        self.due = None;
        for (user, unlogged) in mem::take(&mut self.flows).into_values() {
            let Unlogged { opened, closed } = unlogged;
            info!(%user, opened, closed, "{} flows not logged", unlogged.number());
        }
        let unlogged = mem::take(&mut self.connections);
        if unlogged != Unlogged::default() {
            let Unlogged { opened, closed } = unlogged;
            info!(opened, closed, "{} connections not logged", unlogged.number());
        }
    }

    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// How many lines were left out since the start.
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limits::Limits, test_start};

    #[test]
    fn a_user_has_a_burst_of_lines_and_then_some_in_each_second_at_all_nodes_together() {
        let (user, start) = (User::test(), test_start());
        let mut nodes = [FlowLog::default(), FlowLog::default()];
        let mut logged = Vec::new();
        for second in 0..10 {
            let now = start + Duration::from_secs(second);
            let mut in_second = 0;
            for number in 0..4000 {
                let node = &mut nodes[number % 2];
                node.set_now(now);
                let line = if number % 4 < 2 { FlowLine::Opened } else { FlowLine::Closed };
                in_second += u32::from(node.may_log(&user, line));
            }
            logged.push(in_second);
        }
        assert_eq!(logged[0], Limits::LOG_BURST);
        assert!(logged[1..].iter().all(|lines| *lines == Limits::LOG_PER_SECOND), "{logged:?}");
        let left_out: u64 = nodes.iter().map(FlowLog::left_out).sum();
        assert_eq!(left_out, 40_000 - u64::from(logged.iter().sum::<u32>()));
    }

    #[test]
    fn what_was_left_out_is_told_once_a_second() {
        let (user, start) = (User::test(), test_start());
        let mut log = FlowLog::default();
        log.set_now(start);
        assert_eq!(log.next_timeout(), None);
        for _ in 0..Limits::LOG_BURST + 5 {
            log.may_log(&user, FlowLine::Opened);
            log.may_log_connection(FlowLine::Closed);
        }
        assert_eq!(log.flows.values().next().unwrap().1, Unlogged { opened: 5, closed: 0 });
        assert_eq!((log.connections.number(), log.left_out()), (5, 10));
        assert_eq!(log.next_timeout(), Some(start + INTERVAL));
        log.handle_timeout(start + INTERVAL / 2);
        assert!(log.next_timeout().is_some() && !log.flows.is_empty());
        log.handle_timeout(start + INTERVAL);
        assert!(log.next_timeout().is_none() && log.flows.is_empty());
        assert_eq!((log.connections, log.left_out()), (Unlogged::default(), 10));
    }
}

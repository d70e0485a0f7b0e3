//! What users carry, in series whose number has a bound.
//!
//! The users that have carried most of late have series of their own, all the others one together. A counter must not
//! fall, so that a user's series begins at zero when the user gets it, and what the others carried before stays theirs.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use tandem_node::proxy::{EachWay, Refused, UserCounters};

use super::{
    BUSIEST,
    board::mbps,
    metrics::{Family, MetricKind, MetricSample},
    now::User,
};
use crate::admin::words::round;

/// The most users with series of their own: 12 series for each, which are together fewer than 1000.
const OWN_MAX: usize = 50;

/// The label of all other users. No user has this name, because names have no spaces.
const OTHERS: &str = "other users";

/// How many looks pass until one user may take over the series of another. A look comes once a second, so that a
/// store of metrics gets series for at most 60 more users in an hour.
const LOOKS_PER_CHANGE: u32 = 60;

/// What is left of the weight of bytes after a look. Half is left after six minutes.
const FADE: f64 = 0.998;

/// The causes of refusals in their order in [`Grown`].
const CAUSES: [&str; 6] = ["target", "connections", "flows", "flow_rate", "lookups", "month"];

/// The directions in their order in [`Grown`].
const DIRECTIONS: [&str; 2] = ["to_target", "to_client"];

/// Counters of a user that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Grown {
    bytes: [u64; 2],
    over_rate: [u64; 2],
    refused: [u64; 6],
}

impl Grown {
    const fn of(counters: &UserCounters) -> Self {
        let UserCounters { bytes, over_rate_datagrams, refused, .. } = counters;
        let Refused { target, connections, flows, flow_rate, lookups, month } = *refused;
        Self {
            bytes: each_way(*bytes),
            over_rate: each_way(*over_rate_datagrams),
            refused: [target, connections, flows, flow_rate, lookups, month],
        }
    }

    /// What was counted since an older look. A user who was forgotten in between counts from zero.
    fn since(self, old: Self) -> Self {
        self.with(old, |new, old| new.checked_sub(old).unwrap_or(new))
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    fn with(mut self, other: Self, operation: fn(u64, u64) -> u64) -> Self {
        let Self { bytes, over_rate, refused } = &mut self;
        let ours = bytes.iter_mut().chain(over_rate).chain(refused);
        let others = other.bytes.into_iter().chain(other.over_rate).chain(other.refused);
        ours.zip(others).for_each(|(one, other)| *one = operation(*one, other));
        self
    }

    fn all_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

const fn each_way(EachWay { to_target, to_client }: EachWay) -> [u64; 2] {
    [to_target, to_client]
}

/// A user at the last look.
#[derive(Clone, Debug)]
struct SeenUser {
    name: Arc<str>,
    counters: UserCounters,
    /// What was counted since the look before.
    new: Grown,
    /// Bytes, of which older ones weigh less.
    weight: f64,
}

impl SeenUser {
    fn is_active(&self) -> bool {
        self.counters.connections > 0 || self.new != Grown::default()
    }
}

/// All users, and the series of some of them.
#[derive(Debug, Default)]
pub(super) struct UserSeries {
    /// In the order of their names.
    seen: Vec<SeenUser>,
    own: BTreeMap<Arc<str>, Grown>,
    others: Grown,
    looks: u32,
    last: Option<Instant>,
    interval: Duration,
}

impl UserSeries {
    /// Takes the counters of all users, in the order of their names.
    pub(super) fn update(&mut self, now: Instant, counters: Vec<(Arc<str>, UserCounters)>) {
        self.interval =
            self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last = Some(now);
        let mut before = mem::take(&mut self.seen).into_iter().peekable();
        for (name, counters) in counters {
            while before.next_if(|old| old.name < name).is_some() {}
            let old = before.next_if(|old| old.name == name);
            let (grown, weight) =
                old.map_or((Grown::default(), 0.0), |old| (Grown::of(&old.counters), old.weight));
            let new = Grown::of(&counters).since(grown);
            #[expect(clippy::cast_precision_loss, reason = "weights are compared")]
            let weight = weight * FADE + new.all_bytes() as f64;
            let seen = SeenUser { name, counters, new, weight };
            if self.own.len() < OWN_MAX && seen.is_active() {
                self.own.entry(Arc::clone(&seen.name)).or_default();
            }
            let series = self.own.get_mut(&seen.name).unwrap_or(&mut self.others);
            *series = series.plus(new);
            self.seen.push(seen);
        }
        let Self { own, seen, .. } = self;
        own.retain(|name, _| find(seen, name).is_some());
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_CHANGE) {
            self.change();
        }
    }

    /// Gives the series of the user who has carried least to one who has carried more than twice as much.
    fn change(&mut self) {
        if self.own.len() < OWN_MAX {
            return;
        }
        let (with, without): (Vec<_>, Vec<_>) =
            self.seen.iter().partition(|seen| self.own.contains_key(&seen.name));
        let by_weight = |a: &&SeenUser, b: &&SeenUser| a.weight.total_cmp(&b.weight);
        if let (Some(least), Some(most)) =
            (with.into_iter().min_by(by_weight), without.into_iter().max_by(by_weight))
            && most.weight > 2.0 * least.weight
        {
            self.own.remove(&least.name);
            self.own.insert(Arc::clone(&most.name), Grown::default());
        }
    }

    /// How many users are known.
    pub(super) const fn known(&self) -> usize {
        self.seen.len()
    }

    /// The users that carry most now, the busiest first.
    pub(super) fn busiest(&self) -> Vec<User> {
        let active = self.seen.iter().filter(|seen| seen.is_active() || seen.weight >= 1.0);
        let mut active: Vec<_> = active.collect();
        active.sort_by(|a, b| {
            let by_weight = || b.weight.total_cmp(&a.weight);
            Reverse(a.new.all_bytes()).cmp(&Reverse(b.new.all_bytes())).then_with(by_weight)
        });
        active.into_iter().take(BUSIEST).map(|seen| self.user(seen)).collect()
    }

    fn user(&self, seen: &SeenUser) -> User {
        let Grown { bytes: [to_target_bytes, to_client_bytes], over_rate, refused } =
            Grown::of(&seen.counters);
        let [to_target, to_client] = seen.new.bytes;
        let rates = ["rate_to_target", "rate_to_client"].into_iter().zip(over_rate);
        let limits = CAUSES.into_iter().zip(refused).chain(rates);
        User {
            name: seen.name.as_ref().to_owned(),
            connections: seen.counters.connections,
            flows: seen.counters.flows,
            to_client_mbps: round(mbps(to_client, self.interval), 1e3),
            to_target_mbps: round(mbps(to_target, self.interval), 1e3),
            to_client_bytes,
            to_target_bytes,
            limited: limits.map(|(limit, count)| (limit.to_owned(), count)).collect(),
        }
    }

    /// The metrics.
    pub(super) fn families(&self) -> Vec<Family> {
        let name = |name: &Arc<str>| name.as_ref().to_owned();
        let own = self.own.iter().map(|(it, grown)| (name(it), *grown));
        let grown: Vec<_> = own.chain([(OTHERS.to_owned(), self.others)]).collect();
        let open = self
            .own
            .keys()
            .filter_map(|it| find(&self.seen, it).map(|seen| (name(it), seen.counters)));
        let open: Vec<_> = open.chain([(OTHERS.to_owned(), self.of_others())]).collect();
        let gauge = |title, help, value: fn(&UserCounters) -> u32| {
            let samples = open
                .iter()
                .map(|(user, it)| MetricSample::of([user.clone()], u64::from(value(it))));
            Family::labelled(MetricKind::Gauge, (title, help), ["user"], samples.collect())
        };
        vec![
            Family::gauge("tandem_users", "Users that the proxy remembers", self.known()),
            counters(
                ("tandem_user_bytes_total", "Bytes of UDP and TCP payload of a user"),
                ("direction", DIRECTIONS),
                &grown,
                |it| it.bytes,
            ),
            gauge(
                "tandem_user_connections_open",
                "QUIC connections of a user that are open",
                |it| it.connections,
            ),
            gauge(
                "tandem_user_flows_open",
                "UDP flows and TCP connections of a user that are open",
                |it| it.flows,
            ),
            counters(
                (
                    "tandem_user_requests_refused_total",
                    "Requests of a user that met one of its limits",
                ),
                ("limit", CAUSES),
                &grown,
                |it| it.refused,
            ),
            counters(
                (
                    "tandem_user_datagrams_dropped_total",
                    "UDP payloads of a user that were dropped because they came faster than its rate",
                ),
                ("direction", DIRECTIONS),
                &grown,
                |it| it.over_rate,
            ),
        ]
    }

    /// What users without a series of their own have open.
    fn of_others(&self) -> UserCounters {
        let mut sum = UserCounters::default();
        for SeenUser { counters, .. } in
            self.seen.iter().filter(|it| !self.own.contains_key(&it.name))
        {
            sum.connections = sum.connections.saturating_add(counters.connections);
            sum.flows = sum.flows.saturating_add(counters.flows);
        }
        sum
    }
}

fn find<'a>(seen: &'a [SeenUser], name: &str) -> Option<&'a SeenUser> {
    let place = seen.binary_search_by(|seen| seen.name.as_ref().cmp(name)).ok()?;
    seen.get(place)
}

fn counters<const N: usize>(
    title: (&'static str, &'static str),
    (label, names): (&'static str, [&'static str; N]),
    grown: &[(String, Grown)],
    values: fn(&Grown) -> [u64; N],
) -> Family {
    let samples = grown.iter().flat_map(|(user, it)| {
        let one = move |(name, value)| MetricSample::of([user.clone(), String::from(name)], value);
        names.into_iter().zip(values(it)).map(one)
    });
    Family::labelled(MetricKind::Counter, title, ["user", label], samples.collect())
}

#[cfg(test)]
mod tests;

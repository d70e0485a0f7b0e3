//! One user's account, to which all threads add.

use std::{
    net::IpAddr,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    EachWay, KeptUsage, Month, Refusal, Refused, UserCounters, UserLimits, UserRules, UserUsage,
    bucket::{Bucket, CountBucket},
    meter::Direction,
};
use crate::limits::Limits;

/// The users' clock: nanoseconds since the first use, and the time in UTC.
#[derive(Debug, Default)]
pub(super) struct Clock {
    start: OnceLock<Instant>,
    /// Milliseconds from 1970 until the start; 0 stands for an unknown time.
    unix_at_start: AtomicU64,
    /// The present month; 0 stands for an unknown one.
    pub(super) month: AtomicU32,
}

impl Clock {
    fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.start.get_or_init(|| now))
    }

    pub(super) fn nanos(&self, now: Instant) -> u64 {
        u64::try_from(self.since_start(now).as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn set(&self, now: Instant, unix: Duration) {
        let at_start = unix.saturating_sub(self.since_start(now)).as_millis();
        self.unix_at_start.store(u64::try_from(at_start).unwrap_or(u64::MAX).max(1), Relaxed);
    }

    pub(super) fn unix(&self, now: Instant) -> Option<Duration> {
        let at_start = self.unix_at_start.load(Relaxed);
        (at_start != 0).then(|| Duration::from_millis(at_start) + self.since_start(now))
    }
}

/// What is counted while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Counted {
    Connections,
    Flows,
    Lookups,
}

impl Counted {
    const fn refusal(self) -> Refusal {
        match self {
            Self::Connections => Refusal::Connections,
            Self::Flows => Refusal::Flows,
            Self::Lookups => Refusal::Lookups,
        }
    }
}

/// What is open, and how much of it may be open.
#[derive(Debug, Default)]
struct Gauge {
    open: AtomicU32,
    max: AtomicU32,
}

/// Something that counts as open until this is dropped.
#[derive(Debug)]
pub(in crate::proxy) struct OpenPlace {
    account: Arc<Account>,
    counted: Counted,
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        self.account.gauge(self.counted).open.fetch_sub(1, Relaxed);
    }
}

/// What one direction has carried.
#[derive(Debug, Default)]
struct DirectionBytes {
    bytes: AtomicU64,
    datagrams: AtomicU64,
    month_bytes: AtomicU64,
    /// The part of the month's bytes that the embedding program keeps.
    kept_bytes: AtomicU64,
    over_rate: AtomicU64,
    bucket: Bucket,
}

impl DirectionBytes {
    fn begin_month(&self) {
        self.month_bytes.store(0, Relaxed);
        self.kept_bytes.store(0, Relaxed);
    }

    /// Replaces what is kept.
    fn restore(&self, bytes: u64) {
        let before = self.kept_bytes.swap(bytes, Relaxed);
        // This wraps around, so that it can also subtract.
        self.month_bytes.fetch_add(bytes.wrapping_sub(before), Relaxed);
    }

    /// Adds what another process tells. No number of it makes the sum smaller.
    fn add_to_month(&self, bytes: u64) {
        let sum = |before: u64| Some(before.saturating_add(bytes));
        // There is always a sum.
        self.month_bytes.fetch_update(Relaxed, Relaxed, sum).ok();
    }

    /// Notes that this much more is kept, of what was carried.
    fn note_kept(&self, bytes: u64) {
        let kept = self.kept_bytes.load(Relaxed).saturating_add(bytes);
        self.kept_bytes.store(kept.min(self.month_bytes.load(Relaxed)), Relaxed);
    }
}

/// One user's account.
#[derive(Debug)]
pub(in crate::proxy) struct Account {
    pub(super) clock: Arc<Clock>,
    /// No two accounts have the same.
    number: u64,
    gauges: [Gauge; 3],
    /// The flows that the user opens.
    flow_rate: CountBucket,
    /// The lines of the log about the user's flows.
    log_lines: CountBucket,
    to_target: DirectionBytes,
    to_client: DirectionBytes,
    refused: [AtomicU64; Refusal::NUMBER],
    month_max: AtomicU64,
    /// Seconds since 1970; 0 stands for never.
    last_seen: AtomicU64,
    /// What only requests read.
    named: RwLock<Named>,
}

#[derive(Clone, Debug, Default)]
struct Named {
    /// The group that the user's credentials name.
    claimed: Option<Arc<str>>,
    /// The group whose limits are in force.
    group: Option<Arc<str>>,
    limits: Arc<UserLimits>,
}

impl Account {
    pub(super) fn new(clock: Arc<Clock>, number: u64) -> Self {
        let log_lines = CountBucket::default();
        log_lines.set(Some((Limits::LOG_BURST, Limits::LOG_PER_SECOND)));
        Self {
            clock,
            number,
            gauges: Default::default(),
            flow_rate: CountBucket::default(),
            log_lines,
            to_target: DirectionBytes::default(),
            to_client: DirectionBytes::default(),
            refused: Default::default(),
            month_max: AtomicU64::new(u64::MAX),
            last_seen: AtomicU64::new(0),
            named: RwLock::default(),
        }
    }

    fn named(&self) -> Named {
        self.named.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn gauge(&self, counted: Counted) -> &Gauge {
        let [connections, flows, lookups] = &self.gauges;
        match counted {
            Counted::Connections => connections,
            Counted::Flows => flows,
            Counted::Lookups => lookups,
        }
    }

    const fn carried(&self, direction: Direction) -> &DirectionBytes {
        match direction {
            Direction::ToTarget => &self.to_target,
            Direction::ToClient => &self.to_client,
        }
    }

    pub(super) const fn bucket(&self, direction: Direction) -> &Bucket {
        &self.carried(direction).bucket
    }

    pub(in crate::proxy) const fn number(&self) -> u64 {
        self.number
    }

    /// Opens something, unless as much is open as may be.
    pub(in crate::proxy) fn place(
        self: &Arc<Self>,
        counted: Counted,
    ) -> Result<OpenPlace, Refusal> {
        let gauge = self.gauge(counted);
        let max = gauge.max.load(Relaxed);
        let next = |open: u32| (open < max).then_some(open + 1);
        if gauge.open.fetch_update(Relaxed, Relaxed, next).is_err() {
            return Err(self.refuse(counted.refusal()));
        }
        Ok(OpenPlace { account: Arc::clone(self), counted })
    }

    /// Notes that the user opens a flow, unless it opens them faster than it may. The error says how many it may open
    /// in a second.
    pub(in crate::proxy) fn open_flow(&self, now: Instant) -> Result<(), (Refusal, u32)> {
        if self.flow_rate.take(self.clock.nanos(now)) {
            return Ok(());
        }
        let max = self.named().limits.flows_per_second.get().copied().unwrap_or(u32::MAX);
        Err((self.refuse(Refusal::FlowRate), max))
    }

    /// Whether the log has room for a line about one of the user's flows.
    pub(in crate::proxy) fn may_log(&self, now: Instant) -> bool {
        self.log_lines.take(self.clock.nanos(now))
    }

    /// How much may be open.
    pub(in crate::proxy) fn max(&self, counted: Counted) -> u32 {
        self.gauge(counted).max.load(Relaxed)
    }

    /// Counts a refusal.
    pub(in crate::proxy) fn refuse(&self, refusal: Refusal) -> Refusal {
        if let Some(counter) = self.refused.get(refusal as usize) {
            counter.fetch_add(1, Relaxed);
        }
        refusal
    }

    /// Notes that the user sent a request.
    pub(in crate::proxy) fn see(&self, now: Instant) {
        if let Some(unix) = self.clock.unix(now) {
            self.last_seen.store(unix.as_secs(), Relaxed);
        }
    }

    pub(super) fn last_seen(&self) -> u64 {
        self.last_seen.load(Relaxed)
    }

    /// Whether the user has carried as many bytes in this month as it may.
    pub(in crate::proxy) fn has_used_month(&self) -> bool {
        self.month_bytes().total() >= self.month_max.load(Relaxed)
    }

    /// Whether the user may reach this host, which is a name or an address, at this port.
    pub(in crate::proxy) fn may_ask(&self, host: &str, port: u16) -> bool {
        self.named().limits.targets.may_ask(host, port)
    }

    /// Whether the user may reach this address.
    pub(in crate::proxy) fn may_reach(&self, address: IpAddr) -> bool {
        self.named().limits.targets.may_reach(address)
    }

    /// Notes the group that the user's credentials name.
    pub(super) fn join(&self, group: Option<&str>, rules: &UserRules, name: &str) {
        if self.named.read().unwrap_or_else(PoisonError::into_inner).claimed.as_deref() == group {
            return;
        }
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        named.claimed = group.map(Arc::from);
        drop(named);
        self.set_limits(rules, name);
    }

    pub(super) fn set_limits(&self, rules: &UserRules, name: &str) {
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        let (group, limits) = rules.of(name, named.claimed.as_deref());
        let Self { gauges: [connections, flows, lookups], .. } = self;
        for (gauge, max) in
            [(connections, &limits.connections), (flows, &limits.flows), (lookups, &limits.lookups)]
        {
            gauge.max.store(max.get().copied().unwrap_or(u32::MAX), Relaxed);
        }
        self.flow_rate.set(limits.flow_rate());
        self.to_target.bucket.set(limits.rate_to_target.get().copied());
        self.to_client.bucket.set(limits.rate_to_client.get().copied());
        self.month_max.store(limits.month_bytes.get().map_or(u64::MAX, |it| it.get()), Relaxed);
        named.group = group.map(Arc::from);
        named.limits = Arc::new(limits);
    }

    /// Adds what a flow has carried.
    pub(super) fn add(&self, direction: Direction, bytes: u64, datagrams: u64) {
        let carried = self.carried(direction);
        carried.bytes.fetch_add(bytes, Relaxed);
        carried.month_bytes.fetch_add(bytes, Relaxed);
        carried.datagrams.fetch_add(datagrams, Relaxed);
    }

    pub(super) fn count_over_rate(&self, direction: Direction) {
        self.carried(direction).over_rate.fetch_add(1, Relaxed);
    }

    pub(super) fn begin_month(&self) {
        self.to_target.begin_month();
        self.to_client.begin_month();
    }

    pub(super) fn restore(&self, kept: &KeptUsage, month: Option<Month>) {
        self.of_month(kept, month).for_each(|(carried, bytes)| carried.restore(bytes));
        self.last_seen.fetch_max(kept.last_seen.as_secs(), Relaxed);
    }

    pub(super) fn note_kept(&self, more: &KeptUsage, month: Option<Month>) {
        self.of_month(more, month).for_each(|(carried, bytes)| carried.note_kept(bytes));
    }

    pub(super) fn add_used(&self, used: &KeptUsage, month: Option<Month>) {
        for (carried, bytes) in self.of_month(used, month) {
            carried.add_to_month(bytes);
        }
        self.last_seen.fetch_max(used.last_seen.as_secs(), Relaxed);
    }

    /// The bytes of each direction, if they are of this month.
    fn of_month(
        &self,
        usage: &KeptUsage,
        month: Option<Month>,
    ) -> impl Iterator<Item = (&DirectionBytes, u64)> + use<'_> {
        let EachWay { to_target, to_client } = usage.bytes;
        let is_of_month = Some(usage.month) == month;
        let both = [(&self.to_target, to_target), (&self.to_client, to_client)];
        both.into_iter().filter(move |_| is_of_month)
    }

    fn month_bytes(&self) -> EachWay {
        self.each_way(|carried| &carried.month_bytes)
    }

    fn each_way(&self, counter: fn(&DirectionBytes) -> &AtomicU64) -> EachWay {
        let of = |carried| counter(carried).load(Relaxed);
        EachWay { to_target: of(&self.to_target), to_client: of(&self.to_client) }
    }

    pub(super) fn counters(&self) -> UserCounters {
        let [connections, flows, lookups] =
            self.gauges.each_ref().map(|gauge| gauge.open.load(Relaxed));
        let [target, refused_connections, refused_flows, flow_rate, refused_lookups, month] =
            self.refused.each_ref().map(|counter| counter.load(Relaxed));
        UserCounters {
            connections,
            flows,
            lookups,
            bytes: self.each_way(|carried| &carried.bytes),
            datagrams: self.each_way(|carried| &carried.datagrams),
            over_rate_datagrams: self.each_way(|carried| &carried.over_rate),
            refused: Refused {
                target,
                connections: refused_connections,
                flows: refused_flows,
                flow_rate,
                lookups: refused_lookups,
                month,
            },
        }
    }

    pub(super) fn usage(&self, name: &str) -> UserUsage {
        let Named { group, limits, .. } = self.named();
        let (month_bytes, kept) =
            (self.month_bytes(), self.each_way(|carried| &carried.kept_bytes));
        let unkept_bytes = EachWay {
            to_target: month_bytes.to_target.saturating_sub(kept.to_target),
            to_client: month_bytes.to_client.saturating_sub(kept.to_client),
        };
        UserUsage {
            name: name.to_owned(),
            group: group.as_deref().map(str::to_owned),
            counters: self.counters(),
            month_bytes,
            unkept_bytes,
            last_seen: Some(self.last_seen()).filter(|&it| it != 0).map(Duration::from_secs),
            limits: UserLimits::clone(&limits),
        }
    }
}

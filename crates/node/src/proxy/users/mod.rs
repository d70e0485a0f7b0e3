//! The users of a proxy: what each of them has open, has used, and may use.
//!
//! All nodes of a process share one [`Users`]. A lock is taken when a request names its user. The path of
//! packets takes none: each flow holds its user's [`Account`] and adds to atomic numbers.

mod account;
mod bucket;
mod calendar;
mod meter;
mod rules;
mod usage;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use self::account::Clock;
pub(super) use self::{
    account::{Account, Counted, OpenPlace},
    meter::{Direction, Meter, MeterVerdict},
};
pub use self::{
    calendar::Month,
    rules::{Bound, TargetRules, TargetRulesError, UserLimits, UserRule, UserRules},
    usage::{EachWay, KeptUsage, Refusal, Refused, UserCounters, UserUsage},
};

/// Whether a text can be the name of a user: it has 1 to 128 visible ASCII characters, so that it is one word of a log.
pub fn is_user_name(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether a credential may use this user name. The name for anonymous clients is reserved.
pub(crate) fn is_own_name(text: &str) -> bool {
    is_user_name(text) && text != UserRules::ANYONE
}

/// The users of all proxies that have a clone of this.
#[derive(Clone, Debug, Default)]
pub struct Users(Arc<SharedUsers>);

#[derive(Debug, Default)]
struct SharedUsers {
    clock: Arc<Clock>,
    known: RwLock<KnownUsers>,
}

#[derive(Debug, Default)]
struct KnownUsers {
    rules: UserRules,
    by_name: BTreeMap<Arc<str>, Arc<Account>>,
    next_number: u64,
}

impl Users {
    /// The number of users that are remembered. Each costs about 500 bytes. Above it, those without a
    /// connection that were not seen for the longest time are forgotten. A proxy has fewer connections, so
    /// that there are always such users.
    pub const REMEMBERED_MAX: usize = 65_536;

    /// Part of the remembered users that is forgotten at once, so that the search for them is rare.
    const FORGOTTEN_AT_ONCE: usize = Self::REMEMBERED_MAX / 64;

    /// Users with these limits.
    pub fn new(rules: UserRules) -> Self {
        let users = Self::default();
        users.set_rules(rules);
        users
    }

    /// What each user has open and has used, in the order of their names. A flow adds what it has carried
    /// at least every 100 ms while it carries something.
    pub fn usage(&self) -> Vec<UserUsage> {
        self.with(|known| known.by_name.iter().map(|(name, it)| it.usage(name)).collect())
    }

    /// The counters of each user, in the order of their names. This is cheaper than [`Users::usage`], so that it
    /// can be done once a second.
    pub fn counters(&self) -> Vec<(Arc<str>, UserCounters)> {
        self.with(|known| {
            known.by_name.iter().map(|(name, it)| (Arc::clone(name), it.counters())).collect()
        })
    }

    /// Replaces the limits. They hold at once, also for what is open.
    pub fn set_rules(&self, rules: UserRules) {
        self.with_mut(|known| {
            for (name, account) in &known.by_name {
                account.set_limits(&rules, name);
            }
            known.rules = rules;
        });
    }

    /// Says what time it is: `unix` is the time since 1970 in UTC at `now`. A new month begins with no bytes
    /// used. The embedding program repeats this now and then, since clocks are corrected. Before the first
    /// call, no JSON Web Token is valid.
    pub fn set_time(&self, now: Instant, unix: Duration) {
        let SharedUsers { clock, .. } = &*self.0;
        clock.set(now, unix);
        let month = Month::of(unix);
        if clock.month.swap(month.0, Relaxed) != month.0 {
            self.with(|known| known.by_name.values().for_each(|account| account.begin_month()));
        }
    }

    /// The present month. `None`: the time is not known yet.
    pub fn month(&self) -> Option<Month> {
        let month = self.0.clock.month.load(Relaxed);
        (month != 0).then_some(Month(month))
    }

    /// Takes over what the embedding program keeps of users, if it is of the present month. What they have used that
    /// is not kept yet is counted on top. The program does this at its start, and whenever the month changes, also back
    /// to an earlier one.
    pub fn restore(&self, kept: impl IntoIterator<Item = KeptUsage>) {
        let month = self.month();
        for kept in kept {
            self.remembered(&kept.name).restore(&kept, month);
        }
    }

    /// Notes that the embedding program has added this to what it keeps.
    pub fn note_kept<'a>(&self, more: impl IntoIterator<Item = &'a KeptUsage>) {
        let month = self.month();
        self.with(|known| {
            for more in more {
                if let Some(account) = known.by_name.get(&*more.name) {
                    account.note_kept(more, month);
                }
            }
        });
    }

    /// Adds what users have used at another process, if it was in the present month.
    pub fn add_used(&self, used: impl IntoIterator<Item = KeptUsage>) {
        let month = self.month();
        for used in used {
            self.remembered(&used.name).add_used(&used, month);
        }
    }

    /// The account of a user, who is in this group.
    pub(super) fn account(&self, name: &str, group: Option<&str>) -> Arc<Account> {
        let account = self.remembered(name);
        self.with(|known| account.join(group, &known.rules, name));
        account
    }

    /// The account of a user, in the group that the user was in before.
    fn remembered(&self, name: &str) -> Arc<Account> {
        if let Some(account) = self.with(|known| known.by_name.get(name).cloned()) {
            return account;
        }
        self.with_mut(|known| {
            if known.by_name.len() >= Self::REMEMBERED_MAX {
                known.forget_some(Self::FORGOTTEN_AT_ONCE);
            }
            known.next_number += 1;
            let new = || Arc::new(Account::new(Arc::clone(&self.0.clock), known.next_number));
            let account = known.by_name.entry(Arc::from(name)).or_insert_with(new);
            account.set_limits(&known.rules, name);
            Arc::clone(account)
        })
    }

    /// The time since 1970 at `now`, if the embedding program has said it.
    pub(super) fn unix(&self, now: Instant) -> Option<Duration> {
        self.0.clock.unix(now)
    }

    fn with<T>(&self, read: impl FnOnce(&KnownUsers) -> T) -> T {
        read(&self.0.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_mut<T>(&self, change: impl FnOnce(&mut KnownUsers) -> T) -> T {
        change(&mut self.0.known.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KnownUsers {
    /// Forgets idle users, those that were not seen for the longest time first.
    fn forget_some(&mut self, number: usize) {
        let idle = self.by_name.iter().filter(|(_, account)| Arc::strong_count(account) == 1);
        let mut idle: Vec<_> = idle.map(|(name, it)| (it.last_seen(), Arc::clone(name))).collect();
        idle.sort_unstable();
        for (_, name) in idle.into_iter().take(number) {
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests;

//! What each user may do while the proxy's thread has more to do than it can.
//!
//! A packet that has come to the proxy's socket has already cost half of what it costs to relay it, so that users get
//! equal parts of a busy thread only if those that take more than theirs are sent less. Each user therefore has a
//! credit in each round, as flows have in deficit round robin (Shreedhar and Varghese, 1995). The TCP connections of a
//! user whose credit is used up are not read, in both directions: its client then gets no more credit of QUIC's flow
//! control, and the targets no larger window of TCP. UDP cannot be slowed in this way, and is dropped if its user is
//! far beyond its credit.
//!
//! A round ends when all have used their credit, or when all together have done what is due to all of them. It also
//! ends when the thread has nothing to do. So no user waits while the thread is idle, and a user who is alone never
//! waits.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::FlowId;
use crate::{node::Load, quic::ConnectionId, rounds::Party, stats::ShareStats};

/// A user, or a connection whose user is not known.
pub(super) type Who = Party<ConnectionId>;

/// The credit of a party in each round in bytes. A thread carries this in less than a millisecond, so that a round of
/// ten parties, for which a packet may wait, takes some 5 ms. It is enough for 27 full packets with [`PACKET_COST`].
const CREDIT: i64 = 64 * 1024;

/// What a received packet costs besides its bytes, in bytes. To receive a packet and to find out what it is takes half
/// of the time in which one of 1,300 bytes is relayed.
pub(super) const PACKET_COST: usize = 1000;

/// How much of the later credits a party can use up at most, in bytes. What it has in flight when it must wait still
/// comes and counts: up to 2 MB for each stream. Without a bound it could have to wait for minutes.
const DEBT_MAX: i64 = 16 * CREDIT;

/// How much a party can save while the thread is never idle, in bytes. Others may use several credits at once, since a
/// TCP connection is read for up to 256 kB at a time, and it then needs as much to get its part.
const SAVED_MAX: i64 = 4 * CREDIT;

/// A credit that leaves no debt: no other party wanted what was used.
const FORGIVEN: i64 = i64::MAX;

/// How far beyond its credit a party is when its UDP payloads are dropped, in bytes: about the 80 packets of a burst.
/// They cannot wait as TCP does, and a burst should not lose packets.
const UDP_DEBT: i64 = 4 * CREDIT;

/// How long a party counts that does nothing. Who sends each 20 ms, as a telephone does, must count in each round,
/// since others would otherwise use its part between two of its packets.
const SILENCE: Duration = Duration::from_secs(1);

/// The longest round. It ends with the work, or when there is none. Only a driver that does not say so would let
/// parties wait for longer.
const ROUND_MAX: Duration = Duration::from_millis(100);

/// The most parties that have credit. Others are not limited. Each has some 50 bytes here, and an open connection of
/// 62 kB.
const PARTIES_MAX: usize = 4096;

/// The credit of all parties of one proxy.
#[derive(Debug, Default)]
pub(super) struct Shares {
    is_busy: bool,
    parties: BTreeMap<Who, Share>,
    /// How many parties have credit left.
    with_credit: usize,
    /// What was done in this round, in bytes.
    done: i64,
    /// When this round began, if a party waits.
    began: Option<Instant>,
    /// TCP connections that wait for the next round, each once.
    waiting: VecDeque<FlowId>,
    /// Whether a round has begun since the last call of [`Self::next_round`].
    is_new: bool,
    stats: ShareStats,
}

#[derive(Debug)]
struct Share {
    /// The credit that is left in bytes. It is negative if more was used.
    left: i64,
    last: Instant,
}

impl Shares {
    pub(super) const fn stats(&self) -> ShareStats {
        self.stats
    }

    /// Whether the thread is busy. Nothing is counted while it is not.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Notes what the driver says of the thread.
    pub(super) fn set_load(&mut self, now: Instant, load: Load) {
        match load {
            Load::Busy => {
                self.stats.busy += u64::from(!self.is_busy);
                self.is_busy = true;
            }
            Load::Idle => self.begin_round(now, FORGIVEN),
            Load::Normal => {
                self.begin_round(now, FORGIVEN);
                self.is_busy = false;
                self.parties.clear();
                self.with_credit = 0;
            }
        }
    }

    /// Counts what was done for a party, in bytes. `None` stands for an unknown party.
    pub(super) fn count(&mut self, now: Instant, who: Option<Who>, bytes: usize) {
        if !self.is_busy {
            return;
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX).min(DEBT_MAX);
        self.done = self.done.saturating_add(bytes);
        if let Some(who) = who
            && (self.parties.len() < PARTIES_MAX || self.parties.contains_key(&who))
        {
            let share = self.parties.entry(who).or_insert_with(|| {
                self.with_credit += 1;
                Share { left: CREDIT, last: now }
            });
            let had_credit = share.left > 0;
            share.left = (share.left - bytes).max(-DEBT_MAX);
            share.last = now;
            if had_credit && share.left <= 0 {
                self.with_credit -= 1;
            }
        }
        let Ok(due @ 1..) = i64::try_from(self.parties.len()).map(|parties| parties * CREDIT)
        else {
            return; // nobody shares the thread
        };
        if self.with_credit == 0 {
            // At least one party has credit afterwards, so that somebody always goes on.
            let most = self.parties.values().map(|share| share.left).max().unwrap_or_default();
            self.begin_round(now, CREDIT.saturating_sub(most).max(CREDIT));
        } else if self.done >= due {
            self.begin_round(now, self.done / due * CREDIT);
        }
    }

    /// Whether a party has used its credit.
    pub(super) fn has_used(&self, who: Who) -> bool {
        self.is_busy && self.parties.get(&who).is_some_and(|share| share.left <= 0)
    }

    /// Whether UDP payloads of a party are dropped.
    pub(super) fn drops(&self, who: Who) -> bool {
        self.is_busy && self.parties.get(&who).is_some_and(|share| share.left <= -UDP_DEBT)
    }

    /// Lets a TCP connection wait for the next round.
    pub(super) fn wait(&mut self, now: Instant, id: FlowId) {
        self.stats.waits += 1;
        self.began.get_or_insert(now);
        self.waiting.push_back(id);
    }

    /// Lets TCP connections go on waiting, before all that have begun to wait since.
    pub(super) fn wait_on(&mut self, now: Instant, mut ids: VecDeque<FlowId>) {
        if !ids.is_empty() {
            self.began.get_or_insert(now);
            ids.append(&mut self.waiting);
            self.waiting = ids;
        }
    }

    /// When the round ends at the latest, if anybody waits for that.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.began.map(|began| began + ROUND_MAX)
    }

    /// Ends the round if it has taken too long.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|end| end <= now) {
            self.begin_round(now, FORGIVEN);
        }
    }

    /// Whether a round has begun for which connections have waited.
    pub(super) fn has_begun(&self) -> bool {
        self.is_new && !self.waiting.is_empty()
    }

    /// The connections that have waited, in their order, if a round has begun.
    pub(super) fn next_round(&mut self) -> VecDeque<FlowId> {
        if std::mem::take(&mut self.is_new) {
            std::mem::take(&mut self.waiting)
        } else {
            VecDeque::new()
        }
    }

    /// Begins a round, in which every party gets this credit besides what it has.
    fn begin_round(&mut self, now: Instant, credit: i64) {
        self.began = None;
        self.is_new = true;
        if std::mem::take(&mut self.done) == 0 {
            return;
        }
        self.parties.retain(|_, share| now.saturating_duration_since(share.last) < SILENCE);
        for share in self.parties.values_mut() {
            let most = if credit == FORGIVEN { CREDIT } else { SAVED_MAX };
            share.left = share.left.saturating_add(credit).min(most);
        }
        self.with_credit = self.parties.values().filter(|share| share.left > 0).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{quic::StreamId, test_start};

    const MS: Duration = Duration::from_millis(1);
    const GREEDY: Who = Party::User(1);
    const POLITE: Who = Party::User(2);
    /// The same as [`CREDIT`].
    const CREDIT_BYTES: usize = 64 * 1024;

    /// More than anybody waits for.
    const TURNS: usize = 10_000;

    fn busy() -> (Shares, Instant) {
        let (mut shares, now) = (Shares::default(), test_start());
        shares.set_load(now, Load::Busy);
        (shares, now)
    }

    fn id(stream: u64) -> FlowId {
        (ConnectionId(1), StreamId(stream))
    }

    /// What each of these users does in many rounds if each takes as much as it may, but no more than this in a turn.
    /// Nothing is ever idle.
    fn done(wants: &[(Who, usize)]) -> Vec<usize> {
        let (mut shares, now) = busy();
        let mut done = vec![0; wants.len()];
        for _ in 0..TURNS {
            for (&(who, bytes), done) in wants.iter().zip(&mut done) {
                if !shares.has_used(who) {
                    shares.count(now, Some(who), bytes);
                    *done += bytes;
                }
            }
        }
        done
    }

    #[test]
    fn users_who_want_more_than_there_is_get_the_same() {
        for wants in [
            &[(GREEDY, 50_000), (POLITE, 1000)][..],
            &[(GREEDY, 1000), (POLITE, 1500)],
            &[(GREEDY, 300_000), (POLITE, 7000), (Party::User(3), 20_000)],
        ] {
            let done = done(wants);
            let most = done.iter().max().unwrap();
            for (done, (_, bytes)) in done.iter().zip(wants) {
                let has_all = *done == bytes * TURNS;
                assert!(has_all || done * 100 > most * 97, "{done} of {most} in {wants:?}");
            }
        }
    }

    #[test]
    fn who_is_alone_never_waits() {
        let (mut shares, now) = busy();
        for _ in 0..1000 {
            shares.count(now, Some(GREEDY), 100_000);
            assert!(!shares.has_used(GREEDY) && !shares.drops(GREEDY));
        }
    }

    #[test]
    fn nobody_waits_while_the_thread_is_not_busy() {
        let (mut shares, now) = (Shares::default(), test_start());
        let overuse = |shares: &mut Shares| {
            shares.count(now, Some(POLITE), 100);
            shares.count(now, Some(GREEDY), CREDIT_BYTES);
            shares.has_used(GREEDY)
        };
        assert!(!overuse(&mut shares), "no driver has said anything");
        shares.set_load(now, Load::Busy);
        assert!(overuse(&mut shares));
        shares.set_load(now, Load::Idle);
        assert!(!shares.has_used(GREEDY), "nobody else wanted it");
        assert!(overuse(&mut shares));
        shares.set_load(now, Load::Normal);
        assert!(!overuse(&mut shares));
        assert_eq!(shares.stats().busy, 1);
    }

    #[test]
    fn what_a_user_has_in_flight_counts_and_its_udp_is_dropped_only_far_beyond_its_credit() {
        let (mut shares, now) = busy();
        shares.count(now, Some(POLITE), 1);
        shares.count(now, Some(GREEDY), CREDIT_BYTES);
        assert!(shares.has_used(GREEDY) && !shares.drops(GREEDY));
        // Each packet that comes nevertheless counts, and a round passes for each two credits.
        for _ in 0..20 {
            shares.count(now, Some(GREEDY), CREDIT_BYTES);
        }
        assert!(shares.drops(GREEDY) && !shares.has_used(POLITE));
        let mut rounds = 0;
        while shares.has_used(GREEDY) {
            shares.count(now, Some(POLITE), CREDIT_BYTES);
            rounds += 1;
            assert!(rounds <= 16, "the debt has a bound");
        }
        assert!(rounds > 8, "{rounds}");
    }

    #[test]
    fn a_user_that_is_silent_for_long_takes_no_part() {
        let (mut shares, now) = busy();
        shares.count(now, Some(POLITE), 100);
        for (millis, waits) in [(900, true), (2000, false)] {
            let now = now + millis * MS;
            shares.set_load(now, Load::Idle);
            shares.count(now, Some(GREEDY), CREDIT_BYTES);
            assert_eq!(shares.has_used(GREEDY), waits, "after {millis} ms");
        }
    }

    #[test]
    fn connections_wait_in_order_until_the_round_is_over_or_has_taken_too_long() {
        let (mut shares, now) = busy();
        assert_eq!(shares.next_timeout(), None);
        shares.count(now, Some(POLITE), 100);
        shares.count(now, Some(GREEDY), CREDIT_BYTES);
        for stream in [4, 0, 8] {
            shares.wait(now, id(stream));
        }
        assert_eq!(shares.next_round(), []);
        let end = shares.next_timeout().unwrap();
        shares.handle_timeout(now + ROUND_MAX / 2);
        assert!(shares.has_used(GREEDY));
        shares.handle_timeout(end);
        assert!(!shares.has_used(GREEDY));
        assert_eq!(shares.next_round(), [id(4), id(0), id(8)]);
        assert_eq!((shares.next_round().len(), shares.next_timeout()), (0, None));
        assert_eq!(shares.stats().waits, 3);
        // The first goes on and must wait again, behind the two whose turn it was not.
        shares.wait(now, id(4));
        shares.wait_on(now, [id(0), id(8)].into());
        shares.set_load(now, Load::Idle);
        assert_eq!(shares.next_round(), [id(0), id(8), id(4)]);
    }

    #[test]
    fn the_number_of_parties_has_a_bound() {
        let (mut shares, now) = busy();
        for number in 0..100_000 {
            shares.count(now, Some(Party::Alone(ConnectionId(number))), 1);
        }
        assert_eq!(shares.parties.len(), PARTIES_MAX);
        for _ in 0..10 {
            shares.count(now, Some(GREEDY), CREDIT_BYTES);
            assert!(!shares.has_used(GREEDY), "others are not limited");
        }
    }
}

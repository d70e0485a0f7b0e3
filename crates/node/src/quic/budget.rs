//! Bounds on how often strangers may make a node work.

use std::time::{Duration, Instant};

use crate::{debts::Debts, limits::Pace, prefix::Prefix};

/// The part of a budget that somebody may use. What is left is for others, who come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetPart {
    Half,
    ThreeQuarters,
    All,
}

impl BudgetPart {
    fn of(self, whole: Duration) -> Duration {
        match self {
            Self::Half => whole / 2,
            Self::ThreeQuarters => whole / 4 * 3,
            Self::All => whole,
        }
    }
}

/// Whose budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    /// That of the peer's prefix.
    Prefix,
    /// That of the node.
    Node,
}

/// What busy prefixes leave of the node's rate is this part of what they share. Without it, the node would have no rate
/// left for a prefix that comes once.
const RESERVE: u32 = 4;

/// How often something may happen, for the peers of each prefix and for all of them together.
///
/// Each prefix and the node have a debt, and each use adds an interval to both. Prefixes that have debts at the same
/// time share four fifths of the node's rate evenly: the interval of a prefix is at least as many intervals of the node
/// as there are such prefixes, and a quarter more. So a thousand busy prefixes leave room for one that comes once.
#[derive(Debug)]
pub(super) struct Budget {
    pace: Pace,
    debts: Debts,
    node_paid_at: Option<Instant>,
}

impl Budget {
    pub(super) const fn new(pace: Pace) -> Self {
        Self { pace, debts: Debts::new(pace.prefixes), node_paid_at: None }
    }

    /// Uses the budget once for a peer of this prefix, if this part of it is not spent.
    pub(super) fn spend(
        &mut self,
        now: Instant,
        prefix: Prefix,
        part: BudgetPart,
    ) -> Result<(), Spent> {
        let most = part.of(self.pace.burst);
        let debt = self.debts.of(now, prefix);
        if debt + self.pace.prefix > most {
            return Err(Spent::Prefix);
        }
        let node_debt =
            self.node_paid_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        if node_debt + self.pace.node > most {
            return Err(Spent::Node);
        }
        self.node_paid_at = Some(now + node_debt + self.pace.node);
        let others = self.debts.prefixes(now) - usize::from(!debt.is_zero());
        let sharers = u32::try_from(others + 1).unwrap_or(u32::MAX);
        let shared = self.pace.node.saturating_mul(sharers);
        let interval = self.pace.prefix.max(shared + shared / RESERVE);
        self.debts.set(now, prefix, debt + interval);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    const MS: Duration = Duration::from_millis(1);

    /// 100 a second of a prefix and 20 at once; 1,000 a second of the node and 200 at once.
    fn budget() -> Budget {
        Budget::new(Pace { prefix: 10 * MS, node: MS, burst: 200 * MS, prefixes: 64 })
    }

    fn prefix(number: u8) -> Prefix {
        Prefix::of_network([10, 0, number, 1].into())
    }

    /// How often each of these prefixes is let in, if it comes this often in each millisecond of this time.
    fn run(budget: &mut Budget, prefixes: &[(u8, u32)], (start, time): (Instant, u32)) -> Vec<u32> {
        let mut counts = vec![0; prefixes.len()];
        for millis in 0..time {
            for (count, &(number, often)) in counts.iter_mut().zip(prefixes) {
                for _ in 0..often {
                    let spent = budget.spend(start + MS * millis, prefix(number), BudgetPart::All);
                    *count += u32::from(spent.is_ok());
                }
            }
        }
        counts
    }

    #[test]
    fn a_prefix_has_a_burst_and_a_rate() {
        let (mut budget, now) = (budget(), test_start());
        assert_eq!(run(&mut budget, &[(1, 1000)], (now, 1)), [20]);
        assert_eq!(budget.spend(now, prefix(1), BudgetPart::All), Err(Spent::Prefix));
        assert_eq!(run(&mut budget, &[(1, 5)], (now + MS, 1000)), [100]);
        assert_eq!(run(&mut budget, &[(1, 1000)], (now + 5000 * MS, 1)), [20], "it has rested");
    }

    #[test]
    fn the_last_quarters_are_for_those_who_come_first() {
        for (before, half, three_quarters, all) in [
            (0, Ok(()), Ok(()), Ok(())),
            (9, Ok(()), Ok(()), Ok(())),
            (10, Err(Spent::Prefix), Ok(()), Ok(())),
            (14, Err(Spent::Prefix), Ok(()), Ok(())),
            (15, Err(Spent::Prefix), Err(Spent::Prefix), Ok(())),
            (19, Err(Spent::Prefix), Err(Spent::Prefix), Ok(())),
            (20, Err(Spent::Prefix), Err(Spent::Prefix), Err(Spent::Prefix)),
        ] {
            for (part, expected) in [
                (BudgetPart::Half, half),
                (BudgetPart::ThreeQuarters, three_quarters),
                (BudgetPart::All, all),
            ] {
                let (mut budget, now) = (budget(), test_start());
                for _ in 0..before {
                    budget.spend(now, prefix(1), BudgetPart::All).unwrap();
                }
                assert_eq!(budget.spend(now, prefix(1), part), expected, "{before}, {part:?}");
                assert_eq!(budget.spend(now, prefix(2), part), Ok(()), "another prefix");
            }
        }
    }

    #[test]
    fn what_is_refused_costs_nothing() {
        let (mut budget, now) = (budget(), test_start());
        run(&mut budget, &[(1, 10_000)], (now, 1));
        let others: Vec<_> = (2..11).map(|number| (number, 20)).collect();
        let counts = run(&mut budget, &others, (now, 1));
        assert!(counts.iter().sum::<u32>() > 80, "{counts:?}");
        assert_eq!(budget.debts.prefixes(now), 10);
    }

    #[test]
    fn busy_prefixes_share_the_node_and_leave_room_for_a_quiet_one() {
        let (mut budget, now) = (budget(), test_start());
        let busy: Vec<_> = (0..50).map(|number| (number, 1)).collect();
        run(&mut budget, &busy, (now, 1000));
        let all: Vec<_> = busy.iter().copied().chain([(200, 0)]).collect();
        let later = now + 1000 * MS;
        let counts = run(&mut budget, &all, (later, 1000));
        let (least, most) =
            (counts[..50].iter().min().unwrap(), counts[..50].iter().max().unwrap());
        assert!(*least >= 15 && *most <= 17, "{counts:?}");
        assert!(counts.iter().sum::<u32>() <= 850, "{counts:?}");
        for visit in 0..10 {
            let at = later + 1000 * MS + 100 * MS * visit;
            run(&mut budget, &busy, (at, 99));
            assert_eq!(budget.spend(at + 99 * MS, prefix(200), BudgetPart::All), Ok(()), "{visit}");
        }
    }

    #[test]
    fn the_node_has_a_bound_for_all_prefixes() {
        let (mut budget, now) = (budget(), test_start());
        let many: Vec<_> = (0..=255).map(|number| (number, 1)).collect();
        let counts = run(&mut budget, &many, (now, 1));
        assert_eq!(counts.iter().sum::<u32>(), 200);
        assert_eq!(budget.spend(now, prefix(255), BudgetPart::All), Err(Spent::Node));
        assert!(budget.debts.prefixes(now) <= 64);
    }
}

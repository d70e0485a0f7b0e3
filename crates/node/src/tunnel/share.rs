//! Divides the rate of a tunnel among its flows.

use tandem_units::Rate;
use tandem_wire::Urgency;

/// A flow without arrivals and without waiting payloads is active for this many intervals between reports.
pub(crate) const IDLE_INTERVALS: u32 = 3;

/// The number of intervals after its start during which a flow counts as young. They take some
/// end-to-end round trips.
pub(crate) const START_INTERVALS: u32 = 16;

/// What a flow asks of the rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) urgency: Urgency,
    /// 1 to 255; 0 for another flow that is idle.
    pub(crate) weight: u8,
    /// The rate of its payloads at present, in bits per second.
    pub(crate) arrives: u64,
    /// Whether others have to expect that the flow uses all of its share.
    pub(crate) is_greedy: bool,
}

/// The least share that a report states. A share never falls below this, because a flow that sends
/// nothing gets no report when it could send more.
const LEAST: Rate = Rate::from_bps(10_000).expect("not zero");

/// A flow's share, by weight, of the tunnel's rate. It is a share of what is left by more urgent flows and by
/// flows that use less than their own share. `others` are all flows but this one.
pub(crate) fn share(rate: Rate, own: &Claim, others: impl Iterator<Item = Claim> + Clone) -> Rate {
    let urgent = others.clone().filter(|it| it.urgency < own.urgency);
    let left = rate.bits_per_second().saturating_sub(urgent.map(|it| it.arrives).sum());
    let equals = others.filter(|it| it.urgency == own.urgency);
    let (greedy, modest) = (equals.clone(), equals.clone());
    let weight = |claim: Claim| u64::from(claim.weight);
    let all = weight(*own) + equals.map(weight).sum::<u64>();
    let fair = |it: &Claim| left * u64::from(it.weight) / all;
    let modest = modest.filter(|it| !it.is_greedy).map(|it| it.arrives.min(fair(&it)));
    let greedy = weight(*own) + greedy.filter(|it| it.is_greedy).map(weight).sum::<u64>();
    let share = left.saturating_sub(modest.sum()) * weight(*own) / greedy;
    Rate::from_bps(share).unwrap_or(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(urgency: &str, weight: u8, mbps: u64, is_greedy: bool) -> Claim {
        let urgency = urgency.parse().expect("an urgency");
        Claim { urgency, weight, arrives: mbps * 1_000_000, is_greedy }
    }

    #[test]
    fn a_share_is_what_others_leave() {
        let own = claim("u=3", 1, 5, true);
        for (others, share_mbps) in [
            (vec![], 12),
            (vec![claim("u=3", 1, 5, true)], 6),
            (vec![claim("u=3", 3, 5, true)], 3),
            (vec![claim("u=3", 1, 2, false)], 10),
            (vec![claim("u=3", 1, 9, false)], 6), // no more than its own share
            (vec![claim("u=3", 0, 9, false)], 12), // it is idle
            (vec![claim("u=1", 1, 4, true)], 8),
            (vec![claim("u=5", 1, 4, true)], 12),
            (vec![claim("u=3", 1, 2, false), claim("u=3", 1, 5, true)], 5),
        ] {
            let share = share(Rate::from_mbps(12), &own, others.iter().copied());
            assert_eq!(share, Rate::from_mbps(share_mbps), "{others:?}");
        }
    }

    #[test]
    fn a_share_is_never_nothing() {
        let (own, urgent) = (claim("u=3", 1, 0, true), claim("u=1", 1, 20, true));
        assert_eq!(share(Rate::from_mbps(12), &own, [urgent].into_iter()), LEAST);
    }
}

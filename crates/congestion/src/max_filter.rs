use tandem_units::Rate;

/// The largest delivery rate of the last ten counted rounds. The filter is exact: it keeps the
/// maximum of each round.
///
/// A round counts only if the caller calls [`MaxFilter::advance`]. `BBRv1` does that for rounds
/// that are not application-limited. The estimate of a sender that has little data to send
/// therefore does not expire.
#[derive(Clone, Debug, Default)]
pub(crate) struct MaxFilter {
    /// The maximum of each round, the current one first.
    rounds: [Option<Rate>; ROUNDS],
}

/// `BtlBwFilterLen`: the length of the filter in rounds.
const ROUNDS: usize = 10;

impl MaxFilter {
    /// Ends the current round and drops the oldest one.
    pub(crate) fn advance(&mut self) {
        self.rounds.rotate_right(1);
        if let Some(current) = self.rounds.first_mut() {
            *current = None;
        }
    }

    /// Adds a sample to the current round.
    pub(crate) fn insert(&mut self, rate: Rate) {
        if let Some(current) = self.rounds.first_mut() {
            *current = (*current).max(Some(rate));
        }
    }

    /// Drops all rounds except the current one and the one before it.
    pub(crate) fn forget_but_last(&mut self) {
        for older in self.rounds.iter_mut().skip(2) {
            *older = None;
        }
    }

    /// Returns the maximum, or `None` if there are no samples.
    pub(crate) fn max(&self) -> Option<Rate> {
        self.rounds.iter().copied().max().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_expires_after_ten_rounds() {
        let (low, high) = (Rate::from_mbps(1), Rate::from_mbps(9));
        let mut filter = MaxFilter::default();
        assert_eq!(filter.max(), None);
        filter.insert(high);
        filter.insert(low);
        for round in 1..10 {
            filter.advance();
            filter.insert(low);
            assert_eq!(filter.max(), Some(high), "round {round}");
        }
        filter.advance();
        assert_eq!(filter.max(), Some(low));
    }
}

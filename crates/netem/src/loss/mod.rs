//! Random loss.

mod coin;
mod model;

pub(crate) use coin::{Coin, Dice, Purpose};
pub use model::{LossAt, LossModel, ParseLossError};
use tandem_units::Ratio;

use crate::Seed;

/// The state of a loss model.
#[derive(Debug)]
pub(crate) enum Loss {
    Bernoulli(Coin),
    GilbertElliott(GilbertElliott),
}

/// A channel with a good and a bad state. The state may change after each packet.
#[derive(Debug)]
pub(crate) struct GilbertElliott {
    is_bad: bool,
    loss: Coin,
    change: Coin,
    to_bad: Ratio,
    to_good: Ratio,
    loss_in_good: Ratio,
    loss_in_bad: Ratio,
}

impl Loss {
    pub(crate) fn new(model: LossModel, seed: Seed) -> Self {
        match model {
            LossModel::Bernoulli(ratio) => Self::Bernoulli(Coin::new(ratio, seed, Purpose::Loss)),
            LossModel::GilbertElliott { to_bad, to_good, loss_in_good, loss_in_bad } => {
                let mut change = Coin::new(model.share_bad(), seed, Purpose::Burst);
                // The channel starts in its stationary distribution.
                let is_bad = change.toss();
                Self::GilbertElliott(GilbertElliott {
                    is_bad,
                    loss: Coin::new(loss_in_good, seed, Purpose::Loss),
                    change,
                    to_bad,
                    to_good,
                    loss_in_good,
                    loss_in_bad,
                })
            }
        }
    }

    /// Whether the next packet is lost.
    pub(crate) fn toss(&mut self) -> bool {
        match self {
            Self::Bernoulli(coin) => coin.toss(),
            Self::GilbertElliott(channel) => channel.toss(),
        }
    }
}

impl GilbertElliott {
    fn toss(&mut self) -> bool {
        let (loss, change) = if self.is_bad {
            (self.loss_in_bad, self.to_good)
        } else {
            (self.loss_in_good, self.to_bad)
        };
        let is_lost = self.loss.toss_with(loss);
        self.is_bad ^= self.change.toss_with(change);
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each packet, whether it is lost.
    fn fates(model: LossModel, seed: u64, packets: usize) -> Vec<bool> {
        let mut loss = Loss::new(model, Seed(seed));
        (0..packets).map(|_| loss.toss()).collect()
    }

    /// The lengths of the bursts of lost packets.
    fn bursts(fates: &[bool]) -> Vec<usize> {
        fates.split(|is_lost| !is_lost).map(<[bool]>::len).filter(|len| *len > 0).collect()
    }

    /// `a / b` in thousandths, rounded down.
    fn permille(a: usize, b: usize) -> usize {
        a * 1000 / b
    }

    #[test]
    fn independent_losses_have_the_mean_and_variance_of_a_binomial_and_geometric_runs() {
        const PACKETS: usize = 2000;
        const SEEDS: usize = 400;
        for p in [5, 20] {
            let model = LossModel::Bernoulli(Ratio::of(p as u64, 100));
            let runs: Vec<_> = (0..SEEDS as u64).map(|seed| fates(model, seed, PACKETS)).collect();
            let counts: Vec<usize> =
                runs.iter().map(|run| run.iter().filter(|lost| **lost).count()).collect();
            // Mean n p over all runs; its standard deviation is sqrt(N p (1 - p)) for N tosses.
            let (total, tosses) = (counts.iter().sum::<usize>(), PACKETS * SEEDS);
            let off = (total * 100).abs_diff(tosses * p);
            assert!(off.pow(2) <= 9 * tosses * p * (100 - p), "{total} lost of {tosses} at {p}%");
            // Variance n p (1 - p) per run, to within 4 of its standard deviations sqrt(2 / runs).
            let mean = PACKETS * p / 100;
            let squares: usize = counts.iter().map(|count| count.abs_diff(mean).pow(2)).sum();
            let expected = PACKETS * p * (100 - p) / 10_000;
            let ratio = permille(squares / SEEDS, expected);
            assert!(
                (720..=1280).contains(&ratio),
                "variance {ratio} permille of n p (1 - p) at {p}%"
            );
            // Runs of lost packets: mean 1 / (1 - p); P(at least two | lost) = p.
            let bursts: Vec<usize> = runs.iter().flat_map(|run| bursts(run)).collect();
            let mean = permille(bursts.iter().sum(), bursts.len());
            assert!(mean.abs_diff(100_000 / (100 - p)) <= 10, "runs of {mean} permille at {p}%");
            let long = bursts.iter().filter(|len| **len >= 2).count();
            assert!(
                permille(long, bursts.len()).abs_diff(10 * p) <= 10,
                "{long} of {}",
                bursts.len()
            );
        }
    }

    #[test]
    fn bursts_of_losses_have_the_mean_share_and_length_of_their_model() {
        for (text, share_permille, burst_permille) in [
            ("bursts:5%,4", 50, 4000),
            ("bursts:1%,10", 10, 10_000),
            ("bursts:20%,1", 200, 1000),
            // The channel is bad for a fifth of the packets, and half of those are lost.
            ("gilbert:5%,20%,50%,0%", 100, 0),
            ("gilbert:5%,20%,50%,10%", 180, 0),
        ] {
            let model: LossModel = text.parse().unwrap();
            let fates: Vec<bool> = (0..40).flat_map(|seed| fates(model, seed, 25_000)).collect();
            let bursts = bursts(&fates);
            let total: usize = bursts.iter().sum();
            let share = permille(total, fates.len());
            let share_parts = u32::try_from(share_permille * 1_000_000).unwrap();
            // There are a million packets. Bursts widen the tolerance.
            assert!(
                share.abs_diff(share_permille) <= 1 + share_permille / 25,
                "{text}: {share} permille"
            );
            assert!(model.mean().parts_per_billion().abs_diff(share_parts) < 100);
            let mean = permille(total, bursts.len());
            let off = mean.abs_diff(burst_permille);
            assert!(burst_permille == 0 || off <= burst_permille / 25, "{text}: bursts of {mean}");
        }
    }

    #[test]
    fn the_channel_starts_in_its_stationary_distribution() {
        let model: LossModel = "bursts:20%,50".parse().unwrap();
        let hits = (0..2000).filter(|seed| fates(model, *seed, 1)[0]).count();
        // Mean 400, standard deviation 17.9.
        assert!(hits.abs_diff(400) <= 72, "{hits} of 2000");
    }
}

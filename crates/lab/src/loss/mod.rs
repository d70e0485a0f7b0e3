//! Random loss.

mod coin;
mod model;

pub(crate) use coin::{Coin, Dice, Purpose};
pub use model::{LossAt, LossModel, ParseLossError};
use tandem_units::Ratio;

use crate::Seed;

/// A loss model at work.
#[derive(Debug)]
pub(crate) enum Loss {
    Bernoulli(Coin),
    GilbertElliott(GilbertElliott),
}

/// A channel that is good or bad; after each packet it may change.
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
                // As if the channel had been there for ever: bad as often as on average.
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

use statrs::{
    distribution::{ContinuousCDF, StudentsT},
    statistics::{Data, Distribution, Max, OrderStatistics},
};

/// From this number of values on, one in a hundred is more than a single one.
const P99_FROM: usize = 100;

/// Some measurements of the same thing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Half the width of the mean's 95 % confidence interval (Student's t); `None` for one value.
    pub half_width: Option<f64>,
    /// The middle one, or the mean of the middle two.
    pub median: f64,
    /// The largest.
    pub max: f64,
    /// What the worst are like.
    pub tail: Tail,
}

/// What the worst are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tail {
    /// The smallest value that is not below 99 % of all (nearest rank), of 100 values or more.
    P99(f64),
    /// The largest, of fewer values.
    Max(f64),
}

impl Tail {
    /// The 99th percentile, if there are enough values for one.
    pub fn p99(self) -> Option<f64> {
        match self {
            Self::P99(value) => Some(value),
            Self::Max(_) => None,
        }
    }

    /// The number.
    pub fn value(self) -> f64 {
        match self {
            Self::P99(value) | Self::Max(value) => value,
        }
    }
}

/// Looks at measurements; `None` if there are none.
pub fn statistics(values: &[f64]) -> Option<Statistics> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let rank = (count * 99).div_ceil(100);
    let p99 = sorted.get(rank.checked_sub(1)?).copied()?;
    let mut data = Data::new(sorted);
    let max = data.max();
    Some(Statistics {
        count,
        mean: data.mean()?,
        half_width: half_width(&data, count),
        median: data.median(),
        max,
        tail: if count >= P99_FROM { Tail::P99(p99) } else { Tail::Max(max) },
    })
}

/// `t(0.975, n - 1) * s / sqrt(n)`.
#[expect(clippy::cast_precision_loss, reason = "nobody has 2^53 measurements")]
fn half_width(data: &Data<Vec<f64>>, count: usize) -> Option<f64> {
    let count = count as f64;
    let t = StudentsT::new(0.0, 1.0, count - 1.0).ok()?; // refuses 0 degrees of freedom
    Some(t.inverse_cdf(0.975) * data.std_dev()? / count.sqrt())
}

/// How much of one thing there is for one of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedRatio {
    /// How many pairs.
    pub pairs: usize,
    /// Mean of the one over the mean of the other.
    pub mean: f64,
    /// Lower bound of its 95 % confidence interval; the ratio itself for one pair.
    pub low: f64,
    /// The upper one.
    pub high: f64,
}

/// Compares two things measured under the same conditions: seed by seed, so that random draws
/// that both share do not count. `None` without pairs.
///
/// The ratio is that of the means, because the mean of ratios is drawn upwards by every pair in
/// which the random draws were bad for the second alone. Its interval is the ratio estimator's (Cochran,
/// *Sampling Techniques*, §6.3): that of the mean of `this - ratio * that`, over the mean of `that`.
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Option<PairedRatio> {
    let numerators: Vec<_> = pairs.iter().map(|(this, _)| *this).collect();
    let denominators: Vec<_> = pairs.iter().map(|(_, that)| *that).collect();
    let (this, that) = (statistics(&numerators)?, statistics(&denominators)?);
    let ratio = this.mean / that.mean;
    let residues: Vec<_> = pairs.iter().map(|(this, that)| this - ratio * that).collect();
    let half = statistics(&residues)?.half_width.unwrap_or_default() / that.mean;
    Some(PairedRatio { pairs: pairs.len(), mean: ratio, low: ratio - half, high: ratio + half })
}

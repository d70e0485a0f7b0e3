use statrs::{
    distribution::{ContinuousCDF, StudentsT},
    statistics::{Data, Distribution, Max, OrderStatistics},
};

/// The least number of values for a 99th percentile.
const P99_FROM: usize = 100;

/// Statistics of measurements of the same quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// The number of values.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Half the width of the mean's 95 % confidence interval (Student's t); `None` for one value.
    pub half_width: Option<f64>,
    /// The middle value, or the mean of the two middle values.
    pub median: f64,
    /// The largest value.
    pub max: f64,
    /// A value that describes the largest measurements.
    pub tail: Tail,
}

/// A value that describes the largest measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tail {
    /// The 99th percentile by nearest rank, for 100 values or more.
    P99(f64),
    /// The largest value, for fewer values.
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

    /// The value of the tail.
    pub fn value(self) -> f64 {
        match self {
            Self::P99(value) | Self::Max(value) => value,
        }
    }
}

/// Computes the statistics; `None` if there are no values.
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

/// The half width `t(0.975, n - 1) * s / sqrt(n)`.
#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^53 measurements")]
fn half_width(data: &Data<Vec<f64>>, count: usize) -> Option<f64> {
    let count = count as f64;
    let t = StudentsT::new(0.0, 1.0, count - 1.0).ok()?; // this fails for 0 degrees of freedom
    Some(t.inverse_cdf(0.975) * data.std_dev()? / count.sqrt())
}

/// The ratio of two quantities that were measured in pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedRatio {
    /// The number of pairs.
    pub pairs: usize,
    /// Mean of the first quantity divided by the mean of the second.
    pub mean: f64,
    /// Lower bound of its 95 % confidence interval, or the ratio itself for one pair.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
}

/// Compares two quantities that were measured under the same conditions, seed by seed, so that
/// shared random draws cancel out. The result is `None` without pairs. The ratio is the ratio of
/// the means, because the mean of ratios would be biased upwards. Its interval is the ratio
/// estimator's (Cochran, *Sampling Techniques*, §6.3): that of the mean of `this - ratio * that`,
/// over the mean of `that`.
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Option<PairedRatio> {
    let numerators: Vec<_> = pairs.iter().map(|(this, _)| *this).collect();
    let denominators: Vec<_> = pairs.iter().map(|(_, that)| *that).collect();
    let (this, that) = (statistics(&numerators)?, statistics(&denominators)?);
    let ratio = this.mean / that.mean;
    let residues: Vec<_> = pairs.iter().map(|(this, that)| this - ratio * that).collect();
    let half = statistics(&residues)?.half_width.unwrap_or_default() / that.mean;
    Some(PairedRatio { pairs: pairs.len(), mean: ratio, low: ratio - half, high: ratio + half })
}

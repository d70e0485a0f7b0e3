//! Axes whose numbers are round.

/// The leading digits of a round number; a half and a quarter of each are short to write.
const ROUND: [f64; 9] = [1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0];

/// The smallest value that is distinguished from zero.
const VALUE_MIN: f64 = 1e-3;

/// The range from 0 to a round number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundScale {
    pub(super) max: f64,
}

impl RoundScale {
    /// Holds this value and is not much larger.
    pub(super) fn up_to(value: f64) -> Self {
        let value = value.max(VALUE_MIN);
        let magnitude = 10_f64.powf(value.log10().floor());
        let leading = value / magnitude;
        // A value that was read from a scale must give the same scale again, in spite of rounding.
        let round = ROUND.into_iter().find(|round| *round >= leading * (1.0 - 1e-9));
        Self { max: round.unwrap_or(10.0) * magnitude }
    }

    /// The bounds in the form that the chart needs.
    pub(super) fn bounds(self) -> [f64; 2] {
        [0.0, self.max]
    }

    /// Numbers for an axis, from 0 to the end, in this number of steps; the last one with a unit.
    pub(super) fn labels(self, steps: u8, unit: &str) -> Vec<String> {
        let label = |step: u8| {
            let value = self.max * f64::from(step) / f64::from(steps);
            let value = (value * 1e6).round() / 1e6;
            if step == steps { format!("{value}{unit}") } else { value.to_string() }
        };
        (0..=steps).map(label).collect()
    }
}

/// A measured value in four characters, as long as that is possible.
pub(super) fn short(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_at_a_round_number_that_is_no_less() {
        for (value, max) in [
            (0.3, 0.3),
            (0.31, 0.4),
            (1.0, 1.0),
            (9.9, 10.0),
            (10.0, 10.0),
            (10.1, 12.0),
            (21.0, 30.0),
            (150.0, 160.0),
            (8_200.0, 10_000.0),
        ] {
            let scale = RoundScale::up_to(value);
            assert!((scale.max - max).abs() < 1e-9 * max, "{value}: {}", scale.max);
            assert_eq!(RoundScale::up_to(scale.max), scale);
        }
    }

    #[test]
    fn labels_are_short_and_the_last_one_has_the_unit() {
        assert_eq!(RoundScale::up_to(12.0).labels(2, " s"), ["0", "6", "12 s"]);
        assert_eq!(RoundScale::up_to(0.3).labels(2, ""), ["0", "0.15", "0.3"]);
        assert_eq!(RoundScale::up_to(1.6).labels(4, ""), ["0", "0.4", "0.8", "1.2", "1.6"]);
    }

    #[test]
    fn values_take_four_characters_or_as_many_as_they_need() {
        let values = [0.0, 1.234, 9.994, 9.996, 45.67, 99.96, 1_234.5];
        let texts: Vec<_> = values.into_iter().map(short).collect();
        assert_eq!(texts, ["0.00", "1.23", "9.99", "10.0", "45.7", "100", "1234"]);
    }
}

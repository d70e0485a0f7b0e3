//! Generated traces, so that no recordings are needed. Each trace resembles measured traces of its
//! kind in mean rate, in the 5th and 95th percentile of the rate over 500 ms, and in the longest
//! time without an opportunity. The generator moves through a distribution of rates by a random
//! walk between two walls, with a step every 100 ms. The walk makes every place in the distribution
//! equally likely. The distribution is given by its rates at five places. Outages are added at
//! random. Capacity accumulates and is handed out in bursts, as schedulers of radio links do. All
//! arithmetic uses integers, so that the same seed gives the same trace on every machine.

use std::{fmt, str::FromStr, time::Duration};

use rand_pcg::{Pcg64, rand_core::Rng};
use tandem_units::HumanDuration;

use crate::{OPPORTUNITY, RateTrace, Seed};

/// A kind of radio link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticTrace {
    /// LTE in a car in a city: 15.9 Mbit/s on average, 2.7 to 26 for nine tenths of the time,
    /// outages of up to 0.2 s.
    Driving,
    /// LTE in a subway: 11.3 Mbit/s on average, 0.7 to 21 for nine tenths of the time, outages of
    /// up to 0.25 s.
    Subway,
    /// The Wi-Fi of an office: 19.5 Mbit/s on average, 2.0 to 31 for nine tenths of the time,
    /// outages of up to 0.1 s.
    Wifi,
    /// A millimetre-wave link at a tenth of its rate. For 5 s of every 15 s an obstacle blocks the
    /// line of sight (LOS). The rate is 50 Mbit/s with line of sight and 14 Mbit/s without.
    MmWave,
    /// A millimetre-wave link without other changes: 3.6 Gbit/s with line of sight, and 450 Mbit/s from the
    /// 5th to the 10th second of every 15 s, in which an obstacle blocks it. It always begins at its
    /// beginning.
    Blockage,
    /// The same at a tenth of its rates.
    BlockageTenth,
}

/// The reason for which a trace cannot be generated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntheticError {
    /// No kind has this name.
    #[error("unknown trace {seen:?}; allowed: {}", SyntheticTrace::NAMES)]
    UnknownName {
        /// The text.
        seen: String,
    },
    /// The duration is too short or too long.
    #[error("a trace of {seen} cannot be made; allowed: 1s to {longest}")]
    Duration {
        /// The duration that was asked for.
        seen: HumanDuration,
        /// The longest one of this kind.
        longest: HumanDuration,
    },
}

const SHORTEST: Duration = Duration::from_secs(1);

/// The longest duration. At the highest rate of 62 Mbit/s it makes 3.1 million lines, which is
/// within the limit of a trace.
const LONGEST: Duration = Duration::from_secs(600);

/// The time for which a rate holds, in milliseconds.
const STEP_MS: u32 = 100;

/// The random walk moves between 0 and this place.
const PLACES: u64 = 1000;

/// The longest step of the walk. The walk takes 13 s on average from one wall to the other, so that
/// two minutes cover the whole distribution.
const STRIDE_MAX: u64 = 150;

/// The time from the start of one outage to the start of the next, in steps of the walk. It is 1 s
/// to 15 s, so that outages never overlap.
const OUTAGE_PAUSE_STEPS: (u64, u64) = (10, 150);

/// Rates in kbit/s at the places 0, 100, 500, 900 and 1000 of the walk.
type Rates = [u64; 5];

const RATE_PLACES: Rates = [0, 100, 500, 900, PLACES];

/// The parameters of a kind.
struct LinkKind {
    /// The rates with line of sight.
    rates: Rates,
    /// The rates without line of sight, which applies to the second 5 s of every 15 s.
    shadow: Option<Rates>,
    /// The longest outage in milliseconds. The shortest outage is a quarter of it. With 0 there are
    /// no outages.
    outage_ms_max: u64,
    /// The longest time for which a scheduler accumulates capacity, in milliseconds.
    burst_ms_max: u64,
}

impl LinkKind {
    /// Rates in kbit/s with and without line of sight, which do not change otherwise.
    const fn steady(in_sight: u64, in_shadow: u64) -> Self {
        Self {
            rates: [in_sight; 5],
            shadow: Some([in_shadow; 5]),
            outage_ms_max: 0,
            burst_ms_max: 1,
        }
    }
}

impl SyntheticTrace {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Driving,
        Self::Subway,
        Self::Wifi,
        Self::MmWave,
        Self::Blockage,
        Self::BlockageTenth,
    ];

    /// The prefix of the names of synthetic traces in places that also accept names of files.
    pub const PREFIX: &str = "synthetic:";

    /// The seed of a trace for which only the kind is given.
    pub const DEFAULT_SEED: Seed = Seed(1);

    /// The length of a trace for which only the kind is given.
    pub const DEFAULT_DURATION: Duration = Duration::from_secs(120);

    const NAMES: &str = "driving, subway, wifi, mmwave, blockage, blockage-tenth";

    /// The length of a trace of this kind if none is given.
    pub const fn usual_duration(self) -> Duration {
        match self {
            Self::Blockage | Self::BlockageTenth => Duration::from_secs(15),
            _ => Self::DEFAULT_DURATION,
        }
    }

    /// Whether every run begins at the beginning of the trace.
    pub const fn has_fixed_start(self) -> bool {
        matches!(self, Self::Blockage | Self::BlockageTenth)
    }

    /// Generates a trace of this kind. Another seed gives another trace of the same kind. The last
    /// line of the trace is the duration, in whole milliseconds.
    pub fn generate(self, seed: Seed, duration: Duration) -> Result<RateTrace, SyntheticError> {
        let most = self.longest();
        if !(SHORTEST..=most).contains(&duration) {
            let longest = HumanDuration(most);
            return Err(SyntheticError::Duration { seen: HumanDuration(duration), longest });
        }
        Ok(Generator::new(self, seed).trace(duration))
    }

    /// The longest trace of this kind. With a line for each packet, fast ones take much memory.
    const fn longest(self) -> Duration {
        match self {
            Self::Blockage => self.usual_duration(),
            Self::BlockageTenth => Duration::from_secs(150),
            _ => LONGEST,
        }
    }

    const fn kind(self) -> LinkKind {
        match self {
            Self::Driving => LinkKind {
                rates: [700, 3000, 19_200, 26_000, 29_000],
                shadow: None,
                outage_ms_max: 200,
                burst_ms_max: 4,
            },
            Self::Subway => LinkKind {
                rates: [100, 700, 12_600, 20_500, 23_000],
                shadow: None,
                outage_ms_max: 240,
                burst_ms_max: 4,
            },
            Self::Wifi => LinkKind {
                rates: [300, 2000, 24_500, 31_200, 34_000],
                shadow: None,
                outage_ms_max: 105,
                burst_ms_max: 2,
            },
            Self::MmWave => LinkKind {
                rates: [40_000, 42_000, 51_000, 60_000, 62_000],
                shadow: Some([12_000, 12_400, 14_000, 15_600, 16_000]),
                outage_ms_max: 0,
                burst_ms_max: 1,
            },
            Self::Blockage => LinkKind::steady(3_600_000, 450_000),
            Self::BlockageTenth => LinkKind::steady(360_000, 45_000),
        }
    }
}

struct Generator {
    kind: LinkKind,
    dice: Pcg64,
    /// The current place of the walk.
    place: u64,
    /// The number of steps until the next outage.
    outage_in: u64,
    /// The remaining length of the current outage.
    outage_left_ms: u64,
}

impl Generator {
    fn new(trace: SyntheticTrace, seed: Seed) -> Self {
        let mut generator = Self {
            kind: trace.kind(),
            dice: seed.generator(trace as u64),
            place: 0,
            outage_in: 0,
            outage_left_ms: 0,
        };
        generator.place = generator.draw(0, PLACES);
        generator.outage_in = generator.outage_pause();
        generator
    }

    fn trace(&mut self, duration: Duration) -> RateTrace {
        let duration_ms = u32::try_from(duration.as_millis()).expect("at most ten minutes");
        let lines = self.lines(duration_ms);
        RateTrace::from_millis(lines).expect("times that never fall, not too many")
    }

    fn lines(&mut self, duration_ms: u32) -> Vec<u32> {
        let opportunity_bits = OPPORTUNITY.get() * 8;
        let mut lines = Vec::new();
        let (mut rate_kbps, mut gathered_bits, mut hand_out_ms) = (0, 0, 1);
        for at_ms in 1..=duration_ms {
            if (at_ms - 1).is_multiple_of(STEP_MS) {
                rate_kbps = self.step(at_ms);
            }
            if self.outage_left_ms > 0 {
                self.outage_left_ms -= 1;
                continue;
            }
            gathered_bits += rate_kbps; // one bit per millisecond is 1 kbit/s
            if at_ms < hand_out_ms {
                continue;
            }
            hand_out_ms = at_ms + self.draw_ms();
            while gathered_bits >= opportunity_bits {
                gathered_bits -= opportunity_bits;
                lines.push(at_ms);
            }
        }
        // The last line is the length of the trace.
        if lines.last() != Some(&duration_ms) {
            lines.push(duration_ms);
        }
        lines
    }

    /// The rate for the next step, in kbit/s.
    fn step(&mut self, at_ms: u32) -> u64 {
        // The walk is reflected at the walls.
        let place =
            (self.place + 2 * PLACES + STRIDE_MAX - self.draw(0, 2 * STRIDE_MAX)) % (2 * PLACES);
        self.place = place.min(2 * PLACES - place);
        self.outage_in -= 1;
        if self.outage_in == 0 {
            self.outage_in = self.outage_pause();
            let longest = self.kind.outage_ms_max;
            self.outage_left_ms = self.draw(longest / 4, longest);
        }
        let is_in_shadow = (5000..10_000).contains(&((at_ms - 1) % 15_000));
        let shadow = self.kind.shadow.filter(|_| is_in_shadow);
        rate_at(self.place, shadow.unwrap_or(self.kind.rates))
    }

    fn outage_pause(&mut self) -> u64 {
        let (least, most) = OUTAGE_PAUSE_STEPS;
        self.draw(least, most)
    }

    fn draw_ms(&mut self) -> u32 {
        u32::try_from(self.draw(1, self.kind.burst_ms_max)).expect("a burst is short")
    }

    /// Draws a number from `least` to `most`, both included. Each draw takes one word.
    fn draw(&mut self, least: u64, most: u64) -> u64 {
        let span = u128::from(most - least) + 1;
        let drawn = (u128::from(self.dice.next_u64()) * span) >> 64; // rounded down
        least + u64::try_from(drawn).expect("below the span")
    }
}

/// The rate at a place, interpolated linearly between the five given rates and rounded down.
fn rate_at(place: u64, rates: Rates) -> u64 {
    let points: Vec<_> = RATE_PLACES.into_iter().zip(rates).collect();
    let segment = points.windows(2).find_map(|pair| match pair {
        [(left, from), (right, to)] if place <= *right => {
            Some(from + (to - from) * (place - left) / (right - left))
        }
        _ => None,
    });
    segment.expect("a place is between the walls")
}

impl FromStr for SyntheticTrace {
    type Err = SyntheticError;

    fn from_str(text: &str) -> Result<Self, SyntheticError> {
        let found = Self::ALL.into_iter().find(|trace| trace.to_string() == text);
        found.ok_or_else(|| SyntheticError::UnknownName { seen: text.to_owned() })
    }
}

impl fmt::Display for SyntheticTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Driving => "driving",
            Self::Subway => "subway",
            Self::Wifi => "wifi",
            Self::MmWave => "mmwave",
            Self::Blockage => "blockage",
            Self::BlockageTenth => "blockage-tenth",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TraceSummary;

    const TWO_MINUTES: Duration = Duration::from_secs(120);

    fn generate(trace: SyntheticTrace, seed: u64) -> RateTrace {
        trace.generate(Seed(seed), TWO_MINUTES).unwrap()
    }

    #[test]
    fn each_kind_resembles_measured_traces() {
        // The columns are the mean and the 5th and 95th percentile over 500 ms, in Mbit/s times 10,
        // and the longest gap in ms. They were measured in a taxi, a subway and an office, and with
        // a phone on a commercial mmWave network (at a tenth of its rate).
        for (trace, mean, low, high, gap_ms) in [
            (SyntheticTrace::Driving, 159, 27, 262, 206),
            (SyntheticTrace::Subway, 113, 7, 211, 248),
            (SyntheticTrace::Wifi, 195, 20, 314, 113),
            (SyntheticTrace::MmWave, 373, 131, 601, 10),
        ] {
            const SEEDS: u64 = 10;
            let summaries = (1..=SEEDS).map(|seed| generate(trace, seed).summary());
            let summaries: Vec<TraceSummary> = summaries.collect();
            let on_average = |rate: fn(&TraceSummary) -> u64| {
                summaries.iter().map(rate).sum::<u64>() / SEEDS / 100_000
            };
            let seen = on_average(|summary| summary.mean);
            assert!(seen.abs_diff(mean) <= mean / 20, "mean of {trace}: {seen}");
            let seen = on_average(|summary| summary.low);
            assert!(seen.abs_diff(low) <= 3 + low / 2, "5th percentile of {trace}: {seen}");
            let seen = on_average(|summary| summary.high);
            assert!(seen.abs_diff(high) <= high / 10, "95th percentile of {trace}: {seen}");
            for (seed, summary) in (1..).zip(summaries) {
                let off = (summary.mean / 100_000).abs_diff(mean);
                assert!(off <= mean * 2 / 5, "{trace}, seed {seed}: {summary:?}");
                let gap = summary.longest_gap.as_millis();
                let least = if trace == SyntheticTrace::MmWave { 1 } else { gap_ms / 2 };
                assert!((least..=gap_ms * 5 / 4).contains(&gap), "{trace}, seed {seed}: {gap} ms");
            }
        }
    }

    #[test]
    fn a_seed_never_changes_its_meaning_and_another_seed_gives_another_trace() {
        // These lines were recorded when the code was first written. A change here changes every
        // figure.
        let first = |trace, seed| generate(trace, seed).lines_ms()[..8].to_vec();
        assert_eq!(first(SyntheticTrace::Driving, 1), [1, 4, 4, 4, 8, 8, 8, 8]);
        assert_eq!(first(SyntheticTrace::MmWave, 1), [1, 1, 1, 2, 2, 2, 2, 3]);
        assert_ne!(generate(SyntheticTrace::Driving, 1), generate(SyntheticTrace::Driving, 2));
        assert_eq!(generate(SyntheticTrace::Wifi, 7), generate(SyntheticTrace::Wifi, 7));
    }

    #[test]
    fn a_trace_has_the_length_that_was_asked_for_within_limits() {
        for (duration_ms, is_allowed) in
            [(999, false), (1000, true), (90_001, true), (600_000, true), (600_001, false)]
        {
            let duration = Duration::from_millis(duration_ms);
            for trace in SyntheticTrace::ALL {
                let generated = trace.generate(Seed(1), duration);
                let is_allowed = is_allowed && duration <= trace.longest();
                assert_eq!(generated.is_ok(), is_allowed, "{trace} of {duration:?}");
                let Ok(generated) = generated else { continue };
                assert_eq!(generated.duration(), duration);
            }
        }
        for (trace, longest) in [(SyntheticTrace::Wifi, "10min"), (SyntheticTrace::Blockage, "15s")]
        {
            let error = trace.generate(Seed(1), Duration::ZERO).unwrap_err().to_string();
            assert_eq!(error, format!("a trace of 0s cannot be made; allowed: 1s to {longest}"));
        }
    }

    #[test]
    fn the_line_of_sight_is_blocked_in_the_second_third_of_every_fifteen_seconds() {
        let trace = generate(SyntheticTrace::MmWave, 3);
        let mbps = |from_s: u64, to_s: u64| {
            let (from, to) = (Duration::from_secs(from_s), Duration::from_secs(to_s));
            trace.bytes_between(from, to).get() * 8 / 1_000_000 / (to_s - from_s)
        };
        for round in 0..8 {
            let at = round * 15;
            assert!(mbps(at, at + 5) >= 40 && mbps(at + 10, at + 15) >= 40, "round {round}");
            assert!(mbps(at + 5, at + 10) <= 17, "round {round}");
        }
    }

    #[test]
    fn names_are_read_and_printed() {
        for trace in SyntheticTrace::ALL {
            assert_eq!(trace.to_string().parse(), Ok(trace));
        }
        let error = "flying".parse::<SyntheticTrace>().unwrap_err().to_string();
        assert_eq!(error, format!("unknown trace \"flying\"; allowed: {}", SyntheticTrace::NAMES));
        let names = SyntheticTrace::ALL.map(|trace| trace.to_string());
        assert_eq!(SyntheticTrace::NAMES, names.join(", "));
    }
}

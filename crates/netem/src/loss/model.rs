use std::{fmt, str::FromStr};

use serde_with::{DeserializeFromStr, SerializeDisplay};
use tandem_units::{ParseUnitError, Ratio};

/// The random loss of a link. It does not depend on the size of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub enum LossModel {
    /// Loses this share of packets, each packet independently of the others.
    Bernoulli(Ratio),
    /// A channel with two states (Gilbert 1960, Elliott 1963). The current state decides with which
    /// probability a packet is lost. The state may change after each packet.
    GilbertElliott {
        /// Probability that a good channel turns bad after a packet.
        to_bad: Ratio,
        /// Probability that a bad channel turns good after a packet.
        to_good: Ratio,
        /// Share of packets that are lost while the channel is good.
        loss_in_good: Ratio,
        /// Share of packets that are lost while the channel is bad.
        loss_in_bad: Ratio,
    },
}

/// The place on a link at which packets are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub enum LossAt {
    /// Before the queue: lost packets use no capacity.
    Before,
    /// After the bottleneck: lost packets have used its capacity.
    #[default]
    After,
}

/// The reason for which a text is not a loss model or not a place of loss.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseLossError {
    /// The word before the colon is unknown.
    #[error(
        "unknown loss {seen:?}; allowed: RATIO such as 5%, bursts:RATIO,PACKETS such as \
         bursts:5%,4, and gilbert:TO_BAD,TO_GOOD,LOSS_BAD,LOSS_GOOD"
    )]
    UnknownKind {
        /// That word.
        seen: String,
    },
    /// A ratio is malformed.
    #[error(transparent)]
    Ratio(#[from] ParseUnitError),
    /// The number of parts is wrong.
    #[error("{seen:?} does not have the form {form}")]
    Parts {
        /// The text.
        seen: String,
        /// The form that is expected.
        form: &'static str,
    },
    /// The mean length of a burst is malformed.
    #[error("{seen:?} is not a mean burst length; allowed: 1 to {} packets", u32::MAX)]
    Burst {
        /// The text.
        seen: String,
    },
    /// The bursts are too short for this share of loss.
    #[error(
        "with bursts of {burst} packets at most {} of {} packets are lost, not {mean}",
        burst, u64::from(*burst) + 1
    )]
    TooShort {
        /// The share of packets that should be lost.
        mean: Ratio,
        /// The mean length of a burst.
        burst: u32,
    },
    /// The place is unknown.
    #[error("unknown place of loss {seen:?}; allowed: before, after")]
    UnknownPlace {
        /// The text.
        seen: String,
    },
}

const BILLION: u128 = 1_000_000_000;

impl LossModel {
    /// Loses no packets.
    pub const NONE: Self = Self::Bernoulli(Ratio::ZERO);

    /// The simple Gilbert model, which loses all packets while the channel is bad and none while it
    /// is good. Losses come in bursts of this mean length. The result is `None` if no such model
    /// exists, because the channel is good for at least one packet between bursts.
    pub fn bursts(mean: Ratio, burst_packets: u32) -> Option<Self> {
        let to_good = BILLION.checked_div(burst_packets.into())?;
        // The channel is bad for the share to_bad / (to_bad + to_good) of all packets.
        let (bad, good) = (parts(mean), parts(mean.complement()));
        let to_bad = (to_good * bad + good / 2).checked_div(good)?; // rounded to the nearest
        Some(Self::GilbertElliott {
            to_bad: ratio(to_bad)?,
            to_good: ratio(to_good)?,
            loss_in_good: Ratio::ZERO,
            loss_in_bad: Ratio::ONE,
        })
    }

    /// The share of packets that are lost in the long run, rounded down.
    pub fn mean(&self) -> Ratio {
        match *self {
            Self::Bernoulli(ratio) => ratio,
            Self::GilbertElliott { loss_in_good, loss_in_bad, .. } => {
                let bad = parts(self.share_bad());
                let lost = bad * parts(loss_in_bad) + (BILLION - bad) * parts(loss_in_good);
                share(lost, BILLION)
            }
        }
    }

    /// The share of packets that meet a bad channel in the long run, rounded to the nearest. A
    /// channel that never changes is good.
    pub(crate) fn share_bad(&self) -> Ratio {
        let Self::GilbertElliott { to_bad, to_good, .. } = *self else { return Ratio::ZERO };
        let (to_bad, both) = (parts(to_bad), parts(to_bad) + parts(to_good));
        if both == 0 { Ratio::ZERO } else { share(to_bad * BILLION + both / 2, both) }
    }

    /// The arguments of [`Self::bursts`] that make this model, if there are such arguments and the
    /// share has at most four decimals in percent.
    fn as_bursts(&self) -> Option<(Ratio, u32)> {
        const STEP: u128 = 1000;
        let Self::GilbertElliott { to_good, .. } = *self else { return None };
        let burst = u32::try_from(BILLION.checked_div(parts(to_good))?).ok()?;
        let mean = ratio((parts(self.mean()) + STEP / 2) / STEP * STEP)?;
        (Self::bursts(mean, burst)? == *self).then_some((mean, burst))
    }
}

fn parts(ratio: Ratio) -> u128 {
    ratio.parts_per_billion().into()
}

/// `part / whole`, rounded down to parts per billion.
fn share(part_billions: u128, whole: u128) -> Ratio {
    ratio(part_billions / whole).expect("a part is no larger than the whole")
}

fn ratio(parts: u128) -> Option<Ratio> {
    Ratio::from_parts_per_billion(u32::try_from(parts).ok()?)
}

impl Default for LossModel {
    /// Loses no packets.
    fn default() -> Self {
        Self::NONE
    }
}

impl From<Ratio> for LossModel {
    /// Loses this share of packets, each packet independently of the others.
    fn from(ratio: Ratio) -> Self {
        Self::Bernoulli(ratio)
    }
}

impl FromStr for LossModel {
    type Err = ParseLossError;

    fn from_str(text: &str) -> Result<Self, ParseLossError> {
        match text.trim() {
            text if text.starts_with(|first: char| first.is_ascii_digit()) => {
                Ok(Self::Bernoulli(text.parse()?))
            }
            text => match text.split_once(':').unwrap_or((text, "")) {
                ("bursts", parts) => parse_bursts(parts),
                ("gilbert", parts) => parse_gilbert(parts),
                (seen, _) => Err(ParseLossError::UnknownKind { seen: seen.to_owned() }),
            },
        }
    }
}

fn parse_bursts(text: &str) -> Result<LossModel, ParseLossError> {
    let malformed = || ParseLossError::Parts {
        seen: text.to_owned(),
        form: "bursts:RATIO,PACKETS, such as bursts:5%,4",
    };
    let (mean, burst) = text.split_once(',').ok_or_else(malformed)?;
    let mean: Ratio = mean.trim().parse()?;
    let burst: u32 = burst
        .trim()
        .parse()
        .ok()
        .filter(|burst| *burst > 0)
        .ok_or_else(|| ParseLossError::Burst { seen: burst.to_owned() })?;
    LossModel::bursts(mean, burst).ok_or(ParseLossError::TooShort { mean, burst })
}

fn parse_gilbert(text: &str) -> Result<LossModel, ParseLossError> {
    let parts: Result<Vec<Ratio>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    let [to_bad, to_good, loss_in_bad, loss_in_good] = *parts? else {
        return Err(ParseLossError::Parts {
            seen: text.to_owned(),
            form: "gilbert:TO_BAD,TO_GOOD,LOSS_BAD,LOSS_GOOD, such as gilbert:1%,25%,100%,0%",
        });
    };
    Ok(LossModel::GilbertElliott { to_bad, to_good, loss_in_good, loss_in_bad })
}

impl fmt::Display for LossModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((mean, burst)) = self.as_bursts() {
            return write!(f, "bursts:{mean},{burst}");
        }
        match self {
            Self::Bernoulli(ratio) => fmt::Display::fmt(ratio, f),
            Self::GilbertElliott { to_bad, to_good, loss_in_good, loss_in_bad } => {
                write!(f, "gilbert:{to_bad},{to_good},{loss_in_bad},{loss_in_good}")
            }
        }
    }
}

impl FromStr for LossAt {
    type Err = ParseLossError;

    fn from_str(text: &str) -> Result<Self, ParseLossError> {
        match text.trim() {
            "before" => Ok(Self::Before),
            "after" => Ok(Self::After),
            seen => Err(ParseLossError::UnknownPlace { seen: seen.to_owned() }),
        }
    }
}

impl fmt::Display for LossAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Before => "before",
            Self::After => "after",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn losses_are_read_and_printed() {
        for (text, mean, printed) in [
            ("0", Ratio::ZERO, "0%"),
            ("5%", Ratio::of(5, 100), "5%"),
            ("0.05", Ratio::of(5, 100), "5%"),
            ("bursts:5%,4", Ratio::of(5, 100), "bursts:5%,4"),
            ("bursts:0.1%,10", Ratio::of(1, 1000), "bursts:0.1%,10"),
            ("bursts: 1 % , 1", Ratio::of(1, 100), "bursts:1%,1"),
            (
                "gilbert:1%,25%,50%,0.1%",
                Ratio::of(20_192_308, 1_000_000_000),
                "gilbert:1%,25%,50%,0.1%",
            ),
        ] {
            let loss: LossModel = text.parse().expect(text);
            let deviation = loss.mean().parts_per_billion().abs_diff(mean.parts_per_billion());
            assert!(deviation <= 20, "{text}: {}", loss.mean());
            assert_eq!(loss.to_string(), printed);
            assert_eq!(printed.parse(), Ok(loss));
            let json = serde_json::to_string(&loss).unwrap();
            assert_eq!(
                (json.as_str(), serde_json::from_str(&json).ok()),
                (&*format!("{printed:?}"), Some(loss))
            );
        }
        for place in [LossAt::Before, LossAt::After] {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
    }

    #[test]
    fn errors_say_what_was_seen_and_what_is_allowed() {
        for (text, parts) in [
            ("", ["\"\"", "bursts:RATIO,PACKETS"]),
            ("some", ["\"some\"", "RATIO such as 5%"]),
            ("101%", ["\"101%\"", "from 0% to 100%"]),
            ("5 percent", ["\"percent\"", "allowed: %"]),
            ("bursts:5%", ["\"5%\"", "bursts:5%,4"]),
            ("bursts:5%,0", ["\"0\"", "1 to 4294967295 packets"]),
            ("bursts:80%,2", ["80%", "at most 2 of 3 packets"]),
            ("bursts:100%,2", ["100%", "at most 2 of 3 packets"]),
            ("gilbert:1%,2%,3%", ["\"1%,2%,3%\"", "TO_BAD,TO_GOOD,LOSS_BAD,LOSS_GOOD"]),
        ] {
            let error = text.parse::<LossModel>().expect_err(text).to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
        }
        let error = "here".parse::<LossAt>().unwrap_err().to_string();
        assert_eq!(error, "unknown place of loss \"here\"; allowed: before, after");
    }

    proptest! {
        #[test]
        fn printed_losses_parse_to_themselves(
            ratios in proptest::array::uniform4(0_u32..=1_000_000_000),
            percent in 0..50_u64,
            burst in 1..1000_u32,
        ) {
            let [to_bad, to_good, loss_in_good, loss_in_bad] =
                ratios.map(|parts| Ratio::from_parts_per_billion(parts).unwrap());
            let gilbert = LossModel::GilbertElliott { to_bad, to_good, loss_in_good, loss_in_bad };
            let bursts = LossModel::bursts(Ratio::of(percent, 100), burst).unwrap();
            prop_assert_eq!(bursts.to_string(), format!("bursts:{percent}%,{burst}"));
            for loss in [gilbert, bursts, LossModel::Bernoulli(to_bad)] {
                prop_assert_eq!(loss.to_string().parse(), Ok(loss));
            }
        }
    }
}

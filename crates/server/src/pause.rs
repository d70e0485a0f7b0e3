//! The setting of the driver's pauses.

use std::{fmt, str::FromStr};

use serde_with::{DeserializeFromStr, SerializeDisplay};
use tandem_files::setting::ValueError;
use tandem_net::Pause;
use tandem_units::HumanDuration;

/// Whether, and for how long, packets gather before they are handled: `auto`, `off`, or a time from 10 us to 1 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, DeserializeFromStr, SerializeDisplay)]
pub struct PauseSetting(pub Pause);

impl FromStr for PauseSetting {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let time = match text {
            "auto" => return Ok(Self(Pause::AUTO)),
            "off" => return Ok(Self(Pause::Off)),
            _ => text.parse().map_err(|_| ValueError::Form { expected: "auto, off or a time" }),
        };
        let HumanDuration(time) = time?;
        if Pause::LENGTHS.contains(&time) {
            return Ok(Self(Pause::UpTo(time)));
        }
        let [least, most] =
            [Pause::LENGTHS.start(), Pause::LENGTHS.end()].map(|it| HumanDuration(*it));
        let expected = format!("{least} to {most}");
        Err(ValueError::Part { reason: "out of range".to_owned(), expected })
    }
}

impl fmt::Display for PauseSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Pause::Off => f.pad("off"),
            Pause::AUTO => f.pad("auto"),
            Pause::UpTo(time) => HumanDuration(time).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_setting_is_a_word_or_a_time_within_its_range() {
        let up_to = |us| Ok(Pause::UpTo(Duration::from_micros(us)));
        for (text, meant) in [
            ("auto", Ok(Pause::AUTO)),
            ("off", Ok(Pause::Off)),
            ("10us", up_to(10)),
            ("0.2ms", up_to(200)),
            ("1ms", up_to(1000)),
            ("0", Err("out of range; allowed: 10us to 1ms")),
            ("9us", Err("out of range; allowed: 10us to 1ms")),
            ("2ms", Err("out of range; allowed: 10us to 1ms")),
            ("on", Err("not auto, off or a time")),
            ("100", Err("not auto, off or a time")),
        ] {
            let parsed = text.parse::<PauseSetting>().map_err(|error| error.to_string());
            assert_eq!(parsed, meant.map(PauseSetting).map_err(str::to_owned), "{text}");
        }
        for text in ["auto", "off", "250us"] {
            assert_eq!(text.parse::<PauseSetting>().unwrap().to_string(), text);
        }
    }
}

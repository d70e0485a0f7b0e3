use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::TeccConfig;

/// A congestion controller that a connection can be given.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ControllerName {
    /// `BBRv1`, ours: the path's rate and delay decide, loss does not.
    #[default]
    Bbr1,
    /// The same with what pays in tunnels: a larger initial window, more curiosity, and
    /// [`Flavor::Tunnel`](crate::Flavor::Tunnel).
    #[serde(rename = "bbr1-tunnel")]
    Bbr1Tunnel,
    /// Follows the reports of a tunnel that the connection goes through, and is `Bbr1` without them.
    Tecc,
    /// The same as the paper has it.
    #[serde(rename = "tecc-paper")]
    TeccPaper,
    /// RFC 9002's controller, ours.
    NewReno,
    /// RFC 9438's controller, noq's.
    Cubic,
    /// `BBRv3`, noq's. Collapses above 2 % of random loss; for comparison.
    Bbr3,
    /// No congestion control at all; for experiments.
    Off,
}

impl ControllerName {
    /// Every controller, in the order of the documentation.
    pub const ALL: [Self; 8] = [
        Self::Bbr1,
        Self::Bbr1Tunnel,
        Self::Tecc,
        Self::TeccPaper,
        Self::NewReno,
        Self::Cubic,
        Self::Bbr3,
        Self::Off,
    ];

    /// Whether it follows reports of a tunnel: a controller for origins only.
    pub const fn takes_reports(self) -> bool {
        matches!(self, Self::Tecc | Self::TeccPaper)
    }

    /// The name as configuration files and command lines have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bbr1 => "bbr1",
            Self::Bbr1Tunnel => "bbr1-tunnel",
            Self::Tecc => "tecc",
            Self::TeccPaper => "tecc-paper",
            Self::NewReno => "newreno",
            Self::Cubic => "cubic",
            Self::Bbr3 => "bbr3",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for ControllerName {
    type Err = UnknownController;

    fn from_str(name: &str) -> Result<Self, UnknownController> {
        Self::ALL
            .into_iter()
            .find(|controller| controller.as_str() == name)
            .ok_or_else(|| UnknownController { seen: name.to_owned() })
    }
}

/// A name that is no controller's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{seen:?} is not a congestion controller; allowed: bbr1, bbr1-tunnel, tecc, tecc-paper, \
     newreno, cubic, bbr3, off"
)]
pub struct UnknownController {
    /// The name.
    pub seen: String,
}

/// A controller and its settings. Made [`From`] a name it has the settings that the name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// The controller.
    pub name: ControllerName,
    /// The initial window in full datagrams, at least 2. RFC 9002 §7.2 has 10, and so has every
    /// name but `bbr1-tunnel` and `tecc`, which have 32. No effect on [`ControllerName::Off`].
    pub initial_window_packets: u32,
    /// See [`Bbr1Config::up_gain_percent`](crate::Bbr1Config::up_gain_percent); 200 for
    /// `bbr1-tunnel` and `tecc`. Other controllers than ours of BBR ignore it.
    pub bbr_up_gain_percent: u32,
    /// For [`ControllerName::Tecc`] and [`ControllerName::TeccPaper`]; others ignore it.
    pub tecc: TeccConfig,
    /// Where the randomness of every controller begins.
    pub seed: u64,
}

impl ControllerConfig {
    /// The initial windows that are allowed. RFC 9002 §7.2: no window is smaller than two datagrams.
    /// The upper limit guards against a number of bytes.
    pub const INITIAL_WINDOW_PACKETS: RangeInclusive<u32> = 2..=1000;
}

impl Default for ControllerConfig {
    fn default() -> Self {
        ControllerName::default().into()
    }
}

impl From<ControllerName> for ControllerConfig {
    fn from(name: ControllerName) -> Self {
        let (initial_window_packets, bbr_up_gain_percent) = match name {
            ControllerName::Bbr1Tunnel => (32, 200),
            _ => (10, 125),
        };
        let tecc = match name {
            ControllerName::TeccPaper => TeccConfig::PAPER,
            _ => TeccConfig::default(),
        };
        Self { name, initial_window_packets, bbr_up_gain_percent, tecc, seed: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_text_json_and_errors() {
        for controller in ControllerName::ALL {
            let name = controller.to_string();
            assert_eq!(name.parse(), Ok(controller));
            assert_eq!(serde_json::to_string(&controller).unwrap(), format!("{name:?}"));
            let error = "BBR1".parse::<ControllerName>().expect_err("upper case");
            assert!(error.to_string().contains(&name), "{error}");
        }
    }

    #[test]
    fn a_name_stands_for_settings() {
        for controller in ControllerName::ALL {
            let config = ControllerConfig::from(controller);
            let settings = (config.initial_window_packets, config.bbr_up_gain_percent);
            let knows_tunnels = controller == ControllerName::Bbr1Tunnel;
            let expected = if knows_tunnels { (32, 200) } else { (10, 125) };
            assert_eq!(settings, expected, "{controller}");
        }
    }
}

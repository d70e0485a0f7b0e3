use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::TeccConfig;

/// The name of a congestion controller.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ControllerName {
    /// Tandem's own `BBRv1`: it reacts to the path's rate and delay, not to loss.
    #[default]
    Bbr1,
    /// `BBRv1` with settings for tunnels: a larger initial window, a higher gain when it probes for
    /// bandwidth, and [`Flavor::Tunnel`](crate::Flavor::Tunnel).
    #[serde(rename = "bbr1-tunnel")]
    Bbr1Tunnel,
    /// A controller for origins that follows the reports of a tunnel on its path, and behaves as
    /// `Bbr1` without them; see the paper TECC (NSDI '24).
    Tecc,
    /// TECC with the settings of its paper, [`TeccConfig::PAPER`].
    #[serde(rename = "tecc-paper")]
    TeccPaper,
    /// Multi-domain congestion control for origins that PEPs on the path tell of packets: CUBIC before the
    /// PEP, and a model of the rate behind it.
    Mdcc,
    /// Multi-domain congestion control as its paper has it: the smaller one of CUBIC, clocked by PEPs, and
    /// Scalable TCP.
    #[serde(rename = "mdcc-paper")]
    MdccPaper,
    /// Tandem's own `NewReno`, the controller of RFC 9002 §7.
    NewReno,
    /// noq's CUBIC, the controller of RFC 9438.
    Cubic,
    /// noq's `BBRv3`, for comparison. Its throughput collapses above 2 % of random loss.
    Bbr3,
    /// No congestion control at all, for experiments.
    Off,
}

impl ControllerName {
    /// Every controller, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::Bbr1,
        Self::Bbr1Tunnel,
        Self::Tecc,
        Self::TeccPaper,
        Self::Mdcc,
        Self::MdccPaper,
        Self::NewReno,
        Self::Cubic,
        Self::Bbr3,
        Self::Off,
    ];

    /// Returns whether this controller follows reports of a tunnel. Only origins can use such a
    /// controller.
    pub const fn takes_reports(self) -> bool {
        matches!(self, Self::Tecc | Self::TeccPaper)
    }

    /// Returns whether this controller follows what PEPs on the path say. Only origins can use such a
    /// controller.
    pub const fn follows_peps(self) -> bool {
        matches!(self, Self::Mdcc | Self::MdccPaper)
    }

    /// Returns the name that configuration files and command lines use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bbr1 => "bbr1",
            Self::Bbr1Tunnel => "bbr1-tunnel",
            Self::Tecc => "tecc",
            Self::TeccPaper => "tecc-paper",
            Self::Mdcc => "mdcc",
            Self::MdccPaper => "mdcc-paper",
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

/// The error for a text that is not the name of a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{seen:?} is not a congestion controller; allowed: bbr1, bbr1-tunnel, tecc, tecc-paper, \
     mdcc, mdcc-paper, newreno, cubic, bbr3, off"
)]
pub struct UnknownController {
    /// The text.
    pub seen: String,
}

/// A controller and its settings. The conversion [`From`] a name gives the settings that the name
/// stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// The controller.
    pub name: ControllerName,
    /// The initial window in full datagrams, at least 2. RFC 9002 §7.2 recommends 10, which is the
    /// value for every name except `bbr1-tunnel`, which has 32. It has no effect on
    /// [`ControllerName::Off`].
    pub initial_window_packets: u32,
    /// The gain [`Bbr1Config::up_gain_percent`](crate::Bbr1Config::up_gain_percent): 200 for
    /// `bbr1-tunnel` and 125 for every other name. Controllers that do not contain [`crate::Bbr1`]
    /// ignore it.
    pub bbr_up_gain_percent: u32,
    /// The settings of [`ControllerName::Tecc`] and [`ControllerName::TeccPaper`]. Other
    /// controllers ignore them.
    pub tecc: TeccConfig,
    /// The seed of the controller's random choices.
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
    fn each_name_stands_for_its_settings() {
        for controller in ControllerName::ALL {
            let config = ControllerConfig::from(controller);
            let settings = (config.initial_window_packets, config.bbr_up_gain_percent);
            let knows_tunnels = controller == ControllerName::Bbr1Tunnel;
            let expected = if knows_tunnels { (32, 200) } else { (10, 125) };
            assert_eq!(settings, expected, "{controller}");
        }
    }
}

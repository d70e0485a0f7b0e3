//! The settings of [`super::Tecc`], and the text form that command lines and configuration files
//! use.
//!
//! The symbols are those of the paper's Algorithm 1 (TECC, NSDI '24, §4.2.4); `control` explains
//! them.

use std::{str::FromStr, time::Duration};

use tandem_units::{ByteCount, HumanDuration};

use crate::Factor;

/// The RTT of which θ is a multiple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// `T_s`, the RTT between origin and client, as in the paper.
    EndToEnd,
    /// `T_l`, the RTT of the tunnel.
    Tunnel,
}

/// How r(t) Tr(t), in bytes per second, is added to q(t), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetransmissionUnits {
    /// The tunnel's retransmissions during θ are added.
    Theta,
    /// The tunnel's retransmissions during one second are added, independently of θ. Algorithm 1 is
    /// printed in this form.
    Literal,
}

/// The RTT of which the window holds a multiple at the sending rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRtt {
    /// The least RTT, so that the delay of a queue does not enlarge the window.
    Least,
    /// The smoothed RTT.
    Smoothed,
}

/// The settings of Algorithm 1 (TECC §4.2.4), of the window and of the checks of reports.
///
/// The text form is a list of `key=value` pairs, separated by commas. A key that is absent has its
/// value of [`TeccConfig::default`], which is: `theta=2Ts,delta=0.95,max-pf=0.5,u-max=1.25,ewma=1,`
/// `r-ai=1,q-target=40ms,units=theta,window=2,window-rtt=least,first-flight=500kB,guard=on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeccConfig {
    /// θ: the time in which the queue should reach its target, as a multiple of the RTT of
    /// [`Self::theta_leg`]; 0.1 to 20.
    pub theta: Factor,
    /// The RTT of which θ is a multiple.
    pub theta_leg: Leg,
    /// δ: the share of r(t) that is expected to persist until the origin's packets arrive at the
    /// proxy; 0 to 2.
    pub delta: Factor,
    /// `max_pf`: U is at least 1 minus this; 0 to 0.99.
    pub max_penalty: Factor,
    /// The upper bound of U, 1 to 3. While the tunnel starts up, the bound is 1.
    pub max_utilization: Factor,
    /// The weight of the newest U in its moving average; 0.01 to 1.
    pub ewma_weight: Factor,
    /// `r_ai` in full packets per RTT; 0 to 100.
    pub additive_increase: Factor,
    /// q* / Tr: the queueing delay in the proxy at which U is 1; 0 to 2 s. The paper has no such
    /// target, which corresponds to zero.
    pub queue_target: Duration,
    /// The units in which retransmissions count.
    pub units: RetransmissionUnits,
    /// The window as a multiple of the sending rate times the RTT of [`Self::window_rtt`]; 1 to 10.
    pub window: Factor,
    /// The RTT of which the window holds a multiple.
    pub window_rtt: WindowRtt,
    /// The bytes that may be in flight, in the first rounds, on the evidence of reports alone,
    /// before acknowledgements confirm that the path carries them; 15 kB to 10 MB.
    pub first_flight: ByteCount,
    /// Whether the controller looks for a bottleneck between origin and proxy, and sets aside
    /// reports that the end-to-end loss contradicts.
    pub has_guard: bool,
}

impl Default for TeccConfig {
    fn default() -> Self {
        Self {
            theta: Factor::from_thousandths(2000),
            theta_leg: Leg::EndToEnd,
            delta: Factor::from_thousandths(950),
            max_penalty: Factor::from_thousandths(500),
            max_utilization: Factor::from_thousandths(1250),
            ewma_weight: Factor::from_thousandths(1000),
            additive_increase: Factor::from_thousandths(1000),
            queue_target: Duration::from_millis(40),
            units: RetransmissionUnits::Theta,
            window: Factor::from_thousandths(2000),
            window_rtt: WindowRtt::Least,
            first_flight: ByteCount::new(500_000),
            has_guard: true,
        }
    }
}

impl TeccConfig {
    /// The settings of the paper, with [`RetransmissionUnits::Theta`], which makes the units of the
    /// sum in Algorithm 1 consistent.
    pub const PAPER: Self = Self {
        theta: Factor::from_thousandths(667),
        theta_leg: Leg::EndToEnd,
        delta: Factor::from_thousandths(950),
        max_penalty: Factor::from_thousandths(500),
        max_utilization: Factor::from_thousandths(1000),
        ewma_weight: Factor::from_thousandths(500),
        additive_increase: Factor::from_thousandths(1000),
        queue_target: Duration::ZERO,
        units: RetransmissionUnits::Theta,
        window: Factor::from_thousandths(1000),
        window_rtt: WindowRtt::Smoothed,
        first_flight: ByteCount::new(500_000),
        has_guard: false,
    };

    /// Returns these settings with those replaced that `text` names. `text` is a list of
    /// `key=value` pairs, separated by commas.
    ///
    /// # Errors
    ///
    /// A key is unknown, or its value is malformed or out of range.
    pub fn with(mut self, text: &str) -> Result<Self, TeccConfigError> {
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            self.set(key.trim(), value.trim())?;
        }
        Ok(self)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), TeccConfigError> {
        let refused = |allowed| {
            let (key, seen) = (key.to_owned(), value.to_owned());
            TeccConfigError::Value { key, seen, allowed }
        };
        let factor = |value: &str, allowed, range: std::ops::RangeInclusive<u32>| {
            let factor =
                Factor::parse(value).filter(|factor| range.contains(&factor.thousandths()));
            factor.ok_or_else(|| refused(allowed))
        };
        match key {
            "theta" => {
                let allowed = "0.1 to 20, followed by Ts or Tl";
                let (number, leg) = match (value.strip_suffix("Ts"), value.strip_suffix("Tl")) {
                    (Some(number), _) => (number, Leg::EndToEnd),
                    (_, Some(number)) => (number, Leg::Tunnel),
                    _ => return Err(refused(allowed)),
                };
                self.theta = factor(number, allowed, 100..=20_000)?;
                self.theta_leg = leg;
            }
            "delta" => self.delta = factor(value, "0 to 2", 0..=2000)?,
            "max-pf" => self.max_penalty = factor(value, "0 to 0.99", 0..=990)?,
            "u-max" => self.max_utilization = factor(value, "1 to 3", 1000..=3000)?,
            "ewma" => self.ewma_weight = factor(value, "0.01 to 1", 10..=1000)?,
            "r-ai" => self.additive_increase = factor(value, "0 to 100", 0..=100_000)?,
            "window" => self.window = factor(value, "1 to 10", 1000..=10_000)?,
            "q-target" => {
                let target = value.parse::<HumanDuration>().ok().map(|target| target.0);
                let target = target.filter(|target| *target <= Duration::from_secs(2));
                self.queue_target = target.ok_or_else(|| refused("0 to 2 s"))?;
            }
            "first-flight" => {
                let bytes = value.parse::<ByteCount>().ok();
                let bytes = bytes.filter(|bytes| (15_000..=10_000_000).contains(&bytes.get()));
                self.first_flight = bytes.ok_or_else(|| refused("15 kB to 10 MB"))?;
            }
            "units" => {
                self.units = match value {
                    "theta" => RetransmissionUnits::Theta,
                    "literal" => RetransmissionUnits::Literal,
                    _ => return Err(refused("theta, literal")),
                };
            }
            "window-rtt" => {
                self.window_rtt = match value {
                    "least" => WindowRtt::Least,
                    "smoothed" => WindowRtt::Smoothed,
                    _ => return Err(refused("least, smoothed")),
                };
            }
            "guard" => {
                self.has_guard = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(refused("on, off")),
                };
            }
            _ => return Err(TeccConfigError::Key { seen: key.to_owned() }),
        }
        Ok(())
    }
}

impl FromStr for TeccConfig {
    type Err = TeccConfigError;

    fn from_str(text: &str) -> Result<Self, TeccConfigError> {
        Self::default().with(text)
    }
}

/// The reason why a text is not a list of settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TeccConfigError {
    /// There is no setting with this key.
    #[error(
        "{seen:?} is no setting of tecc; allowed: theta, delta, max-pf, u-max, ewma, r-ai, q-target, \
         units, window, window-rtt, first-flight, guard"
    )]
    Key {
        /// The text before the equals sign.
        seen: String,
    },
    /// The value of a setting is malformed or out of range.
    #[error("{key} = {seen:?}; allowed: {allowed}")]
    Value {
        /// The key of the setting.
        key: String,
        /// The value that was given.
        seen: String,
        /// The allowed values, in words.
        allowed: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_changes_only_the_settings_that_it_names() {
        let config: TeccConfig = "theta=0.667Tl, q-target=100ms,units=literal".parse().unwrap();
        assert_eq!((config.theta, config.theta_leg), (Factor::from_thousandths(667), Leg::Tunnel));
        assert_eq!(config.queue_target, Duration::from_millis(100));
        assert_eq!(config.units, RetransmissionUnits::Literal);
        let rest = TeccConfig {
            theta: Factor::from_thousandths(2000),
            theta_leg: Leg::EndToEnd,
            ..config
        };
        let rest = TeccConfig { queue_target: Duration::from_millis(40), ..rest };
        assert_eq!(rest.with("units=theta"), Ok(TeccConfig::default()));
        assert_eq!("".parse(), Ok(TeccConfig::default()));
    }

    #[test]
    fn unknown_keys_and_values_out_of_range_are_refused_by_name() {
        for (text, message) in [
            ("thta=1Ts", "\"thta\" is no setting of tecc"),
            ("theta=2", "theta = \"2\"; allowed: 0.1 to 20, followed by Ts or Tl"),
            ("theta=0Ts", "theta = \"0Ts\"; allowed: 0.1 to 20"),
            ("delta=-1", "delta = \"-1\"; allowed: 0 to 2"),
            ("delta=nan", "delta = \"nan\"; allowed: 0 to 2"),
            ("max-pf=1", "max-pf = \"1\"; allowed: 0 to 0.99"),
            ("u-max=0.9", "u-max = \"0.9\"; allowed: 1 to 3"),
            ("ewma=0", "ewma = \"0\"; allowed: 0.01 to 1"),
            ("q-target=1h", "q-target = \"1h\"; allowed: 0 to 2 s"),
            ("first-flight=1GB", "first-flight = \"1GB\"; allowed: 15 kB to 10 MB"),
            ("guard", "guard = \"\"; allowed: on, off"),
        ] {
            let error = text.parse::<TeccConfig>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}

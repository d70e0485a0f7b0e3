//! The settings of [`super::Tecc`], and how they are written.

use std::{str::FromStr, time::Duration};

use tandem_units::{ByteCount, HumanDuration};

use crate::Factor;

/// Whose RTT θ is a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// `T_s`: from the origin to the client, as the paper has it.
    EndToEnd,
    /// `T_l`: of the tunnel.
    Tunnel,
}

/// How r(t) Tr(t), bytes a second, is added to q(t), bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetransmissionUnits {
    /// As what is sent again during θ.
    Theta,
    /// As Algorithm 1 has it printed: as what is sent again during one second, whatever θ is.
    Literal,
}

/// Which RTT the window holds at the sending rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRtt {
    /// The least, so that a queue does not make room for itself.
    Least,
    /// The smoothed.
    Smoothed,
}

/// The settings of Algorithm 1 (TECC §4.2.4) and of what is around it.
///
/// As text, what differs from [`TeccConfig::default`]: `theta=2Ts,delta=0.95,max-pf=0.5,ewma=1,r-ai=1,`
/// `u-max=1.25,q-target=40ms,units=theta,window=2,window-rtt=least,first-flight=500kB,guard=on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeccConfig {
    /// θ: in how many RTTs the queue is to be brought to its target.
    pub theta: Factor,
    /// Of which leg.
    pub theta_leg: Leg,
    /// δ: how much of r(t) will hold when the origin's packets arrive.
    pub delta: Factor,
    /// `max_pf`: U is at least one less this; at most 1.
    pub max_penalty: Factor,
    /// U is at most this.
    pub max_utilization: Factor,
    /// The weight of the newest U in its moving average, at most 1.
    pub ewma_weight: Factor,
    /// `r_ai` in full packets an RTT.
    pub additive_increase: Factor,
    /// How much of the time at Tr the queue holds when U is 1 (q* / Tr). The paper has none.
    pub queue_target: Duration,
    /// In which units retransmissions count.
    pub units: RetransmissionUnits,
    /// The window in what the sending rate fills in an RTT.
    pub window: Factor,
    /// Of which RTT.
    pub window_rtt: WindowRtt,
    /// Bytes that may be on their way on the strength of reports alone, before acknowledgements show
    /// that the path carries them.
    pub first_flight: ByteCount,
    /// Whether a bottleneck behind the proxy is looked for, and reports that acknowledgements
    /// contradict are set aside.
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
    /// Algorithm 1 as the paper has it, with the units that make sense.
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

    /// The same with what a text of `key=value` pairs, separated by commas, says.
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
                let allowed = "0.1 to 20, with Ts or Tl behind it";
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

/// A text that says no settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TeccConfigError {
    /// No such setting.
    #[error(
        "{seen:?} is no setting of tecc; allowed: theta, delta, max-pf, u-max, ewma, r-ai, q-target, \
         units, window, window-rtt, first-flight, guard"
    )]
    Key {
        /// What stands before the equals sign.
        seen: String,
    },
    /// A setting with a value that is not allowed.
    #[error("{key} = {seen:?}; allowed: {allowed}")]
    Value {
        /// The setting.
        key: String,
        /// Its value.
        seen: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_changes_what_it_names() {
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
    fn what_is_absurd_is_refused_by_name() {
        for (text, message) in [
            ("thta=1Ts", "\"thta\" is no setting of tecc"),
            ("theta=2", "theta = \"2\"; allowed: 0.1 to 20, with Ts or Tl behind it"),
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

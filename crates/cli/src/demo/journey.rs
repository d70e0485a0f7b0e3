//! One way of downloading that the demo shows.

use std::{fmt, str::FromStr};

use tandem_congestion::ControllerName;
use tandem_node::client::{Order, Repair};

use crate::outcome::Mode;

/// `MODE[:ORDER][@CONTROLLER]`: a mode, in which order payloads leave a tunnel that repairs them, and a
/// controller of the origin that differs from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Journey {
    pub(super) mode: Mode,
    pub(super) order: Order,
    /// `None`: as the mode wants it.
    said_controller: Option<ControllerName>,
}

impl Journey {
    pub(super) fn repair(self) -> Repair {
        Repair { order: self.order, ..Repair::default() }
    }

    /// The origin's; `None`: the same as that of the tunnel.
    pub(super) fn origin_controller(self) -> Option<ControllerName> {
        self.said_controller.or(match self.mode {
            Mode::Tecc => Some(ControllerName::Tecc),
            Mode::TeccPaper => Some(ControllerName::TeccPaper),
            _ => None,
        })
    }
}

impl fmt::Display for Journey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode)?;
        if self.order != self.mode.order() {
            write!(f, ":{}", self.order.as_str())?;
        }
        self.said_controller.map_or(Ok(()), |name| write!(f, "@{name}"))
    }
}

impl FromStr for Journey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (way, controller) = match text.split_once('@') {
            Some((way, controller)) => (way, Some(super::origin_controller(controller)?)),
            None => (text, None),
        };
        let (mode, order) = match way.split_once(':') {
            Some((mode, order)) => (mode, Some(order.parse().map_err(|it| format!("{it}"))?)),
            None => (way, None),
        };
        let mode: Mode = clap::ValueEnum::from_str(mode, false).map_err(|_| {
            format!("{mode:?} is no mode; allowed: direct, mdt, mst, msgt, rmdt, tecc, tecc-paper")
        })?;
        if order.is_some() && !mode.has_feedback() && mode != Mode::Rmdt {
            return Err(format!("mode {mode} has no order; only rmdt, tecc and tecc-paper have"));
        }
        let order = order.unwrap_or_else(|| mode.order());
        Ok(Self { mode, order, said_controller: controller })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journeys_are_read_and_written() {
        for (text, controller) in [
            ("direct", None),
            ("mdt", None),
            ("rmdt", None),
            ("rmdt:off", None),
            ("rmdt:off@cubic", Some(ControllerName::Cubic)),
            ("rmdt@newreno", Some(ControllerName::NewReno)),
            ("rmdt:window@tecc", Some(ControllerName::Tecc)),
            ("tecc", Some(ControllerName::Tecc)),
            ("tecc:ordered", Some(ControllerName::Tecc)),
            ("tecc-paper", Some(ControllerName::TeccPaper)),
            ("tecc@cubic", Some(ControllerName::Cubic)),
        ] {
            let journey: Journey = text.parse().unwrap();
            assert_eq!(journey.to_string(), text);
            assert_eq!(journey.origin_controller(), controller, "{text}");
        }
        for (text, word) in
            [("mft", "direct"), ("rmdt:up", "up"), ("mst:off", "mst"), ("mdt@off", "off")]
        {
            let error = text.parse::<Journey>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}

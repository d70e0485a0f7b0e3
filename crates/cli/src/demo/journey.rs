//! One way of downloading that the demo shows.

use std::{fmt, str::FromStr};

use tandem_congestion::ControllerName;
use tandem_node::client::{Order, Repair};

use crate::outcome::Mode;

/// `MODE[:ORDER][@CONTROLLER]`: a mode, in which order payloads leave a tunnel of mode rmdt, and a
/// controller of the origin that differs from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Journey {
    pub(super) mode: Mode,
    pub(super) order: Order,
    /// `None`: the same as that of the tunnel.
    pub(super) origin_controller: Option<ControllerName>,
}

impl Journey {
    pub(super) fn repair(self) -> Repair {
        Repair { order: self.order, ..Repair::default() }
    }
}

impl fmt::Display for Journey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode)?;
        if self.order != Repair::default().order {
            write!(f, ":{}", self.order.as_str())?;
        }
        self.origin_controller.map_or(Ok(()), |name| write!(f, "@{name}"))
    }
}

impl FromStr for Journey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (way, controller) = match text.split_once('@') {
            Some((way, controller)) => (way, Some(super::controller(controller)?)),
            None => (text, None),
        };
        let (mode, order) = match way.split_once(':') {
            Some((mode, order)) => (mode, order.parse().map_err(|it| format!("{it}"))?),
            None => (way, Repair::default().order),
        };
        let mode = clap::ValueEnum::from_str(mode, false)
            .map_err(|_| format!("{mode:?} is no mode; allowed: direct, mdt, mst, msgt, rmdt"))?;
        if order != Repair::default().order && mode != Mode::Rmdt {
            return Err(format!("mode {mode} has no order; only rmdt has"));
        }
        Ok(Self { mode, order, origin_controller: controller })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journeys_are_read_and_written() {
        for text in ["direct", "mdt", "rmdt", "rmdt:off", "rmdt:off@cubic", "rmdt@newreno"] {
            assert_eq!(text.parse::<Journey>().unwrap().to_string(), text);
        }
        for (text, word) in
            [("mft", "direct"), ("rmdt:up", "up"), ("mst:off", "mst"), ("mdt@off", "off")]
        {
            let error = text.parse::<Journey>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}

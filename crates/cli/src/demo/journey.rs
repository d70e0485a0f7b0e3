//! A journey: a mode and a controller with which the demo downloads the file.

use std::{fmt, str::FromStr};

use tandem_congestion::ControllerName;
use tandem_node::{
    client::{Order, Repair, TunnelMode},
    mode::Mode,
};

use crate::mode::is_of_clients;

/// The old name of mode mft.
const OLD_NAME: &str = "direct";

/// `MODE[:ORDER][@CONTROLLER]`: a mode, the order in which payloads leave a tunnel with
/// retransmission, and a controller of the origin that differs from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Journey {
    pub(super) mode: Mode,
    pub(super) order: Order,
    /// The controller that was chosen. With `None` the mode decides.
    chosen_controller: Option<ControllerName>,
}

impl Journey {
    /// The tunnel; `None` without one.
    pub(super) fn tunnel(self) -> Option<TunnelMode> {
        let repair = Repair { order: self.order, ..Repair::default() };
        self.mode.tunnel(repair, TunnelMode::GROUP_STREAMS_DEFAULT)
    }

    /// The controller of the origin. With `None` it is that of the tunnel.
    pub(super) fn origin_controller(self) -> Option<ControllerName> {
        self.chosen_controller.or(self.mode.origin_controller())
    }
}

impl fmt::Display for Journey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode)?;
        if self.order != self.mode.usual_order() {
            write!(f, ":{}", self.order.as_str())?;
        }
        self.chosen_controller.map_or(Ok(()), |name| write!(f, "@{name}"))
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
        let mode = if mode == OLD_NAME { Mode::Mft.as_str() } else { mode };
        let mode = Mode::parse(mode, is_of_clients).map_err(|error| error.to_string())?;
        if order.is_some() && !mode.repairs_datagrams() {
            return Err(format!(
                "mode {mode} has no order; only the modes that repair datagrams, such as rmdt and tecc, \
                 have one"
            ));
        }
        let order = order.unwrap_or_else(|| mode.usual_order());
        Ok(Self { mode, order, chosen_controller: controller })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journeys_are_read_and_written() {
        for (text, controller) in [
            ("mft", None),
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
            [("rmdt+", "mft"), ("rmdt:up", "up"), ("mst:off", "mst"), ("mdt@off", "off")]
        {
            let error = text.parse::<Journey>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn an_old_name_still_works() {
        assert_eq!("direct@cubic".parse::<Journey>().unwrap().to_string(), "mft@cubic");
    }
}

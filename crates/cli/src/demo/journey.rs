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
    /// A mode with the controllers that it usually has.
    pub(super) fn of_mode(mode: Mode) -> Self {
        Self { mode, order: mode.usual_order(), chosen_controller: None }
    }

    /// A mode with an origin that has this controller.
    pub(super) fn from_server(mode: Mode, controller: ControllerName) -> Self {
        Self { chosen_controller: Some(controller), ..Self::of_mode(mode) }
    }

    /// The tunnel; `None` without one.
    pub(super) fn tunnel(self) -> Option<TunnelMode> {
        let repair = Repair { order: self.order, ..Repair::default() };
        self.mode.tunnel(repair, TunnelMode::GROUP_STREAMS_DEFAULT)
    }

    /// The controller of the origin. With `None` it is that of the tunnel.
    pub(super) fn origin_controller(self) -> Option<ControllerName> {
        self.chosen_controller.or(self.mode.origin_controller())
    }

    /// The name of the mode, spelt out, and what its tunnel does.
    pub(super) const fn meaning(self) -> &'static str {
        match self.mode {
            Mode::Mft | Mode::MftTuned | Mode::MftPlus => "forwarding mode: there is no tunnel",
            Mode::Mdt => "MASQUE datagram tunnel, which does not retransmit lost packets",
            Mode::Forward => "as mdt, and QUIC packets are forwarded instead of wrapped",
            Mode::Uack => "as mdt, with unacknowledged packets in the tunnel",
            Mode::UackUp => "the same towards the proxy, and as mdt from it",
            Mode::Mst => "MASQUE stream tunnel: packets travel on one reliable stream",
            Mode::Msgt => "MASQUE stream group tunnel: packets travel on several streams",
            Mode::Rmdt | Mode::RmdtPlus => "MASQUE datagram tunnel, which retransmits lost packets",
            Mode::Tecc => "collaborative transmission control: rmdt, with reports to the server",
            Mode::TeccPaper => "as tecc, and the server follows the reports as in the paper",
            Mode::Auto => "as tecc, rmdt or mdt, whichever suits the server and the path",
        }
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

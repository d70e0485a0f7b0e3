//! Settings of QUIC connections that all roles share.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_congestion::{ControllerConfig, ControllerName};
use tandem_node::quic::{Mtu, QlogDir, Transport};

use crate::error::ConfigError;

/// Table `[transport]` of a file, and its flags.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TransportSettings {
    /// Congestion controller: bbr1, bbr1-tunnel, newreno, cubic, bbr3, or for tunnels off [default:
    /// bbr1-tunnel for tunnels, bbr1 for all else]
    #[arg(long, value_name = "NAME", env = "TANDEM_CONTROLLER")]
    pub(crate) controller: Option<ControllerName>,

    /// Packets that may be on their way before anything is known of the path, 2 to 1000 [default: 32
    /// with bbr1-tunnel, else 10]
    #[arg(long, value_name = "PACKETS", env = "TANDEM_INITIAL_WINDOW")]
    pub(crate) initial_window: Option<u32>,

    /// Percent of the known bandwidth at which bbr1 and bbr1-tunnel look for more, 100 to 300
    /// [default: 200 with bbr1-tunnel, 125 with bbr1]
    #[arg(long, value_name = "PERCENT", env = "TANDEM_UP_GAIN_PERCENT")]
    pub(crate) up_gain_percent: Option<u32>,

    /// Write a qlog file for each connection into this existing folder
    #[arg(long, value_name = "DIR", env = "TANDEM_QLOG_DIR")]
    pub(crate) qlog_dir: Option<PathBuf>,
}

impl TransportSettings {
    pub(crate) fn or(self, lower: Self) -> Self {
        Self {
            controller: self.controller.or(lower.controller),
            initial_window: self.initial_window.or(lower.initial_window),
            up_gain_percent: self.up_gain_percent.or(lower.up_gain_percent),
            qlog_dir: self.qlog_dir.or(lower.qlog_dir),
        }
    }

    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.qlog_dir.iter_mut()
    }
}

/// The checked form of [`TransportSettings`].
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TransportSetup {
    controller: ControllerName,
    #[serde(skip_serializing_if = "Option::is_none")]
    initial_window: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    up_gain_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qlog_dir: Option<PathBuf>,
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkFor {
    /// Datagrams of connections that have a congestion control of their own.
    Tunnel,
    /// Requests and answers.
    EndToEnd,
}

impl WorkFor {
    const fn controller(self) -> ControllerName {
        match self {
            Self::Tunnel => ControllerName::Bbr1Tunnel,
            Self::EndToEnd => ControllerName::Bbr1,
        }
    }
}

impl TransportSetup {
    /// Checks that the controller and its settings fit the work and that the folder exists.
    pub(crate) fn new(settings: TransportSettings, work: WorkFor) -> Result<Self, ConfigError> {
        let TransportSettings { controller, initial_window, up_gain_percent, qlog_dir } = settings;
        let controller = controller.unwrap_or(work.controller());
        for (name, seen, allowed) in [
            ("initial-window", initial_window, 2..=1000),
            ("up-gain-percent", up_gain_percent, 100..=300),
        ] {
            if let Some(seen) = seen.filter(|seen| !allowed.contains(seen)) {
                return Err(ConfigError::OutOfRange { name, seen, allowed });
            }
        }
        // RFC 9298 §6: a tunnel may do without congestion control only if what it carries has one.
        if work == WorkFor::EndToEnd && controller == ControllerName::Off {
            return Err(ConfigError::ControllerOff);
        }
        if let Some(dir) = qlog_dir.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(ConfigError::NoFolder { what: "qlog-dir", path: dir.clone() });
        }
        Ok(Self { controller, initial_window, up_gain_percent, qlog_dir })
    }

    /// The node's form; qlog files begin with `role`.
    pub(crate) fn to_node(&self, role: &str, work: WorkFor) -> Transport {
        let mtu = match work {
            WorkFor::Tunnel => Mtu::TUNNEL,
            WorkFor::EndToEnd => Mtu::default(),
        };
        let qlog = self.qlog_dir.as_ref();
        let mut controller = ControllerConfig::from(self.controller);
        if let Some(packets) = self.initial_window {
            controller.initial_window_packets = packets;
        }
        if let Some(percent) = self.up_gain_percent {
            controller.bbr_up_gain_percent = percent;
        }
        Transport {
            controller,
            mtu,
            qlog: qlog.map(|dir| QlogDir { dir: dir.clone(), prefix: role.to_owned() }),
            ..Transport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_control_is_on_unless_a_tunnels_operator_says_off() {
        // RFC 9298 §6: congestion control MUST NOT be disabled unless what the tunnel carries is
        // known to have its own.
        for work in [WorkFor::Tunnel, WorkFor::EndToEnd] {
            let setup = TransportSetup::new(TransportSettings::default(), work).unwrap();
            assert_ne!(setup.controller, ControllerName::Off, "{work:?}");
        }
        let controller = Some(ControllerName::Off);
        let off = || TransportSettings { controller, ..TransportSettings::default() };
        assert!(TransportSetup::new(off(), WorkFor::Tunnel).is_ok());
        let refused = TransportSetup::new(off(), WorkFor::EndToEnd);
        assert!(matches!(refused, Err(ConfigError::ControllerOff)));
    }

    #[test]
    fn tunnels_have_their_own_controller_unless_somebody_chose_one() {
        let name = |controller, work| {
            let settings = TransportSettings { controller, ..TransportSettings::default() };
            let setup = TransportSetup::new(settings, work).unwrap();
            setup.to_node("test", work).controller.name
        };
        assert_eq!(name(None, WorkFor::EndToEnd), ControllerName::Bbr1);
        assert_eq!(name(None, WorkFor::Tunnel), ControllerName::Bbr1Tunnel);
        let cubic = Some(ControllerName::Cubic);
        assert_eq!(name(cubic, WorkFor::Tunnel), ControllerName::Cubic);
    }

    #[test]
    fn settings_of_a_controller_have_bounds() {
        for (initial_window, up_gain_percent, refused) in [
            (Some(1), None, Some("initial-window")),
            (Some(1001), None, Some("initial-window")),
            (None, Some(99), Some("up-gain-percent")),
            (None, Some(301), Some("up-gain-percent")),
            (Some(2), Some(300), None),
        ] {
            let settings =
                TransportSettings { initial_window, up_gain_percent, ..Default::default() };
            let setup = TransportSetup::new(settings, WorkFor::Tunnel);
            let error = setup.map(|_| ()).map_err(|error| error.to_string());
            match refused {
                None => assert_eq!(error, Ok(())),
                Some(name) => assert!(error.is_err_and(|error| error.starts_with(name))),
            }
        }
    }
}

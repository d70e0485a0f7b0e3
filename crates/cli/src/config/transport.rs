//! Settings of QUIC connections that all roles share.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_congestion::ControllerName;
use tandem_node::quic::{Mtu, QlogDir, Transport};

use crate::error::ConfigError;

/// Table `[transport]` of a file, and its flags.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TransportSettings {
    /// Congestion controller: bbr1, newreno, cubic, bbr3, or for tunnels off [default: bbr1]
    #[arg(long, value_name = "NAME", env = "TANDEM_CONTROLLER")]
    pub(crate) controller: Option<ControllerName>,

    /// Write a qlog file for each connection into this existing folder
    #[arg(long, value_name = "DIR", env = "TANDEM_QLOG_DIR")]
    pub(crate) qlog_dir: Option<PathBuf>,
}

impl TransportSettings {
    pub(crate) fn or(self, lower: Self) -> Self {
        Self {
            controller: self.controller.or(lower.controller),
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

impl TransportSetup {
    /// Checks that the controller fits the work and that the folder exists.
    pub(crate) fn new(settings: TransportSettings, work: WorkFor) -> Result<Self, ConfigError> {
        let TransportSettings { controller, qlog_dir } = settings;
        let controller = controller.unwrap_or_default();
        // RFC 9298 §6: a tunnel may do without congestion control only if what it carries has one.
        if work == WorkFor::EndToEnd && controller == ControllerName::Off {
            return Err(ConfigError::ControllerOff);
        }
        if let Some(dir) = qlog_dir.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(ConfigError::NoFolder { what: "qlog-dir", path: dir.clone() });
        }
        Ok(Self { controller, qlog_dir })
    }

    /// The node's form; qlog files begin with `role`.
    pub(crate) fn to_node(&self, role: &str, work: WorkFor) -> Transport {
        let mtu = match work {
            WorkFor::Tunnel => Mtu::TUNNEL,
            WorkFor::EndToEnd => Mtu::default(),
        };
        let qlog = self.qlog_dir.as_ref();
        Transport {
            controller: self.controller.into(),
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
        let off = || TransportSettings { controller: Some(ControllerName::Off), qlog_dir: None };
        assert!(TransportSetup::new(off(), WorkFor::Tunnel).is_ok());
        let refused = TransportSetup::new(off(), WorkFor::EndToEnd);
        assert!(matches!(refused, Err(ConfigError::ControllerOff)));
    }
}

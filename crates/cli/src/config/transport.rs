//! Settings of QUIC connections that all roles share.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tandem_congestion::{ControllerConfig, ControllerName, TeccConfig};
use tandem_node::quic::{LossDetection, Mtu, QlogDir, Transport};

use crate::error::ConfigError;

/// Table `[transport]` of a file, and its flags.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TransportSettings {
    /// Congestion controller: bbr1, bbr1-tunnel, newreno, cubic, bbr3, for tunnels also off, for
    /// origins also tecc and tecc-paper, which follow what clients of mode tecc tell of their tunnels
    /// [default: bbr1-tunnel for tunnels, bbr1 for all else]
    #[arg(long, value_name = "NAME", env = "TANDEM_CONTROLLER")]
    pub(crate) controller: Option<ControllerName>,

    /// Packets that may be on their way before anything is known of the path, 2 to 1000 [default: 32
    /// with bbr1-tunnel, else 10]
    #[arg(long, value_name = "PACKETS", env = "TANDEM_INITIAL_WINDOW")]
    pub(crate) initial_window: Option<u32>,

    /// Percent of the known bandwidth at which bbr1, bbr1-tunnel, tecc and tecc-paper look for more,
    /// 100 to 300 [default: 200 with bbr1-tunnel, else 125]
    #[arg(long, value_name = "PERCENT", env = "TANDEM_UP_GAIN_PERCENT")]
    pub(crate) up_gain_percent: Option<u32>,

    /// What differs in how an origin with tecc or tecc-paper uses reports, such as
    /// q-target=60ms,theta=1Ts
    #[arg(long, value_name = "KEY=VALUE,..", env = "TANDEM_TECC")]
    pub(crate) tecc: Option<String>,

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
            tecc: self.tecc.or(lower.tecc),
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
    /// What differs from the controller's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    tecc: Option<String>,
    #[serde(skip)]
    tecc_config: TeccConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    qlog_dir: Option<PathBuf>,
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkFor {
    /// Datagrams of connections that have a congestion control of their own.
    Tunnel,
    /// Requests, and what comes for them.
    EndToEnd,
    /// Answers to requests, maybe through tunnels that report.
    Origin,
}

impl WorkFor {
    const fn controller(self) -> ControllerName {
        match self {
            Self::Tunnel => ControllerName::Bbr1Tunnel,
            Self::EndToEnd | Self::Origin => ControllerName::Bbr1,
        }
    }
}

impl TransportSetup {
    /// Checks that the controller and its settings fit the work and that the folder exists.
    pub(crate) fn new(settings: TransportSettings, work: WorkFor) -> Result<Self, ConfigError> {
        let TransportSettings { controller, initial_window, up_gain_percent, tecc, qlog_dir } =
            settings;
        let controller = controller.unwrap_or(work.controller());
        if controller.takes_reports() && work != WorkFor::Origin {
            return Err(ConfigError::ControllerTecc { seen: controller });
        }
        if tecc.is_some() && !controller.takes_reports() {
            let reason = "it says how reports of tunnels are used";
            let second = "controller tecc or tecc-paper";
            return Err(ConfigError::Incomplete { first: "tecc", second, reason });
        }
        let tecc_config = ControllerConfig::from(controller).tecc;
        let tecc_config = tecc_config.with(tecc.as_deref().unwrap_or_default())?;
        for (name, seen, allowed) in [
            ("initial-window", initial_window, 2..=1000),
            ("up-gain-percent", up_gain_percent, 100..=300),
        ] {
            if let Some(seen) = seen.filter(|seen| !allowed.contains(seen)) {
                return Err(ConfigError::OutOfRange { name, seen, allowed });
            }
        }
        // RFC 9298 §6: a tunnel may do without congestion control only if what it carries has one.
        if work != WorkFor::Tunnel && controller == ControllerName::Off {
            return Err(ConfigError::ControllerOff);
        }
        if let Some(dir) = qlog_dir.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(ConfigError::NoFolder { what: "qlog-dir", path: dir.clone() });
        }
        Ok(Self { controller, initial_window, up_gain_percent, tecc, tecc_config, qlog_dir })
    }

    /// The node's form; qlog files begin with `role`.
    pub(crate) fn to_node(&self, role: &str, work: WorkFor) -> Transport {
        let mtu = match work {
            WorkFor::Tunnel => Mtu::TUNNEL,
            WorkFor::EndToEnd | WorkFor::Origin => Mtu::default(),
        };
        let qlog = self.qlog_dir.as_ref();
        let mut controller = ControllerConfig { tecc: self.tecc_config, ..self.controller.into() };
        if let Some(packets) = self.initial_window {
            controller.initial_window_packets = packets;
        }
        if let Some(percent) = self.up_gain_percent {
            controller.bbr_up_gain_percent = percent;
        }
        Transport {
            controller,
            mtu,
            // What the tunnel repairs comes late.
            loss_detection: LossDetection::for_path(self.controller.takes_reports()),
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
        for work in [WorkFor::Tunnel, WorkFor::EndToEnd, WorkFor::Origin] {
            let setup = TransportSetup::new(TransportSettings::default(), work).unwrap();
            assert_ne!(setup.controller, ControllerName::Off, "{work:?}");
        }
        let controller = Some(ControllerName::Off);
        let off = || TransportSettings { controller, ..TransportSettings::default() };
        assert!(TransportSetup::new(off(), WorkFor::Tunnel).is_ok());
        for work in [WorkFor::EndToEnd, WorkFor::Origin] {
            let refused = TransportSetup::new(off(), work);
            assert!(matches!(refused, Err(ConfigError::ControllerOff)));
        }
    }

    #[test]
    fn origins_that_follow_reports_wait_for_repairs_and_are_else_as_with_bbr1() {
        let of = |name, tecc: Option<&str>| {
            let tecc = tecc.map(str::to_owned);
            let settings =
                TransportSettings { controller: Some(name), tecc, ..TransportSettings::default() };
            let setup = TransportSetup::new(settings, WorkFor::Origin).unwrap();
            setup.to_node("test", WorkFor::Origin)
        };
        let tecc = of(ControllerName::Tecc, Some("q-target=60ms"));
        assert_eq!(tecc.loss_detection, LossDetection::BehindRepair);
        assert_eq!(tecc.controller.initial_window_packets, 10);
        assert_eq!(tecc.controller.bbr_up_gain_percent, 125);
        assert_eq!(Ok(tecc.controller.tecc), "q-target=60ms".parse());
        let paper = of(ControllerName::TeccPaper, Some("units=literal"));
        assert_eq!(Ok(paper.controller.tecc), TeccConfig::PAPER.with("units=literal"));
        let bbr1 = of(ControllerName::Bbr1, None);
        assert_eq!(bbr1.loss_detection, LossDetection::Rfc9002);
    }

    #[test]
    fn reports_are_followed_by_origins_only() {
        for controller in [ControllerName::Tecc, ControllerName::TeccPaper] {
            for work in [WorkFor::Tunnel, WorkFor::EndToEnd] {
                let settings =
                    TransportSettings { controller: Some(controller), ..Default::default() };
                let error = TransportSetup::new(settings, work).unwrap_err().to_string();
                assert!(
                    error.contains(controller.as_str()) && error.contains("origins"),
                    "{error}"
                );
            }
        }
        let with = |controller, tecc: &str| {
            let tecc = Some(tecc.to_owned());
            let settings = TransportSettings { controller, tecc, ..Default::default() };
            TransportSetup::new(settings, WorkFor::Origin).unwrap_err().to_string()
        };
        assert!(with(None, "delta=1").starts_with("tecc needs controller tecc"));
        let error = with(Some(ControllerName::Tecc), "delta=3");
        assert_eq!(error, "tecc: delta = \"3\"; allowed: 0 to 2");
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

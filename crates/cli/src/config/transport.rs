//! Settings of QUIC connections that all roles share.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;
use tandem_congestion::{Bbr1Config, ControllerConfig, ControllerName, TeccConfig};
use tandem_node::quic::{AckPolicy, LossDetection, Mtu, QlogFiles, Transport};
use tandem_units::Ratio;

use super::{Setting, Within};
use crate::{
    error::{ConfigError, FileError},
    qlog::QlogDir,
};

/// Flags, and keys of a file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TransportSettings {
    /// Congestion controller: bbr1, bbr1-tunnel, newreno, cubic or bbr3; for tunnels also off; for origins
    /// also tecc and tecc-paper, which follow the reports that clients of mode tecc send on their tunnels
    /// [default: bbr1-tunnel for tunnels, bbr1 for everything else]
    #[arg(long, value_name = "NAME", env = "TANDEM_CONTROLLER")]
    pub(crate) controller: Option<ControllerName>,

    #[arg(
        long, value_name = "PACKETS", env = "TANDEM_INITIAL_WINDOW",
        help = InitialWindow::help(
            "Initial congestion window in packets",
            usually(|config| config.initial_window_packets),
        )
    )]
    pub(crate) initial_window: Option<Within<InitialWindow>>,

    #[arg(
        long, value_name = "PERCENT", env = "TANDEM_UP_GAIN_PERCENT",
        help = UpGainPercent::help(
            "Percent of the known bandwidth at which bbr1, bbr1-tunnel, tecc and tecc-paper probe for more",
            usually(|config| config.bbr_up_gain_percent),
        )
    )]
    pub(crate) up_gain_percent: Option<Within<UpGainPercent>>,

    #[arg(
        long, value_name = "SHARE", env = "TANDEM_ACK_DELAY",
        help = AckDelay::help(
            "Share of the RTT for which acknowledgements wait for more data; 0 sends every second one at \
             once. The wait also ends with the max_ack_delay of QUIC",
            usually_acks(|acks| acks.delay.to_string(), "0"),
        )
    )]
    pub(crate) ack_delay: Option<Within<AckDelay>>,

    #[arg(
        long, value_name = "PACKETS", env = "TANDEM_ACK_THRESHOLD",
        help = AckThreshold::help(
            "Packets after which an acknowledgement waits no longer",
            usually_acks(|acks| acks.threshold.to_string(), "2"),
        )
    )]
    pub(crate) ack_threshold: Option<Within<AckThreshold>>,

    /// Existing folder into which a qlog file is written for each connection, and by get also one about the
    /// cost of the tunnels
    #[arg(long, value_name = "DIR", env = "TANDEM_QLOG_DIR", help_heading = "Tests and tracing")]
    pub(crate) qlog_dir: Option<PathBuf>,
}

/// The initial congestion window in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitialWindow;

impl Setting for InitialWindow {
    type Value = u32;
    const ALLOWED: RangeInclusive<u32> = ControllerConfig::INITIAL_WINDOW_PACKETS;
}

/// The gain with which BBR probes for more bandwidth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpGainPercent;

impl Setting for UpGainPercent {
    type Value = u32;
    const ALLOWED: RangeInclusive<u32> = Bbr1Config::UP_GAIN_PERCENT;
}

/// The wait before an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckDelay;

impl Setting for AckDelay {
    type Value = Ratio;
    const ALLOWED: RangeInclusive<Ratio> = Ratio::ZERO..=Ratio::ONE;
}

/// The number of packets that end the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckThreshold;

impl Setting for AckThreshold {
    type Value = u32;
    const ALLOWED: RangeInclusive<u32> = AckPolicy::THRESHOLD;
}

/// The default of a controller's parameter.
fn usually(of: fn(ControllerConfig) -> u32) -> String {
    let tunnel = ControllerName::Bbr1Tunnel;
    format!("{} with {tunnel}, else {}", of(tunnel.into()), of(ControllerConfig::default()))
}

/// The default of a parameter of the policy for acknowledgements.
fn usually_acks(of: fn(AckPolicy) -> String, otherwise: &str) -> String {
    let (tunnel, inside) = (of(AckPolicy::TUNNEL), of(AckPolicy::END_TO_END));
    format!(
        "{tunnel} for the tunnels of a chain, {inside} for a transfer through a chain, else {otherwise}"
    )
}

/// The checked form of [`TransportSettings`].
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TransportSetup {
    controller: ControllerName,
    initial_window: Within<InitialWindow>,
    up_gain_percent: Within<UpGainPercent>,
    /// Parameters that differ from the controller's defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    tecc: Option<String>,
    #[serde(skip)]
    tecc_config: TeccConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    ack_delay: Option<Within<AckDelay>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ack_threshold: Option<Within<AckThreshold>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qlog_dir: Option<PathBuf>,
}

/// The kind of data that a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkFor {
    /// Datagrams of connections that have their own congestion control.
    Tunnel,
    /// Requests and their responses, as a client has them.
    EndToEnd,
    /// A body whose sender may receive reports on tunnels.
    Origin,
}

impl WorkFor {
    const fn controller(self) -> ControllerName {
        match self {
            Self::Tunnel => ControllerName::Bbr1Tunnel,
            Self::EndToEnd | Self::Origin => ControllerName::Bbr1,
        }
    }

    const fn acks(self) -> AckPolicy {
        match self {
            Self::Tunnel => AckPolicy::TUNNEL,
            Self::EndToEnd | Self::Origin => AckPolicy::END_TO_END,
        }
    }
}

impl TransportSetup {
    /// Checks that the controller and its settings fit the work and that the folder exists.
    pub(crate) fn new(settings: TransportSettings, work: WorkFor) -> Result<Self, ConfigError> {
        Self::check(settings, None, work)
    }

    /// As [`Self::new`] for an origin, with parameters of the controllers that follow reports.
    pub(crate) fn of_origin(
        settings: TransportSettings,
        tecc: Option<String>,
    ) -> Result<Self, ConfigError> {
        Self::check(settings, tecc, WorkFor::Origin)
    }

    fn check(
        settings: TransportSettings,
        tecc: Option<String>,
        work: WorkFor,
    ) -> Result<Self, ConfigError> {
        let TransportSettings {
            controller,
            initial_window,
            up_gain_percent,
            ack_delay,
            ack_threshold,
            qlog_dir,
        } = settings;
        let controller = controller.unwrap_or(work.controller());
        let is_for_origins = controller.takes_reports() || controller.follows_peps();
        if is_for_origins && work != WorkFor::Origin {
            return Err(ConfigError::ControllerTecc { seen: controller });
        }
        if tecc.is_some() && !controller.takes_reports() {
            let reason = "it has parameters of these controllers";
            let second = "controller tecc or tecc-paper";
            return Err(ConfigError::Incomplete { first: "tecc", second, reason });
        }
        let usual = ControllerConfig::from(controller);
        let initial_window = initial_window.unwrap_or(Within(usual.initial_window_packets));
        let up_gain_percent = up_gain_percent.unwrap_or(Within(usual.bbr_up_gain_percent));
        let tecc_config = usual.tecc.with(tecc.as_deref().unwrap_or_default())?;
        // RFC 9298 §6: a tunnel may do without congestion control only if what it carries has one.
        if work != WorkFor::Tunnel && controller == ControllerName::Off {
            return Err(ConfigError::ControllerOff);
        }
        if let Some(dir) = qlog_dir.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(FileError::NoFolder { what: "qlog-dir", path: dir.clone() }.into());
        }
        Ok(Self {
            controller,
            initial_window,
            up_gain_percent,
            tecc,
            tecc_config,
            ack_delay,
            ack_threshold,
            qlog_dir,
        })
    }

    /// The folder for qlog files.
    pub(crate) fn qlog_dir(&self) -> Option<&Path> {
        self.qlog_dir.as_deref()
    }

    /// Whether the controller follows what PEPs say.
    pub(crate) const fn follows_peps(&self) -> bool {
        self.controller.follows_peps()
    }

    /// The policy for acknowledgements. `None`: nothing was chosen, so that the node has its default.
    fn acks(&self, work: WorkFor) -> Option<AckPolicy> {
        let delay = self.ack_delay.map(|Within(delay)| delay);
        let threshold = self.ack_threshold.map(|Within(threshold)| threshold);
        work.acks().chosen(delay, threshold)
    }

    /// The node's form; qlog files begin with `role`.
    pub(crate) fn to_node(&self, role: &'static str, work: WorkFor) -> Transport {
        let mtu = match work {
            WorkFor::Tunnel => Mtu::TUNNEL,
            WorkFor::EndToEnd | WorkFor::Origin => Mtu::default(),
        };
        let qlog = self.qlog_dir.clone().map(|dir| QlogDir { dir, role });
        let controller = ControllerConfig {
            tecc: self.tecc_config,
            initial_window_packets: self.initial_window.0,
            bbr_up_gain_percent: self.up_gain_percent.0,
            ..self.controller.into()
        };
        Transport {
            controller,
            mtu,
            loss_detection: LossDetection::of_origin(self.controller),
            acks: self.acks(work),
            qlog: qlog.map(|files| Arc::new(files) as Arc<dyn QlogFiles>),
            ..Transport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::from_text, proxy::ProxySettings};

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
    fn origins_that_follow_reports_wait_for_repairs_where_there_are_some_and_are_else_as_with_bbr1()
    {
        let of = |name, tecc: Option<&str>| {
            let tecc = tecc.map(str::to_owned);
            let settings =
                TransportSettings { controller: Some(name), ..TransportSettings::default() };
            let setup = TransportSetup::of_origin(settings, tecc).unwrap();
            setup.to_node("test", WorkFor::Origin)
        };
        let tecc = of(ControllerName::Tecc, Some("q-target=60ms"));
        assert_eq!(tecc.loss_detection, LossDetection::AsClientsSay);
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
            let settings = TransportSettings { controller, ..Default::default() };
            TransportSetup::of_origin(settings, Some(tecc.to_owned())).unwrap_err().to_string()
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
        for (text, is_allowed) in [
            ("initial-window = 1", false),
            ("initial-window = 1001", false),
            ("up-gain-percent = 99", false),
            ("up-gain-percent = 301", false),
            ("initial-window = 2\nup-gain-percent = 300", true),
        ] {
            let file = from_text::<ProxySettings>(&format!("{text}\nlisten = \"[::1]:1\""));
            let error = file.map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(error.is_ok(), is_allowed, "{text}: {error:?}");
            assert!(is_allowed || error.unwrap_err().contains(": out of range; allowed: "));
        }
    }
}

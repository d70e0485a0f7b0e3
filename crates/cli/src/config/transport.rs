//! Settings of QUIC connections that all roles share.

use std::path::PathBuf;

use tandem_congestion::{ControllerConfig, ControllerName};
use tandem_files::setting::{Setting, Within};
use tandem_node::quic::{AckPolicy, DatagramTransport};
use tandem_server::{
    files::FileError,
    pause::PauseSetting,
    transport::{AckDelay, AckThreshold, InitialWindow, TransportSetup, UpGainPercent, WorkFor},
};

use crate::error::ConfigError;

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
    pub initial_window: Option<Within<InitialWindow>>,

    #[arg(
        long, value_name = "PERCENT", env = "TANDEM_UP_GAIN_PERCENT",
        help = UpGainPercent::help(
            "Percent of the known bandwidth at which bbr1, bbr1-tunnel, tecc and tecc-paper probe for more",
            usually(|config| config.bbr_up_gain_percent),
        )
    )]
    pub up_gain_percent: Option<Within<UpGainPercent>>,

    #[arg(
        long, value_name = "SHARE", env = "TANDEM_ACK_DELAY",
        help = AckDelay::help(
            "Share of the RTT for which acknowledgements wait for more data; 0 sends every second one at \
             once. The wait also ends with the max_ack_delay of QUIC",
            usually_acks(|acks| acks.delay.to_string(), "2ms while packets come fast and the RTT is below 2ms"),
        )
    )]
    pub ack_delay: Option<Within<AckDelay>>,

    #[arg(
        long, value_name = "PACKETS", env = "TANDEM_ACK_THRESHOLD",
        help = AckThreshold::help(
            "Packets after which an acknowledgement waits no longer",
            usually_acks(|acks| acks.threshold.to_string(), "16 while they come fast and the RTT is below 2ms, and 2"),
        )
    )]
    pub ack_threshold: Option<Within<AckThreshold>>,

    /// What carries the datagrams of a tunnel: sealed, packets beside the connection with acknowledgements of their
    /// own, if the other end has this setting too and the controller is not cubic or bbr3; or quic, the connection
    /// itself
    /// [default: sealed]
    #[arg(long, value_name = "NAME", env = "TANDEM_TRANSPORT")]
    pub transport: Option<DatagramTransport>,

    /// Time for which packets gather before they are handled, while they come faster than that: auto, off, or
    /// 10us to 1ms. It saves CPU time at high rates, and delays packets by half of it on average
    #[arg(long, value_name = "TIME", env = "TANDEM_PAUSE")]
    pub pause: Option<PauseSetting>,

    /// Existing folder into which a qlog file is written for each connection, and by get also one about the
    /// cost of the tunnels
    #[arg(long, value_name = "DIR", env = "TANDEM_QLOG_DIR", help_heading = "Tests and tracing")]
    pub qlog_dir: Option<PathBuf>,
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

/// Checks that the controller and its settings fit the work and that the folder exists.
pub(crate) fn transport_for(
    settings: TransportSettings,
    work: WorkFor,
) -> Result<TransportSetup, ConfigError> {
    check(settings, None, work)
}

/// As [`transport_for`] for an origin, with parameters of the controllers that follow reports.
pub(crate) fn transport_of_origin(
    settings: TransportSettings,
    tecc: Option<String>,
) -> Result<TransportSetup, ConfigError> {
    check(settings, tecc, WorkFor::Origin)
}

fn check(
    settings: TransportSettings,
    tecc: Option<String>,
    work: WorkFor,
) -> Result<TransportSetup, ConfigError> {
    let TransportSettings {
        controller,
        initial_window,
        up_gain_percent,
        ack_delay,
        ack_threshold,
        transport,
        pause,
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
    Ok(TransportSetup {
        controller,
        initial_window,
        up_gain_percent,
        tecc,
        tecc_config,
        ack_delay,
        ack_threshold,
        transport: transport.unwrap_or_default(),
        pause: pause.unwrap_or_default(),
        qlog_dir,
    })
}

#[cfg(test)]
mod tests {
    use tandem_congestion::TeccConfig;
    use tandem_node::quic::LossDetection;

    use super::*;
    use crate::{config::from_text, server::ProxySettings};

    #[test]
    fn congestion_control_is_on_unless_a_tunnels_operator_says_off() {
        // RFC 9298 §6: congestion control MUST NOT be disabled unless what the tunnel carries is
        // known to have its own.
        for work in [WorkFor::Tunnel, WorkFor::EndToEnd, WorkFor::Origin] {
            let setup = transport_for(TransportSettings::default(), work).unwrap();
            assert_ne!(setup.controller, ControllerName::Off, "{work:?}");
        }
        let controller = Some(ControllerName::Off);
        let off = || TransportSettings { controller, ..TransportSettings::default() };
        assert!(transport_for(off(), WorkFor::Tunnel).is_ok());
        for work in [WorkFor::EndToEnd, WorkFor::Origin] {
            let refused = transport_for(off(), work);
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
            let setup = transport_of_origin(settings, tecc).unwrap();
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
                let error = transport_for(settings, work).unwrap_err().to_string();
                assert!(
                    error.contains(controller.as_str()) && error.contains("origins"),
                    "{error}"
                );
            }
        }
        let with = |controller, tecc: &str| {
            let settings = TransportSettings { controller, ..Default::default() };
            transport_of_origin(settings, Some(tecc.to_owned())).unwrap_err().to_string()
        };
        assert!(with(None, "delta=1").starts_with("tecc needs controller tecc"));
        let error = with(Some(ControllerName::Tecc), "delta=3");
        assert_eq!(error, "tecc: delta = \"3\"; allowed: 0 to 2");
    }

    #[test]
    fn tunnels_have_their_own_controller_unless_somebody_chose_one() {
        let name = |controller, work| {
            let settings = TransportSettings { controller, ..TransportSettings::default() };
            let setup = transport_for(settings, work).unwrap();
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

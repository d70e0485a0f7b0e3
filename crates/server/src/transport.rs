//! Settings of QUIC connections that all roles share.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;
use tandem_congestion::{Bbr1Config, ControllerConfig, ControllerName, TeccConfig};
use tandem_files::setting::{Setting, Within};
use tandem_node::quic::{AckPolicy, DatagramTransport, LossDetection, Mtu, QlogFiles, Transport};
use tandem_units::Ratio;

use crate::{pause::PauseSetting, process::qlog::QlogDir};

/// The initial congestion window in packets.
#[derive(Clone, Copy, Debug)]
pub struct InitialWindow;

impl Setting for InitialWindow {
    type Value = u32;
    const ALLOWED: RangeInclusive<u32> = ControllerConfig::INITIAL_WINDOW_PACKETS;
}

/// The gain with which BBR probes for more bandwidth.
#[derive(Clone, Copy, Debug)]
pub struct UpGainPercent;

impl Setting for UpGainPercent {
    type Value = u32;
    const ALLOWED: RangeInclusive<u32> = Bbr1Config::UP_GAIN_PERCENT;
}

/// The wait before an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct AckDelay;

impl Setting for AckDelay {
    type Value = Ratio;
    const ALLOWED: RangeInclusive<Ratio> = Ratio::ZERO..=Ratio::ONE;
}

/// The number of packets that end the wait.
#[derive(Clone, Copy, Debug)]
pub struct AckThreshold;

impl Setting for AckThreshold {
    type Value = u32;
    const ALLOWED: RangeInclusive<u32> = AckPolicy::THRESHOLD;
}

/// How the QUIC connections of a node are.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TransportSetup {
    /// The congestion controller.
    pub controller: ControllerName,
    /// Its initial window.
    pub initial_window: Within<InitialWindow>,
    /// How much it probes for more bandwidth.
    pub up_gain_percent: Within<UpGainPercent>,
    /// Parameters that differ from the controller's defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tecc: Option<String>,
    /// The same, as a controller takes them.
    #[serde(skip)]
    pub tecc_config: TeccConfig,
    /// The wait before an acknowledgement. `None`: as is usual for the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_delay: Option<Within<AckDelay>>,
    /// The packets that end the wait. `None`: as is usual for the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_threshold: Option<Within<AckThreshold>>,
    /// What carries the datagrams of tunnels.
    pub transport: DatagramTransport,
    /// Whether packets gather before they are handled.
    pub pause: PauseSetting,
    /// An existing folder for qlog files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qlog_dir: Option<PathBuf>,
}

/// The kind of data that a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkFor {
    /// Datagrams of connections that have their own congestion control.
    Tunnel,
    /// Requests and their responses, as a client has them.
    EndToEnd,
    /// A body whose sender may receive reports on tunnels.
    Origin,
}

impl WorkFor {
    /// The usual controller.
    pub const fn controller(self) -> ControllerName {
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
    /// The usual settings for this work.
    pub fn usual(work: WorkFor) -> Self {
        let controller = work.controller();
        let usual = ControllerConfig::from(controller);
        Self {
            controller,
            initial_window: Within(usual.initial_window_packets),
            up_gain_percent: Within(usual.bbr_up_gain_percent),
            tecc: None,
            tecc_config: usual.tecc,
            ack_delay: None,
            ack_threshold: None,
            transport: DatagramTransport::default(),
            pause: PauseSetting::default(),
            qlog_dir: None,
        }
    }

    /// The folder for qlog files.
    pub fn qlog_dir(&self) -> Option<&Path> {
        self.qlog_dir.as_deref()
    }

    /// Whether the controller follows what PEPs say.
    pub const fn follows_peps(&self) -> bool {
        self.controller.follows_peps()
    }

    /// The policy for acknowledgements. `None`: nothing was chosen, so that the node has its default.
    fn acks(&self, work: WorkFor) -> Option<AckPolicy> {
        let delay = self.ack_delay.map(|Within(delay)| delay);
        let threshold = self.ack_threshold.map(|Within(threshold)| threshold);
        work.acks().chosen(delay, threshold)
    }

    /// The node's form; qlog files begin with `role`.
    pub fn to_node(&self, role: &'static str, work: WorkFor) -> Transport {
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
            datagrams: self.transport,
            qlog: qlog.map(|files| Arc::new(files) as Arc<dyn QlogFiles>),
            ..Transport::default()
        }
    }
}

//! The modes, and their names: the only list of them.

use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

use serde_with::{DeserializeFromStr, SerializeDisplay};
use tandem_congestion::ControllerName;
use tandem_wire::{GroupField, Order, RepairField, VarInt};

/// How payloads travel between a client and an origin, and what the origin does about it. Command
/// lines, plans and results have the same names.
///
/// The name before a `+`, `-tuned` or `-paper` says what the tunnel does. The rest of a name is a variant
/// of the origin; a tunnel does not know of it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    SerializeDisplay,
    DeserializeFromStr,
)]
pub enum Mode {
    /// Packets are forwarded as they are: there is no tunnel.
    Mft,
    /// As [`Self::Mft`], and the origin has the congestion controller and the initial window of a
    /// tunnel. Its loss-detection thresholds are those of RFC 9002.
    MftTuned,
    /// As [`Self::Mft`], and the origin has the settings of [`Self::RmdtPlus`].
    MftPlus,
    /// MASQUE datagram tunnel: HTTP Datagrams in QUIC DATAGRAM frames (RFC 9298), which the tunnel does
    /// not repair.
    Mdt,
    /// As [`Self::Mdt`], and the packets of QUIC connections inside the tunnel are forwarded with other
    /// connection IDs instead of wrapped, once their handshake is over (draft-ietf-masque-quic-proxy).
    Forward,
    /// Unacknowledged: as [`Self::Mdt`], and payloads travel in sealed packets beside the tunnel's connection,
    /// which are not acknowledged (`docs/design/wire.md`). It is only for flows that control congestion themselves.
    Uack,
    /// As [`Self::Uack`] towards the proxy, and as [`Self::Mdt`] from it.
    UackUp,
    /// MASQUE stream tunnel: DATAGRAM capsules on the request stream (RFC 9297), which arrive all and in
    /// order.
    Mst,
    /// MASQUE stream-group tunnel: as [`Self::Mst`], over several request streams that do not wait for
    /// each other.
    Msgt,
    /// MASQUE datagram tunnel with retransmission: as [`Self::Mdt`], and the tunnel sends lost HTTP
    /// Datagrams again.
    Rmdt,
    /// As [`Self::Rmdt`], and the origin has what suits a tunnel that repairs: its loss-detection
    /// thresholds leave time for the tunnel's repairs, its initial window is 32 packets at least, and
    /// with `bbr1` it probes at 200 % of the bandwidth that it knows. This is everything that an origin
    /// can have of a tunnel that sends it no reports.
    RmdtPlus,
    /// Collaborative transmission control (TECC, NSDI '24): as [`Self::Rmdt`], and the origin receives
    /// reports on the tunnel.
    Tecc,
    /// As [`Self::Tecc`], and the origin's controller is the paper's.
    TeccPaper,
    /// The client asks for everything, uses what it is granted, and chooses by what it sees. See
    /// [`Choice`](crate::client::Choice).
    #[default]
    Auto,
}

/// A tunnel's way to carry payloads, with the parameters that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelMode {
    /// [`Mode::Mdt`].
    Mdt,
    /// [`Mode::Forward`]. If the proxy does not forward, the tunnel is as in [`Self::Mdt`].
    Forward,
    /// [`Mode::Uack`], or [`Mode::UackUp`] if only the client seals. If the proxy does not know sealed packets,
    /// the tunnel is as in [`Self::Mdt`].
    Uack {
        /// Whether the proxy seals too.
        both_ways: bool,
    },
    /// [`Mode::Mst`].
    Mst,
    /// [`Mode::Msgt`] with this number of request streams, within [`Self::GROUP_STREAMS`]. If the proxy
    /// has no stream groups, the tunnel is as in [`Self::Mst`].
    Msgt(u8),
    /// [`Mode::Rmdt`]. If the proxy cannot repair, the tunnel is as in [`Self::Mdt`].
    Rmdt(Repair),
    /// [`Mode::Tecc`]: the proxy also sends reports. In a download they go to the origin.
    Tecc(Repair),
    /// [`Mode::Auto`], or another mode that repairs, whose order the client chooses by what a flow carries: see
    /// [`Choice`](crate::client::Choice) for downloads. Payloads that are no QUIC packets never wait for those before
    /// them.
    Auto {
        /// The order counts for packets of QUIC connections, until the client knows more.
        repair: Repair,
        /// The mode that was asked for.
        asked: Mode,
    },
}

/// What becomes of the packets of a flow that fit no datagram of the tunnel.
///
/// A capsule carries packets of any size, but each waits for those before it on the same stream. It
/// also hides the path MTU from an endpoint that probes for it, such as one of QUIC, so that RFC 9298
/// §6.1 recommends to drop them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, SerializeDisplay)]
pub enum Oversize {
    /// They go in capsules if the proxy agrees, as Tandem's do. Those of QUIC connections are dropped,
    /// because QUIC finds out by probing what fits.
    #[default]
    Auto,
    /// They go in capsules, also those of QUIC connections, and also to proxies that do not agree.
    /// Packets from targets come in capsules only from proxies that agree.
    Capsule,
    /// They are dropped.
    Drop,
}

impl Oversize {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Capsule, Self::Drop];

    const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Capsule => "capsule",
            Self::Drop => "drop",
        }
    }
}

impl fmt::Display for Oversize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Oversize {
    type Err = UnknownOversize;

    fn from_str(name: &str) -> Result<Self, UnknownOversize> {
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or(UnknownOversize)
    }
}

/// The error for a name that is no [`Oversize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("allowed: auto, capsule, drop")]
pub struct UnknownOversize;

/// How lost HTTP Datagrams of a client's flows are repaired, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The order in which payloads leave the tunnel at either end.
    pub order: Order,
    /// Payloads that have waited longer are neither sent nor retransmitted.
    pub deadline: Option<Duration>,
    /// How often a payload is retransmitted at most. 0: never.
    pub limit: Option<u8>,
}

impl Default for Repair {
    fn default() -> Self {
        Self { order: Order::Ordered, deadline: None, limit: None }
    }
}

impl Repair {
    /// The field that asks for it, with payloads under this Context ID.
    pub(crate) fn to_field(self, context_id: VarInt) -> RepairField {
        let Self { order, deadline, limit } = self;
        RepairField { order, deadline, limit, ..RepairField::new(context_id) }
    }
}

impl From<RepairField> for Repair {
    fn from(RepairField { order, deadline, limit, .. }: RepairField) -> Self {
        Self { order, deadline, limit }
    }
}

/// The tunnel of [`Mode::default`].
impl Default for TunnelMode {
    fn default() -> Self {
        Self::Auto { repair: Repair::default(), asked: Mode::Auto }
    }
}

impl TunnelMode {
    /// Request streams of [`Self::Msgt`]. One stream would be [`Self::Mst`]; the field `tandem-group`
    /// holds no more than the upper limit.
    pub const GROUP_STREAMS: RangeInclusive<u8> = 2..=GroupField::STREAMS_MAX;

    /// The default number of request streams. With eight, a lost packet holds up one in eight of the
    /// payloads behind it.
    pub const GROUP_STREAMS_DEFAULT: u8 = 8;

    /// The mode without its parameters.
    pub const fn name(self) -> Mode {
        match self {
            Self::Mdt => Mode::Mdt,
            Self::Forward => Mode::Forward,
            Self::Uack { both_ways: true } => Mode::Uack,
            Self::Uack { both_ways: false } => Mode::UackUp,
            Self::Mst => Mode::Mst,
            Self::Msgt(_) => Mode::Msgt,
            Self::Rmdt(_) => Mode::Rmdt,
            Self::Tecc(_) => Mode::Tecc,
            Self::Auto { asked, .. } => asked,
        }
    }
}

/// What a client and a proxy agreed on for the payloads of one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The mode that the client asked for.
    pub asked: Mode,
    /// The mode in which the tunnel runs.
    pub granted: Mode,
    /// Why the tunnel does not run as the client asked. `None`: it does.
    pub lesser: Option<Lesser>,
}

/// Why a tunnel runs in another mode than its client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lesser {
    /// The proxy ignored a field of the request.
    #[error("the proxy does not know the field {0}")]
    NoField(&'static str),
    /// The proxy repairs by draft-yang-masque-dgram-retrans only.
    #[error("the proxy repairs without numbers, so that payloads leave the tunnel out of order")]
    WithoutOrder,
    /// The proxy accepts no HTTP Datagrams in QUIC DATAGRAM frames.
    #[error("the proxy accepts no QUIC datagrams")]
    NoDatagrams,
    /// The packets of this hop are small, because it is inside other tunnels.
    #[error("the packets of this hop, which is inside other tunnels, are too small for datagrams")]
    SmallPackets,
    /// The proxy relays no payloads that come in capsules.
    #[error("nothing came back for payloads in capsules, and something for the same in datagrams")]
    DropsCapsules,
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, granted, lesser } = self;
        match lesser {
            None => write!(f, "{granted}"),
            Some(lesser) if asked == granted => write!(f, "{granted}, but {lesser}"),
            Some(lesser) => write!(f, "{granted} instead of {asked}: {lesser}"),
        }
    }
}

impl Mode {
    /// Every mode, in the order of tables and figures.
    pub const ALL: [Self; 14] = [
        Self::Mft,
        Self::MftTuned,
        Self::MftPlus,
        Self::Mdt,
        Self::Forward,
        Self::Uack,
        Self::UackUp,
        Self::Mst,
        Self::Msgt,
        Self::Rmdt,
        Self::RmdtPlus,
        Self::Tecc,
        Self::TeccPaper,
        Self::Auto,
    ];

    /// The mode's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mft => "mft",
            Self::MftTuned => "mft-tuned",
            Self::MftPlus => "mft+",
            Self::Mdt => "mdt",
            Self::Forward => "forward",
            Self::Uack => "uack",
            Self::UackUp => "uack-up",
            Self::Mst => "mst",
            Self::Msgt => "msgt",
            Self::Rmdt => "rmdt",
            Self::RmdtPlus => "rmdt+",
            Self::Tecc => "tecc",
            Self::TeccPaper => "tecc-paper",
            Self::Auto => "auto",
        }
    }

    /// Reads the name of one of the modes that are allowed.
    pub fn parse(name: &str, is_allowed: fn(Self) -> bool) -> Result<Self, UnknownMode> {
        let mut allowed = Self::ALL.into_iter().filter(|mode| is_allowed(*mode));
        allowed.clone().find(|mode| mode.as_str() == name).ok_or_else(|| UnknownMode {
            seen: name.to_owned(),
            allowed: allowed.by_ref().map(Self::as_str).collect::<Vec<_>>().join(", "),
        })
    }

    /// Whether there is a tunnel.
    pub const fn has_tunnel(self) -> bool {
        !matches!(self, Self::Mft | Self::MftTuned | Self::MftPlus)
    }

    /// Whether the tunnel sends lost HTTP Datagrams again.
    pub const fn repairs_datagrams(self) -> bool {
        matches!(self, Self::Rmdt | Self::RmdtPlus | Self::Tecc | Self::TeccPaper | Self::Auto)
    }

    /// Whether the proxy sends reports on the tunnel.
    pub const fn has_feedback(self) -> bool {
        matches!(self, Self::Tecc | Self::TeccPaper | Self::Auto)
    }

    /// Whether the origin has settings of its own, although it receives no reports: it begins with a
    /// larger window, and probes for more bandwidth.
    pub const fn has_tuned_origin(self) -> bool {
        matches!(self, Self::MftTuned | Self::MftPlus | Self::RmdtPlus)
    }

    /// Whether the origin's loss-detection thresholds leave time for the tunnel's repairs.
    pub const fn has_patient_origin(self) -> bool {
        matches!(self, Self::MftPlus | Self::RmdtPlus | Self::Tecc | Self::TeccPaper)
    }

    /// The origin's controller, if the mode decides it.
    pub const fn origin_controller(self) -> Option<ControllerName> {
        match self {
            Self::MftTuned => Some(ControllerName::Bbr1Tunnel),
            Self::Tecc => Some(ControllerName::Tecc),
            Self::TeccPaper => Some(ControllerName::TeccPaper),
            _ => None,
        }
    }

    /// The default order in which repaired payloads leave the tunnel. An origin that does
    /// not know of the tunnel takes packets out of order for lost ones.
    pub const fn usual_order(self) -> Order {
        if self.has_patient_origin() { Order::Window } else { Order::Ordered }
    }

    /// The mode that suits the tunnels behind the first one of a chain, if the first has this mode. Losses
    /// are repaired on the last mile, and everything behind it is forwarded at no cost. A client that does
    /// not want its packets to be recognized outside of the tunnels has them sealed everywhere.
    #[must_use]
    pub const fn beyond(self) -> Self {
        match self {
            Self::Uack | Self::UackUp => self,
            _ => Self::Forward,
        }
    }

    /// The tunnel's part of this mode; `None` without a tunnel.
    pub const fn tunnel(self, repair: Repair, group_streams: u8) -> Option<TunnelMode> {
        match self {
            Self::Mft | Self::MftTuned | Self::MftPlus => None,
            Self::Mdt => Some(TunnelMode::Mdt),
            Self::Forward => Some(TunnelMode::Forward),
            Self::Uack => Some(TunnelMode::Uack { both_ways: true }),
            Self::UackUp => Some(TunnelMode::Uack { both_ways: false }),
            Self::Mst => Some(TunnelMode::Mst),
            Self::Msgt => Some(TunnelMode::Msgt(group_streams)),
            Self::Rmdt | Self::RmdtPlus => Some(TunnelMode::Rmdt(repair)),
            Self::Tecc | Self::TeccPaper => Some(TunnelMode::Tecc(repair)),
            Self::Auto => Some(TunnelMode::Auto { repair, asked: self }),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        Self::parse(name, |_| true)
    }
}

/// A name that is not the name of a mode, or not of one that is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen:?} is not a mode; allowed: {allowed}")]
pub struct UnknownMode {
    /// The name.
    pub seen: String,
    /// The names of the modes that are allowed.
    pub allowed: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_read_and_an_error_lists_those_that_are_allowed() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "tcp".parse::<Mode>().unwrap_err().to_string();
        let allowed = "mft, mft-tuned, mft+, mdt, forward, uack, uack-up, mst, msgt, rmdt, rmdt+, tecc, \
                       tecc-paper, auto";
        assert_eq!(error, format!("\"tcp\" is not a mode; allowed: {allowed}"));
        let error = Mode::parse("mft", Mode::has_feedback).unwrap_err().to_string();
        assert_eq!(error, "\"mft\" is not a mode; allowed: tecc, tecc-paper, auto");
    }

    #[test]
    fn tables_have_the_modes_in_their_order() {
        assert!(Mode::ALL.is_sorted());
    }

    #[test]
    fn a_variant_of_the_origin_does_not_change_the_tunnel() {
        for (variant, mode) in [
            (Mode::MftTuned, Mode::Mft),
            (Mode::MftPlus, Mode::Mft),
            (Mode::RmdtPlus, Mode::Rmdt),
            (Mode::TeccPaper, Mode::Tecc),
        ] {
            let tunnel = |mode: Mode| mode.tunnel(Repair::default(), 8);
            assert_eq!(tunnel(variant), tunnel(mode));
            assert_eq!(variant.has_tunnel(), tunnel(variant).is_some());
        }
    }
}

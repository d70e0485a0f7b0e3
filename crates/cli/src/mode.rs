//! The modes as flags and files have them.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tandem_node::mode::Mode;

/// Whether a client or the demo takes it. The variants `+` and `-tuned` are settings of the origin, and
/// `-up` is for experiments only.
pub(crate) fn is_of_clients(mode: Mode) -> bool {
    !mode.has_tuned_origin() && mode != Mode::UackUp
}

/// Whether it is one of those that are tunnels.
pub(crate) fn is_of_tunnels(mode: Mode) -> bool {
    is_of_clients(mode) && mode.has_tunnel()
}

/// Parses a flag. The long help has a line for each mode.
pub(crate) fn parser(is_allowed: fn(Mode) -> bool) -> impl TypedValueParser<Value = Mode> {
    let allowed = Mode::ALL.into_iter().filter(move |mode| is_allowed(*mode));
    let values = allowed.map(|mode| PossibleValue::new(mode.as_str()).help(meaning(mode)));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Mode>())
}

/// The help of a mode, which spells its name out.
const fn meaning(mode: Mode) -> &'static str {
    match mode {
        Mode::Mft | Mode::MftTuned | Mode::MftPlus => {
            "No tunnel: packets are forwarded as they are"
        }
        Mode::Mdt => {
            "MASQUE datagram tunnel: payloads travel in QUIC DATAGRAM frames (RFC 9298), and the tunnel \
             does not repair losses"
        }
        Mode::Forward => {
            "As mdt, and the packets of QUIC connections are forwarded instead of wrapped once their \
             handshake is over (draft-ietf-masque-quic-proxy). With other proxies as mdt"
        }
        Mode::Uack => {
            "As mdt, and payloads travel in encrypted, unacknowledged packets; only for traffic with its own \
             congestion control. With other proxies as mdt"
        }
        Mode::UackUp => "As uack towards the proxy, and as mdt from it",
        Mode::Mst => {
            "MASQUE stream tunnel: payloads travel on one stream (RFC 9297), which repairs losses and \
             keeps the order"
        }
        Mode::Msgt => {
            "MASQUE stream-group tunnel: as mst, but over several streams, which do not wait for each \
             other"
        }
        Mode::Rmdt | Mode::RmdtPlus => {
            "MASQUE datagram tunnel with retransmission: as mdt, and the tunnel sends lost payloads \
             again"
        }
        Mode::Tecc => {
            "Collaborative transmission control (TECC, NSDI '24): as rmdt, and the sender adapts to \
             reports on the tunnel. An origin does that with `tandem origin --controller tecc`; with \
             other origins tecc is as rmdt, and with other proxies as rmdt or mdt"
        }
        Mode::Auto => {
            "The client asks for everything that tecc has, and uses what the proxy grants: as tecc with origins \
             that follow reports, and as rmdt with others. Payloads that are no QUIC packets never wait for \
             lost ones"
        }
        Mode::TeccPaper => {
            "As tecc; a sender that is this program follows reports as the paper does"
        }
    }
}

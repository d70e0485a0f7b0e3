//! The engine's forms of values, and ours.

use noq_proto::VarInt;
use tandem_units::Rate;
use tandem_wire::Code;

use super::StreamId;
use crate::node::{Ecn, Transmit};

pub(super) fn from_noq(transmit: &noq_proto::Transmit) -> Transmit {
    Transmit {
        destination: transmit.destination,
        src_ip: transmit.src_ip,
        ecn: transmit.ecn.map(|ecn| match ecn {
            noq_proto::EcnCodepoint::Ect0 => Ecn::Ect0,
            noq_proto::EcnCodepoint::Ect1 => Ecn::Ect1,
            noq_proto::EcnCodepoint::Ce => Ecn::Ce,
        }),
        size: transmit.size,
        segment_size: transmit.segment_size,
    }
}

pub(super) fn ecn_to_noq(ecn: Ecn) -> noq_proto::EcnCodepoint {
    match ecn {
        Ecn::Ect0 => noq_proto::EcnCodepoint::Ect0,
        Ecn::Ect1 => noq_proto::EcnCodepoint::Ect1,
        Ecn::Ce => noq_proto::EcnCodepoint::Ce,
    }
}

/// Converts a pacing rate of noq, which is in bytes per second.
pub(super) const fn from_noq_rate(rate: u64) -> Option<Rate> {
    Rate::from_bps(rate.saturating_mul(8))
}

pub(super) fn to_noq(stream: StreamId) -> noq_proto::StreamId {
    noq_proto::StreamId::from(VarInt::from_u64(stream.0).unwrap_or(VarInt::MAX))
}

pub(super) fn to_varint(code: Code) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}

pub(super) const fn ecn_to_transport(ecn: Ecn) -> tandem_transport::Ecn {
    match ecn {
        Ecn::Ect0 => tandem_transport::Ecn::Ect0,
        Ecn::Ect1 => tandem_transport::Ecn::Ect1,
        Ecn::Ce => tandem_transport::Ecn::Ce,
    }
}

pub(super) const fn ecn_from_transport(ecn: tandem_transport::Ecn) -> Ecn {
    match ecn {
        tandem_transport::Ecn::Ect0 => Ecn::Ect0,
        tandem_transport::Ecn::Ect1 => Ecn::Ect1,
        tandem_transport::Ecn::Ce => Ecn::Ce,
    }
}

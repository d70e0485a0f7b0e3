//! The Context IDs of a flow (RFC 9298 §4), and the kind of payload under each of them.

use tandem_wire::{CONTEXT_ID_UDP, TunnelInfo, TunnelInfoError, VarInt};

/// The Context ID under which a client of ours sends numbered payloads. RFC 9298 §4: Context IDs
/// that a client allocates are even.
pub(super) const NUMBERED_BY_CLIENT: VarInt = VarInt::from_u32(2);

/// The Context ID under which a proxy of ours sends numbered payloads. Those of a proxy are odd.
pub(super) const NUMBERED_BY_PROXY: VarInt = VarInt::from_u32(1);

/// The Context ID under which a proxy of ours sends reports.
pub(super) const REPORTS_OF_PROXY: VarInt = VarInt::from_u32(3);

/// The kind of payload under a Context ID.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PayloadKind {
    /// UDP payloads as in RFC 9298 §5.
    UdpPayload,
    /// UDP payloads with sequence numbers, which the sender repairs.
    Numbered,
    /// Reports on the tunnel. `newest` is the highest sequence number so far.
    Report { newest: Option<VarInt> },
}

/// The result of decoding a report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReportArrival {
    /// The report is the newest.
    New(TunnelInfo),
    /// A newer report arrived before.
    Stale,
    /// The report cannot be decoded.
    Malformed(TunnelInfoError),
}

/// The Context IDs of one flow that the peer may use.
#[derive(Debug)]
pub(super) struct Contexts(Vec<(VarInt, PayloadKind)>);

impl Default for Contexts {
    /// RFC 9298 §4: "Context ID 0 is reserved for UDP payloads".
    fn default() -> Self {
        Self(vec![(CONTEXT_ID_UDP, PayloadKind::UdpPayload)])
    }
}

impl Contexts {
    /// Registers the kind of payload that both ends agreed on for a Context ID.
    pub(super) fn register(&mut self, id: VarInt, context: PayloadKind) {
        self.0.retain(|(known, _)| *known != id);
        self.0.push((id, context));
    }

    /// The kind of payload under a Context ID. `None`: nothing was agreed on.
    pub(super) fn get_mut(&mut self, id: VarInt) -> Option<&mut PayloadKind> {
        self.0.iter_mut().find(|(known, _)| *known == id).map(|(_, context)| context)
    }
}

impl ReportArrival {
    /// Decodes a report, and compares its sequence number with the newest so far.
    pub(super) fn new(newest: &mut Option<VarInt>, payload: bytes::Bytes) -> Self {
        match TunnelInfo::decode(payload) {
            Err(error) => Self::Malformed(error),
            Ok(info) if newest.is_some_and(|newest| info.sequence <= newest) => Self::Stale,
            Ok(info) => {
                *newest = Some(info.sequence);
                Self::New(info)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_udp_payloads_need_no_agreement() {
        let mut contexts = Contexts::default();
        assert_eq!(contexts.get_mut(CONTEXT_ID_UDP), Some(&mut PayloadKind::UdpPayload));
        assert_eq!(contexts.get_mut(NUMBERED_BY_PROXY), None);
        contexts.register(NUMBERED_BY_PROXY, PayloadKind::Report { newest: None });
        contexts.register(NUMBERED_BY_PROXY, PayloadKind::Numbered);
        assert_eq!(contexts.get_mut(NUMBERED_BY_PROXY), Some(&mut PayloadKind::Numbered));
        assert_eq!(contexts.0.len(), 2);
    }
}

//! What proxies tell of a hop's flows: `TUNNEL_INFO` (TECC §4.2.2).

use std::collections::BTreeMap;

use http::HeaderMap;
use tandem_wire::{FeedbackField, TunnelInfo, TunnelInfoError, VarInt};

use super::flow::Arrived;
use crate::{
    fields::{FEEDBACK, only_line},
    quic::StreamId,
};

/// What became of a report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// It is the newest.
    New(TunnelInfo),
    /// A newer one came before.
    Stale,
    /// It cannot be understood.
    Malformed(TunnelInfoError),
}

/// What reports on each flow are newer than.
#[derive(Debug, Default)]
pub(super) struct Reports {
    flows: BTreeMap<StreamId, Reported>,
}

#[derive(Debug)]
struct Reported {
    context_id: VarInt,
    newest: Option<VarInt>,
}

impl Reports {
    /// The proxy granted a flow, and may have agreed to report on it. A field that cannot be
    /// understood is no agreement.
    pub(super) fn on_granted(&mut self, stream: StreamId, headers: &HeaderMap) {
        let line = only_line(headers, &FEEDBACK).and_then(Result::ok);
        let field = line.and_then(|line| FeedbackField::parse_grant(&line).ok());
        if let Some(FeedbackField::Grant { context_id }) = field {
            self.flows.insert(stream, Reported { context_id, newest: None });
        }
    }

    pub(super) fn remove(&mut self, stream: StreamId) {
        self.flows.remove(&stream);
    }

    /// Takes what may be a report. `None`: it is none.
    pub(super) fn take(&mut self, arrived: &Arrived) -> Option<Received> {
        let flow = self.flows.get_mut(&arrived.stream)?;
        if arrived.context_id != flow.context_id {
            return None;
        }
        Some(match TunnelInfo::decode(arrived.payload.clone()) {
            Err(error) => Received::Malformed(error),
            Ok(info) if flow.newest.is_some_and(|newest| info.sequence <= newest) => {
                Received::Stale
            }
            Ok(info) => {
                flow.newest = Some(info.sequence);
                Received::New(info)
            }
        })
    }
}

/// Numbers reports anew: a tunnel may be built anew and count from the beginning, and who follows
/// them goes on.
#[derive(Debug)]
pub(super) struct Renumbered {
    next: VarInt,
}

impl Renumbered {
    pub(super) const fn new() -> Self {
        Self { next: VarInt::from_u32(0) }
    }

    pub(super) fn next(&mut self, info: TunnelInfo) -> TunnelInfo {
        let sequence = self.next;
        self.next = VarInt::saturating_from(sequence.get() + 1);
        TunnelInfo { sequence, ..info }
    }
}

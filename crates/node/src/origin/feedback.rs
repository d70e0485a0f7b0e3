//! The reports on tunnels that clients forward: `QUIC_INFO` of the paper TECC (NSDI '24, §4.2.2).

use http::{HeaderMap, HeaderName, StatusCode};
use tandem_congestion::Applied;
use tandem_wire::{HttpDatagram, ResponseHead, TunnelInfo, TunnelInfoError};
use tracing::debug;

use super::{
    answer,
    site::{Edge, RequestId, Site},
};
use crate::{
    fields::only_line,
    h3::End,
    quic::{ConnectionId, StreamId},
};

const QUIC_INFO: HeaderName = HeaderName::from_static(TunnelInfo::FIELD);

impl Site {
    /// Answers a request that opens a channel for reports. Each connection may have one such
    /// request, and none if the congestion controller does not use reports.
    pub(super) fn open_channel(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        let status = match self.channels.contains_key(&id.0) {
            _ if !self.extras.reports => StatusCode::NOT_IMPLEMENTED,
            true => StatusCode::CONFLICT,
            false => StatusCode::OK,
        };
        if status != StatusCode::OK {
            return Self::refuse(cx, id, &http::Method::CONNECT, answer::plain(status));
        }
        let Some(mut carrier) = cx.server.carrier(id.0) else { return }; // the client has gone
        let head = ResponseHead { status, headers: HeaderMap::new() };
        carrier.respond(id.1, &head, End::More);
        self.channels.insert(id.0, id.1);
    }

    /// Closes the channel for reports if it is the request that the client has ended.
    pub(super) fn close_channel(&mut self, cx: &mut Edge<'_>, (id, stream): RequestId) {
        if self.channels.get(&id) == Some(&stream) {
            self.channels.remove(&id);
            if let Some(mut carrier) = cx.server.carrier(id) {
                carrier.finish(stream);
            }
        }
    }

    pub(super) fn is_channel(&self, (id, datagram): (ConnectionId, &HttpDatagram)) -> bool {
        self.channels.get(&id) == Some(&StreamId(datagram.quarter_stream_id.stream_id()))
    }

    /// Processes a datagram of the channel for reports.
    pub(super) fn take_report(cx: &mut Edge<'_>, id: ConnectionId, datagram: HttpDatagram) {
        if datagram.context_id == TunnelInfo::CONTEXT_ID {
            Self::apply(cx, id, TunnelInfo::decode(datagram.payload));
        } else {
            cx.stats.dropped.unknown_context += 1;
        }
    }

    /// Processes the report in the header section of a request, if there is one.
    pub(super) fn read_report(cx: &mut Edge<'_>, id: ConnectionId, headers: &HeaderMap) {
        if let Some(line) = only_line(headers, &QUIC_INFO) {
            let info = line.map_err(|_| TunnelInfoError::Syntax);
            Self::apply(cx, id, info.and_then(|line| TunnelInfo::parse_field(&line)));
        }
    }

    fn apply(cx: &mut Edge<'_>, id: ConnectionId, info: Result<TunnelInfo, TunnelInfoError>) {
        let Some(mut carrier) = cx.server.carrier(id) else { return }; // the client has gone
        let feedback = &mut cx.stats.feedback;
        match info.map(|info| carrier.quic().apply_feedback(cx.now, &info)) {
            Ok(Applied::Used) => {
                feedback.received += 1;
                feedback.followed += 1;
            }
            Ok(Applied::Stale) => feedback.stale += 1,
            Ok(Applied::NotListening) => feedback.received += 1,
            Err(error) => {
                debug!(%error, "a report is ignored");
                feedback.malformed += 1;
            }
        }
    }
}

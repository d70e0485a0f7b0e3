//! The body of an upload, which consists of zeros.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tandem_congestion::Applied;
use tandem_units::ByteCount;
use tandem_wire::TunnelInfo;

use super::relay::Renumbered;
use crate::{
    client::chain::Peer,
    quic::{StreamId, Write},
};

/// The data of one write.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// An upload.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) len: ByteCount,
    /// Bytes that the engine has not taken yet.
    left: u64,
    has_ended: bool,
    /// Whether the engine gets no more than it can send soon.
    is_measured: bool,
    renumbered: Renumbered,
    /// How many reports on this client's end of the tunnel there were.
    pub(super) reports: u64,
    /// How many of these reports the sender followed.
    pub(super) followed: u64,
}

impl Upload {
    pub(super) const fn new(len: ByteCount, is_measured: bool) -> Self {
        Self {
            len,
            left: len.get(),
            has_ended: false,
            is_measured,
            renumbered: Renumbered::new(),
            reports: 0,
            followed: 0,
        }
    }

    /// The bytes that the connection has taken.
    pub(super) const fn taken(&self) -> u64 {
        self.len.get() - self.left
    }

    /// Adds the length of the body to the headers of the request. Returns the method.
    pub(super) fn add_to(&self, headers: &mut HeaderMap) -> Method {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(self.len.get()));
        Method::PUT
    }

    /// Starts the body after the request has been sent.
    pub(super) fn begin(&mut self, peer: &mut Peer, stream: StreamId) {
        if let Some(mut carrier) = peer.carrier() {
            carrier.begin_body(stream, usize::try_from(self.len.get()).unwrap_or(usize::MAX));
        }
        self.send(peer, stream);
    }

    /// Sends as much of the body as the stream has room for.
    pub(super) fn send(&mut self, peer: &mut Peer, stream: StreamId) {
        let Some(mut carrier) = peer.carrier() else { return }; // it is lost
        if self.is_measured {
            carrier.quic().hold_two_windows();
        }
        while self.left > 0 {
            let mut piece = Bytes::from_static(&ZEROS);
            piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            let len = piece.len();
            let result = carrier.write_body(stream, &mut piece);
            self.left -= (len - piece.len()) as u64;
            // The stream is full, or the origin stopped it. In the second case its answer says why.
            if result != Ok(Write::Done) {
                return;
            }
        }
        if !std::mem::replace(&mut self.has_ended, true) {
            carrier.finish(stream);
        }
    }

    /// Whether an answer with this status says that the whole body has arrived.
    pub(super) fn is_complete(&self, status: StatusCode) -> bool {
        let is_success =
            matches!(status, StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT);
        is_success && self.has_ended
    }

    /// Lets the sender follow a report on this client's end of the tunnel.
    pub(super) fn follow(&mut self, now: Instant, peer: &mut Peer, info: TunnelInfo) {
        let Some(mut carrier) = peer.carrier() else { return }; // it is lost
        self.reports += 1;
        let applied = carrier.quic().apply_feedback(now, &self.renumbered.next(info));
        self.followed += u64::from(applied == Applied::Used);
    }
}

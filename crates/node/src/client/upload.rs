//! The body of an upload: zeros, as many as were promised.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use tandem_congestion::Applied;
use tandem_units::ByteCount;
use tandem_wire::TunnelInfo;

use super::{peer::Peer, relay::Renumbered};
use crate::quic::{StreamId, Write};

/// What is written at once.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// An upload.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) len: ByteCount,
    /// Bytes that the engine has not taken yet.
    left: u64,
    has_ended: bool,
    renumbered: Renumbered,
    /// Reports of our own tunnel, and those that the sender followed.
    pub(super) reports: u64,
    pub(super) followed: u64,
}

impl Upload {
    pub(super) const fn new(len: ByteCount) -> Self {
        Self {
            len,
            left: len.get(),
            has_ended: false,
            renumbered: Renumbered::new(),
            reports: 0,
            followed: 0,
        }
    }

    /// Makes a request one that brings the body.
    pub(super) fn add_to(&self, headers: &mut HeaderMap) -> Method {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(self.len.get()));
        Method::PUT
    }

    /// The request has been sent; the body follows.
    pub(super) fn begin(&mut self, peer: &mut Peer, stream: StreamId) {
        if let Some((session, _)) = peer.parts() {
            session.begin_body(stream, usize::try_from(self.len.get()).unwrap_or(usize::MAX));
        }
        self.send(peer, stream);
    }

    /// Sends as much as there is room for.
    pub(super) fn send(&mut self, peer: &mut Peer, stream: StreamId) {
        let Some((session, connection)) = peer.parts() else { return };
        while self.left > 0 {
            let mut piece = Bytes::from_static(&ZEROS);
            piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            let len = piece.len();
            let result = session.write_body(connection, stream, &mut piece);
            self.left -= (len - piece.len()) as u64;
            // If the origin wants no more of it, its answer says why.
            if result != Ok(Write::Done) {
                return;
            }
        }
        if !std::mem::replace(&mut self.has_ended, true) {
            session.finish(connection, stream);
        }
    }

    /// Whether this answer says that all has arrived.
    pub(super) fn is_complete(&self, status: StatusCode) -> bool {
        let took = matches!(status, StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT);
        took && self.has_ended
    }

    /// Lets the sender follow a report on our own tunnel.
    pub(super) fn follow(&mut self, now: Instant, peer: &mut Peer, info: TunnelInfo) {
        let Some((_, connection)) = peer.parts() else { return };
        self.reports += 1;
        let applied = connection.apply_feedback(now, &self.renumbered.next(info));
        self.followed += u64::from(applied == Applied::Used);
    }
}

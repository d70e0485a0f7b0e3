//! When a peer is told that it may open more streams (`MAX_STREAMS`, RFC 9000 §19.11).
//!
//! The engine tells it after an eighth of all streams has ended. That is enough while the peer has streams left, but
//! one that has used them all would wait for 128 of 1024 flows to end before it can open the next one. So a peer that
//! has few streams left hears of each one that has ended.

use noq_proto::{Dir, VarInt};

/// What a peer knows about the streams that it may open in both directions.
#[derive(Debug)]
pub(super) struct StreamCredit {
    /// The number of streams that may be open at a time.
    most: VarInt,
    /// The number of streams that the peer has opened so far.
    pub(super) opened: u64,
    /// The number of streams that had ended when the peer was told last. The engine may have told it of more since.
    told: u64,
    /// With more opened streams, the peer has less than a quarter left.
    pub(super) enough: u64,
}

impl StreamCredit {
    pub(super) fn new(connection: &noq_proto::Connection) -> Self {
        let most = connection.max_concurrent_streams(Dir::Bi);
        let enough = most - most / 4;
        Self { most: VarInt::try_from(most).unwrap_or(VarInt::MAX), opened: 0, told: 0, enough }
    }

    /// Notes that the peer has opened a stream.
    pub(super) const fn on_opened(&mut self) {
        self.opened += 1;
    }

    /// Tells a peer that has less than a quarter left of the streams that have ended. Returns whether there was
    /// something to tell.
    pub(super) fn update(&mut self, connection: &mut noq_proto::Connection) -> bool {
        let open = connection.streams().remote_open_streams(Dir::Bi);
        let ended = self.opened.saturating_sub(open);
        if ended <= self.told {
            return false;
        }
        self.enough += ended - self.told;
        self.told = ended;
        // The engine announces what is more than an eighth of the number of streams. With the number 0 that is each one
        // that has ended. The second call restores the number, and changes nothing else.
        connection.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(0));
        connection.set_max_concurrent_streams(Dir::Bi, self.most);
        true
    }
}

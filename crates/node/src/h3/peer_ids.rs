//! The identifiers in frames on the peer's control stream. They identify requests and pushes;
//! Tandem has no pushes.

use tandem_wire::{Code, StrangerText, VarInt};

use super::{ConnectionError, Side};
use crate::quic::StreamId;

/// The last identifiers that the peer has sent.
#[derive(Debug, Default)]
pub(super) struct PeerIds {
    goaway: Option<VarInt>,
    max_push_id: Option<VarInt>,
}

impl PeerIds {
    pub(super) fn on_goaway(&mut self, side: Side, id: VarInt) -> Result<(), ConnectionError> {
        let stream = StreamId(id.get());
        if side == Side::Client && !(stream.is_client_initiated() && stream.is_bidirectional()) {
            // RFC 9114 §7.2.6: "A client MUST treat receipt of a GOAWAY frame containing a stream
            // ID of any other type as a connection error of type H3_ID_ERROR."
            return Err(id_error(format!("GOAWAY has {stream}, which is not a request stream")));
        }
        // RFC 9114 §5.2: "Receiving a GOAWAY containing a larger identifier than previously
        // received MUST be treated as a connection error of type H3_ID_ERROR."
        if let Some(before) = self.goaway.filter(|before| id > *before) {
            return Err(id_error(format!("GOAWAY has {id}, but an earlier one had {before}")));
        }
        self.goaway = Some(id);
        Ok(())
    }

    /// Returns whether the peer has sent GOAWAY.
    pub(super) fn is_going(&self) -> bool {
        self.goaway.is_some()
    }

    pub(super) fn on_max_push_id(&mut self, side: Side, id: VarInt) -> Result<(), ConnectionError> {
        if side == Side::Client {
            // RFC 9114 §7.2.7: "A client MUST treat the receipt of a MAX_PUSH_ID frame as a
            // connection error of type H3_FRAME_UNEXPECTED."
            let reason = "a server sent MAX_PUSH_ID".into();
            return Err(ConnectionError { code: Code::H3_FRAME_UNEXPECTED, reason });
        }
        // RFC 9114 §7.2.7: "receipt of a MAX_PUSH_ID frame that contains a smaller value than
        // previously received MUST be treated as a connection error of type H3_ID_ERROR."
        if let Some(before) = self.max_push_id.filter(|before| id < *before) {
            return Err(id_error(format!("MAX_PUSH_ID has {id}, but an earlier one had {before}")));
        }
        self.max_push_id = Some(id);
        Ok(())
    }
}

/// Returns the error for a cancelled push. There are no pushes: a client of Tandem allows none, and
/// a server promises none.
pub(super) fn cancel_push(id: VarInt) -> ConnectionError {
    // RFC 9114 §7.2.3: "If a CANCEL_PUSH frame is received that references a push ID greater than
    // currently allowed on the connection, this MUST be treated as a connection error of type
    // H3_ID_ERROR", and so for one "that has not yet been mentioned by a PUSH_PROMISE frame".
    id_error(format!("CANCEL_PUSH has {id}, but there are no pushes"))
}

fn id_error(reason: impl Into<StrangerText>) -> ConnectionError {
    ConnectionError { code: Code::H3_ID_ERROR, reason: reason.into() }
}

//! The identifiers in frames on the peer's control stream: of requests, and of pushes, of which
//! there are none.

use tandem_wire::{Code, VarInt};

use super::{ConnectionError, Side};
use crate::quic::StreamId;

/// What the peer has said so far.
#[derive(Debug, Default)]
pub(super) struct PeerIds {
    goaway: Option<VarInt>,
    max_push_id: Option<VarInt>,
}

impl PeerIds {
    pub(super) fn on_goaway(&mut self, side: Side, id: VarInt) -> Result<(), ConnectionError> {
        let stream = StreamId(id.get());
        if side == Side::Client && !(stream.is_client_initiated() && stream.is_bidirectional()) {
            // RFC 9114 §7.2.6: "A client MUST treat receipt of a GOAWAY frame containing a stream ID
            // of any other type as a connection error of type H3_ID_ERROR."
            return Err(id_error(format!("GOAWAY with {stream}, which is no request stream")));
        }
        // RFC 9114 §5.2: "Receiving a GOAWAY containing a larger identifier than previously received
        // MUST be treated as a connection error of type H3_ID_ERROR."
        if let Some(before) = self.goaway.filter(|before| id > *before) {
            return Err(id_error(format!("GOAWAY with {id}, but {before} was said before")));
        }
        self.goaway = Some(id);
        Ok(())
    }

    /// Whether the peer said that it is about to end the connection.
    pub(super) fn is_going(&self) -> bool {
        self.goaway.is_some()
    }

    pub(super) fn on_max_push_id(&mut self, side: Side, id: VarInt) -> Result<(), ConnectionError> {
        if side == Side::Client {
            // RFC 9114 §7.2.7: "A client MUST treat the receipt of a MAX_PUSH_ID frame as a
            // connection error of type H3_FRAME_UNEXPECTED."
            let reason = "MAX_PUSH_ID from a server".to_owned();
            return Err(ConnectionError { code: Code::H3_FRAME_UNEXPECTED, reason });
        }
        // RFC 9114 §7.2.7: "receipt of a MAX_PUSH_ID frame that contains a smaller value than
        // previously received MUST be treated as a connection error of type H3_ID_ERROR."
        if let Some(before) = self.max_push_id.filter(|before| id < *before) {
            return Err(id_error(format!("MAX_PUSH_ID {id}, but {before} was said before")));
        }
        self.max_push_id = Some(id);
        Ok(())
    }
}

/// A push is cancelled, of which there are none: as a client we allow none, as a server we promise
/// none.
pub(super) fn cancel_push(id: VarInt) -> ConnectionError {
    // RFC 9114 §7.2.3: "If a CANCEL_PUSH frame is received that references a push ID greater than
    // currently allowed on the connection, this MUST be treated as a connection error of type
    // H3_ID_ERROR", and so for one "that has not yet been mentioned by a PUSH_PROMISE frame".
    id_error(format!("CANCEL_PUSH of {id}, but there are no pushes"))
}

fn id_error(reason: String) -> ConnectionError {
    ConnectionError { code: Code::H3_ID_ERROR, reason }
}

//! What arrives on unidirectional streams: the control stream's frames, and parts of request streams.

use tandem_wire::{Code, Frame};

use super::{
    ConnectionError, Event, Session, Side, control_stream::PeerStreamItem, peer_ids::cancel_push,
};
use crate::quic::{Connection, StreamId};

impl Session {
    pub(super) fn read_unidirectional(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<(), ConnectionError> {
        if let Some(request) = self.incoming.request_of(stream) {
            self.on_continued(stream, request);
            return Ok(());
        }
        while let Some(item) = self.control.read(connection, stream)? {
            let frame = match item {
                PeerStreamItem::Frame(frame) => frame,
                PeerStreamItem::Continues(request) => {
                    self.on_continuation(connection, stream, request);
                    return Ok(());
                }
            };
            match frame {
                Frame::Settings(settings) => {
                    self.events.push_back(Event::Settings);
                    self.peer_settings = Some(settings);
                }
                Frame::GoAway(id) => {
                    self.peer_ids.on_goaway(self.side, id)?;
                    self.events.push_back(Event::GoAway);
                    if self.side == Side::Client {
                        self.fail_from(connection, StreamId(id.get()));
                    }
                }
                Frame::MaxPushId(id) => self.peer_ids.on_max_push_id(self.side, id)?,
                Frame::CancelPush(id) => return Err(cancel_push(id)),
                // The decoder refuses frames that belong on other streams.
                Frame::Unknown { .. }
                | Frame::Data(_)
                | Frame::Headers(_)
                | Frame::Continued(_) => {}
            }
        }
        Ok(())
    }

    /// Handles a new stream that continues a request stream.
    fn on_continuation(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        request: StreamId,
    ) {
        let may_come = self.side == Side::Server && self.may_come(request);
        if !may_come && !self.requests.contains_key(&request) {
            connection.stop(stream, Code::H3_REQUEST_CANCELLED);
            return;
        }
        self.incoming.insert(stream, request);
        self.on_continued(stream, request);
    }

    /// Tells the reader of a request that its next bytes may have arrived.
    fn on_continued(&mut self, stream: StreamId, request: StreamId) {
        if let Some(reader) = self.requests.get_mut(&request)
            && reader.reads(stream)
            && reader.wants_body_event()
        {
            self.events.push_back(Event::Body(request));
        }
    }
}

//! The events of connections, as the node sees them.

use noq_proto::StreamEvent;
use tandem_wire::Code;

use super::{Closed, ConnectionId, Endpoint, Event};
use crate::quic::StreamId;

impl Endpoint {
    /// Takes the events of a connection.
    pub(super) fn collect_events(&mut self, id: ConnectionId) {
        let Some(slot) = self.slots.get_mut(&id) else { return }; // it has ended
        if !slot.is_ready {
            return;
        }
        #[cfg(test)]
        {
            self.visits += 1;
        }
        let connection = &mut slot.connection;
        connection.on_collected();
        while let Some(event) = connection.inner().poll() {
            match event {
                noq_proto::Event::Connected => {
                    if let Some(acceptance) = &mut self.server {
                        acceptance.on_connected(id, &mut slot.peer);
                    }
                    self.events.push_back((id, Event::Connected));
                }
                noq_proto::Event::ConnectionLost { reason } => {
                    connection.log_loss(&reason);
                    self.events.push_back((id, Event::Lost(Closed::from(reason))));
                }
                noq_proto::Event::DatagramReceived => {
                    self.events.push_back((id, Event::Datagrams));
                }
                noq_proto::Event::Stream(StreamEvent::Opened { dir }) => {
                    connection.accept(dir, |stream| {
                        self.events.push_back((id, Event::Opened(stream)));
                    });
                }
                noq_proto::Event::Stream(StreamEvent::Readable { id: stream }) => {
                    let stream = StreamId(stream.into());
                    connection.on_readable(stream);
                    self.events.push_back((id, Event::Readable(stream)));
                }
                noq_proto::Event::Stream(StreamEvent::Writable { id: stream }) => {
                    self.events.push_back((id, Event::Writable(StreamId(stream.into()))));
                }
                noq_proto::Event::Stream(StreamEvent::Stopped { id: stream, error_code }) => {
                    let code = Code(error_code.into_inner());
                    self.events.push_back((id, Event::Stopped(StreamId(stream.into()), code)));
                }
                noq_proto::Event::Stream(StreamEvent::Available { .. }) => {
                    self.events.push_back((id, Event::MoreStreams));
                }
                noq_proto::Event::HandshakeConfirmed => connection.is_confirmed = true,
                noq_proto::Event::Stream(StreamEvent::Finished { .. })
                | noq_proto::Event::HandshakeDataReady
                | noq_proto::Event::DatagramsUnblocked
                | noq_proto::Event::Path(_)
                | noq_proto::Event::NatTraversal(_) => {}
            }
        }
    }
}

//! What comes through the hops: to the peer inside, or to a local program.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use tandem_wire::{CONTEXT_ID_UDP, Code, ErrorScope, HttpDatagram, MAX_UDP_PAYLOAD};

use super::{
    Client, TaskState,
    flow::{Arrived, Carries, FlowEnd, OnStream},
    hop::Hop,
    peer::INSIDE_TUNNEL,
    reports::Received,
};
use crate::{h3, node::Output, quic::StreamId};

/// What a look at the hops' datagrams gave.
pub(super) enum Took {
    Nothing,
    Progress,
    Output(Output),
}

impl Client {
    /// Passes what came through each hop to the peer inside it, or to a local program.
    pub(super) fn receive(&mut self, now: Instant, buf: &mut Vec<u8>) -> Took {
        let mut took = Took::Nothing;
        for index in 0..self.hops.len() {
            while let Some(arrived) = self.hops.get_mut(index).and_then(Hop::receive) {
                took = Took::Progress;
                if let Err(error) = &arrived {
                    self.stats.dropped.malformed += 1;
                    if error.scope() == ErrorScope::Connection {
                        self.protocol_error(now, index, &error.clone().into());
                    }
                } else if let Ok(arrived) = arrived
                    && let Some(output) = self.deliver(now, index, arrived, buf)
                {
                    return Took::Output(output);
                }
            }
            while let Some(read) = self.hops.get_mut(index).and_then(Hop::read_streams) {
                took = Took::Progress;
                match read {
                    OnStream::Broken(error) => self.protocol_error(now, index, &error),
                    OnStream::Malformed => self.stats.dropped.malformed += 1,
                    OnStream::Ended(stream, end) => self.on_flow_closed(now, index, stream, &end),
                    OnStream::Payload(arrived) => {
                        if let Some(output) = self.deliver(now, index, arrived, buf) {
                            return Took::Output(output);
                        }
                    }
                }
            }
        }
        if self.take_stray_datagram(now) { Took::Progress } else { took }
    }

    /// A datagram that the origin sends, though nothing that we ask of it has any.
    fn take_stray_datagram(&mut self, now: Instant) -> bool {
        let TaskState::Fetch(fetch) = &mut self.task else { return false };
        let Some(data) =
            fetch.peer.parts().and_then(|(_, connection)| connection.receive_datagram())
        else {
            return false;
        };
        let error = match HttpDatagram::decode(data) {
            Err(error) if error.scope() == ErrorScope::Connection => error.into(),
            // RFC 9297 §2: a datagram "associated with a request that has no known semantics for
            // HTTP Datagrams" ends that request; here it ends the download.
            Ok(datagram) if fetch.is_asking(datagram.quarter_stream_id.stream_id()) => {
                h3::ConnectionError {
                    code: Code::H3_DATAGRAM_ERROR,
                    reason: "a datagram for a download".to_owned(),
                }
            }
            Ok(_) | Err(_) => {
                self.stats.dropped.unknown_flow += 1;
                return true;
            }
        };
        self.protocol_error(now, self.hops.len(), &error);
        true
    }

    fn deliver(
        &mut self,
        now: Instant,
        index: usize,
        arrived: Arrived,
        buf: &mut Vec<u8>,
    ) -> Option<Output> {
        // RFC 9298 §5: "the receiver SHALL either drop that datagram silently or buffer it
        // temporarily".
        if arrived.context_id == CONTEXT_ID_UDP {
            return self.deliver_payload(now, (index, arrived.stream), arrived.payload, buf);
        }
        let arrived = self.hops.get_mut(index)?.keep_early(arrived)?;
        self.take_agreed(now, index, arrived);
        None
    }

    /// Takes what came under a Context ID that was agreed on.
    fn take_agreed(&mut self, now: Instant, index: usize, arrived: Arrived) {
        let Some(hop) = self.hops.get_mut(index) else { return };
        let stream = arrived.stream;
        if let Some(report) = hop.take_report(&arrived) {
            return self.on_report(index, stream, &report);
        }
        match hop.take_numbered(now, arrived) {
            None => self.stats.dropped.unknown_context += 1,
            Some(Err(_)) => self.stats.dropped.malformed += 1,
            Some(Ok(())) => {}
        }
    }

    /// Takes what came before its flow was granted, which it is now.
    pub(super) fn take_early(&mut self, now: Instant, index: usize, stream: StreamId) {
        let early = self.hops.get_mut(index).map(|hop| hop.take_early(stream));
        for arrived in early.unwrap_or_default() {
            self.take_agreed(now, index, arrived);
        }
    }

    /// A proxy told of a flow. What the last one tells of the way to the origin goes there, or to whom it
    /// may concern.
    fn on_report(&mut self, index: usize, stream: StreamId, report: &Received) {
        let feedback = &mut self.stats.feedback;
        let info = match report {
            Received::New(info) => *info,
            Received::Stale => {
                feedback.stale += 1;
                return;
            }
            Received::Malformed(error) => {
                tracing::debug!(%error, "report ignored");
                feedback.malformed += 1;
                return;
            }
        };
        feedback.used += 1;
        if index + 1 != self.hops.len() {
            return;
        }
        match (self.hops.last().and_then(|hop| hop.tells(stream)), &mut self.task) {
            (Some(Carries::NextPeer), TaskState::Fetch(fetch)) => {
                fetch.relay(info);
            }
            (Some(Carries::Local(id)), TaskState::Forward(_)) => self.tell_local(id, info),
            _ => {}
        }
    }

    /// Passes on the next payload that waited for those before it.
    pub(super) fn release(&mut self, now: Instant, buf: &mut Vec<u8>) -> Took {
        for index in 0..self.hops.len() {
            if let Some((stream, payload)) =
                self.hops.get_mut(index).and_then(|hop| hop.release(now))
            {
                let output = self.deliver_payload(now, (index, stream), payload, buf);
                return output.map_or(Took::Progress, Took::Output);
            }
        }
        Took::Nothing
    }

    fn deliver_payload(
        &mut self,
        now: Instant,
        (index, stream): (usize, StreamId),
        payload: Bytes,
        buf: &mut Vec<u8>,
    ) -> Option<Output> {
        if payload.len() > MAX_UDP_PAYLOAD {
            // RFC 9298 §5: an endpoint that receives a longer one "MUST abort the corresponding
            // stream".
            let end = FlowEnd::new(Code::H3_DATAGRAM_ERROR, "a payload is longer than UDP allows");
            self.on_flow_closed(now, index, stream, &end);
            return None;
        }
        let flow = self.hops.get(index).and_then(|hop| hop.flows.get(&stream));
        match flow.map(|flow| flow.carries) {
            None => {
                self.stats.dropped.unknown_flow += 1;
                None
            }
            Some(Carries::NextPeer) => {
                let payload = into_mut(payload);
                if let Some(peer) = self.peer(index + 1) {
                    peer.handle_datagram(now, (INSIDE_TUNNEL, None), None, payload);
                }
                None
            }
            Some(Carries::Local(id)) => Some(self.to_local(now, id, &payload, buf)),
        }
    }
}

/// The engine wants packets that it can decrypt in place.
fn into_mut(payload: Bytes) -> BytesMut {
    payload.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&*shared))
}

//! What comes through a hop: datagrams, and what is on its request streams.

use std::time::Instant;

use bytes::Bytes;
use tandem_wire::{Capsule, Code, DecodeError, HttpDatagram, split_context_id};

use super::{
    super::{
        flow::{Arrived, Carries, FlowEnd, OnStream},
        reports::Received,
    },
    Hop,
};
use crate::{h3::Body, quic::StreamId};

impl Hop {
    /// Takes what came under another Context ID than that of plain payloads. `None`: it was not
    /// agreed on.
    pub(in crate::client) fn take_numbered(
        &mut self,
        now: Instant,
        Arrived { stream, context_id, payload }: Arrived,
    ) -> Option<Result<(), DecodeError>> {
        if !self.exit.takes(stream, context_id) {
            return None;
        }
        let (_, connection) = self.peer.parts()?;
        Some(self.exit.push(now, stream, payload, connection.smoothed_rtt()))
    }

    /// Keeps what came before the grant of its flow. Gives back what cannot be kept.
    pub(in crate::client) fn keep_early(&mut self, arrived: Arrived) -> Option<Arrived> {
        let flow = self.flows.get_mut(&arrived.stream);
        match flow.filter(|flow| !flow.is_granted && flow.early.len() < self.early_max) {
            Some(flow) => flow.early.push(arrived),
            None => return Some(arrived),
        }
        None
    }

    /// What was kept of a flow.
    pub(in crate::client) fn take_early(&mut self, stream: StreamId) -> Vec<Arrived> {
        self.flows.get_mut(&stream).map(|flow| std::mem::take(&mut flow.early)).unwrap_or_default()
    }

    /// Takes what may be a report on a flow. `None`: it is none.
    pub(in crate::client) fn take_report(&mut self, arrived: &Arrived) -> Option<Received> {
        self.reports.take(arrived)
    }

    /// Whom a flow carries, if it is to be told what the proxy reports.
    pub(in crate::client) fn tells(&self, stream: StreamId) -> Option<Carries> {
        self.flows.get(&stream).filter(|_| self.wants_feedback).map(|flow| flow.carries)
    }

    /// The next numbered payload whose turn it is.
    pub(in crate::client) fn release(&mut self, now: Instant) -> Option<(StreamId, Bytes)> {
        self.exit.poll_release(now)
    }

    /// A request stream may have something to read.
    pub(in crate::client) fn on_readable(&mut self, stream: StreamId) {
        self.readable.insert(stream);
    }

    /// The next payload that came.
    pub(in crate::client) fn receive(&mut self) -> Option<Result<Arrived, DecodeError>> {
        let (_, connection) = self.peer.parts()?;
        let data = connection.receive_datagram()?;
        Some(match HttpDatagram::decode(data) {
            Ok(HttpDatagram { quarter_stream_id, context_id, payload }) => {
                let stream = StreamId(quarter_stream_id.stream_id());
                Ok(Arrived { stream, context_id, payload })
            }
            Err(error) => Err(error),
        })
    }

    /// What came next on any flow's request stream.
    pub(in crate::client) fn read_streams(&mut self) -> Option<OnStream> {
        while let Some(&stream) = self.readable.first() {
            let read = self.read_stream(stream);
            if !matches!(read, Some(OnStream::Payload(_) | OnStream::Malformed)) {
                self.readable.remove(&stream);
            }
            if read.is_some() {
                return read;
            }
        }
        None
    }

    fn read_stream(&mut self, stream: StreamId) -> Option<OnStream> {
        loop {
            let flow = self.flows.get_mut(&stream)?;
            match flow.capsules.next() {
                Ok(Some(Capsule::Datagram(value))) => {
                    return Some(match split_context_id(value) {
                        Ok((context_id, payload)) => {
                            OnStream::Payload(Arrived { stream, context_id, payload })
                        }
                        Err(_) => OnStream::Malformed,
                    });
                }
                Ok(Some(Capsule::RetransmissionLimit(limit))) => {
                    self.on_limit(stream, limit);
                    continue;
                }
                Ok(Some(Capsule::Unknown { .. })) => continue,
                Ok(None) => {}
                Err(error) => return Some(OnStream::Ended(stream, FlowEnd::malformed(&error))),
            }
            let (session, connection) = self.peer.parts()?;
            match session.read_body(connection, stream) {
                Ok(Body::Data(data)) => flow.capsules.push(data),
                Ok(Body::Blocked) => return None,
                Ok(Body::End) => {
                    let end = match flow.capsules.finish() {
                        Ok(()) => FlowEnd::new(Code::H3_NO_ERROR, "the proxy ended it"),
                        Err(error) => FlowEnd::malformed(&error),
                    };
                    return Some(OnStream::Ended(stream, end));
                }
                Ok(Body::Failed(code)) => {
                    let end = FlowEnd::new(Code::H3_REQUEST_CANCELLED, code.to_string());
                    return Some(OnStream::Ended(stream, end));
                }
                Err(error) => return Some(OnStream::Broken(error)),
            }
        }
    }
}
